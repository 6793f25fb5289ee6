//! Runs a row: its processes under `mitra run`, with a time-out, and looks at how they ended.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::build_libraries;
use super::table::{Row, Shape};

/// Longer than any row takes on a slow machine: then it hangs.
const PATIENCE: Duration = Duration::from_secs(90);
/// What the other process has left, once one has failed.
const AFTER_A_FAILURE: Duration = Duration::from_secs(5);
/// The port of udaddy.c in rdma-core's librdmacm/examples.
const UDADDY_PORT: u16 = 7174;
/// What a queue pair writes when it moves.
pub(crate) const MOVED: &str = "moved from rail 0 to rail 1";
const MOMENT: Duration = Duration::from_millis(10);

/// Runs it, and says what is not as the table says.
pub(crate) fn run(row: &Row) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("cannot make a directory: {error}"))?;
    let mut scene = Scene { dir: dir.path().to_owned(), processes: Vec::new() };
    let port = if row.section.shape == Shape::Udaddy { UDADDY_PORT } else { free_port()? };
    for (at, words) in command_lines(row, port)?.into_iter().enumerate() {
        if at > 0 {
            match row.section.shape {
                Shape::Mckey => scene.wait_until("join the group", || is_joined(group(0, port)))?,
                _ => scene.wait_until("listen", || is_listening(port))?,
            }
        }
        let fault = row.section.fault.filter(|_| at == 0).map(|fault| ["--fault", fault]);
        let options = row.section.under.iter().copied().chain(fault.into_iter().flatten());
        scene.start(&words, options)?;
    }
    let ended = scene.wait();
    match (ended, row.fails) {
        (Ended::Well, None) if row.section.fault.is_some() && !scene.outputs().contains(MOVED) => {
            Err(format!("no queue pair moved: the run was over before its fault\n{}", scene.outputs()))
        }
        (Ended::Well, None) => Ok(()),
        (Ended::Well, Some(_)) => Err(format!(
            "works, and the table says that it fails: move it in tests/programs/table.rs\n{}",
            scene.outputs()
        )),
        (Ended::Badly, Some(says)) if scene.outputs().contains(says) => Ok(()),
        (Ended::Badly, Some(says)) => Err(format!("fails, but does not say {says:?}\n{}", scene.outputs())),
        (Ended::Badly, None) => Err(format!("fails\n{}", scene.outputs())),
        (Ended::Never, _) => Err(format!("hangs: {PATIENCE:?} were not enough\n{}", scene.outputs())),
    }
}

/// The processes of a row: server first.
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
        Shape::Mpi => {
            let check = build_libraries::mpi_check()?;
            let words = words.into_iter().flat_map(|word| match word.as_str() {
                "mpirun" => ["mpirun", "-np", "2", "--allow-run-as-root", "--oversubscribe"]
                    .map(str::to_owned)
                    .to_vec(),
                "check" => vec![check.clone()],
                _ => vec![word],
            });
            vec![words.collect()]
        }
    })
}

/// A port that nobody has. Somebody may take it before it is used; the kernel gives others first.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("no free port: {error}"))
}

/// A multicast group that is this row's alone, as the port is.
fn group(at: usize, port: u16) -> Ipv4Addr {
    let [high, low] = port.to_be_bytes();
    Ipv4Addr::new(239, at as u8, high, low)
}

/// Whether some NIC of this machine is in a multicast group.
fn is_joined(group: Ipv4Addr) -> bool {
    mitra_softnic::roce_port_owners().iter().any(|user| user.address == group)
}

enum Ended {
    /// All with exit code 0.
    Well,
    Badly,
    Never,
}

struct Scene {
    dir: PathBuf,
    processes: Vec<Process>,
}

struct Process {
    /// As one would type it.
    line: String,
    child: Child,
    status: Option<ExitStatus>,
    output: PathBuf,
}

