//! `mitra txn memory`: a memory node of a store.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use mitra_peer_process::{PeerConnection, PeerProcess};
use mitra_txn_rdma::MemoryNode;
use serde::{Deserialize, Serialize};

use super::signals::unblock_sigterm;
use super::store::StoreArgs;
use crate::cli::cluster::{ClusterArgs, PeerRails};
use crate::cli::write_json;

/// The role of the memory nodes that `mitra txn local` starts.
pub(crate) const PEER_ROLE: &str = "txn-memory";
/// The longest sleep. It bounds the delay with which this memory node reacts to the failover of a
/// peer.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Run a memory node; coordinators read and write its memory by RDMA
///
/// The processor of the memory node accepts coordinators, ends the rights of those that others take
/// over, and takes part in failovers. It touches no transaction. The contents end with the process.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  mitra txn memory --id 0 --listen 127.0.0.1:7001      (also --id 1 and 2, at ports 7002 and 7003)
Prints its address on one line (--json: `address`, `bytes`) and runs until it is interrupted.
Exit codes: 2 bad arguments or input, 130 after Ctrl-C, 143 after SIGTERM.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Id of this memory node, from 0
    #[arg(long, default_value_t = 0)]
    id: u16,
    /// Address on which the memory node accepts coordinators; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Print one JSON object instead of a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Serialize)]
struct Listening {
    address: SocketAddr,
    bytes: usize,
}

/// The first message to a process of [`PEER_ROLE`].
#[derive(Serialize, Deserialize)]
struct Start {
    store: StoreArgs,
    id: u16,
    rails: PeerRails,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.store.node(args.id, &args.cluster)?;
    let bytes = config.bytes;
    let listener = args.cluster.listen(args.listen)?;
    args.cluster.note_loopback(args.listen);
    let (domain, _faults) = args.cluster.open()?;
    let memory = MemoryNode::new(domain, listener, config)?;
    let listening = Listening { address: memory.address(), bytes };
    let mut out = std::io::stdout().lock();
    if args.json {
        write_json(&mut out, &listening)?;
    } else {
        writeln!(out, "memory node {} at {}: {} bytes", args.id, listening.address, listening.bytes)?;
    }
    out.flush()?;
    drop(out);
    serve(memory)
}

fn serve(mut memory: MemoryNode) -> ! {
    loop {
        memory.serve_for(MAX_SLEEP);
    }
}

/// Starts the memory nodes of a store, each as a process that ends with this process. Returns the
/// processes and the addresses of the memory nodes.
pub(super) fn start_all(
    store: &StoreArgs,
    rails: &PeerRails,
) -> anyhow::Result<(Vec<PeerProcess>, Vec<SocketAddr>)> {
    let start = |id| {
        let mut process = PeerProcess::start(PEER_ROLE)?;
        process.connection.send(&Start { store: store.clone(), id, rails: rails.clone() })?;
        let address: SocketAddr = process.connection.receive()?;
        Ok((process, address))
    };
    let all: Vec<_> = (0..store.memories).map(start).collect::<anyhow::Result<_>>()?;
    Ok(all.into_iter().unzip())
}

/// Runs a memory node that `mitra txn local` has started.
pub(crate) fn run_peer(connection: &mut PeerConnection) -> anyhow::Result<()> {
    unblock_sigterm()?;
    let Start { store, id, rails } = connection.receive()?;
    let cluster = rails.args();
    let listener = cluster.listen(([127, 0, 0, 1], 0).into())?;
    let (domain, _faults) = cluster.open()?;
    let memory = MemoryNode::new(domain, listener, store.node(id, &cluster)?)?;
    connection.send(&memory.address())?;
    serve(memory)
}
