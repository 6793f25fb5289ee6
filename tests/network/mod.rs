//! Networks of a test's own, which end with it.

use std::process::Command;

/// What runs a program in a network namespace of its own, for two minutes at most; the processes that it starts end with it. Whoever may
/// not make one by himself does it in a user namespace.
pub fn of_its_own() -> Command {
    let mut command = Command::new("timeout");
    // unshare(1) takes no notice of SIGTERM.
    command.args(["--signal", "KILL", "120"]);
    command.args(["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
}
