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
use super::{ClusterArgs, elect};

/// Run a memory node; processes read and write its memory by RDMA
///
/// The CPU of the memory node accepts connections and changes permissions. Reads and writes do not
/// involve it: the NIC executes them, and refuses those without permission. Without --data, a
/// restarted memory node has lost its contents and counts as crashed for the processes that used it
/// before. With --data, the contents are in files and survive a restart.
#[derive(clap::Args)]
#[command(after_help = concat!("\
Example, a decision of three processes over three memories (each line in a terminal of its own, or with &):
  mitra memory protected-memory-paxos --listen 127.0.0.1:7001
  mitra memory protected-memory-paxos --listen 127.0.0.1:7002
  mitra memory protected-memory-paxos --listen 127.0.0.1:7003
  mitra propose protected-memory-paxos --help
Prints its address on one line (--json: `address`, `bytes`) and runs until it is interrupted.
", machines_in_help!(), "\
  mitra memory kv --listen 10.0.0.1:7001 --rails 10.0.0.1,10.1.0.1 --secret secret-file      (on the machine of 10.0.0.1)
Exit codes: 2 bad arguments or input, 130 after Ctrl-C, 143 after SIGTERM."))]
pub(crate) struct Args {
    /// What the memory node serves: the key-value store (kv), a leader election (omega), or a
    /// protocol
    #[arg(value_parser = purpose, value_name = "kv|omega|PROTOCOL")]
    purpose: Purpose,
    /// Address on which the memory node accepts processes; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Number of processes; propose, elect and kv serve must list as many
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    processes: u8,
    /// kv: number of memory nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    memories: u8,
    /// Without effect: older scripts give each memory node a number
    #[arg(long = "id", hide = true)]
    _id: Option<u8>,
    /// kv: capacity for all keys and values in MiB; the memory node needs about eight times as much
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=mitra_kv::MAX_CAPACITY_MIB.into()))]
    megabytes: u8,
    /// Protocols: capacity of a register in bytes
    #[arg(long, alias = "room", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    register_bytes: u32,
    /// Keep the contents in this directory, which is created if missing, and restore them on the
    /// next start
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    /// Acknowledge a write only after it is on disk; without this option, the files are not usable
    /// after a restart of the machine
    #[arg(long, requires = "data")]
    sync: bool,
    /// Print one JSON object instead of a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
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
        _ => match Protocol::from_str(name, false) {
            Ok(protocol) if protocol.has_memory_nodes() => Ok(Purpose::Decide(protocol)),
            Ok(_) => Err("paxos and fast-paxos use no memory nodes".to_owned()),
            Err(_) => {
                let protocols = Protocol::value_variants().iter().filter(|it| it.has_memory_nodes());
                let names = protocols.filter_map(ValueEnum::to_possible_value);
                let names: Vec<_> = names.map(|name| name.get_name().to_owned()).collect();
                Err(format!("use kv, omega, or one of {}", names.join(", ")))
            }
        },
    }
}

#[derive(Serialize)]
struct Listening {
    address: SocketAddr,
    bytes: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let listener = args.cluster.listen(args.listen)?;
    args.cluster.note_loopback(args.listen);
    let (regions, register_capacity) = match args.purpose {
        Purpose::Decide(protocol) => (protocol.regions(args.processes), args.register_bytes as usize),
        Purpose::Elect => (elect::regions(args.processes), elect::REGISTER_CAPACITY),
        Purpose::Kv => {
            let Args { processes, memories, megabytes, .. } = *args;
            let sizes = StoreConfig { processes, memories, capacity_mib: megabytes };
            (sizes.regions(), sizes.register_capacity())
        }
    };
    let config = MemoryConfig {
        regions,
        register_capacity,
        tokens: args.cluster.tokens(args.processes)?,
        allow_restarts: matches!(args.purpose, Purpose::Kv),
        storage: args.data.clone().map(|directory| StorageConfig { directory, sync: args.sync }),
        failover: mitra_failover::Config::default(),
    };
    let (domain, _faults) = args.cluster.open()?;
    let mut memory = MemoryNode::new(domain, listener, config)?;
    let listening = Listening { address: memory.address(), bytes: memory.lent_bytes() };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&listening)?)?;
    } else {
        writeln!(
            out,
            "memory at {}: {} bytes for {} processes",
            listening.address, listening.bytes, args.processes
        )?;
    }
    out.flush()?;
    drop(out);
    loop {
        memory.serve_for(Duration::from_secs(1));
    }
}
