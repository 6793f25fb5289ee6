//! A cluster of memory nodes and `mitra kv` processes, each a child process of the test.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mitra_kv::Client;
use mitra_test_process::{OwnNetwork, TestProcess, command, output};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::child_process::info;
use super::network_hosts::{self, NetworkHosts};

/// The time after which a wait counts as a hang. A correct test on a busy machine takes a small
/// part of it.
pub const TIMEOUT: Duration = Duration::from_secs(100);
const MITRA: &str = env!("CARGO_BIN_EXE_mitra");

pub struct Cluster {
    memories: Vec<Option<TestProcess>>,
    processes: Vec<Option<TestProcess>>,
    memory_addresses: Vec<SocketAddr>,
    /// The addresses at which processes connect to each other.
    process_addresses: Vec<SocketAddr>,
    /// The addresses at which processes serve clients.
    client_addresses: Vec<SocketAddr>,
    /// The directory of the fault sockets, the shared secret and the files of memories.
    run_dir: TempDir,
    /// Additional options of `mitra memory`.
    options: &'static [&'static str],
    place: Place,
}

/// The hosts of the programs.
enum Place {
    /// On this host. The addresses are this test's only, since other tests run at the same time.
    Loopback(#[allow(dead_code, reason = "it is a reservation")] OwnNetwork),
    /// Each program has its own host: first the processes, then the memories.
    Hosts(NetworkHosts),
    /// On this host, over devices of the kernel: those of the processes, and those of the memories.
    #[allow(dead_code, reason = "of the tests of devices only")]
    Devices([String; 2], OwnNetwork),
}

fn comma_separated(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

impl Cluster {
    /// Starts a cluster on this host and waits for a leader.
    pub fn start(processes: usize, memories: usize) -> Cluster {
        Cluster::on_loopback(processes, memories, &[])
    }

    /// Starts a cluster whose memories are files, and waits for a leader. With `sync`, acknowledged
    /// writes are on the disk.
    pub fn on_disk(processes: usize, memories: usize, sync: bool) -> Cluster {
        Cluster::on_loopback(processes, memories, if sync { &["--data", "--sync"] } else { &["--data"] })
    }

    /// Starts a cluster over devices of the kernel, those of the processes and those of the
    /// memories, and waits for a leader.
    #[allow(dead_code, reason = "of the tests of devices only")]
    pub fn on_devices(processes: usize, memories: usize, devices: [String; 2]) -> Cluster {
        let place = |network| Place::Devices(devices, network);
        Cluster::on_this_host(processes, memories, place, &[])
    }

    fn on_loopback(processes: usize, memories: usize, options: &'static [&'static str]) -> Cluster {
        Cluster::on_this_host(processes, memories, Place::Loopback, options)
    }

    fn on_this_host(
        processes: usize,
        memories: usize,
        place: impl FnOnce(OwnNetwork) -> Place,
        options: &'static [&'static str],
    ) -> Cluster {
        let network = OwnNetwork::new();
        let at = |first: u16, count: usize| {
            (first..).take(count).map(|port| (network.address(1), port).into()).collect()
        };
        let (memories, clients) = (at(7001, memories), at(6401, processes));
        Cluster::with_addresses(memories, at(7101, processes), clients, place(network), options)
    }

    /// Starts a cluster with a host for each program, and waits for a leader.
    pub fn on_hosts(processes: usize, memories: usize) -> Cluster {
        let at = |first: usize, count: usize, port: u16| {
            (first..first + count).map(|host| (network_hosts::address(host), port).into()).collect::<Vec<_>>()
        };
        let hosts = NetworkHosts::new(processes + memories);
        let (process_addresses, client_addresses) = (at(0, processes, 7101), at(0, processes, 6401));
        Cluster::with_addresses(
            at(processes, memories, 7001),
            process_addresses,
            client_addresses,
            Place::Hosts(hosts),
            &[],
        )
    }

