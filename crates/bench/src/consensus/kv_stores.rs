//! Key-value stores whose clients are Redis': processes on this machine, started for a block and ended behind it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mitra_kv::RespConnection;
use mitra_kv::resp::Reply;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

use mitra_peer_process::RECEIVE_TIMEOUT;

/// Processes of a replicated store, and memories of ours.
const PROCESSES: u16 = 3;
/// Milliseconds between two heartbeats. Raft's are as far apart; as with Raft, it takes somewhat above a second to miss a leader.
const HEARTBEAT: &str = "100";

/// A kind of store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Kv,
    Raft,
    Redis,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Kv, Kind::Raft, Kind::Redis];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Kv => "kv",
            Kind::Raft => "raft",
            Kind::Redis => "redis",
        }
    }

    /// What is to be done so that there are figures of it, if it is not here.
    pub(super) fn lacks(self) -> Option<&'static str> {
        match self {
            Kind::Raft if !raft().exists() => Some(
                "raft/… is left out: build it beside mitra with `cargo build --release -p mitra-raft-baseline`",
            ),
            Kind::Redis if !starts("redis-server") => {
                Some("redis/… is left out: install redis-server (Debian's redis-server)")
            }
            _ => None,
        }
    }

    /// Starts one, and waits until it takes writes.
    pub(super) fn start(self) -> anyhow::Result<Store> {
        let mut store = Store { children: Vec::new(), at: address(1, 6401) };
        let places = |port| (1..=PROCESSES as u8).map(|n| address(n, port)).collect::<Vec<_>>();
        let (processes, clients, memories) = (places(7101), places(6401), places(7001));
        let ids = ["0", "1", "2"];
        let shared = ["--processes", &words(&processes), "--clients", &words(&clients)];
        match self {
            Kind::Kv => {
                for at in &memories {
                    store.run(mitra()?, &["memory", "kv", "--listen", &at.to_string()])?;
                }
                // A process that finds no memory tries again, but later.
                memories.iter().try_for_each(|&at| until_open(at))?;
                for id in ids {
                    let own = ["kv", "serve", "--id", id, "--heartbeat", HEARTBEAT];
                    let memories = ["--memories", &words(&memories)];
                    store.run(mitra()?, &[&own[..], &shared, &memories].concat())?;
                }
            }
            Kind::Raft => {
                for id in ids {
                    store.run(raft(), &[&["--id", id][..], &shared].concat())?;
                }
            }
            Kind::Redis => {
                let (ip, port) = (store.at.ip().to_string(), store.at.port().to_string());
                let place = ["--bind", &ip, "--port", &port];
                store.run(
                    "redis-server".into(),
                    &[&place[..], &["--save", "", "--appendonly", "no"]].concat(),
                )?;
            }
        }
        let servers = if self == Kind::Redis { &clients[..1] } else { &clients };
        store.at = leader(servers).with_context(|| format!("nobody leads {}", self.name()))?;
        Ok(store)
    }
}

/// Its processes are ended when it is dropped.
pub(super) struct Store {
    children: Vec<Child>,
    /// Where the process serves clients that leads.
    pub(super) at: SocketAddr,
}

impl Store {
    fn run(&mut self, program: PathBuf, args: &[&str]) -> anyhow::Result<()> {
        // The processes are to end with this one, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&program).args(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        self.children.push(child);
        Ok(())
    }

    /// What all its processes have had of the processors so far, in seconds.
    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for child in &self.children {
            let clock =
                clock_getcpuclockid(Pid::from_raw(child.id() as i32)).context("a process has ended")?;
            sum += Duration::from(clock.now()?).as_secs_f64();
        }
        Ok(sum)
    }

    /// Whether its values are what was written: of the keys that `redis-benchmark` writes, nearly all are there, with values of this length.
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
                        ensure!(value.len() == size, "a value of {} bytes, not {size}", value.len());
                        found += 1;
                    }
                    other => ensure!(other == Reply::Bulk(None), "{other:?} instead of a value"),
                }
            }
        }
        ensure!(found * 10 >= keys * 9, "{found} of {keys} keys were stored");
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both fail only if it has ended and was waited for, which is what they are for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An address of this process's own: other benches may run beside it.
fn address(number: u8, port: u16) -> SocketAddr {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    (Ipv4Addr::new(127, 50 + high % 50, low, number), port).into()
}

fn words(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

/// This very program.
fn mitra() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("this program cannot be found")
}

/// The Raft, beside this program.
fn raft() -> PathBuf {
    mitra().unwrap_or_default().with_file_name("mitra-raft-baseline")
}

/// Whether there is such a program.
pub(super) fn starts(program: &str) -> bool {
    let quiet = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

fn until_open(at: SocketAddr) -> anyhow::Result<()> {
    until(|| std::net::TcpStream::connect(at).ok())
        .with_context(|| format!("nobody listens at {at}"))
        .map(drop)
}

/// Where the process is that takes a write.
fn leader(servers: &[SocketAddr]) -> anyhow::Result<SocketAddr> {
    let takes = |&&at: &&SocketAddr| {
        let said =
            RespConnection::connect(at).and_then(|mut server| server.request(&[b"SET", b"key", b"value"]));
        said.is_ok_and(|reply| reply == Reply::Simple("OK"))
    };
    until(|| servers.iter().find(takes).copied())
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let end = Instant::now() + RECEIVE_TIMEOUT;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        ensure!(Instant::now() < end, "not in {RECEIVE_TIMEOUT:?}");
        sleep(Duration::from_millis(5));
    }
}
