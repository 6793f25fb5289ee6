//! `mitra memory`: a memory node.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use mitra_consensus_rdma::{MemoryConfig, MemoryNode, StorageConfig};
use mitra_kv::StoreConfig;
use serde::Serialize;

use super::protocol::Protocol;
use super::{Place, elect};

/// How long it sleeps at most: how late a peer's failover can find it.
const NAP: Duration = Duration::from_millis(1);

/// Lend memory to the processes of an agreement, who reach it by RDMA
///
/// Its processor lets processes in and changes their rights; they read and write by themselves, and the NIC refuses who has lost
/// the right. It holds what it holds for as long as it runs: one that is started anew has forgotten everything, and counts as crashed
/// with those who knew it before; but with --data it lies in files, and goes on where it was.
#[derive(clap::Args)]
#[command(after_help = "\
Example, a decision of three processes over three memories (each line in a terminal of its own, or with &):
  mitra memory protected-memory-paxos --listen 127.0.0.1:7001
  mitra memory protected-memory-paxos --listen 127.0.0.1:7002
  mitra memory protected-memory-paxos --listen 127.0.0.1:7003
  mitra propose protected-memory-paxos --help
Prints where it listens, on one line (--json: `address`, `bytes`), and serves until it is ended. Exit codes: 2 bad arguments or input.")]
pub(crate) struct Args {
    /// What it is for: the key-value store (kv), an election (omega), or a protocol
    #[arg(value_parser = purpose, value_name = "kv|omega|PROTOCOL")]
    purpose: Purpose,
    /// Where processes come in
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// How many processes share it
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    processes: u8,
    /// How many memories there are
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    memories: u8,
    /// Which of them it is, from 0
    #[arg(long, default_value_t = 0)]
    id: u8,
    /// Of kv: MiB that all keys and values may take
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=mitra_kv::MAX_CAPACITY_MIB.into()))]
    megabytes: u8,
    /// Of a protocol: bytes that a register has room for
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    room: u32,
    /// Keep what it holds in this directory (made if there is none), to go on there when it is started again
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    /// Acknowledge what is written only once it is on the disk: without, a restart of the machine makes its files useless
    #[arg(long, requires = "data")]
    sync: bool,
    /// One JSON object instead of a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Purpose {
    Kv,
    Elect,
    Decide(Protocol),
}

fn purpose(name: &str) -> Result<Purpose, String> {
    match name {
        "kv" => Ok(Purpose::Kv),
        "omega" => Ok(Purpose::Elect),
        _ => Protocol::from_str(name, false).map(Purpose::Decide).map_err(|_| {
            let names = Protocol::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let names: Vec<_> = names.map(|name| name.get_name().to_owned()).collect();
            format!("say kv, omega, or one of {}", names.join(", "))
        }),
    }
}

#[derive(Serialize)]
struct Listening {
    address: SocketAddr,
    bytes: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let listener = args.place.listen(args.listen)?;
    let (regions, room) = match args.purpose {
        Purpose::Decide(protocol) => (protocol.regions(args.processes, args.id), args.room as usize),
        Purpose::Elect => (elect::regions(args.processes), elect::ROOM),
        Purpose::Kv => {
            let Args { processes, memories, megabytes, .. } = *args;
            let sizes = StoreConfig { processes, memories, capacity_mib: megabytes };
            (sizes.regions(), sizes.register_capacity())
        }
    };
    let config = MemoryConfig {
        regions,
        register_capacity: room,
        tokens: args.place.tokens(args.processes)?,
        allow_restarts: matches!(args.purpose, Purpose::Kv),
        storage: args.data.clone().map(|directory| StorageConfig { directory, sync: args.sync }),
        failover: mitra_failover::Config::default(),
    };
    let (domain, _faults) = args.place.open()?;
    let mut memory = MemoryNode::new(domain, listener, config)?;
    let told = Listening { address: memory.address(), bytes: memory.lent_bytes() };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&told)?)?;
    } else {
        writeln!(out, "memory at {}: {} bytes for {} processes", told.address, told.bytes, args.processes)?;
    }
    out.flush()?;
    drop(out);
    loop {
        memory.serve_for(NAP);
    }
}