    fn with_addresses(
        memory_addresses: Vec<SocketAddr>,
        process_addresses: Vec<SocketAddr>,
        client_addresses: Vec<SocketAddr>,
        place: Place,
        options: &'static [&'static str],
    ) -> Cluster {
        let run_dir = TempDir::new().expect("a directory");
        let secret = run_dir.path().join("secret");
        std::fs::write(&secret, "the test's secret").expect("written");
        std::fs::set_permissions(secret, Permissions::from_mode(0o600)).expect("the file is the test's");
        let none = |addresses: &[SocketAddr]| addresses.iter().map(|_| None).collect();
        let (memories, processes) = (none(&memory_addresses), none(&process_addresses));
        let mut cluster = Cluster {
            memories,
            processes,
            memory_addresses,
            process_addresses,
            client_addresses,
            run_dir,
            options,
            place,
        };
        cluster.start_all();
        cluster
    }

    /// Starts all programs that do not run, and waits for a leader.
    pub fn start_all(&mut self) {
        let missing = |programs: &[Option<TestProcess>]| {
            (0..programs.len()).filter(|&at| programs[at].is_none()).collect::<Vec<_>>()
        };
        missing(&self.memories).into_iter().for_each(|m| self.start_memory(m));
        missing(&self.processes).into_iter().for_each(|p| self.start_process(p));
        self.leader();
    }

    /// Returns a command that runs `mitra` where the test runs.
    fn mitra(&self, arguments: &[&str]) -> Command {
        self.prepare(command(MITRA), arguments)
    }

    /// Returns a command that runs a program of the cluster.
    fn mitra_on(&self, host: usize, arguments: &[&str]) -> Command {
        match &self.place {
            Place::Loopback(_) => self.mitra(arguments),
            Place::Devices(devices, _) => {
                let is_memory = host >= self.process_addresses.len();
                let mut command = self.mitra(arguments);
                command.args(["--device", &devices[usize::from(is_memory)]]);
                command
            }
            Place::Hosts(hosts) => {
                let mut command = self.prepare(hosts.command(host, MITRA), arguments);
                command.args(["--rails", &network_hosts::address(host).to_string()]);
                command.arg("--secret").arg(self.run_dir.path().join("secret"));
                command
            }
        }
    }

    fn prepare(&self, mut command: Command, arguments: &[&str]) -> Command {
        command.args(arguments).env("MITRA_RUN_DIR", self.run_dir.path().join("run"));
        command
    }

    /// Starts a memory node. Only a memory node with files may be started again.
    pub fn start_memory(&mut self, m: usize) {
        let (n, m_all) = (self.process_addresses.len().to_string(), self.memory_addresses.len().to_string());
        let (listen, directory) =
            (self.memory_addresses[m].to_string(), self.run_dir.path().join(format!("memory-{m}")));
        let host = self.host_of_memory(m);
        let mut command = self
            .mitra_on(host, &["memory", "kv", "--listen", &listen, "--processes", &n, "--memories", &m_all]);
        for option in self.options {
            command.arg(option);
            if *option == "--data" {
                command.arg(&directory);
            }
        }
        let mut program = TestProcess::start(command.stdout(Stdio::piped()));
        let mut line = String::new();
        let out = program.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert!(line.starts_with("memory at "), "{line}");
        self.memories[m] = Some(program);
    }

    /// Starts a process, for the first time or again.
    pub fn start_process(&mut self, p: usize) {
        let (id, process_addresses, clients) = (
            p.to_string(),
            comma_separated(&self.process_addresses),
            comma_separated(&self.client_addresses),
        );
        let memories = comma_separated(&self.memory_addresses);
        let serve = ["kv", "serve", "--id", &id, "--processes", &process_addresses];
        let mut command = self.mitra_on(p, &serve);
        command.args(["--clients", &clients, "--memories", &memories]);
        self.processes[p] = Some(TestProcess::start(command.stdout(Stdio::piped())));
    }

    /// Returns a client that knows all processes.
    pub fn client(&self) -> Client {
        Client::new(self.client_addresses.clone(), TIMEOUT)
    }

    pub fn client_address(&self, p: usize) -> SocketAddr {
        self.client_addresses[p]
    }

    /// The number of a memory's host. Processes have the first numbers.
    pub fn host_of_memory(&self, m: usize) -> usize {
        self.process_addresses.len() + m
    }

    pub fn hosts(&mut self) -> &mut NetworkHosts {
        match &mut self.place {
            Place::Hosts(hosts) => hosts,
            Place::Loopback(_) | Place::Devices(..) => panic!("the cluster was not started on hosts"),
        }
    }

    /// Waits until a process reports that it leads, and returns its number.
    pub fn leader(&self) -> usize {
        self.leader_among(0..self.processes.len())
    }

    /// Waits until a process in `some` reports that it leads, and returns its number.
    pub fn leader_among(&self, some: impl Iterator<Item = usize> + Clone) -> usize {
        let leads = |p: &usize| {
            self.processes[*p].is_some()
                && info(self.client_addresses[*p]).is_some_and(|i| i.contains("leads:1"))
        };
        wait_until("a process leads", || some.clone().find(leads))
    }

    /// Returns the INFO replies of all processes that run.
    pub fn infos(&self) -> Vec<Option<String>> {
        let living = (0..self.processes.len()).filter(|&p| self.processes[p].is_some());
        living.map(|p| info(self.client_addresses[p])).collect()
    }

    /// Returns all programs that were not killed, with their names.
    pub fn programs(&mut self) -> impl Iterator<Item = (String, &mut TestProcess)> {
        let processes = self
            .processes
            .iter_mut()
            .enumerate()
            .filter_map(|(p, at)| Some((format!("process {p}"), at.as_mut()?)));
        let memories = self
            .memories
            .iter_mut()
            .enumerate()
            .filter_map(|(m, at)| Some((format!("memory {m}"), at.as_mut()?)));
        processes.chain(memories)
    }

    pub fn kill_process(&mut self, p: usize) {
        self.processes[p] = None;
    }

    pub fn kill_memory(&mut self, m: usize) {
        self.memories[m] = None;
    }

    pub fn kill_all(&mut self) {
        self.memories.fill_with(|| None);
        self.processes.fill_with(|| None);
    }

    pub fn fault_process(&self, p: usize, script: &str) {
        self.fault(self.processes[p].as_ref().expect("the program runs"), script);
    }

    pub fn fault_memory(&self, m: usize, script: &str) {
        self.fault(self.memories[m].as_ref().expect("the program runs"), script);
    }

    /// Runs a client command of `mitra kv` with `--json`. Returns its exit code and the object that
    /// it prints.
    pub fn kv_json(&self, words: &[&str]) -> (Option<i32>, serde_json::Value) {
        let servers = comma_separated(&self.client_addresses);
        let arguments = [&["kv", words[0], "--json", "--servers", &servers][..], &words[1..]].concat();
        let output = output(&mut self.mitra(&arguments));
        let said = String::from_utf8_lossy(&output.stderr);
        let object = serde_json::from_slice(&output.stdout);
        (output.status.code(), object.unwrap_or_else(|error| panic!("{words:?}: {error}: {said}")))
    }

    /// Returns the object of each process in the output of `mitra fault --list --json`.
    pub fn listed(&self) -> Vec<serde_json::Value> {
        let output = output(&mut self.mitra(&["fault", "--list", "--json"]));
        let mut report: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("the report is JSON");
        match report["processes"].take() {
            serde_json::Value::Array(processes) => processes,
            other => panic!("no list: {other}"),
        }
    }

    fn fault(&self, program: &TestProcess, script: &str) {
        let output = output(&mut self.mitra(&["fault", "--pid", &program.id().to_string(), script]));
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn pause_process(&self, p: usize) {
        self.processes[p].as_ref().expect("the program runs").signal(Signal::SIGSTOP);
    }

    pub fn resume_process(&self, p: usize) {
        self.processes[p].as_ref().expect("the program runs").signal(Signal::SIGCONT);
    }
}

/// Calls `check` every 5 ms until it returns a value, for [`TIMEOUT`] at most.
pub fn wait_until<T>(what: &str, check: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < end, "timed out after {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
