//! The guard: a process outside the test's process group that kills the groups of the test's
//! processes when the test process is gone.
//!
//! The parent-death signal alone would leave the descendants of a process, because fork(2) clears
//! the signal.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Reads lines `+ GROUP` and `- GROUP`. The input ends when the test process ends. The script then
/// kills the groups that are left.
const SCRIPT: &str = r#"
groups=' '
while read -r what group; do
    case $what in
        +) groups="$groups$group " ;;
        -) groups="${groups%% $group *} ${groups#* $group }" ;;
    esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
"#;

static GUARD: LazyLock<Mutex<ChildStdin>> = LazyLock::new(|| {
    let guard = Command::new("/bin/sh")
        .args(["-c", SCRIPT, "mitra-test-guard"])
        // The runner kills the group of the test process.
        .process_group(0)
        .stdin(Stdio::piped())
        // The test runner waits until no process has the test's output open, so the guard must not
        // inherit the output.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let stdin = guard.map(|guard| guard.stdin.expect("it is piped"));
    Mutex::new(stdin.unwrap_or_else(|error| panic!("/bin/sh: {error}")))
});

/// Makes the guard kill a group at the end of the test process.
pub(crate) fn add(group: u32) {
    tell('+', group);
}

/// Makes the guard forget a group. Call it before the number can belong to another group.
pub(crate) fn remove(group: u32) {
    tell('-', group);
}

fn tell(what: char, group: u32) {
    let mut guard = GUARD.lock().unwrap_or_else(PoisonError::into_inner);
    // The write fails only if somebody killed the guard. The test itself is not affected.
    let _ = writeln!(guard, "{what} {group}");
}
