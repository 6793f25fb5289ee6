//! The control socket between a device that only takes notes and callers, polite and otherwise.

use std::fs;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mitra_control::control::{
    Answer, Device, Process, RailState, RailStatus, Request, Server, Status, processes, serve,
};
use mitra_control::{Change, Rails, Settings};
use mitra_transport::fault::Failure;

/// Longer than anything here takes, unless it is broken.
const LONG: Duration = Duration::from_secs(20);

struct Notes(Sender<(Instant, usize, Change)>);

impl Device for Notes {
    fn inflict(&mut self, rail: usize, change: Change) {
        let _ = self.0.send((Instant::now(), rail, change)); // the test may have seen enough
    }

    fn status(&mut self) -> Status {
        let address = IpAddr::from([127, 0, 0, 5]);
        Status { rails: vec![RailStatus { address, state: RailState::Down }], queue_pairs: 3, failovers: 2 }
    }
}

fn start(dir: Option<&Path>, faults: &str) -> (Server, Receiver<(Instant, usize, Change)>) {
    let faults = if faults.is_empty() { Default::default() } else { faults.parse().unwrap() };
    let settings =
        Settings { rails: Rails::Count(2), faults, run_dir: dir.map(Path::to_owned), ..Settings::default() };
    let (sender, receiver) = channel();
    (serve(&settings, Notes(sender)).unwrap(), receiver)
}

/// A directory for control sockets, and its parent, which removes it.
fn run_dir() -> (tempfile::TempDir, std::path::PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("mitra");
    (parent, dir)
}

fn only(dir: &Path) -> Process {
    let found = processes(dir).unwrap();
    assert_eq!(found.len(), 1);
    found[0].clone()
}

/// Says this as it is, and gives the answer.
fn say(dir: &Path, bytes: &[u8]) -> String {
    let mut caller = UnixStream::connect(dir.join(format!("{}.sock", process::id()))).unwrap();
    caller.set_read_timeout(Some(LONG)).unwrap();
    let _ = caller.write_all(bytes); // the device may have heard enough before all is said
    let mut answer = String::new();
    let _ = caller.read_to_string(&mut answer); // and hang up on the rest
    answer
}

#[test]
fn status_is_told() {
    let (_parent, dir) = run_dir();
    let (_server, _) = start(Some(&dir), "");
    let Answer::Status { pid, program, device } = only(&dir).ask(&Request::Status).unwrap() else {
        panic!("no status")
    };
    assert_eq!(pid, process::id());
    assert!(program.contains("control"), "{program}");
    assert_eq!((device.queue_pairs, device.failovers), (3, 2));
    assert_eq!(device.rails[0].state, RailState::Down);
    let json: serde_json::Value = serde_json::from_str(&say(&dir, b"status\n")).unwrap();
    assert_eq!(json["status"]["rails"][0]["address"], "127.0.0.5");
    assert_eq!(json["status"]["rails"][0]["state"], "down");
}

#[test]
fn faults_strike_in_time_and_order() {
    let began = Instant::now();
    let (server, notes) =
        start(None, "rail0 up at 60ms; rail0 down at 30ms; rail1 nic-dead; rail1 up at 60ms");
    let struck: Vec<_> = (0..4).map(|_| notes.recv_timeout(LONG).unwrap()).collect();
    let what: Vec<_> = struck.iter().map(|(_, rail, change)| (*rail, *change)).collect();
    assert_eq!(
        what,
        [
            (1, Change::Fail(Failure::NicDead)),
            (0, Change::Fail(Failure::LinkDown)),
            (0, Change::Heal),
            (1, Change::Heal)
        ]
    );
    assert!(struck[3].0.duration_since(began) >= Duration::from_millis(60), "never early");
    drop(server);
    assert!(notes.recv().is_err(), "the device went with its server");
}

#[test]
fn live_faults_reach_the_device() {
    let (_parent, dir) = run_dir();
    let (_server, notes) = start(Some(&dir), "");
    let request = "rail1 nic-hung; rail0 up at 10ms".parse().unwrap();
    assert_eq!(only(&dir).ask(&request).unwrap(), Answer::Done);
    let (_, rail, change) = notes.recv_timeout(LONG).unwrap();
    assert_eq!((rail, change), (1, Change::Fail(Failure::NicHung)));
    let (_, rail, change) = notes.recv_timeout(LONG).unwrap();
    assert_eq!((rail, change), (0, Change::Heal));
}

#[test]
fn a_rail_that_is_not_there_is_refused_and_nothing_done() {
    let (_parent, dir) = run_dir();
    let (_server, notes) = start(Some(&dir), "");
    let answer = only(&dir).ask(&"rail0 down; rail2 down".parse().unwrap()).unwrap();
    let Answer::Refused(why) = answer else { panic!("{answer:?}") };
    assert!(why.contains("`rail2 down`"), "{why}");
    assert!(notes.try_recv().is_err());
}

#[test]
fn bad_input_is_refused_and_costs_nothing() {
    let (_parent, dir) = run_dir();
    let (_server, notes) = start(Some(&dir), "");
    for bytes in [&b"\n"[..], b"what\n", b"\xff\xfe\0\n", b"rail0 \n", b"status status\n"] {
        let answer = say(&dir, bytes);
        assert!(answer.starts_with("{\"refused\":"), "{bytes:?}: {answer:?}");
    }
    // Without an end of line, for ever: it is cut off.
    say(&dir, &vec![b'x'; 1 << 20]);
    // Connects and says nothing: it is not waited for without end.
    let silent = UnixStream::connect(dir.join(format!("{}.sock", process::id()))).unwrap();
    assert!(matches!(only(&dir).ask(&Request::Status).unwrap(), Answer::Status { .. }));
    drop(silent);
    assert!(notes.try_recv().is_err());
}

#[test]
fn the_socket_goes_with_its_server() {
    let (_parent, dir) = run_dir();
    let (server, _) = start(Some(&dir), "");
    only(&dir);
    drop(server);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn what_ended_processes_left_is_removed() {
    let (_parent, dir) = run_dir();
    assert_eq!(processes(&dir).unwrap(), [], "no directory, no processes");
    fs::create_dir(&dir).unwrap();
    let mut ended = process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let left = dir.join(format!("{}.sock", ended.id()));
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    fs::write(dir.join("notes.txt"), "").unwrap();
    assert_eq!(processes(&dir).unwrap(), []);
    assert!(!left.exists());
    assert!(dir.join("notes.txt").exists(), "what is no socket is left alone");
    // A process that has such a number now, and listens at nothing.
    let reused = dir.join(format!("{}.sock", process::id()));
    drop(std::os::unix::net::UnixListener::bind(&reused).unwrap());
    let error = only(&dir).ask(&Request::Status).unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
    assert!(!reused.exists());
}

#[test]
fn a_directory_that_others_can_enter_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let settings = Settings { run_dir: Some(parent.path().to_owned()), ..Settings::default() };
    let error = serve(&settings, Notes(channel().0)).unwrap_err();
    assert!(error.to_string().contains("nobody else can enter"), "{error}");
}
