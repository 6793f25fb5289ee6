//! Types of features that Mitra does not offer. The slots of these features in
//! [`verbs_context`](super::verbs_context) are empty. The inline functions of the C header return
//! EOPNOTSUPP for an empty slot.

mirror! {
    types {}
    constants {}
    opaque {
        /// A work queue outside a queue pair.
        ibv_wq,
        /// The argument of `ibv_create_wq`.
        ibv_wq_init_attr,
        /// The argument of `ibv_modify_wq`.
        ibv_wq_attr,
        /// An indirection table of receive-side scaling.
        ibv_rwq_ind_table,
        /// The argument of `ibv_create_rwq_ind_table`.
        ibv_rwq_ind_table_init_attr,
        /// A set of counters.
        ibv_counters,
        /// The argument of `ibv_create_counters`.
        ibv_counters_init_attr,
        /// The argument of `ibv_attach_counters_point_flow`.
        ibv_counter_attach_attr,
        /// A flow steering rule.
        ibv_flow,
        /// The argument of `ibv_create_flow`.
        ibv_flow_attr,
        /// A flow action.
        ibv_flow_action,
        /// The argument of `ibv_create_flow_action_esp`.
        ibv_flow_action_esp_attr,
    }
}
