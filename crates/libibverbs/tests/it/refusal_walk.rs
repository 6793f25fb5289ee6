//! Every entry point of the preload library explains the refusal of a call once, and writes nothing
//! about other calls.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::LazyLock;

use mitra_libibverbs::refused_entry_points::{REFUSED_SLOTS, refused_functions};

static WALK: LazyLock<PathBuf> =
    LazyLock::new(|| crate::c_program::build_with("refusal_walk", &["-lrdmacm"]));

/// The exported functions that refuse no call, because they have a result for every argument, or no
/// result.
const REFUSE_NOTHING: &[&str] = &[
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_event_type_str",
    "ibv_fork_init",
    "ibv_free_device_list",
    "ibv_get_device_guid",
    "ibv_get_device_index",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_get_sysfs_path",
    "ibv_is_fork_initialized",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_qp_to_qp_ex",
    "ibv_query_device",
    "ibv_query_ece",
    "ibv_query_qp_data_in_order",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    // Reports whether an optional file exists.
    "ibv_read_sysfs_file",
    "ibv_resolve_eth_l2_from_gid",
    "ibv_unimport_dm",
    "ibv_unimport_mr",
    "ibv_unimport_pd",
    "ibv_wc_status_str",
    "mbps_to_ibv_rate",
    "mult_to_ibv_rate",
    "rdma_create_event_channel",
    "rdma_destroy_ep",
    "rdma_destroy_event_channel",
    "rdma_destroy_qp",
    "rdma_destroy_srq",
    // The call succeeds without a connection.
    "rdma_disconnect",
    "rdma_event_str",
    "rdma_free_devices",
    "rdma_freeaddrinfo",
    "rdma_get_devices",
    "rdma_get_dst_port",
    "rdma_get_src_port",
    // Functions of rdma-core's providers that return nothing, or a count.
    "__ioctl_final_num_attrs",
    "__verbs_log",
    "ibv_cmd_poll_cq",
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "verbs_init_cq",
    "verbs_register_driver_34",
    "verbs_set_ops",
    "verbs_uninit_context",
    // Refused without a device, which `device_that_cannot_be_opened_is_explained_once` tests.
    "ibv_open_device",
];

/// The functions of the C library that the library overrides, with the results of the C library.
const OVERRIDES: &[&str] = &[
    "__fxstatat",
    "__fxstatat64",
    "__getcwd_chk",
    "__lxstat",
    "__lxstat64",
    "__open64_2",
    "__open_2",
    "__openat64_2",
    "__openat_2",
    "__readlink_chk",
    "__readlinkat_chk",
    "__realpath_chk",
    "__xstat",
    "__xstat64",
    "access",
    "bind",
    "canonicalize_file_name",
    "chdir",
    "creat",
    "creat64",
    "dlmopen",
    "dlopen",
    "dlvsym",
    "eaccess",
    "euidaccess",
    "faccessat",
    "fopen",
    "fopen64",
    "freopen",
    "freopen64",
    "fstatat",
    "fstatat64",
    "fts64_open",
    "fts_open",
    "ftw",
    "ftw64",
    "get_current_dir_name",
    "getcwd",
    "getsockname",
    "getxattr",
    "glob",
    "glob64",
    "inotify_add_watch",
    "lgetxattr",
    "listxattr",
    "llistxattr",
    "lstat",
    "lstat64",
    "nftw",
    "nftw64",
    "open",
    "open64",
    "openat",
    "openat64",
    "opendir",
    "pathconf",
    "pthread_sigmask",
    "readlink",
    "readlinkat",
    "realpath",
    "scandir",
    "scandir64",
    "scandirat",
    "scandirat64",
    "sigaction",
    "signal",
    "sigprocmask",
    "socket",
    "stat",
    "stat64",
    "statfs",
    "statfs64",
    "statvfs",
    "statvfs64",
    "statx",
];

fn run(arguments: &[String], variables: &[(&str, &str)]) -> (String, String) {
    let output = crate::c_program::run(&WALK, "1", arguments, variables);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let written = text(&output.stderr);
    assert!(output.status.success(), "{arguments:?} {variables:?}: {}\n{written}", output.status);
    (text(&output.stdout), written)
}

#[test]
fn every_entry_point_that_refuses_has_a_row() {
    let offsets: Vec<String> = REFUSED_SLOTS.iter().map(|slot| slot.offset.to_string()).collect();
    let (printed, _) = run(&[vec!["names".to_owned()], offsets].concat(), &[]);
    let mut known: BTreeSet<&str> = printed.lines().collect();
    let missing: Vec<_> = known.iter().filter(|line| line.starts_with("no row")).collect();
    assert!(missing.is_empty(), "tables of operations: {missing:#?}");
    for name in refused_functions().chain(REFUSE_NOTHING.iter().copied()).chain(OVERRIDES.iter().copied()) {
        known.insert(name);
    }
    let library = crate::c_program::preload().to_str().expect("the path is UTF-8");
    let exported = crate::rdma_core::definitions(library);
    assert!(exported.len() > 200, "{exported:?}");
    for (symbol, kind) in exported {
        let name = symbol.split('@').next().unwrap_or_default();
        assert!(kind != "FUNC" || known.contains(name), "{name} has no row in tests/c/refusal_walk.c");
    }
}

#[test]
fn every_refusal_is_explained_once() {
    for rails in ["1", "2", "3"] {
        let (_, written) = run(&[], &[("MITRA_RAILS", rails)]);
        let rows: Vec<&str> = written.split("== ").skip(1).collect();
        assert!(rows.len() > 100, "{written}");
        for row in rows {
            let (heading, rest) = row.split_once('\n').expect("a heading is a line");
            let call = heading.split(' ').nth(1).expect("a heading names the call");
            let lines: Vec<&str> = rest.lines().collect();
            let [line] = lines[..] else { panic!("on {rails} rails, {heading}: {lines:#?}") };
            let prefix = format!("mitra: {call} is refused: ");
            let reason = line.strip_prefix(&prefix).unwrap_or_else(|| panic!("{heading}: {line}"));
            assert!(reason.contains([';', ',', ':']), "{line}: a rule and a way out");
        }
    }
}

#[test]
fn refusals_are_silent_with_quiet_and_successes_always() {
    for rails in ["1", "2", "3"] {
        let (_, written) = run(&[], &[("MITRA_RAILS", rails), ("MITRA_QUIET", "1")]);
        let lines: Vec<_> = written.lines().filter(|line| !line.starts_with("== ")).collect();
        assert!(lines.is_empty(), "on {rails} rails with --quiet: {lines:#?}");
        let (_, written) = run(&["success".to_owned()], &[("MITRA_RAILS", rails)]);
        assert_eq!(written, "", "on {rails} rails");
    }
}

#[test]
fn device_that_cannot_be_opened_is_explained_once() {
    for quiet in ["0", "1"] {
        let output = crate::c_program::run(&WALK, "none", &["open"], &[("MITRA_QUIET", quiet)]);
        let written = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = written.lines().collect();
        let [line] = lines[..] else { panic!("{lines:#?}") };
        assert!(
            line.starts_with("mitra: the device cannot be opened: ") && line.contains("example: 2"),
            "{line}"
        );
    }
}
