//! Commands in network namespaces, which the kernel removes when the commands end.

use std::process::Command;
use std::sync::LazyLock;

use mitra_test_process::{command, output};

/// The reason why this machine permits no namespaces, if there is one.
static OBSTACLE: LazyLock<Option<String>> = LazyLock::new(|| {
    let output = output(unshare().arg("true"));
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
});

/// Returns a command that runs a program in a new network namespace. Processes that the program
/// starts are killed when the program ends. Without root the namespace is made inside a new user
/// namespace.
///
/// # Panics
///
/// Panics if this machine does not permit namespaces.
pub fn command_in_new_namespace() -> Command {
    if let Some(obstacle) = &*OBSTACLE {
        panic!(
            "this test needs network and process namespaces ({obstacle}); run it as root with CAP_SYS_ADMIN, or permit user namespaces \
             (`sysctl user.max_user_namespaces`, `kernel.unprivileged_userns_clone`, `kernel.apparmor_restrict_unprivileged_userns`)"
        );
    }
    unshare()
}

fn unshare() -> Command {
    let mut command = command("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
}
