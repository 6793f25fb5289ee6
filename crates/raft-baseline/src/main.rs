#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client_server;
mod log_entry;
mod memory_log;
mod peer_network;
mod raft_node;
mod state_machine;

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use clap::Parser;
use client_server::ClientServer;
use tokio::net::TcpListener;
use tokio::task::LocalSet;

/// One process of a key-value store replicated by Raft, in memory only
#[derive(Parser)]
struct Args {
    /// The id of this process, from 0
    #[arg(long)]
    id: usize,
    /// The address at which each process accepts its peers, in the order of ids
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    processes: Vec<SocketAddr>,
    /// The address at which each process serves clients, in the order of ids
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    clients: Vec<SocketAddr>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let n = args.processes.len();
    ensure!(args.clients.len() == n, "--processes names {n} processes, --clients {}", args.clients.len());
    ensure!(args.id < n, "--id {} is not below the number of processes, {n}", args.id);
    LocalSet::new().run_until(serve(args)).await
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let listen = async |address: SocketAddr| {
        TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))
    };
    let peer_listener = listen(args.processes[args.id]).await?;
    let client_listener = listen(args.clients[args.id]).await?;
    let (raft, values) = raft_node::start(args.id as u64, &args.processes).await?;
    let clients = ClientServer::new(raft.clone(), values, args.clients);
    tokio::select! {
        result = peer_network::serve(peer_listener, raft) => result.context("cannot accept peers"),
        result = clients.clone().serve(client_listener) => result.context("cannot accept clients"),
        () = clients.execute_batches() => Ok(()),
    }
}
