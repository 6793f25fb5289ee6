//! Runs the processes of a row under `mitra run`, with a timeout, and checks how they end.

use std::env::{self, JoinPathsError};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread::sleep;
use std::time::{Duration, Instant};

use mitra_test_process::{OwnPort, TestProcess, command, links, lock, setup_dir, variants};

use super::build_programs;
use super::listening::is_listening;
use super::table::{Row, Shape};

/// The time after which a row counts as hanging. It is longer than any row takes on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(90);
/// The time after which the processes of a row are killed, whatever the test does. A row waits
/// twice at most.
const DEADLINE: Duration = Duration::from_secs(200);
/// The time for the other process to end after one process has failed.
const TIMEOUT_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The port of udaddy.c in rdma-core's librdmacm/examples.
const UDADDY_PORT: u16 = 7174;
/// A part of the line that the library logs when a queue pair moves.
pub(crate) const MOVED: &str = "moved from rail 0 to rail 1";
/// A part of the line by which the library explains a refused call.
const REFUSED: &str = " is refused: ";
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs a row.
///
/// # Errors
/// Fails if the row does not behave as the table says. The message has the outputs of its
/// processes.
pub(crate) fn run(row: &Row) -> Result<(), String> {
    variants(&row.name(), &links()).iter().try_for_each(|links| {
        run_over(row, links).map_err(|error| format!("with MITRA_LINKS={links}: {error}"))
    })
}

/// Runs a row, with this value of `MITRA_LINKS`.
fn run_over(row: &Row, links: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("cannot make a directory: {error}"))?;
    let mut row_processes =
        RowProcesses { dir: dir.path().to_owned(), links: links.to_owned(), processes: Vec::new() };
    let own_port = (row.section.shape != Shape::Udaddy).then(OwnPort::new);
    let port = own_port.as_ref().map_or(UDADDY_PORT, OwnPort::number);
    // Other rows may run in other processes.
    let _turn = own_port.is_none().then(|| lock(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("udaddy.lock")));
    if own_port.is_none() && is_listening(port) {
        return Err(format!(
            "udaddy needs port {port}, which is in use; `ss -tulpn` shows by whom: end that program"
        ));
    }
    for (at, words) in command_lines(row, port)?.into_iter().enumerate() {
        if at > 0 {
            match row.section.shape {
                Shape::Mckey => row_processes.wait_until("join the group", || is_joined(group(0, port)))?,
                _ => row_processes.wait_until("listen", || is_listening(port))?,
            }
        }
        let fault = row.section.fault.filter(|_| at == 0).map(|fault| ["--fault", fault]);
        let options = row.section.under.iter().copied().chain(fault.into_iter().flatten());
        row_processes.start(&words, options)?;
    }
    let ended = row_processes.wait();
    match (ended, row.fails) {
        (RowEnd::Success, None)
            if row.section.fault.is_some() && !row_processes.outputs().contains(MOVED) =>
        {
            Err(format!(
                "no queue pair moved: the run was over before its fault\n{}",
                row_processes.outputs()
            ))
        }
        // If a program works, the library does not explain the calls by which it finds out about
        // the device.
        (RowEnd::Success, None)
            if row.section.fault.is_none() && row_processes.outputs().contains(REFUSED) =>
        {
            Err(format!("works, and the library explains a refused call\n{}", row_processes.outputs()))
        }
        (RowEnd::Success, None) => Ok(()),
        (RowEnd::Success, Some(_)) => Err(format!(
            "works, and the table says that it fails: move it in tests/programs/table.rs\n{}",
            row_processes.outputs()
        )),
        (RowEnd::Failure, Some(says)) if row_processes.outputs().contains(says) => Ok(()),
        (RowEnd::Failure, Some(says)) => {
            Err(format!("fails, but does not say {says:?}\n{}", row_processes.outputs()))
        }
        (RowEnd::Failure, None) => Err(format!("fails\n{}", row_processes.outputs())),
        (RowEnd::Timeout, _) => {
            Err(format!("hangs: {TIMEOUT:?} were not enough\n{}", row_processes.outputs()))
        }
    }
}

