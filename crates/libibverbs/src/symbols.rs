//! Every symbol of `libibverbs.so.1` (rdma-core 44) with its version node.
//!
//! `libmlx5`, `libefa` and `librdmacm` are linked with immediate binding, so the loader resolves
//! all their symbols, including private symbols. A program that loads libibverbs at run time looks
//! symbols up by name, or by name and version.

/// A version node, which is a named set of symbols. A symbol name occurs at most once in a node.
#[derive(Debug)]
pub struct VersionNode {
    /// The private node, for providers, has a new name in each release that changes the providers'
    /// ABI.
    pub name: &'static str,
    /// The name of the node that this node extends, if any.
    pub parent: Option<&'static str>,
    /// The functions whose default version is in this node (`name@@node`), for new programs.
    pub functions: &'static [&'static str],
    /// The variables whose default version is in this node.
    pub objects: &'static [&'static str],
    /// The functions whose version in this node is not the default (`name@node`), for programs that
    /// were linked with an older release.
    pub superseded: &'static [&'static str],
}

const fn extension(
    parent: &'static str,
    name: &'static str,
    functions: &'static [&'static str],
) -> VersionNode {
    VersionNode { name, parent: Some(parent), functions, objects: &[], superseded: &[] }
}

/// All version nodes. Each node comes after the node that it extends.
#[rustfmt::skip]
pub const NODES: &[VersionNode] = &[
    VersionNode {
        name: "IBVERBS_1.0",
        parent: None,
        functions: &[
            "ibv_copy_path_rec_from_kern", "ibv_copy_path_rec_to_kern", "ibv_copy_qp_attr_from_kern",
            "ibv_create_comp_channel", "ibv_destroy_comp_channel", "ibv_get_sysfs_path", "ibv_rate_to_mult",
            "ibv_read_sysfs_file", "mult_to_ibv_rate",
        ],
        objects: &[],
        superseded: &[
            "ibv_ack_async_event", "ibv_ack_cq_events", "ibv_alloc_pd", "ibv_attach_mcast",
            "ibv_close_device", "ibv_create_ah", "ibv_create_cq", "ibv_create_qp", "ibv_create_srq",
            "ibv_dealloc_pd", "ibv_dereg_mr", "ibv_destroy_ah", "ibv_destroy_cq", "ibv_destroy_qp",
            "ibv_destroy_srq", "ibv_detach_mcast", "ibv_free_device_list", "ibv_get_async_event",
            "ibv_get_cq_event", "ibv_get_device_guid", "ibv_get_device_list", "ibv_get_device_name",
            "ibv_modify_qp", "ibv_modify_srq", "ibv_open_device", "ibv_query_device", "ibv_query_gid",
            "ibv_query_pkey", "ibv_query_port", "ibv_query_qp", "ibv_query_srq", "ibv_reg_mr",
            "ibv_resize_cq",
        ],
    },
    VersionNode {
        name: "IBVERBS_1.1",
        parent: Some("IBVERBS_1.0"),
        functions: &[
            "ibv_ack_async_event", "ibv_ack_cq_events", "ibv_alloc_pd", "ibv_attach_mcast",
            "ibv_close_device", "ibv_copy_ah_attr_from_kern", "ibv_create_ah", "ibv_create_ah_from_wc",
            "ibv_create_cq", "ibv_create_qp", "ibv_create_srq", "ibv_dealloc_pd", "ibv_dereg_mr",
            "ibv_destroy_ah", "ibv_destroy_cq", "ibv_destroy_qp", "ibv_destroy_srq", "ibv_detach_mcast",
            "ibv_dofork_range", "ibv_dontfork_range", "ibv_event_type_str", "ibv_fork_init",
            "ibv_free_device_list", "ibv_get_async_event", "ibv_get_cq_event", "ibv_get_device_guid",
            "ibv_get_device_list", "ibv_get_device_name", "ibv_init_ah_from_wc", "ibv_modify_qp",
            "ibv_modify_srq", "ibv_node_type_str", "ibv_open_device", "ibv_port_state_str",
            "ibv_query_device", "ibv_query_gid", "ibv_query_pkey", "ibv_query_port", "ibv_query_qp",
            "ibv_query_srq", "ibv_rate_to_mbps", "ibv_reg_mr", "ibv_rereg_mr", "ibv_resize_cq",
            "ibv_resolve_eth_l2_from_gid", "ibv_wc_status_str", "mbps_to_ibv_rate",
        ],
        objects: &[],
        superseded: &["ibv_register_driver"],
    },
    extension("IBVERBS_1.1", "IBVERBS_1.5", &["ibv_get_pkey_index"]),
    extension("IBVERBS_1.5", "IBVERBS_1.6", &["ibv_qp_to_qp_ex"]),
    extension("IBVERBS_1.6", "IBVERBS_1.7", &["ibv_reg_mr_iova"]),
    extension("IBVERBS_1.7", "IBVERBS_1.8", &["ibv_reg_mr_iova2"]),
    extension("IBVERBS_1.8", "IBVERBS_1.9", &["ibv_get_device_index"]),
    extension("IBVERBS_1.9", "IBVERBS_1.10", &[
        "ibv_import_device", "ibv_import_mr", "ibv_import_pd", "ibv_query_ece", "ibv_set_ece",
        "ibv_unimport_mr", "ibv_unimport_pd",
    ]),
    extension("IBVERBS_1.10", "IBVERBS_1.11", &["_ibv_query_gid_ex", "_ibv_query_gid_table"]),
    extension("IBVERBS_1.11", "IBVERBS_1.12", &["ibv_reg_dmabuf_mr"]),
    extension("IBVERBS_1.12", "IBVERBS_1.13", &["ibv_import_dm", "ibv_is_fork_initialized", "ibv_unimport_dm"]),
    extension("IBVERBS_1.13", "IBVERBS_1.14", &["ibv_query_qp_data_in_order"]),
    VersionNode {
        name: "IBVERBS_PRIVATE_34",
        parent: None,
        functions: &[
            "__ioctl_final_num_attrs", "__verbs_log", "_verbs_init_and_alloc_context", "execute_ioctl",
            "ibv_cmd_advise_mr", "ibv_cmd_alloc_dm", "ibv_cmd_alloc_mw", "ibv_cmd_alloc_pd",
            "ibv_cmd_attach_mcast", "ibv_cmd_close_xrcd", "ibv_cmd_create_ah", "ibv_cmd_create_counters",
            "ibv_cmd_create_cq", "ibv_cmd_create_cq_ex", "ibv_cmd_create_flow",
            "ibv_cmd_create_flow_action_esp", "ibv_cmd_create_qp", "ibv_cmd_create_qp_ex",
            "ibv_cmd_create_qp_ex2", "ibv_cmd_create_rwq_ind_table", "ibv_cmd_create_srq",
            "ibv_cmd_create_srq_ex", "ibv_cmd_create_wq", "ibv_cmd_dealloc_mw", "ibv_cmd_dealloc_pd",
            "ibv_cmd_dereg_mr", "ibv_cmd_destroy_ah", "ibv_cmd_destroy_counters", "ibv_cmd_destroy_cq",
            "ibv_cmd_destroy_flow", "ibv_cmd_destroy_flow_action", "ibv_cmd_destroy_qp",
            "ibv_cmd_destroy_rwq_ind_table", "ibv_cmd_destroy_srq", "ibv_cmd_destroy_wq",
            "ibv_cmd_detach_mcast", "ibv_cmd_free_dm", "ibv_cmd_get_context", "ibv_cmd_modify_cq",
            "ibv_cmd_modify_flow_action_esp", "ibv_cmd_modify_qp", "ibv_cmd_modify_qp_ex",
            "ibv_cmd_modify_srq", "ibv_cmd_modify_wq", "ibv_cmd_open_qp", "ibv_cmd_open_xrcd",
            "ibv_cmd_poll_cq", "ibv_cmd_post_recv", "ibv_cmd_post_send", "ibv_cmd_post_srq_recv",
            "ibv_cmd_query_context", "ibv_cmd_query_device_any", "ibv_cmd_query_mr", "ibv_cmd_query_port",
            "ibv_cmd_query_qp", "ibv_cmd_query_srq", "ibv_cmd_read_counters", "ibv_cmd_reg_dm_mr",
            "ibv_cmd_reg_dmabuf_mr", "ibv_cmd_reg_mr", "ibv_cmd_req_notify_cq", "ibv_cmd_rereg_mr",
            "ibv_cmd_resize_cq", "ibv_query_gid_type", "ibv_read_ibdev_sysfs_file", "verbs_init_cq",
            "verbs_open_device", "verbs_register_driver_34", "verbs_set_ops", "verbs_uninit_context",
        ],
        objects: &["verbs_allow_disassociate_destroy"],
        superseded: &[],
    },
];

/// A versioned symbol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Symbol {
    /// Without the version.
    pub name: &'static str,
    /// The name of the [`VersionNode`].
    pub node: &'static str,
    /// Whether the linker binds new programs to this version of the name.
    pub is_default: bool,
    /// Whether the symbol is a variable, not a function.
    pub is_object: bool,
}

/// Returns every versioned symbol.
pub fn symbols() -> impl Iterator<Item = Symbol> {
    NODES.iter().flat_map(|node| {
        let of = |names: &'static [&'static str], is_default, is_object| {
            names.iter().map(move |name| Symbol { name, node: node.name, is_default, is_object })
        };
        let superseded = of(node.superseded, false, false);
        of(node.functions, true, false).chain(of(node.objects, true, true)).chain(superseded)
    })
}
