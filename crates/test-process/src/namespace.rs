//! Commands in namespaces, which the kernel removes when the commands end.

use std::process::Command;
use std::sync::LazyLock;

use crate::{command, output};

const NETWORK: &str = "--net";

/// The reason why this machine permits no namespaces, if there is one.
static OBSTACLE: LazyLock<Option<String>> = LazyLock::new(|| {
    let output = output(unshare(&[NETWORK]).arg("true"));
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
});

/// Returns a command that runs a program in a new network namespace, as the first process of a new
/// PID namespace. Processes that the program starts are killed when the program ends. Without root
/// the namespaces are made inside a new user namespace.
///
/// # Panics
///
/// Panics if this machine does not permit namespaces.
pub fn command_in_new_namespace() -> Command {
    permitted(&[NETWORK])
}

/// Like [`command_in_new_namespace`], in the present network namespace. Two such programs are as in
/// two containers of a pod.
///
/// # Panics
///
/// Panics if this machine does not permit namespaces.
pub fn command_in_shared_network() -> Command {
    permitted(&[])
}

fn permitted(more: &[&str]) -> Command {
    if let Some(obstacle) = &*OBSTACLE {
        panic!(
            "this test needs network and process namespaces ({obstacle}); run it as root with CAP_SYS_ADMIN, or permit user namespaces \
             (`sysctl user.max_user_namespaces`, `kernel.unprivileged_userns_clone`, `kernel.apparmor_restrict_unprivileged_userns`)"
        );
    }
    unshare(more)
}

fn unshare(more: &[&str]) -> Command {
    let mut command = command("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).args(more);
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
}

/// Runs a test of this program again, by a command that runs its arguments: one of
/// [`command_in_new_namespace`], for example. A variable of the command tells the test that it runs
/// there.
///
/// # Panics
///
/// Panics if the test fails there, or if the program has no test of this name.
pub fn run_test_under(launcher: &mut Command, test: &str) {
    let own = std::env::current_exe().expect("the test program has a path");
    let output = output(launcher.arg(own).args([test, "--exact", "--nocapture"]));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    // The count is checked because a run without a matching test succeeds, too.
    let passed = output.status.success() && stdout.contains("1 passed");
    assert!(passed, "{}\n{stdout}\n{stderr}", output.status);
}
