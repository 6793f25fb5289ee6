//! Key-value stores that speak the Redis protocol: their processes run on this machine during a
//! block.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mitra_kv::RespConnection;
use mitra_kv::resp::Reply;
use mitra_softnic::Links;

pub(super) use crate::programs::program_pair::is_installed;
use crate::stopwatch::cpu_seconds;

/// The time within which a store must serve clients.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of processes of a replicated store, and of memory nodes of `mitra kv`.
const PROCESSES: u16 = 3;
const IDS: [&str; PROCESSES as usize] = ["0", "1", "2"];
/// The interval of the heartbeats of `mitra kv`, in milliseconds. Raft uses the same interval. Both
/// stores detect a failed leader after slightly more than a second.
const HEARTBEAT: [&str; 2] = ["--heartbeat", "100"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StoreKind {
    Kv,
    Raft,
    Redis,
}

impl StoreKind {
    pub(super) const ALL: [StoreKind; 3] = [StoreKind::Kv, StoreKind::Raft, StoreKind::Redis];

    pub(super) fn name(self) -> &'static str {
        match self {
            StoreKind::Kv => "kv",
            StoreKind::Raft => "raft",
            StoreKind::Redis => "redis",
        }
    }

    /// Returns the note that tells the user how to get this store, if it is not installed.
    pub(super) fn missing_note(self) -> Option<&'static str> {
        match self {
            StoreKind::Raft if !raft().exists() => Some(
                "raft/… is left out: build mitra-raft-baseline next to mitra with `cargo build --release -p mitra-raft-baseline`",
            ),
            StoreKind::Redis if !is_installed("redis-server") => {
                Some("redis/… is left out: install redis-server (Debian's redis-server)")
            }
            _ => None,
        }
    }

    /// Starts the store and waits until it accepts writes.
    pub(super) fn start(self) -> anyhow::Result<Store> {
        let mut store = Store { children: Vec::new(), links: None, at: address(1, 6401) };
        let clients = addresses(6401);
        match self {
            StoreKind::Kv => store.run_kv(&HEARTBEAT)?,
            StoreKind::Raft => {
                let (processes, clients) = (words(&addresses(7101)), words(&clients));
                let shared = ["--processes", &processes, "--clients", &clients];
                for id in IDS {
                    store.run(raft(), &[&["--id", id][..], &shared].concat())?;
                }
            }
            StoreKind::Redis => {
                let (ip, port) = (store.at.ip().to_string(), store.at.port().to_string());
                let place = ["--bind", &ip, "--port", &port];
                store.run(
                    "redis-server".into(),
                    &[&place[..], &["--save", "", "--appendonly", "no"]].concat(),
                )?;
            }
        }
        let servers = if self == StoreKind::Redis { &clients[..1] } else { &clients };
        store.at =
            leader(servers).with_context(|| format!("no process of {} accepts writes", self.name()))?;
        Ok(store)
    }
}

/// A running store. Dropping the value ends its processes.
pub(crate) struct Store {
    children: Vec<Child>,
    /// How packets reach the other processes. `None` leaves that to the environment.
    links: Option<Links>,
    /// The client address of the leading process.
    pub(super) at: SocketAddr,
}

/// Starts `mitra kv` with the default heartbeats, and waits until it accepts writes.
pub(crate) fn start_kv(links: Links) -> anyhow::Result<Store> {
    let mut store = Store { children: Vec::new(), links: Some(links), at: address(1, 6401) };
    store.run_kv(&[])?;
    store.at = leader(&addresses(6401)).context("no process of kv accepts writes")?;
    Ok(store)
}

impl Store {
    /// Starts the memory nodes, and then the processes.
    fn run_kv(&mut self, options: &[&str]) -> anyhow::Result<()> {
        let memories = addresses(7001);
        for at in &memories {
            self.run(mitra()?, &["memory", "kv", "--listen", &at.to_string()])?;
        }
        // A process that finds no memory retries only after a delay.
        memories.iter().try_for_each(|&at| wait_until_listening(at))?;
        let (processes, clients) = (words(&addresses(7101)), words(&addresses(6401)));
        let shared = ["--processes", &processes, "--clients", &clients, "--memories", &words(&memories)];
        for id in IDS {
            self.run(mitra()?, &[&["kv", "serve", "--id", id][..], options, &shared].concat())?;
        }
        Ok(())
    }