impl Scene {
    /// Starts a command line, which may begin with variables.
    fn start<'a>(&mut self, words: &[String], options: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let variables = words.iter().take_while(|word| is_variable(word)).count();
        let (variables, command) = words.split_at(variables);
        let output = self.dir.join(format!("output-{}", self.processes.len()));
        let file = File::create(&output).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = file.map_err(|error| format!("{}: {error}", output.display()))?;
        // Line by line: of a program that hangs, one wants to see what it said.
        let mut run = Command::new("stdbuf");
        run.args(["-oL", env!("CARGO_BIN_EXE_mitra"), "run"])
            .args(options)
            .arg("--")
            .args(command)
            .process_group(0)
            .stdout(out)
            .stderr(err);
        run.envs(variables.iter().filter_map(|word| word.split_once('=')));
        // Its sockets, and what a program leaves behind, go with the row.
        run.env("XDG_RUNTIME_DIR", &self.dir).current_dir(&self.dir);
        let child = run.spawn().map_err(|error| format!("cannot start mitra: {error}"))?;
        self.processes.push(Process { line: words.join(" "), child, status: None, output });
        Ok(())
    }

    /// Waits until the server is ready. One that ended before it was is found by [`Scene::wait`].
    fn wait_until(&mut self, what: &str, is_ready: impl Fn() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !is_ready() && !self.processes.iter_mut().any(Process::has_ended) {
            if Instant::now() > deadline {
                return Err(format!("the server does not {what} after {PATIENCE:?}\n{}", self.outputs()));
            }
            sleep(MOMENT);
        }
        Ok(())
    }

    fn wait(&mut self) -> Ended {
        let mut deadline = Instant::now() + PATIENCE;
        let mut ended = Ended::Well;
        while !self.all_have_ended() {
            let failed = self.processes.iter().any(Process::has_failed);
            if failed && matches!(ended, Ended::Well) {
                ended = Ended::Badly;
                deadline = deadline.min(Instant::now() + AFTER_A_FAILURE);
            }
            if Instant::now() > deadline {
                return if failed { Ended::Badly } else { Ended::Never };
            }
            sleep(MOMENT);
        }
        if self.processes.iter().any(Process::has_failed) { Ended::Badly } else { Ended::Well }
    }

    fn all_have_ended(&mut self) -> bool {
        // All are looked at, also those after one that runs.
        self.processes.iter_mut().map(Process::has_ended).filter(|ended| !ended).count() == 0
    }

    /// What the processes were and printed, and how they ended.
    fn outputs(&self) -> String {
        let mut text = String::new();
        for Process { line, status, output, .. } in &self.processes {
            let status = status.map_or("still runs".to_owned(), |status| status.to_string());
            let said = fs::read(output).unwrap_or_default();
            let _ = writeln!(text, "--- {line}: {status}\n{}", String::from_utf8_lossy(&said));
        }
        text
    }
}

impl Process {
    fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_some()
    }

    fn has_failed(&self) -> bool {
        self.status.is_some_and(|status| !status.success())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            // The group is the process and what it started; it has gone only if all of these have.
            let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

fn is_variable(word: &str) -> bool {
    word.split_once('=')
        .is_some_and(|(name, _)| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'))
}

/// The ordinary port that Mitra's librdmacm takes for an RDMA port (`other_number` in crates/libibverbs/src/rdmacm/socket.rs).
const RDMA_BIT: u16 = 1 << 13;

/// Whether some process listens at this port, in TCP, UDP or RDMA; seen without disturbing it.
pub(crate) fn is_listening(port: u16) -> bool {
    // proc(5), include/net/tcp_states.h: 0A is LISTEN; a UDP socket without a peer is in 07, CLOSE.
    let tables = [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")];
    tables.into_iter().any(|(table, state)| {
        let table = fs::read_to_string(Path::new("/proc/net").join(table)).unwrap_or_default();
        table.lines().any(|line| {
            // sl local_address rem_address st ...: an address is hex:port.
            let columns: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, st, ..] = columns[..] else { return false };
            let local = local.rsplit(':').next().and_then(|hex| u16::from_str_radix(hex, 16).ok());
            st == state && local.is_some_and(|local| local & !RDMA_BIT == port & !RDMA_BIT)
        })
    })
}