/// Returns the command lines of a row's processes, server first.
fn command_lines(row: &Row, port: u16) -> Result<Vec<Vec<String>>, String> {
    const HOST: &str = "127.0.0.1";
    let words: Vec<String> = row.command.split(' ').map(str::to_owned).collect();
    let (port, number) = (port.to_string(), port);
    let with = |more: &[&str]| -> Vec<String> {
        words.iter().map(String::as_str).chain(more.iter().copied()).map(str::to_owned).collect()
    };
    let within = |group: &str, more: &[&str]| {
        with(more).into_iter().map(|word| if word == "GROUP" { group.to_owned() } else { word }).collect()
    };
    Ok(match row.section.shape {
        Shape::Alone => vec![words],
        Shape::Pair => vec![with(&["-p", &port]), with(&["-p", &port, HOST])],
        Shape::Qperf => {
            let (program, tests) = words.split_first().ok_or("an empty row")?;
            let client = [program.as_str(), HOST, "-lp", &port].into_iter();
            let client = client.chain(tests.iter().map(String::as_str)).chain(["quit"]);
            vec![vec![program.clone(), "-lp".to_owned(), port.clone()], client.map(str::to_owned).collect()]
        }
        Shape::Rping => ["-s", "-c"].map(|role| with(&[role, "-a", HOST, "-p", &port])).to_vec(),
        Shape::Cm => vec![with(&["-p", &port]), with(&["-p", &port, "-s", HOST])],
        Shape::XrcCm => {
            let mut client = with(&["-p", &port, "-s", HOST]);
            client[0] = client[0].replace("xserver", "xclient");
            vec![with(&["-p", &port]), client]
        }
        Shape::Udaddy => vec![words.clone(), with(&["-s", HOST])],
        Shape::Groups => {
            let mgid = |at| {
                let [a, b, c, d] = group(at, number).octets();
                format!("0:0:0:0:0:0:0:0:0:0:255:255:{a}:{b}:{c}:{d}")
            };
            vec![within(&mgid(0), &["-p", &port]), within(&mgid(1), &["-p", &port, HOST])]
        }
        Shape::Mckey => {
            let group = group(0, number).to_string();
            vec![within(&group, &[]), within(&group, &["-s"])]
        }
        Shape::Fabric => vec![with(&["-B", &port]), with(&["-P", &port, HOST])],
        Shape::Fio => {
            let (program, options) = row.command.split_once(' ').ok_or("a row without options")?;
            let server = "--rw=read --iodepth=512".to_owned();
            // The engine's options must follow its name, and the last of two equal options is
            // valid.
            [("server", server), ("client", format!("--rw=write --hostname={HOST}"))]
                .map(|(name, role)| {
                    format!("{program} --name={name} --ioengine=rdma --port={port} {options} {role}")
                })
                .map(|line| line.split(' ').map(str::to_owned).collect())
                .to_vec()
        }
        Shape::Mpi => {
            let check = build_programs::mpi_check();
            let words = words.into_iter().flat_map(|word| match word.as_str() {
                "mpirun" => ["mpirun", "-np", "2", "--allow-run-as-root", "--oversubscribe"]
                    .map(str::to_owned)
                    .to_vec(),
                "check" => vec![check.clone()],
                _ => vec![word],
            });
            vec![words.collect()]
        }
        Shape::Downloaded => vec![words.iter().map(|word| downloaded(word)).collect()],
    })
}

/// The environment variable by which `cargo xtask compatibility` names its directory of downloads.
const DOWNLOADS: &str = "MITRA_DOWNLOADS";

/// Returns the directory of downloads, if the rows of downloaded programs are to run.
pub(crate) fn downloads() -> Option<PathBuf> {
    env::var_os(DOWNLOADS).map(PathBuf::from)
}

/// Returns the path of the file that a word of a command line names, in the downloads or in this
/// repository. Returns the word itself if there is no such file.
fn downloaded(word: &str) -> String {
    let places = downloads().into_iter().chain([PathBuf::from(env!("CARGO_MANIFEST_DIR"))]);
    let path = places.map(|place| place.join(word)).find(|path| path.is_file());
    path.map_or(word.to_owned(), |path| path.display().to_string())
}

