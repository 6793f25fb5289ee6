//! `mitra txn`: transactions over the memory of other processes.

mod check;
mod local;
mod memory;
mod signals;
mod store;

use std::process::ExitCode;

use clap::Subcommand;

pub(crate) use memory::{PEER_ROLE, run_peer};

/// Strictly serializable transactions over the memory of other processes
///
/// The processors of the memory nodes take no part: coordinators read, lock, log and write by RDMA.
#[derive(clap::Args)]
#[command(after_help = concat!("\
These commands run TPC-C or SmallBank, to try transactions and to check a store. Transactions of your own need the library
(docs/transactions.md).
Examples:
  mitra txn local --workload smallbank --seconds 2
  mitra txn memory --id 0 --listen 127.0.0.1:7001      (also --id 1 and 2, at ports 7002 and 7003)
  mitra txn local --nodes 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003   (loads TPC-C; needs about 1.5 GB)
  mitra txn check --nodes 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
All processes of a store need the same --workload, --warehouses or --accounts, --memories, --coordinators, --backups and
number of rails. `mitra bench tpcc` measures.
`mitra txn local --nodes` loads new memory nodes, and opens a store that they already have. If the program that ran on it
was killed, it first completes or undoes what that program has left in the middle.
", machines_in_help!(), "\
Exit codes: 0 success, 1 the store is damaged or was lost, 2 bad arguments or input, 3 (check) the store is not recovered."))]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Memory(memory::Args),
    Local(local::Args),
    Check(check::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Memory(args) => memory::run(args),
        Command::Local(args) => local::run(args),
        Command::Check(args) => check::run(args),
    }
}
