//! What Mitra does not offer. Its slots in [`verbs_context`] stay empty, which programs read as EOPNOTSUPP.


mirror! {
    types {}
    constants {}
    opaque {
        /// A work queue of its own.
        ibv_wq,
        /// What `ibv_create_wq` asks for.
        ibv_wq_init_attr,
        /// What `ibv_modify_wq` changes.
        ibv_wq_attr,
        /// A table that spreads packets over work queues.
        ibv_rwq_ind_table,
        /// What `ibv_create_rwq_ind_table` asks for.
        ibv_rwq_ind_table_init_attr,
        /// An XRC domain.
        ibv_xrcd,
        /// What `ibv_open_xrcd` asks for.
        ibv_xrcd_init_attr,
        /// What `ibv_open_qp` asks for.
        ibv_qp_open_attr,
        /// Device memory.
        ibv_dm,
        /// What `ibv_alloc_dm` asks for.
        ibv_alloc_dm_attr,
        /// A set of counters.
        ibv_counters,
        /// What `ibv_create_counters` asks for.
        ibv_counters_init_attr,
        /// What `ibv_attach_counters_point_flow` asks for.
        ibv_counter_attach_attr,
        /// A flow steering rule.
        ibv_flow,
        /// What `ibv_create_flow` asks for.
        ibv_flow_attr,
        /// What is done to a flow.
        ibv_flow_action,
        /// An ESP action.
        ibv_flow_action_esp_attr,
    }
}
