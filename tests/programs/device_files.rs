//! The first commands of an RDMA user, and other programs that look at the device's files in `/sys`
//! and `/dev`. None of them need be linked with libibverbs.

use libtest_mimic::Trial;
use mitra_test_process::command;

use super::build_programs::output_of;

/// The shown information, a part of the output, and the command.
const COMMANDS: &[(&str, &str, &[&str])] = &[
    ("ibv_devices", "mitra0", &["ibv_devices"]),
    ("ibstat", "State: Active", &["ibstat"]),
    ("ibstat_list", "mitra0", &["ibstat", "-l"]),
    ("ibstatus", "'mitra0' port 1", &["ibstatus"]),
    ("ls", "mitra0", &["ls", "/sys/class/infiniband"]),
    ("ls_long", "mitra0 -> ../../devices/virtual/infiniband/mitra0", &["ls", "-l", "/sys/class/infiniband/"]),
    ("ls_dev", "uverbs0", &["ls", "/dev/infiniband"]),
    ("ls_device", "crw-rw-rw-", &["ls", "-l", "/dev/infiniband/uverbs0"]),
    (
        "stat_devices",
        "character\ncharacter\n",
        &["bash", "-c", "for d in /dev/infiniband/*; do test -c $d && echo character; done"],
    ),
    ("ls_counters", "rcvd_pkts", &["ls", "/sys/class/infiniband/mitra0/ports/1/hw_counters"]),
    ("listdir", "['mitra0']", &["python3", "-c", "import os; print(os.listdir('/sys/class/infiniband'))"]),
    (
        "python_realpath",
        "/sys/devices/virtual/infiniband/mitra0\n",
        &["python3", "-c", "import os; print(os.path.realpath('/sys/class/infiniband/mitra0'))"],
    ),
    ("link_layer", "Ethernet", &["bash", "-c", "cat /sys/class/infiniband/*/ports/1/link_layer"]),
    (
        "state",
        "4: ACTIVE",
        &["bash", "-c", "for d in /sys/class/infiniband/*; do cat $d/ports/1/state; done"],
    ),
    (
        "show_gids",
        "mitra0 1 1 0000:0000:0000:0000:0000:ffff:7f00:0001 RoCE v2 lo",
        &["bash", "-c", SHOW_GIDS],
    ),
    (
        "readlink",
        "/sys/devices/virtual/infiniband/mitra0\n",
        &["readlink", "-f", "/sys/class/infiniband/mitra0"],
    ),
    ("realpath", "/sys/devices/virtual/infiniband/mitra0\n", &["realpath", "/sys/class/infiniband/mitra0"]),
    (
        "find",
        "/sys/class/infiniband/mitra0",
        &["find", "/sys/class/infiniband/", "-maxdepth", "1", "-name", "mitra0"],
    ),
    (
        "find_all",
        "/sys/class/infiniband/mitra0/ports/1/gid_attrs/types/1",
        &["find", "-L", "/sys/class/infiniband/mitra0/ports", "-type", "f"],
    ),
    (
        "grep",
        "/sys/class/infiniband/mitra0/ports/1/gid_attrs/types/0:RoCE v2",
        &["grep", "-r", "v2", "/sys/class/infiniband/mitra0/ports"],
    ),
    (
        "working_directory",
        "/sys/devices/virtual/infiniband/mitra0\nmitra0\n",
        &["bash", "-c", "cd -P /sys/class/infiniband/mitra0/ports/.. && pwd && cat node_desc"],
    ),
    ("rdma_link", "link mitra0/1 state ACTIVE physical_state LINK_UP netdev lo", &["rdma", "link"]),
    ("rdma_dev", "0: mitra0: node_type ca fw", &["rdma", "dev"]),
];

/// The loop of Mellanox's show_gids.
const SHOW_GIDS: &str = "for d in $(ls /sys/class/infiniband); do for p in $(ls /sys/class/infiniband/$d/ports); do \
    for g in $(ls /sys/class/infiniband/$d/ports/$p/gids); do at=/sys/class/infiniband/$d/ports/$p; \
    echo $d $p $g $(cat $at/gids/$g) $(cat $at/gid_attrs/types/$g) $(cat $at/gid_attrs/ndevs/$g); done; done; done";

/// Returns a test for each command.
pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    COMMANDS.iter().map(|&(name, shown, words)| {
        Trial::test(format!("device_files_{name}"), move || {
            let dir = tempfile::tempdir()?;
            let mut run = command(env!("CARGO_BIN_EXE_mitra"));
            run.args(["run", "--"]).args(words).env("XDG_RUNTIME_DIR", dir.path());
            let output = output_of(&mut run)?;
            match output.contains(shown) {
                true => Ok(()),
                false => Err(format!("{words:?} does not show {shown:?}:\n{output}").into()),
            }
        })
    })
}
