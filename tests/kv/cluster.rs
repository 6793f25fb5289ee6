//! Memories and processes of the store, as programs.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use mitra_kv::Client;
use mitra_kv::resp::{Reply, write_request};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

/// A program that is ended when this is.
struct Program(Child);

impl Program {
    fn start(arguments: &[String], run_dir: &Path) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mitra"));
        command.args(arguments).stdout(Stdio::piped()).env("MITRA_RUN_DIR", run_dir);
        Program(command.spawn().expect("mitra starts"))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("it is ours");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Cluster {
    memories: Vec<Option<Program>>,
    processes: Vec<Option<Program>>,
    doors: Vec<SocketAddr>,
    others: Vec<SocketAddr>,
    clients: Vec<SocketAddr>,
    /// Where the programs listen for faults, and memories keep what they hold if they do.
    run_dir: TempDir,
    /// Of the memories.
    options: Vec<&'static str>,
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
    /// Starts so many of each, and waits until somebody leads.
    pub fn start(processes: u8, memories: u8) -> Cluster {
        Cluster::start_with(processes, memories, &[])
    }

    /// The same, whose memories outlive their programs.
    pub fn on_disk(processes: u8, memories: u8, options: &[&'static str]) -> Cluster {
        Cluster::start_with(processes, memories, &[&["--data"], options].concat())
    }

    fn start_with(processes: u8, memories: u8, options: &[&'static str]) -> Cluster {
        static CLUSTERS: AtomicU8 = AtomicU8::new(1);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let at = |ports: std::ops::Range<u16>| ports.map(|port| address(number, port)).collect::<Vec<_>>();
        let none = |count: u8| (0..count).map(|_| None).collect();
        let mut cluster = Cluster {
            memories: none(memories),
            processes: none(processes),
            doors: at(7001..7001 + u16::from(memories)),
            others: at(7101..7101 + u16::from(processes)),
            clients: at(6401..6401 + u16::from(processes)),
            run_dir: TempDir::new().expect("a directory"),
            options: options.to_vec(),
        };
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

    /// Starts a memory, for the first time or, if it lies on a disk, again.
    pub fn start_memory(&mut self, m: usize) {
        let (processes, memories) = (self.processes.len().to_string(), self.memories.len().to_string());
        let listen = self.doors[m].to_string();
        let mut words =
            vec!["memory", "kv", "--listen", &listen, "--processes", &processes, "--memories", &memories];
        let directory = self.run_dir.path().join(format!("memory-{m}"));
        for option in &self.options {
            words.push(option);
            if *option == "--data" {
                words.push(directory.to_str().expect("text"));
            }
        }
        let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
        let mut program = Program::start(&words, &self.run_dir.path().join("run"));
        let mut line = String::new();
        let out = program.0.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert!(line.starts_with("memory at "), "{line}");
        self.memories[m] = Some(program);
    }

    /// Starts a process, for the first time or again.
    pub fn start_process(&mut self, p: usize) {
        let arguments = [
            "kv",
            "serve",
            "--id",
            &p.to_string(),
            "--processes",
            &words(&self.others),
            "--clients",
            &words(&self.clients),
            "--memories",
            &words(&self.doors),
        ];
        self.processes[p] =
            Some(Program::start(&arguments.map(str::to_owned), &self.run_dir.path().join("run")));
    }

    /// A client of all processes.
    pub fn client(&self) -> Client {
        Client::new(self.clients.clone(), PATIENCE)
    }

    /// Who leads, once somebody does who says so.
    pub fn leader(&self) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < end, "nobody leads");
            let living = (0..self.processes.len()).filter(|&p| self.processes[p].is_some());
            if let Some(leader) =
                living.into_iter().find(|&p| info(self.clients[p]).is_some_and(|i| i.contains("leads:1")))
            {
                return leader;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
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
        let pid = program.0.id().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mitra"));
        command.args(["fault", "--pid", &pid, script]).env("MITRA_RUN_DIR", self.run_dir.path().join("run"));
        assert!(command.status().expect("mitra starts").success(), "{script}");
    }

    pub fn pause_process(&self, p: usize) {
        self.processes[p].as_ref().expect("it lives").signal(Signal::SIGSTOP);
    }

    pub fn resume_process(&self, p: usize) {
        self.processes[p].as_ref().expect("it lives").signal(Signal::SIGCONT);
    }
}

/// What a server says of itself, if it says anything.
fn info(at: SocketAddr) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_millis(200)).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
    let mut request = Vec::new();
    write_request(&[b"INFO"], &mut request);
    stream.write_all(&request).ok()?;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let len = stream.read(&mut chunk).ok().filter(|&len| len > 0)?;
        bytes.extend_from_slice(&chunk[..len]);
        if let Some((Reply::Bulk(Some(info)), _)) = Reply::read(&bytes).ok()? {
            return String::from_utf8(info).ok();
        }
    }
}
