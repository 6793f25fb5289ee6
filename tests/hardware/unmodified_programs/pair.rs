//! A server and a client under `mitra run --device`.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use mitra_test_process::{OwnPort, TestProcess, command};
use tempfile::TempDir;

use super::POLL_INTERVAL;
use super::rows::{Row, Shape};
use crate::Devices;
use crate::link_faults::Fault;
use crate::listening::is_listening_in;

/// The time after which a pair counts as hanging. It is longer than any run takes in the emulated
/// machine.
const TIMEOUT: Duration = Duration::from_secs(90);
/// The address of the server that programs exchange their connection data with. No failure meets
/// it.
const SERVER: &str = "127.0.0.1";
/// The packets that a rail has sent when the program uses it. Heartbeats are fewer in the same
/// time.
const PACKETS_IN_USE: u64 = 100;
/// What the library logs at a move away from rail 0.
const MOVED: &str = "moved from rail 0 to rail 1";
/// What it logs of a move that lost nothing.
const NO_ERRORS: &str = " 0 end in errors";
/// What it logs of an atomic that was executed.
const VALUE_LOST: &str = "executed exactly once, but its value is lost";

pub struct Pair {
    /// From the server's.
    ends: [End; 2],
    /// The client's devices, from rail 0.
    devices: Vec<String>,
    may_lose_value: bool,
    _port: OwnPort,
    _directory: TempDir,
}

struct End {
    line: String,
    process: RefCell<TestProcess>,
    output: PathBuf,
}

impl Pair {
    /// Starts a row, with more options of `mitra run`.
    pub fn start(devices: &Devices, row: &Row, length: u32, options: &[&str]) -> Result<Pair, Failed> {
        let port = OwnPort::new();
        let lines = lines(row, &port.number().to_string(), &length.to_string());
        let commands = on_devices(devices, options, &lines);
        let mut pair = Pair::start_commands(devices, port, commands, row.variables())?;
        pair.may_lose_value = row.may_lose_value;
        Ok(pair)
    }

    /// Starts two commands that [`Devices::mitra`] has made, the second one when the first one
    /// listens at the port.
    pub fn start_commands(
        devices: &Devices,
        port: OwnPort,
        commands: [Command; 2],
        variables: impl Iterator<Item = (&'static str, &'static str)> + Clone,
    ) -> Result<Pair, Failed> {
        let directory = TempDir::new()?;
        let start = |end: usize, mut command: Command| -> Result<End, Failed> {
            let output = directory.path().join(format!("output-{end}"));
            let file = File::create(&output)?;
            command.envs(variables.clone()).current_dir(directory.path());
            command.stdout(file.try_clone()?).stderr(file);
            let process = TestProcess::start_within(&mut command, 2 * TIMEOUT);
            Ok(End { line: format!("{command:?}"), process: RefCell::new(process), output })
        };
        let [server, client] = commands;
        let server = start(0, server)?;
        let deadline = Instant::now() + TIMEOUT;
        let process = server.process.borrow().id().to_string();
        while !is_listening_in(&process, port.number()) {
            if server.status().is_some() || Instant::now() > deadline {
                return Err(format!("the server does not listen\n{}", server.text()).into());
            }
            sleep(POLL_INTERVAL);
        }
        let ends = [server, start(1, client)?];
        let devices = devices.ends[0].clone();
        Ok(Pair { ends, devices, may_lose_value: false, _port: port, _directory: directory })
    }

    /// Lets rail 0 fail. The program goes on with rail 1, unless an atomic has lost its value.
    pub fn survives(&self, fault: Fault) -> Result<(), Failed> {
        let injection = fault.prepare(0);
        self.wait_for_traffic(0)?;
        injection.inject();
        let moved = self.wait_until(MOVED, || self.ends[1].text().contains(MOVED));
        match moved.and_then(|()| self.wait_for_traffic(1)) {
            Err(_) if self.has_lost_value() => Ok(()),
            moved => moved,
        }
    }

