//! The control socket: a server with a recording device, its clients, and malformed requests.

use std::fs;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{env, mem, process, thread};

use mitra_control::{
    ControlServer, ControlledDevice, ControlledProcess, DeviceStatus, FaultAction, RailState, RailStatus,
    RailsConfig, Request, RequestError, Response, Settings, list_processes, run_dir,
};
use mitra_metrics::Snapshot;
use mitra_test_process::{TestProcess, command, command_in_new_namespace, run_test_under};
use mitra_verbs::fault::Failure;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

/// The timeout of each wait. The timeout is much longer than any operation in these tests.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The time, the rail and the action.
type AppliedFault = (Instant, usize, FaultAction);

struct RecordingDevice(Sender<AppliedFault>);

impl ControlledDevice for RecordingDevice {
    fn check_fault(&self, rail: usize, action: FaultAction) -> Result<(), String> {
        match action {
            FaultAction::Noise(_) => Err(format!("rail {rail} has no noise")),
            _ => Ok(()),
        }
    }

    fn apply_fault(&mut self, rail: usize, action: FaultAction) -> Result<(), String> {
        let _ = self.0.send((Instant::now(), rail, action)); // fails if the test has dropped the receiver
        match action {
            FaultAction::Address(_) => Err("no such address".to_owned()),
            _ => Ok(()),
        }
    }

