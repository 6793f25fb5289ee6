//! Types of features that Mitra does not offer. The verbs in their slots of
//! [`verbs_context`](super::verbs_context) fail with EOPNOTSUPP.

mirror! {
    types {}
    constants {}
    opaque {
        ibv_wq,
        ibv_wq_init_attr,
        ibv_wq_attr,
        ibv_rwq_ind_table,
        ibv_rwq_ind_table_init_attr,
        ibv_counters,
        ibv_counters_init_attr,
        ibv_counter_attach_attr,
        ibv_flow,
        ibv_flow_attr,
        ibv_flow_action,
        ibv_flow_action_esp_attr,
    }
}
