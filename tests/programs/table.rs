//! The table of programs and options, with the expected result of each.

use std::collections::HashSet;

use super::{downloads_table, fio_table, rust_table};

/// Rows that run in the same way and form one section of the page.
pub(crate) struct Section {
    pub(crate) title: &'static str,
    /// The introduction of the section on the page.
    pub(crate) about: &'static str,
    /// Options of `mitra run`.
    pub(crate) under: &'static [&'static str],
    /// The fault script of the first process. The test then requires that its queue pairs move.
    pub(crate) fault: Option<&'static str>,
    pub(crate) shape: Shape,
    pub(crate) works: &'static [&'static str],
    pub(crate) fails: &'static [Failure],
}

/// How the processes of a row are started from its command line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Alone,
    /// A server and a client. `-p` gives the port, and the client's last argument is the server's
    /// address.
    Pair,
    /// qperf: `-lp` gives the port, tests follow the address, and a last test `quit` ends the
    /// server.
    Qperf,
    /// rping: `-s` or `-c` selects the role, `-a` gives the server's address.
    Rping,
    /// ucmatose: `-s` gives the server's address.
    Cm,
    /// rdma_xserver, and rdma_xclient with the same options: `-s` gives the server's address.
    XrcCm,
    /// udaddy: `-s` gives the server's address, and the port is fixed.
    Udaddy,
    /// perftest's server and client over multicast. `GROUP` stands for a group of each process, to
    /// which the other process sends.
    Groups,
    /// mckey, as two processes in the multicast group for which `GROUP` stands. The process with
    /// `-s` sends.
    Mckey,
    /// fi_pingpong: `-B` gives the server's port, `-P` the port to which the client connects.
    Fabric,
    /// fio's engine `rdma`: `--rw=read` is the server, and `--rw=write --hostname` the client.
    Fio,
    /// `mpirun` starts two processes of the MPI program that checks data.
    Mpi,
    /// One process, which starts others. Paths are below `cargo xtask compatibility`'s directory of
    /// downloads, or this repository.
    Downloaded,
}

/// A command that is expected to fail.
pub(crate) struct Failure {
    pub(crate) command: &'static str,
    /// A part of its output.
    pub(crate) says: &'static str,
    /// The reason, for the page.
    pub(crate) because: &'static str,
}

const LID: &str = "qperf addresses its peer by LID only, and a RoCE device has no LID; with `-cm 1` (RC tests), it uses an IP address";

