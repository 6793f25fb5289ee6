//! Commands in network namespaces, which the kernel removes when the commands end.

use std::process::Command;

/// Returns a command that runs a program in a new network namespace, for at most two minutes. Processes that the program starts are
/// killed when the program ends.
/// Without root the namespace is made inside a new user namespace.
pub fn command_in_new_namespace() -> Command {
    let mut command = Command::new("timeout");
    // unshare(1) ignores SIGTERM.
    command.args(["--signal", "KILL", "120"]);
    command.args(["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
}
