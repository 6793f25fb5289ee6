//! A key-value store that is replicated by Raft (openraft) over TCP, in memory only, for Redis' clients: what `mitra bench consensus`
//! compares `mitra kv` with. Never anything that is to be relied on: a process that is started again has forgotten its vote.
#![forbid(unsafe_code)]

mod batch;
mod clients;
mod log;
mod machine;
mod network;
mod raft;

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use clap::Parser;
use clients::Clients;
use tokio::net::TcpListener;
use tokio::task::LocalSet;

/// One process of a key-value store replicated by Raft, in memory only
#[derive(Parser)]
struct Args {
    /// Which process it is, from 0
    #[arg(long)]
    id: usize,
    /// Where each process lets others in, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    processes: Vec<SocketAddr>,
    /// Where each process serves clients, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    clients: Vec<SocketAddr>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let n = args.processes.len();
    ensure!(args.clients.len() == n, "--processes names {n} processes, --clients {}", args.clients.len());
    ensure!(args.id < n, "--id {} is none of the {n} processes", args.id);
    LocalSet::new().run_until(serve(args)).await
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let listen =
        async |at: SocketAddr| TcpListener::bind(at).await.with_context(|| format!("cannot listen at {at}"));
    let door = listen(args.processes[args.id]).await?;
    let clients_door = listen(args.clients[args.id]).await?;
    let (raft, values) = raft::start(args.id as u64, &args.processes).await?;
    let clients = Clients::new(raft.clone(), values, args.clients);
    tokio::select! {
        ended = network::serve(door, raft) => ended.context("other processes cannot be let in"),
        ended = clients.clone().serve(clients_door) => ended.context("clients cannot be let in"),
        () = clients.carry_out() => Ok(()),
    }
}
