//! Memories and processes of the store, as programs.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use mitra_kv::Client;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::hosts::{self, Hosts};
use crate::program::{Program, info};

pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Cluster {
    memories: Vec<Option<Program>>,
    processes: Vec<Option<Program>>,
    doors: Vec<SocketAddr>,
    others: Vec<SocketAddr>,
    clients: Vec<SocketAddr>,
    /// Where the programs listen for faults, and memories keep what they hold if they do.
    run_dir: TempDir,
    /// Of the memories.
    options: &'static [&'static str],
    /// Where they run, if each has a host of its own: the processes, then the memories.
    hosts: Option<Hosts>,
}

/// Addresses of this test's own: other tests run beside it.
fn address(number: u8, port: u16) -> SocketAddr {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    (Ipv4Addr::new(127, 100 + high % 100, low, number), port).into()
}

fn words(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

impl Cluster {
    /// Starts so many of each on this host, and waits until somebody leads.
    pub fn start(processes: usize, memories: usize) -> Cluster {
        Cluster::here(processes, memories, &[])
    }

    /// The same, whose memories outlive their programs.
    pub fn on_disk(processes: usize, memories: usize, sync: bool) -> Cluster {
        Cluster::here(processes, memories, if sync { &["--data", "--sync"] } else { &["--data"] })
    }

    fn here(processes: usize, memories: usize, options: &'static [&'static str]) -> Cluster {
        static CLUSTERS: AtomicU8 = AtomicU8::new(1);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let at = |first: u16, count: usize| (first..).take(count).map(|port| address(number, port)).collect();
        Cluster::begin(at(7001, memories), at(7101, processes), at(6401, processes), None, options)
    }

    /// The same, each on a host of its own.
    pub fn on_hosts(processes: usize, memories: usize) -> Cluster {
        let at = |first: usize, count: usize, port: u16| {
            (first..first + count).map(|host| (hosts::address(host), port).into()).collect::<Vec<_>>()
        };
        let hosts = Hosts::new(processes + memories);
        let (others, clients) = (at(0, processes, 7101), at(0, processes, 6401));
        Cluster::begin(at(processes, memories, 7001), others, clients, Some(hosts), &[])
    }

    fn begin(
        doors: Vec<SocketAddr>,
        others: Vec<SocketAddr>,
        clients: Vec<SocketAddr>,
        hosts: Option<Hosts>,
        options: &'static [&'static str],
    ) -> Cluster {
        let run_dir = TempDir::new().expect("a directory");
        std::fs::write(run_dir.path().join("secret"), "said to nobody").expect("written");
        let none = |addresses: &[SocketAddr]| addresses.iter().map(|_| None).collect();
        let (memories, processes) = (none(&doors), none(&others));
        let mut cluster = Cluster { memories, processes, doors, others, clients, run_dir, options, hosts };
        cluster.start_all();
        cluster
    }

    /// Starts all that do not run, and waits until somebody leads.
    pub fn start_all(&mut self) {
        let missing = |programs: &[Option<Program>]| {
            (0..programs.len()).filter(|&at| programs[at].is_none()).collect::<Vec<_>>()
        };
        missing(&self.memories).into_iter().for_each(|m| self.start_memory(m));
        missing(&self.processes).into_iter().for_each(|p| self.start_process(p));
        self.leader();
    }

    fn mitra(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mitra"));
        command.args(arguments).env("MITRA_RUN_DIR", self.run_dir.path().join("run"));
        command
    }

    fn spawn(&self, host: usize, mut command: Command) -> Program {
        command.stdout(Stdio::piped());
        let program = match &self.hosts {
            None => command.spawn(),
            Some(hosts) => {
                command.args(["--rails", &hosts::address(host).to_string()]);
                command.arg("--secret").arg(self.run_dir.path().join("secret"));
                hosts.spawn(host, command)
            }
        };
        Program(program.expect("mitra starts"))
    }

    /// Starts a memory, for the first time or, if it lies on a disk, again.
    pub fn start_memory(&mut self, m: usize) {
        let (n, m_all) = (self.others.len().to_string(), self.doors.len().to_string());
        let (listen, directory) =
            (self.doors[m].to_string(), self.run_dir.path().join(format!("memory-{m}")));
        let mut command =
            self.mitra(&["memory", "kv", "--listen", &listen, "--processes", &n, "--memories", &m_all]);
        for option in self.options {
            command.arg(option);
            if *option == "--data" {
                command.arg(&directory);
            }
        }
        let mut program = self.spawn(self.host_of_memory(m), command);
        let mut line = String::new();
        let out = program.0.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert!(line.starts_with("memory at "), "{line}");
        self.memories[m] = Some(program);
    }

    /// Starts a process, for the first time or again.
    pub fn start_process(&mut self, p: usize) {
        let (id, others, clients) = (p.to_string(), words(&self.others), words(&self.clients));
        let memories = words(&self.doors);
        let serve = ["kv", "serve", "--id", &id, "--processes", &others];
        let mut command = self.mitra(&serve);
        command.args(["--clients", &clients, "--memories", &memories]);
        self.processes[p] = Some(self.spawn(p, command));
    }

    /// A client of all processes.
    pub fn client(&self) -> Client {
        Client::new(self.clients.clone(), PATIENCE)
    }

    /// Where a process serves clients.
    pub fn clients_of(&self, p: usize) -> SocketAddr {
        self.clients[p]
    }

    /// Where a memory runs, if each has a host; processes run on the first ones.
    pub fn host_of_memory(&self, m: usize) -> usize {
        self.others.len() + m
    }

    /// The hosts.
    pub fn hosts(&mut self) -> &mut Hosts {
        self.hosts.as_mut().expect("each has one")
    }

    /// Who leads, once somebody does who says so.
    pub fn leader(&self) -> usize {
        self.leader_among(0..self.processes.len())
    }

    /// Which of these processes leads, once one does who says so.
    pub fn leader_among(&self, some: impl Iterator<Item = usize> + Clone) -> usize {
        let says_so = |p: &usize| {
            self.processes[*p].is_some() && info(self.clients[*p]).is_some_and(|i| i.contains("leads:1"))
        };
        until("somebody leads", || some.clone().find(says_so))
    }

    /// What all processes that live say of themselves.
    pub fn infos(&self) -> Vec<Option<String>> {
        let living = (0..self.processes.len()).filter(|&p| self.processes[p].is_some());
        living.map(|p| info(self.clients[p])).collect()
    }

    /// All programs that were not killed, by their names.
    pub fn programs(&mut self) -> impl Iterator<Item = (String, &mut Program)> {
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

    /// Everything ends, at once.
    pub fn kill_all(&mut self) {
        self.memories.fill_with(|| None);
        self.processes.fill_with(|| None);
    }

    /// Lets a fault befall the rails of a process.
    pub fn fault_process(&self, p: usize, script: &str) {
        self.fault(self.processes[p].as_ref().expect("it lives"), script);
    }

    /// Lets a fault befall the rails of a memory.
    pub fn fault_memory(&self, m: usize, script: &str) {
        self.fault(self.memories[m].as_ref().expect("it lives"), script);
    }

    fn fault(&self, program: &Program, script: &str) {
        let mut command = self.mitra(&["fault", "--pid", &program.0.id().to_string(), script]);
        assert!(command.status().expect("mitra starts").success(), "{script}");
    }

    pub fn pause_process(&self, p: usize) {
        self.processes[p].as_ref().expect("it lives").signal(Signal::SIGSTOP);
    }

    pub fn resume_process(&self, p: usize) {
        self.processes[p].as_ref().expect("it lives").signal(Signal::SIGCONT);
    }
}

/// Looks again and again until there is something.
pub fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
