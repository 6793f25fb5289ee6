//! The end of processes on every path.

use std::io::{BufRead, BufReader};
use std::panic::catch_unwind;

use super::*;
use crate::command;

/// How long a test waits for an event that it expects soon.
const SOON: Duration = Duration::from_secs(20);
/// A shell that prints the number of a child, and waits for it.
const PARENT: &str = "sleep 100 & echo $!; wait";

fn shell(script: &str) -> Command {
    let mut shell = command("sh");
    shell.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

fn first_line(process: &mut TestProcess) -> String {
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Waits until a process has ended. A zombie that its new parent has not reaped counts as ended.
fn wait_for_end_of(pid: &str) {
    let end = Instant::now() + SOON;
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    while !(stat().is_empty() || stat().contains(") Z ")) {
        assert!(Instant::now() < end, "{pid} still runs: {}", stat());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn text(panic: Box<dyn std::any::Any + Send>) -> String {
    *panic.downcast::<String>().unwrap()
}

#[test]
fn output_and_status_are_returned() {
    let output = output(&mut shell("echo out; echo err >&2; exit 3"));
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(output.status.code(), Some(3));
    let mut process = TestProcess::start(&mut shell("kill -s TERM $$"));
    assert_eq!(process.wait().signal(), Some(Signal::SIGTERM as i32));
    assert_eq!(process.try_wait().and_then(|status| status.signal()), Some(Signal::SIGTERM as i32));
}

#[test]
fn output_longer_than_a_pipe_is_read_from_both_streams() {
    let output = output(&mut shell("head -c 300000 /dev/zero >&2; head -c 200000 /dev/zero"));
    assert_eq!((output.stdout.len(), output.stderr.len()), (200_000, 300_000));
}

#[test]
fn deadline_ends_reads_and_is_reported() {
    let start =
        || TestProcess::start_within(&mut shell("echo ready; sleep 100 & wait"), Duration::from_millis(300));
    let message = start().output().unwrap_err().to_string();
    for part in ["sh -c echo ready", "within 300ms", "standard output\nready"] {
        assert!(message.contains(part), "{message}");
    }
    let waited = catch_unwind(|| start().wait()).unwrap_err();
    assert!(text(waited).contains("within 300ms"));
    let read_only = catch_unwind(|| {
        let mut process = start();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(lines.count(), 1);
    });
    assert!(text(read_only.unwrap_err()).contains("within 300ms"));
}

#[test]
fn drop_ends_descendants_also_on_a_panic() {
    let mut process = TestProcess::start(&mut shell(PARENT));
    let child = first_line(&mut process);
    drop(process);
    wait_for_end_of(&child);
    let panicked = catch_unwind(|| {
        let mut process = TestProcess::start(&mut shell(PARENT));
        let child = first_line(&mut process);
        std::panic::panic_any(child);
    });
    wait_for_end_of(&text(panicked.unwrap_err()));
}

/// The test runs its own program again. The new process starts another process and is killed.
#[test]
fn killed_test_leaves_no_processes() {
    const AGAIN: &str = "MITRA_TEST_KILLED";
    if std::env::var_os(AGAIN).is_some() {
        let mut process = TestProcess::start(&mut shell(PARENT));
        println!("started {} {}", process.id(), first_line(&mut process));
        process.wait();
        return;
    }
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut again = command(std::env::current_exe().unwrap());
        again.args(["--exact", "process::tests::killed_test_leaves_no_processes", "--nocapture"]);
        let mut again = TestProcess::start(again.env(AGAIN, "1").stdout(Stdio::piped()));
        let mut lines = BufReader::new(again.stdout.take().unwrap()).lines().map_while(Result::ok);
        let started = lines.find_map(|line| line.split_once("started ").map(|(_, pids)| pids.to_owned()));
        again.signal(signal);
        assert_eq!(again.wait().signal(), Some(signal as i32));
        for pid in started.expect("both numbers").split(' ') {
            wait_for_end_of(pid);
        }
    }
}

#[test]
fn signals_have_default_dispositions() {
    let inner = command("grep");
    // The shell ignores signals, as nohup and shells in the background do.
    let mut shell = command("sh");
    shell.args(["-c", r#"trap '' INT HUP; exec "$@""#, "sh"]).arg(inner.get_program());
    shell.args(inner.get_args()).args(["SigIgn", "/proc/self/status"]);
    let printed = String::from_utf8(output(&mut shell).stdout).unwrap();
    let ignored = printed.strip_prefix("SigIgn:").map(|bits| u64::from_str_radix(bits.trim(), 16));
    // signal(7): the C library keeps signals 32 and 33 for itself, so env(1) does not touch them.
    assert_eq!(ignored.unwrap().unwrap() & 0x7fff_ffff, 0, "{printed}");
}

#[test]
fn missing_program_is_named() {
    let panicked = catch_unwind(|| output(&mut command("mitra-no-such-program"))).unwrap_err();
    assert!(text(panicked).contains("mitra-no-such-program: there is no such program"));
}
