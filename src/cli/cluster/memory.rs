//! `mitra memory`: a memory node.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use mitra_node::{MemoryConfig, MemoryNode};
use serde::Serialize;

use super::Place;
use super::protocol::Protocol;

/// How long it sleeps at most: how late a peer's failover can find it.
const NAP: Duration = Duration::from_millis(1);

/// Lend memory to the processes of an agreement, who reach it by RDMA
///
/// Its processor lets processes in and changes their rights; they read and write by themselves, and the NIC refuses who has lost
/// the right. It holds what it holds for as long as it runs: one that is started anew has forgotten everything, and counts as crashed
/// with those who knew it before.
#[derive(clap::Args)]
#[command(after_help = "\
Example, a decision of three processes over three memories (each line in a terminal of its own, or with &):
  mitra memory protected-memory-paxos --listen 127.0.0.1:7001
  mitra memory protected-memory-paxos --listen 127.0.0.1:7002
  mitra memory protected-memory-paxos --listen 127.0.0.1:7003
  mitra propose protected-memory-paxos --help
Prints where it listens, on one line (--json: `address`, `bytes`), and serves until it is ended. Exit codes: 2 bad arguments or input.")]
pub(crate) struct Args {
    /// What it is for
    protocol: Protocol,
    /// Where processes come in
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// How many processes share it
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    processes: u8,
    /// Which memory it is, from 0
    #[arg(long, default_value_t = 0)]
    id: u8,
    /// Bytes that a register has room for
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    room: u32,
    /// One JSON object instead of a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Serialize)]
struct Listening {
    address: SocketAddr,
    bytes: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let listener = args.place.listen(args.listen)?;
    let config = MemoryConfig {
        regions: args.protocol.regions(args.processes, args.id),
        room: args.room as usize,
        tokens: args.place.tokens(args.processes)?,
        failover: mitra_failover::Config::default(),
    };
    let mut memory = MemoryNode::new(args.place.open()?, listener, config)?;
    let told = Listening { address: memory.address(), bytes: memory.bytes() };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&told)?)?;
    } else {
        writeln!(out, "memory at {}: {} bytes for {} processes", told.address, told.bytes, args.processes)?;
    }
    out.flush()?;
    drop(out);
    loop {
        memory.rest(NAP);
    }
}