/// Returns the directories in which programs are found: the system's directories, and the directory
/// of the Rust programs (`cargo xtask setup`).
fn search_path() -> Result<OsString, JoinPathsError> {
    let rust_programs = setup_dir().join("rust-programs/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths(env::split_paths(&path).chain([rust_programs]))
}

/// Returns a multicast group that only this row uses, derived from its port.
fn group(at: usize, port: u16) -> Ipv4Addr {
    let [high, low] = port.to_be_bytes();
    Ipv4Addr::new(239, at as u8, high, low)
}

/// Returns whether a NIC of this machine is in a multicast group.
fn is_joined(group: Ipv4Addr) -> bool {
    mitra_softnic::roce_port_users().iter().any(|user| user.address == group)
}

enum RowEnd {
    /// All processes ended with exit code 0.
    Success,
    Failure,
    /// A process still runs at the timeout.
    Timeout,
}

struct RowProcesses {
    dir: PathBuf,
    /// The value of `MITRA_LINKS`.
    links: String,
    processes: Vec<Process>,
}

struct Process {
    /// The command line as a user types it.
    line: String,
    process: TestProcess,
    status: Option<ExitStatus>,
    output: PathBuf,
}

impl RowProcesses {
    /// Starts a command line, which may begin with assignments of environment variables.
    fn start<'a>(&mut self, words: &[String], options: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let variables = words.iter().take_while(|word| is_variable(word)).count();
        let (variables, program) = words.split_at(variables);
        let output = self.dir.join(format!("output-{}", self.processes.len()));
        let file = File::create(&output).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = file.map_err(|error| format!("{}: {error}", output.display()))?;
        // Line-buffered output shows what a hanging program printed last.
        let mut run = command("stdbuf");
        run.args(["-oL", env!("CARGO_BIN_EXE_mitra"), "run"])
            .args(options)
            .arg("--")
            .args(program)
            .stdout(out)
            .stderr(err);
        run.env("MITRA_LINKS", &self.links).envs(variables.iter().filter_map(|word| word.split_once('=')));
        run.env("PATH", search_path().map_err(|error| error.to_string())?);
        // Control sockets and files that a program leaves are removed with the directory.
        run.env("XDG_RUNTIME_DIR", &self.dir).current_dir(&self.dir);
        let process = TestProcess::start_within(&mut run, DEADLINE);
        self.processes.push(Process { line: words.join(" "), process, status: None, output });
        Ok(())
    }

    /// Waits until the server is ready or has ended. [`RowProcesses::wait`] reports a server that
    /// has ended.
    fn wait_until(&mut self, what: &str, is_ready: impl Fn() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        while !is_ready() && !self.processes.iter_mut().any(Process::has_ended) {
            if Instant::now() > deadline {
                return Err(format!("the server does not {what} after {TIMEOUT:?}\n{}", self.outputs()));
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn wait(&mut self) -> RowEnd {
        let mut deadline = Instant::now() + TIMEOUT;
        let mut ended = RowEnd::Success;
        while !self.all_have_ended() {
            let failed = self.processes.iter().any(Process::has_failed);
            if failed && matches!(ended, RowEnd::Success) {
                ended = RowEnd::Failure;
                deadline = deadline.min(Instant::now() + TIMEOUT_AFTER_FAILURE);
            }
            if Instant::now() > deadline {
                return if failed { RowEnd::Failure } else { RowEnd::Timeout };
            }
            sleep(POLL_INTERVAL);
        }
        if self.processes.iter().any(Process::has_failed) { RowEnd::Failure } else { RowEnd::Success }
    }

    fn all_have_ended(&mut self) -> bool {
        // `count` queries every process, whereas `any` would stop at the first that runs.
        self.processes.iter_mut().map(Process::has_ended).filter(|ended| !ended).count() == 0
    }

    /// Formats the command line, exit status and output of each process.
    fn outputs(&self) -> String {
        let mut text = String::new();
        for Process { line, status, output, .. } in &self.processes {
            let status = status.map_or("still runs".to_owned(), |status| status.to_string());
            let printed = fs::read(output).unwrap_or_default();
            let _ = writeln!(text, "--- {line}: {status}\n{}", String::from_utf8_lossy(&printed));
        }
        text
    }
}

impl Process {
    fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.process.try_wait();
        }
        self.status.is_some()
    }

    fn has_failed(&self) -> bool {
        self.status.is_some_and(|status| !status.success())
    }
}

fn is_variable(word: &str) -> bool {
    word.split_once('=')
        .is_some_and(|(name, _)| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'))
}