    fn status(&mut self) -> DeviceStatus {
        let address = IpAddr::from([127, 0, 0, 5]);
        DeviceStatus {
            rails: vec![RailStatus { address, device: None, state: RailState::Down }],
            queue_pairs: 3,
            failovers: 2,
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        Snapshot { queue_pairs: 3, recovering: 1, ..Snapshot::default() }
    }
}

fn start(dir: Option<&Path>, faults: &str) -> (ControlServer, Receiver<AppliedFault>) {
    let faults = if faults.is_empty() { Default::default() } else { faults.parse().unwrap() };
    let settings = Settings {
        rails: RailsConfig::Count(2),
        faults,
        run_dir: dir.map(Path::to_owned),
        ..Settings::default()
    };
    let (sender, receiver) = channel();
    (ControlServer::start(&settings, RecordingDevice(sender)).unwrap(), receiver)
}

/// Returns the path of a run directory that does not exist yet, and its parent directory.
fn run_dir() -> (tempfile::TempDir, std::path::PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("mitra");
    (parent, dir)
}

fn only_process(dir: &Path) -> ControlledProcess {
    let processes = list_processes(dir).unwrap();
    assert_eq!(processes.len(), 1);
    processes[0].clone()
}

/// Sends raw bytes to this process's server and returns its response.
fn send_raw(dir: &Path, bytes: &[u8]) -> String {
    let mut client = UnixStream::connect(run_dir::socket(dir, process::id())).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let _ = client.write_all(bytes); // the server may close the connection before it has read all bytes
    let mut response = String::new();
    let _ = client.read_to_string(&mut response); // ends in ECONNRESET if the server left bytes unread
    response
}

#[test]
fn status_request_returns_process_and_device() {
    let (_parent, dir) = run_dir();
    let (_server, _) = start(Some(&dir), "");
    let Response::Status { pid, program, device } = only_process(&dir).request(&Request::Status).unwrap()
    else {
        panic!("no status")
    };
    assert_eq!(pid, process::id());
    assert!(program.contains("control"), "{program}");
    assert_eq!((device.queue_pairs, device.failovers), (3, 2));
    assert_eq!(device.rails[0].state, RailState::Down);
    let json: serde_json::Value = serde_json::from_str(&send_raw(&dir, b"status\n")).unwrap();
    assert_eq!(json["status"]["rails"][0]["address"], "127.0.0.5");
    assert_eq!(json["status"]["rails"][0]["state"], "down");
}

#[test]
fn snapshot_request_returns_process_and_snapshot() {
    let (_parent, dir) = run_dir();
    let (_server, _) = start(Some(&dir), "");
    let response = only_process(&dir).request(&Request::Snapshot).unwrap();
    let Response::Snapshot { pid, program, snapshot } = response else { panic!("{response:?}") };
    assert_eq!(pid, process::id());
    assert!(program.contains("control"), "{program}");
    assert_eq!((snapshot.queue_pairs, snapshot.recovering), (3, 1));
    let json: serde_json::Value = serde_json::from_str(&send_raw(&dir, b"snapshot\n")).unwrap();
    assert_eq!(json["snapshot"]["recovering"], 1);
}

/// A fault that the device cannot have is refused at once, and not when it is due.
#[test]
fn script_with_an_impossible_fault_is_refused_as_a_whole() {
    let (_parent, dir) = run_dir();
    let (server, applied) = start(Some(&dir), "rail1 noise none; rail1 up");
    let request =
        |script: &str| only_process(&dir).request(&Request::ApplyFaults(script.parse().unwrap())).unwrap();
    let response = request("rail0 down; rail1 noise drop=5ppm at 2s");
    let refused = "`rail1 noise drop=5ppm at 2s`: rail 1 has no noise";
    assert!(matches!(&response, Response::Refused(reason) if reason == refused), "{response:?}");
    assert!(matches!(request("rail0 up"), Response::Done));
    drop(server);
    let applied: Vec<_> = applied.iter().map(|(_, rail, action)| (rail, action)).collect();
    assert_eq!(applied, [(1, FaultAction::Heal), (0, FaultAction::Heal)]);
}

#[test]
fn scheduled_faults_apply_in_order_of_due_time() {
    let started = Instant::now();
    let (server, applied) =
        start(None, "rail0 up at 60ms; rail0 down at 30ms; rail1 nic-dead; rail1 up at 60ms");
    let faults: Vec<_> = (0..4).map(|_| applied.recv_timeout(TIMEOUT).unwrap()).collect();
    let order: Vec<_> = faults.iter().map(|(_, rail, action)| (*rail, *action)).collect();
    assert_eq!(
        order,
        [
            (1, FaultAction::Fail(Failure::NicDead)),
            (0, FaultAction::Fail(Failure::LinkDown)),
            (0, FaultAction::Heal),
            (1, FaultAction::Heal)
        ]
    );
    assert!(faults[3].0.duration_since(started) >= Duration::from_millis(60), "a fault applied early");
    drop(server);
    assert!(applied.recv().is_err(), "the server did not drop the device");
}

#[test]
fn requested_faults_reach_the_device() {
    let (_parent, dir) = run_dir();
    let (_server, applied) = start(Some(&dir), "");
    let request = "rail1 nic-hung; rail0 up at 10ms".parse().unwrap();
    assert_eq!(only_process(&dir).request(&request).unwrap(), Response::Done);
    let (_, rail, action) = applied.recv_timeout(TIMEOUT).unwrap();
    assert_eq!((rail, action), (1, FaultAction::Fail(Failure::NicHung)));
    let (_, rail, action) = applied.recv_timeout(TIMEOUT).unwrap();
    assert_eq!((rail, action), (0, FaultAction::Heal));
}

#[test]
fn fault_that_cannot_be_applied_is_named_and_the_others_are_applied() {
    let (_parent, dir) = run_dir();
    let (_server, applied) = start(Some(&dir), "");
    let request = "rail1 address free; rail0 down".parse().unwrap();
    let response = only_process(&dir).request(&request).unwrap();
    assert_eq!(response, Response::Failed("`rail1 address free`: no such address".to_owned()));
    let rails: Vec<_> = applied.try_iter().map(|(_, rail, _)| rail).collect();
    assert_eq!(rails, [1, 0]);
}

#[test]
fn script_with_missing_rail_is_rejected_as_a_whole() {
    let (_parent, dir) = run_dir();
    let (_server, applied) = start(Some(&dir), "");
    let response = only_process(&dir).request(&"rail0 down; rail2 down".parse().unwrap()).unwrap();
    let Response::Refused(reason) = response else { panic!("{response:?}") };
    assert!(reason.contains("`rail2 down`"), "{reason}");
    assert!(applied.try_recv().is_err());
}

#[test]
fn malformed_requests_are_rejected_and_do_not_block_server() {
    let (_parent, dir) = run_dir();
    let (_server, applied) = start(Some(&dir), "");
    for bytes in [&b"\n"[..], b"what\n", b"\xff\xfe\0\n", b"rail0 \n", b"status status\n"] {
        let response = send_raw(&dir, bytes);
        assert!(response.starts_with("{\"refused\":"), "{bytes:?}: {response:?}");
    }
    // 1 MiB without an end of line: the server stops reading at its limit.
    send_raw(&dir, &vec![b'x'; 1 << 20]);
    // A client that sends nothing: the server times it out and serves the next client.
    let silent = UnixStream::connect(run_dir::socket(&dir, process::id())).unwrap();
    assert!(matches!(only_process(&dir).request(&Request::Status).unwrap(), Response::Status { .. }));
    drop(silent);
    assert!(applied.try_recv().is_err());
}

/// Requests the status of this process, whose socket in `dir` has no server.
fn request_without_server(dir: &Path) -> RequestError {
    let (sender, result) = channel();
    let process = only_process(dir);
    thread::spawn(move || sender.send(process.request(&Request::Status)));
    result.recv_timeout(TIMEOUT).expect("the request ends").expect_err("there is no server")
}

#[test]
fn response_that_arrives_too_slowly_is_given_up() {
    let parent = tempfile::tempdir().unwrap();
    let socket = run_dir::socket(parent.path(), process::id());
    let listener = UnixListener::bind(socket).unwrap();
    let server = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        while client.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let error = request_without_server(parent.path());
    assert!(matches!(error, RequestError::NoResponse { .. }), "{error}");
    server.join().unwrap(); // the client has disconnected
}

#[test]
fn request_to_a_process_that_accepts_nothing_is_given_up() {
    let parent = tempfile::tempdir().unwrap();
    let path = run_dir::socket(parent.path(), process::id());
    let _listener = UnixListener::bind(&path).unwrap();
    // Connections that clients have given up stay until the process accepts them.
    loop {
        let (kind, flags) = (SockType::Stream, SockFlag::SOCK_NONBLOCK);
        let client = socket(AddressFamily::Unix, kind, flags, None).unwrap();
        match connect(client.as_raw_fd(), &UnixAddr::new(&path).unwrap()) {
            Ok(()) => {}
            Err(Errno::EAGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let error = request_without_server(parent.path());
    assert!(matches!(error, RequestError::NoResponse { .. }), "{error}");
}

#[test]
fn dropped_server_removes_its_socket() {
    let (_parent, dir) = run_dir();
    let (server, _) = start(Some(&dir), "");
    only_process(&dir);
    drop(server);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn sockets_of_ended_processes_are_removed() {
    let (_parent, dir) = run_dir();
    assert_eq!(list_processes(&dir).unwrap(), [], "a missing directory holds no processes");
    fs::create_dir(&dir).unwrap();
    let ended = TestProcess::start(&mut command("true"));
    let stale = run_dir::socket(&dir, ended.id());
    drop(ended);
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    fs::write(dir.join("other.txt"), "").unwrap();
    assert_eq!(list_processes(&dir).unwrap(), []);
    assert!(!stale.exists());
    assert!(dir.join("other.txt").exists(), "only sockets are removed");
    // The ID belongs to a running process that does not listen on the socket.
    let reused = run_dir::socket(&dir, process::id());
    drop(std::os::unix::net::UnixListener::bind(&reused).unwrap());
    let error = only_process(&dir).request(&Request::Status).unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
    assert!(!reused.exists());
}

/// The run directory that the test's processes share, and how many PID namespaces are inside the
/// process's own.
const SHARED_DIR: &str = "MITRA_TEST_SHARED_DIR";
const NAMESPACES_INSIDE: &str = "MITRA_TEST_NAMESPACES_INSIDE";

fn socket_count(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

/// Containers may share a run directory. The two processes inside have the process ID 1, and that
/// of the process outside may exist in no namespace but its own.
#[test]
fn processes_of_several_pid_namespaces_share_a_directory() {
    const TEST: &str = "processes_of_several_pid_namespaces_share_a_directory";
    let Some(dir) = env::var_os(SHARED_DIR) else {
        let (_parent, dir) = run_dir();
        return check_namespace(&dir, 2, TEST);
    };
    let inside = env::var(NAMESPACES_INSIDE).unwrap().parse().unwrap();
    assert_eq!(process::id(), 1);
    check_namespace(Path::new(&dir), inside, TEST);
}

/// Checks that this process is reached, and leaves the sockets of the others, while they live.
fn check_namespace(dir: &Path, inside: usize, test: &str) {
    let (server, applied) = start(Some(dir), "");
    let reach_own = |sockets| {
        let faults = Request::ApplyFaults("rail1 down".parse().unwrap());
        assert!(matches!(only_process(dir).request(&faults), Ok(Response::Done)));
        applied.try_recv().expect("this process has applied the fault");
        assert_eq!(only_process(dir).pid, process::id());
        assert_eq!(socket_count(dir), sockets);
    };
    let sockets = 3 - inside;
    reach_own(sockets);
    if inside > 0 {
        let next = (inside - 1).to_string();
        let mut launcher = command_in_new_namespace();
        run_test_under(launcher.env(SHARED_DIR, dir).env(NAMESPACES_INSIDE, next), test);
        // The processes inside have left their sockets.
        reach_own(sockets);
    }
    mem::forget(server);
}

#[test]
fn server_rejects_run_dir_accessible_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let settings = Settings { run_dir: Some(parent.path().to_owned()), ..Settings::default() };
    let error = ControlServer::start(&settings, RecordingDevice(channel().0)).unwrap_err();
    assert!(error.to_string().contains("no other user can access"), "{error}");
}