static SECTIONS: &[Section] = &[
    Section {
        title: "ibverbs-utils",
        about: "`-c` compares the received bytes, `-e` sleeps until completion events, `-N` posts by `ibv_wr_*`.",
        under: &[],
        fault: None,
        shape: Shape::Pair,
        works: &[
            "ibv_rc_pingpong -g 0",
            "ibv_rc_pingpong -g 0 -c",
            "ibv_rc_pingpong -g 1 -c",
            "ibv_rc_pingpong -g 0 -e -c",
            "ibv_rc_pingpong -g 0 -N -c",
            "ibv_rc_pingpong -g 0 -N -e -c -s 65536 -m 4096",
            "ibv_uc_pingpong -g 0 -c",
            "ibv_uc_pingpong -g 0 -e -c",
            "ibv_ud_pingpong -g 0 -c",
            "ibv_ud_pingpong -g 1 -c",
            "ibv_ud_pingpong -g 0 -e -c",
            "ibv_srq_pingpong -g 0 -c",
            "ibv_srq_pingpong -g 0 -e -c",
            "ibv_rc_pingpong -g 0 -c -o",
            "ibv_rc_pingpong -g 0 -c -o -P",
            "ibv_rc_pingpong -g 0 -j",
            "ibv_rc_pingpong -g 0 -j -c",
            "ibv_xsrq_pingpong -g 0",
            "ibv_xsrq_pingpong -g 0 -e",
        ],
        fails: &[],
    },
    Section {
        title: "Devices",
        about: "",
        under: &[],
        fault: None,
        shape: Shape::Alone,
        works: &[
            "ibv_devices",
            "ibv_devinfo",
            "ibv_devinfo -v",
            "ibv_devinfo -l",
            "ucx_info -d",
            "fi_info -p verbs",
        ],
        fails: &[],
    },
    Section {
        title: "perftest, RC and XRC",
        about: "",
        under: &[],
        fault: None,
        shape: Shape::Pair,
        works: &[
            "ib_write_lat -F",
            "ib_write_lat -F -a -n 5",
            "ib_write_bw -F -n 500",
            "ib_write_bw -F -n 5 -a",
            "ib_write_bw -F -n 500 -b",
            "ib_write_bw -F -n 500 -q 4",
            "ib_write_bw -F -n 512 -l 8 -s 256",
            "ib_write_bw -F -n 500 -I 64 -s 64",
            "ib_write_bw -F -D 1",
            "ib_write_bw -F -n 500 --odp",
            "ib_read_lat -F",
            "ib_read_lat -F -e",
            "ib_read_bw -F -n 500",
            "ib_read_bw -F -n 5 -a",
            "ib_read_bw -F -n 500 -b",
            "ib_read_bw -F -n 500 -q 4",
            "ib_read_bw -F -n 500 -e",
            "ib_send_lat -F",
            "ib_send_lat -F -e",
            "ib_send_lat -F --use-srq",
            "ib_send_lat -F -I 64 -s 64",
            "ib_send_bw -F -n 500",
            "ib_send_bw -F -n 5 -a",
            "ib_send_bw -F -n 500 -b",
            "ib_send_bw -F -n 500 -e",
            "ib_send_bw -F -n 500 -q 4",
            "ib_send_bw -F -n 500 --use-srq",
            "ib_send_bw -F -n 500 --use-srq -q 4",
            "ib_send_bw -F -n 512 -l 8 --recv_post_list=8 -s 256",
            "ib_atomic_lat -F -A FETCH_AND_ADD",
            "ib_atomic_lat -F -A CMP_AND_SWAP",
            "ib_atomic_lat -F -A FETCH_AND_ADD -e",
            "ib_atomic_bw -F -n 500 -A FETCH_AND_ADD",
            "ib_atomic_bw -F -n 500 -A CMP_AND_SWAP",
            "ib_atomic_bw -F -n 500 -A FETCH_AND_ADD -b",
            "ib_atomic_bw -F -n 500 -A FETCH_AND_ADD -q 4",
            "ib_atomic_bw -F -n 500 -A CMP_AND_SWAP -e",
            "ib_send_bw -F -n 500 -c XRC",
            "ib_send_bw -F -n 500 -c XRC -q 3 -e",
            "ib_send_lat -F -c XRC",
            "ib_write_bw -F -n 500 -c XRC",
            "ib_read_bw -F -n 500 -c XRC",
            "ib_atomic_bw -F -n 500 -c XRC -A FETCH_AND_ADD",
            "ib_atomic_lat -F -c XRC -A CMP_AND_SWAP",
        ],
        fails: &[],
    },
    Section {
        title: "perftest, UC and UD",
        about: "UC and UD do not retransmit. A UC message that is longer than the receive buffer of the socket (`mitra devices` \
                prints its size) may be lost. `-a` waits for a message of 8 MiB, possibly forever.",
        under: &[],
        fault: None,
        shape: Shape::Pair,
        works: &[
            "ib_write_lat -F -c UC",
            "ib_write_lat -F -c UC -s 65536",
            "ib_write_bw -F -c UC -n 500",
            "ib_send_lat -F -c UC",
            "ib_send_lat -F -c UC -s 65536",
            "ib_send_lat -F -c UC -e",
            "ib_send_bw -F -c UC -n 500 -s 4096",
            "ib_send_lat -F -c UD",
            "ib_send_lat -F -c UD -a -n 5",
            "ib_send_lat -F -c UD -e",
            "ib_send_bw -F -c UD -n 500 -s 1024",
            "ib_send_bw -F -c UD -n 500 -s 1024 -q 4",
        ],
        fails: &[Failure {
            command: "ib_send_lat -F -c UD -g",
            says: "Couldn't attach QP to MultiCast group",
            because: "perftest's default groups are IPv6 groups, and the NIC has an IPv4 address; with `-M` it works (next section)",
        }],
    },
    Section {
        title: "perftest, multicast",
        about: "`GROUP` is an IPv4 group, a different one for each end: 239.1.2.3 is `0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3`.",
        under: &[],
        fault: None,
        shape: Shape::Groups,
        works: &[
            "ib_send_lat -F -c UD -g -M GROUP",
            "ib_send_lat -F -c UD -g -e -M GROUP",
            "ib_send_bw -F -c UD -g -n 500 -s 1024 -M GROUP",
        ],
        fails: &[],
    },
    Section {
        title: "qperf, without a connection manager",
        about: "",
        under: &[],
        fault: None,
        shape: Shape::Qperf,
        works: &[],
        fails: &[
            Failure { command: "qperf -t 1 rc_lat", says: "failed to modify QP to RTR", because: LID },
            Failure { command: "qperf -t 1 uc_lat", says: "failed to modify QP to RTR", because: LID },
            Failure { command: "qperf -t 1 ud_lat", says: "failed", because: LID },
        ],
    },
    Section {
        title: "UCX",
        about: "`rc_v` uses `rc_verbs` for data and `ud_verbs` to connect; `ud_v` uses `ud_verbs` only. `ucp_worker_fence` of later releases needs \
                `UCX_FENCE_MODE=ep_based`, as on every device without a flush key.",
        under: &[],
        fault: None,
        shape: Shape::Pair,
        works: &[
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t tag_lat",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 200 -w 10 -s 1000000 -t tag_bw",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t ucp_put_lat",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -s 65536 -t ucp_put_bw",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -s 65536 -t ucp_get",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t ucp_add",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t ucp_fadd",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t ucp_cswap",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t stream_lat",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t ucp_am_lat",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -E sleep -t tag_lat",
            "UCX_TLS=ud_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t tag_lat",
            "UCX_TLS=ud_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 200 -w 10 -s 1000000 -t tag_bw",
            "UCX_TLS=ud_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -s 65536 -t ucp_put_bw",
            "UCX_TLS=ud_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t ucp_fadd",
            "UCX_TLS=ud_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t ucp_cswap",
            "ucx_perftest -d mitra0:1 -x rc_verbs -n 1000 -w 10 -t put_lat",
            "ucx_perftest -d mitra0:1 -x rc_verbs -n 1000 -w 10 -D zcopy -s 65536 -t put_bw",
            "ucx_perftest -d mitra0:1 -x rc_verbs -n 1000 -w 10 -D zcopy -s 65536 -t get",
            "ucx_perftest -d mitra0:1 -x rc_verbs -n 1000 -w 10 -t fadd",
            "ucx_perftest -d mitra0:1 -x rc_verbs -n 1000 -w 10 -t cswap",
            "ucx_perftest -d mitra0:1 -x ud_verbs -n 1000 -w 10 -t am_lat",
        ],
        fails: &[Failure {
            command: "UCX_TLS=rc_verbs UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 1000 -w 10 -t tag_lat",
            says: "no auxiliary transport",
            because: "UCX connects RC queue pairs over UD, so it needs both transports on any NIC",
        }],
    },
    Section {
        title: "libfabric",
        about: "`-c` compares the received bytes.",
        under: &[],
        fault: None,
        shape: Shape::Fabric,
        works: &[
            "fi_pingpong -p verbs -e dgram -c",
            "fi_pingpong -p verbs;ofi_rxd -e rdm -c",
            "fi_pingpong -p verbs;ofi_rxd -e rdm -m tagged -c",
            "fi_pingpong -p verbs -e msg -c",
            "fi_pingpong -p verbs;ofi_rxm -e rdm -c",
            "fi_pingpong -p verbs;ofi_rxm -e rdm -m tagged -c",
        ],
        fails: &[],
    },
    Section {
        title: "OpenMPI",
        about: "`check` is [`tests/programs/mpi_check.c`](../tests/programs/mpi_check.c): it compares the results of allreduce, \
                broadcast, send and receive up to 1 MiB, and of put, get, fetch-and-add and compare-and-swap.",
        under: &[],
        fault: None,
        shape: Shape::Mpi,
        works: &[
            "UCX_TLS=rc_v UCX_ATOMIC_MODE=device UCX_NET_DEVICES=mitra0:1 mpirun --mca pml ucx --mca osc ucx --mca btl self check",
            "UCX_TLS=ud_v,self UCX_NET_DEVICES=mitra0:1 mpirun --mca pml ucx --mca osc ucx --mca btl self check",
            "mpirun --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxd --mca btl self --mca osc pt2pt check",
        ],
        fails: &[],
    },
    Section {
        title: "rdmacm-utils",
        about: "`-V` compares the received bytes.",
        under: &[],
        fault: None,
        shape: Shape::Rping,
        works: &["rping -C 50 -V", "rping -C 50 -V -S 60000"],
        fails: &[],
    },
    Section {
        title: "rdmacm-utils: connections",
        about: "",
        under: &[],
        fault: None,
        shape: Shape::Cm,
        works: &["ucmatose", "ucmatose -c 10 -C 100"],
        fails: &[Failure {
            command: "rstream -C 10",
            says: "rsocket failed: Operation not supported",
            because: "rsockets access private data that librdmacm keeps behind its identifiers, and Mitra's identifiers do not have it",
        }],
    },
    Section {
        title: "rdmacm-utils: XRC",
        about: "The client is `rdma_xclient`.",
        under: &[],
        fault: None,
        shape: Shape::XrcCm,
        works: &["rdma_xserver -c r", "rdma_xserver -c x"],
        fails: &[],
    },
    Section {
        title: "rdmacm-utils: XRC, two rails",
        about: "The client is `rdma_xclient`.",
        under: &["--rails", "2"],
        fault: None,
        shape: Shape::XrcCm,
        works: &["rdma_xserver -c r", "rdma_xserver -c x"],
        fails: &[],
    },
    Section {
        title: "rdmacm-utils: datagrams",
        about: "",
        under: &[],
        fault: None,
        shape: Shape::Udaddy,
        works: &["udaddy -c 10 -C 100"],
        fails: &[],
    },
    Section {
        title: "rdmacm-utils: multicast",
        about: "With `-l`, a sender does not receive its own messages.",
        under: &[],
        fault: None,
        shape: Shape::Mckey,
        works: &["mckey -m GROUP", "mckey -m GROUP -c 4 -C 50", "mckey -m GROUP -l"],
        fails: &[],
    },
    Section {
        title: "perftest, connected by rdma_cm",
        about: "",
        under: &[],
        fault: None,
        shape: Shape::Pair,
        works: &[
            "ib_write_lat -F -R",
            "ib_write_bw -F -n 500 -R",
            "ib_write_bw -F -n 500 -R -q 4",
            "ib_read_lat -F -R",
            "ib_read_bw -F -n 500 -R",
            "ib_send_lat -F -R",
            "ib_send_bw -F -n 500 -R",
            "ib_send_lat -F -R -c UD",
            "ib_send_bw -F -n 500 -R -c UD -s 1024",
            "ib_atomic_lat -F -R",
            "ib_atomic_bw -F -n 500 -R -A CMP_AND_SWAP",
        ],
        fails: &[],
    },
    Section {
        title: "qperf, connected by rdma_cm",
        about: "`ver_*` compare the values that atomics return with the expected ones.",
        under: &[],
        fault: None,
        shape: Shape::Qperf,
        works: &[
            "qperf -cm1 -t 1 rc_lat",
            "qperf -cm1 -t 1 rc_bw",
            "qperf -cm1 -t 1 rc_bi_bw",
            "qperf -cm1 -t 1 rc_rdma_read_lat",
            "qperf -cm1 -t 1 rc_rdma_read_bw",
            "qperf -cm1 -t 1 rc_rdma_write_lat",
            "qperf -cm1 -t 1 rc_rdma_write_bw",
            "qperf -cm1 -t 1 rc_rdma_write_poll_lat",
            "qperf -cm1 -t 1 rc_compare_swap_mr",
            "qperf -cm1 -t 1 rc_fetch_add_mr",
            "qperf -cm1 -t 1 ver_rc_compare_swap",
            "qperf -cm1 -t 1 ver_rc_fetch_add",
        ],
        fails: &[],
    },
    Section {
        title: "Two rails without a failure",
        about: "",
        under: &["--rails", "2"],
        fault: None,
        shape: Shape::Pair,
        works: &[
            "ibv_rc_pingpong -g 0 -c",
            "ibv_rc_pingpong -g 1 -c",
            "ibv_rc_pingpong -g 0 -e -c",
            "ibv_uc_pingpong -g 0 -c",
            "ibv_uc_pingpong -g 0 -e -c",
            "ib_write_lat -F -c UC -n 500",
            "ib_write_bw -F -c UC -D 1",
            "ib_send_bw -F -c UC -D 1 -s 1024",
            "ib_write_lat -F",
            "ib_read_bw -F -n 500 -q 4",
            "ib_send_bw -F -n 500 --use-srq -q 4",
            "ib_atomic_bw -F -n 500 -A CMP_AND_SWAP",
            "ibv_xsrq_pingpong -g 0",
            "ibv_xsrq_pingpong -g 0 -e",
            "ib_send_bw -F -n 500 -c XRC",
            "ib_send_bw -F -n 500 -c XRC -q 3 -e",
            "ib_send_lat -F -c XRC",
            "ib_write_bw -F -n 500 -c XRC",
            "ib_read_bw -F -n 500 -c XRC",
            "ib_atomic_bw -F -n 500 -c XRC -A FETCH_AND_ADD",
            "ib_atomic_lat -F -c XRC -A FETCH_AND_ADD",
        ],
        fails: &[],
    },
    Section {
        title: "Two rails: multicast",
        about: "Multicast uses rail 0 while it is up.",
        under: &["--rails", "2"],
        fault: None,
        shape: Shape::Mckey,
        works: &["mckey -m GROUP"],
        fails: &[],
    },
    Section {
        title: "Two rails, of which one fails",
        about: "The link of the server's first rail goes down after the server's NIC has executed the 2000th request, and before it \
                acknowledges that request. The queue pairs must move to the other rail.",
        under: &["--rails", "2"],
        fault: Some("rail0 link-down@5:2000"),
        shape: Shape::Pair,
        works: &[
            "ibv_rc_pingpong -g 0 -c -n 4000",
            "ibv_rc_pingpong -g 0 -c -e -n 4000",
            "ibv_srq_pingpong -g 0 -c -n 4000",
            "ib_write_lat -F -n 4000",
            "ib_write_bw -F -n 4000",
            "ib_write_bw -F -n 4000 -q 4",
            "ib_read_lat -F -n 4000",
            "ib_read_bw -F -n 4000",
            "ib_send_lat -F -n 4000",
            "ib_send_bw -F -n 4000",
            "ib_send_bw -F -n 4000 --use-srq -q 4",
            "ib_atomic_lat -F -n 4000 -A FETCH_AND_ADD",
            "ib_atomic_lat -F -n 4000 -A CMP_AND_SWAP",
            "ib_atomic_bw -F -n 4000 -A FETCH_AND_ADD",
            "ib_send_lat -F -n 4000 -R",
            "ibv_xsrq_pingpong -g 0 -n 4000",
            "ibv_xsrq_pingpong -g 0 -e -n 4000",
            "ib_send_bw -F -n 4000 -c XRC",
            "ib_send_bw -F -n 4000 -c XRC -q 3 -e",
            "ib_send_lat -F -n 4000 -c XRC",
            "ib_write_bw -F -n 4000 -c XRC",
            "ib_read_bw -F -n 4000 -c XRC",
            "ib_atomic_bw -F -n 4000 -c XRC -A FETCH_AND_ADD",
            "ib_atomic_lat -F -n 4000 -c XRC -A CMP_AND_SWAP",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 4000 -w 10 -t tag_lat",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 4000 -w 10 -s 65536 -t ucp_put_bw",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 4000 -w 10 -t ucp_fadd",
            "UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1 ucx_perftest -n 4000 -w 10 -t ucp_cswap",
        ],
        fails: &[],
    },
    Section {
        title: "Two rails, of which a NIC dies: XRC",
        about: "The server's first NIC dies after it has executed the 2000th request. What it executed of WRITEs and atomics nobody knows then, so these \
                programs send or read.",
        under: &["--rails", "2"],
        fault: Some("rail0 nic-dead@5:2000"),
        shape: Shape::Pair,
        works: &[
            "ibv_xsrq_pingpong -g 0 -n 4000",
            "ib_send_bw -F -n 4000 -c XRC",
            "ib_send_lat -F -n 4000 -c XRC",
            "ib_read_bw -F -n 4000 -c XRC",
        ],
        fails: &[],
    },
    Section {
        title: "Two rails, of which one is down: UC and UD",
        about: "The link of the server's first rail goes down when the server opens the device. UC and UD do not retransmit, so these programs \
                would wait for a lost message forever; no rail fails while they run.",
        under: &["--rails", "2"],
        fault: Some("rail0 down"),
        shape: Shape::Pair,
        works: &[
            "ibv_ud_pingpong -g 0 -c -n 4000",
            "ibv_ud_pingpong -g 0 -e -n 4000",
            "ib_send_lat -F -c UD -n 4000",
            "ib_send_bw -F -c UD -n 500 -s 1024",
            "ibv_uc_pingpong -g 0 -c -n 4000",
            "ib_send_lat -F -c UC -n 4000",
            "ib_write_lat -F -c UC -n 500",
            "ib_write_bw -F -c UC -D 1 -s 1024",
            "ib_send_bw -F -c UC -D 1 -s 1024",
        ],
        fails: &[],
    },
    Section {
        title: "Two rails, of which one fails: UC and UD",
        about: "UC and UD never send a lost message again. A run of a given duration does not wait for the messages that are lost when the rail \
                fails. A ping-pong of a given number of iterations would wait forever if its message was in flight at that time.",
        under: &["--rails", "2"],
        fault: Some("rail0 down at 1s"),
        shape: Shape::Pair,
        works: &[
            "ib_send_bw -F -c UD -D 2 -s 1024",
            "ib_send_bw -F -c UC -D 2 -s 1024",
            "ib_write_bw -F -c UC -D 2 -s 1024",
            "ib_write_lat -F -c UC -D 2",
        ],
        fails: &[],
    },
    Section {
        title: "Two rails whose addresses change",
        about: "Each rail of the server gets another address in turn. UC loses messages meanwhile, which a run of a given duration does not wait for.",
        under: &["--rails", "2"],
        fault: Some("rail0 address free at 500ms; rail1 address free at 1s; rail0 address free at 1500ms"),
        shape: Shape::Pair,
        works: &[
            "ib_write_bw -F -D 2",
            "ib_read_bw -F -D 2",
            "ib_send_bw -F -D 2",
            "ib_atomic_bw -F -D 2 -A FETCH_AND_ADD",
            "ib_send_bw -F -c XRC -D 2",
            "ib_write_bw -F -c XRC -D 2",
            "ib_atomic_bw -F -c XRC -D 2 -A FETCH_AND_ADD",
            "ib_send_bw -F -c UC -D 2 -s 1024",
        ],
        fails: &[],
    },
    Section {
        title: "Two rails, of which one fails: OpenMPI",
        about: "The link of each process's first rail goes down after its NIC has executed the 500th request.",
        under: &["--rails", "2"],
        fault: Some("rail0 link-down@5:500"),
        shape: Shape::Mpi,
        works: &[
            "UCX_TLS=rc_v,self UCX_ATOMIC_MODE=device UCX_NET_DEVICES=mitra0:1 mpirun --mca pml ucx --mca osc ucx --mca btl self check 3",
        ],
        fails: &[],
    },
];