    fn run(&mut self, program: PathBuf, args: &[&str]) -> anyhow::Result<()> {
        // The kernel kills the store's processes when this process ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&program).args(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.envs(self.links.map(|links| ("MITRA_LINKS", links.to_string())));
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        self.children.push(child);
        Ok(())
    }

    /// Returns the process ids of the memory nodes, and of the processes that serve clients, of
    /// `mitra kv`.
    pub(crate) fn memories_and_processes(&self) -> (Vec<u32>, Vec<u32>) {
        let (memories, processes) = self.children.split_at(usize::from(PROCESSES));
        let ids = |children: &[Child]| children.iter().map(Child::id).collect();
        (ids(memories), ids(processes))
    }

    /// Returns the CPU time of all processes of the store so far, in seconds.
    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        self.children.iter().map(|child| cpu_seconds(child.id())).sum()
    }

    /// Checks that at least 90 % of the keys of `redis-benchmark` exist and that their values have
    /// `size` bytes.
    pub(super) fn check(&self, keys: u32, size: usize) -> anyhow::Result<()> {
        let names: Vec<String> = (0..keys).map(|key| format!("key:{key:012}")).collect();
        let mut connection = RespConnection::connect(self.at)?;
        let mut found = 0;
        for names in names.chunks(100) {
            let gets: Vec<[&[u8]; 2]> = names.iter().map(|name| [&b"GET"[..], name.as_bytes()]).collect();
            let gets: Vec<&[&[u8]]> = gets.iter().map(|get| &get[..]).collect();
            for reply in connection.pipeline(&gets)? {
                match reply {
                    Reply::Bulk(Some(value)) => {
                        ensure!(
                            value.len() == size,
                            "a stored value has {} bytes instead of {size}",
                            value.len()
                        );
                        found += 1;
                    }
                    other => ensure!(
                        other == Reply::Bulk(None),
                        "GET returned an error or no value; run the benchmark again"
                    ),
                }
            }
        }
        ensure!(found * 10 >= keys * 9, "only {found} of {keys} keys were stored");
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both calls fail only if the process has already ended and was waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns a loopback address that is specific to this process, because benchmarks may run
/// concurrently.
fn address(number: u8, port: u16) -> SocketAddr {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    (Ipv4Addr::new(127, 50 + high % 50, low, number), port).into()
}

/// Returns the addresses of all processes, or of all memory nodes.
fn addresses(port: u16) -> Vec<SocketAddr> {
    (1..=PROCESSES as u8).map(|n| address(n, port)).collect()
}

fn words(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the path of this program.
fn mitra() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot determine the path of this program")
}

/// Returns the path of the Raft baseline, which is next to this program.
fn raft() -> PathBuf {
    mitra().unwrap_or_default().with_file_name("mitra-raft-baseline")
}

fn wait_until_listening(at: SocketAddr) -> anyhow::Result<()> {
    retry_until(|| std::net::TcpStream::connect(at).ok())
        .with_context(|| format!("no process listens at {at}"))
        .map(drop)
}

/// Returns the address of the process that accepts a write.
fn leader(servers: &[SocketAddr]) -> anyhow::Result<SocketAddr> {
    let accepts_write = |&&at: &&SocketAddr| {
        let reply =
            RespConnection::connect(at).and_then(|mut server| server.request(&[b"SET", b"key", b"value"]));
        reply.is_ok_and(|reply| reply == Reply::Simple("OK"))
    };
    retry_until(|| servers.iter().find(accepts_write).copied())
}

fn retry_until<T>(mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let end = Instant::now() + START_TIMEOUT;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        ensure!(Instant::now() < end, "timed out after {START_TIMEOUT:?}");
        sleep(Duration::from_millis(5));
    }
}