    /// Waits until the client's device of a rail sends packets of the program.
    pub fn wait_for_traffic(&self, rail: usize) -> Result<(), Failed> {
        let device = &self.devices[rail];
        let file = Path::new("/sys/class/infiniband").join(device).join("ports/1/hw_counters/sent_pkts");
        let sent = || -> u64 {
            let text =
                fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            text.trim().parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        };
        let before = sent();
        self.wait_until(&format!("traffic on rail {rail}"), || sent() >= before + PACKETS_IN_USE)
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) -> Result<(), Failed> {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so() {
            let has_ended = self.ends.iter().any(|end| end.status().is_some());
            if has_ended || Instant::now() > deadline {
                return Err(format!("no {what}\n{}", self.text()).into());
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until both ends have ended, with success unless an atomic lost its value.
    pub fn wait(&self) -> Result<(), Failed> {
        let deadline = Instant::now() + TIMEOUT;
        while !self.ends.iter().all(|end| end.status().is_some()) {
            if Instant::now() > deadline {
                return Err(format!("hangs\n{}", self.text()).into());
            }
            // The other end of a program that has ended in an error may wait for it for ever.
            if self.has_lost_value() && self.ends[1].status().is_some() {
                return Ok(());
            }
            sleep(POLL_INTERVAL);
        }
        let is_success = self.ends.iter().all(|end| end.status().is_some_and(|it| it.success()));
        if is_success || self.has_lost_value() {
            Ok(())
        } else {
            Err(format!("fails\n{}", self.text()).into())
        }
    }

    fn has_lost_value(&self) -> bool {
        self.may_lose_value && self.ends[1].text().contains(VALUE_LOST)
    }

    /// Checks that no operation ended in an error at the client's move, unless an atomic lost its
    /// value.
    pub fn check_move(&self) -> Result<(), Failed> {
        let client = self.ends[1].text();
        let moves: Vec<&str> = client.lines().filter(|line| line.contains(MOVED)).collect();
        println!("{}", moves.join("\n"));
        if moves.iter().all(|line| line.ends_with(NO_ERRORS)) || self.has_lost_value() {
            return Ok(());
        }
        Err(self.text().into())
    }

    /// The command line, status and output of each end.
    pub fn text(&self) -> String {
        self.ends.iter().fold(String::new(), |mut text, end| {
            let status = end.status().map_or("still runs".to_owned(), |status| status.to_string());
            let _ = writeln!(text, "--- {}: {status}\n{}", end.line, end.text());
            text
        })
    }
}

impl End {
    fn status(&self) -> Option<ExitStatus> {
        self.process.borrow_mut().try_wait()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }
}

/// Returns the command that runs a line under `mitra run` on the devices of each end, from the
/// server.
pub fn on_devices(devices: &Devices, options: &[&str], lines: &[Vec<String>; 2]) -> [Command; 2] {
    [0, 1].map(|end| {
        let of_end = devices.of_end(1 - end);
        under_mitra(devices, &[&["--device", &of_end], options].concat(), &lines[end])
    })
}

/// Returns the command that runs a line under `mitra run`. Line-buffered output shows what a
/// hanging program printed last.
pub fn under_mitra(devices: &Devices, options: &[&str], line: &[String]) -> Command {
    let mut run = command("stdbuf");
    run.args(["-oL", env!("CARGO_BIN_EXE_mitra"), "run"]).args(options).arg("--").args(line);
    devices.in_directory(&mut run);
    run
}

/// Returns the words of both ends, from the server.
fn lines(row: &Row, port: &str, length: &str) -> [Vec<String>; 2] {
    let with = |more: &[&str]| -> Vec<String> {
        let words = row.words().map(str::to_owned).chain([row.length.to_owned(), length.to_owned()]);
        words.chain(more.iter().map(|&word| word.to_owned())).collect()
    };
    match row.shape {
        Shape::Pair => [with(&["-p", port]), with(&["-p", port, SERVER])],
        Shape::Rping => ["-s", "-c"].map(|role| with(&[role, "-a", SERVER, "-p", port])),
        Shape::Fabric => [with(&["-B", port]), with(&["-P", port, SERVER])],
    }
}