/// A row of the table: one command line.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) section: &'static Section,
    pub(crate) command: &'static str,
    /// A part of its output, if the row is expected to fail.
    pub(crate) fails: Option<&'static str>,
}

impl Row {
    /// The name of the row's test. It begins with a word, because a runner passes it as an
    /// argument.
    pub(crate) fn name(&self) -> String {
        let run = self.section.under.first().map(|_| "run");
        let words = self.section.under.iter().chain(&self.section.fault).chain([&self.command]);
        run.into_iter().chain(words.copied()).collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn sections() -> impl Iterator<Item = &'static Section> {
    let debian = SECTIONS.iter().chain(rust_table::SECTIONS).chain(fio_table::SECTIONS);
    debian.chain(downloads_table::SECTIONS)
}

pub(crate) fn rows() -> impl Iterator<Item = Row> {
    sections().flat_map(|section| {
        let works = section.works.iter().map(move |&command| Row { section, command, fails: None });
        let fails = section.fails.iter();
        works.chain(fails.map(move |failure| Row {
            section,
            command: failure.command,
            fails: Some(failure.says),
        }))
    })
}

pub(crate) fn names_differ() -> Result<(), String> {
    let mut seen = HashSet::new();
    match rows().map(|row| row.name()).find(|name| !seen.insert(name.clone())) {
        Some(name) => Err(format!("`{name}` is in the table twice")),
        None => Ok(()),
    }
}
