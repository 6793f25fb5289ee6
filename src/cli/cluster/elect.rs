//! `mitra elect`: a process that names a leader, with others.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use mitra_consensus::omega::Omega;
use mitra_consensus::{AllRules, ProcessId, Region};
use mitra_consensus_rdma::{ProcessConfig, ProcessNode};

use super::Place;

/// Bytes that a register has room for.
pub(super) const ROOM: usize = 64;

/// Name a leader with other processes, by Ω over one memory
///
/// Prints whom this process takes for the leader, whenever that changes. Any number of processes may crash: those that live come to
/// name the same one of them, as long as the memory lives.
#[derive(clap::Args)]
#[command(after_help = "\
Example (each line in a terminal of its own, or with &):
  mitra memory omega --listen 127.0.0.1:7001
  P=127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103
  mitra elect --id 0 --processes $P --memory 127.0.0.1:7001      (and 1, 2)
Goes on until it is ended. Exit codes: 2 bad arguments or input.")]
pub(crate) struct Args {
    /// Which process it is, from 0
    #[arg(long)]
    id: u8,
    /// Where each process lets others in, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    processes: Vec<SocketAddr>,
    /// Where the memory lets processes in
    #[arg(long, value_name = "ADDRESS:PORT")]
    memory: SocketAddr,
    #[command(flatten)]
    place: Place,
}

/// The regions of the memory.
pub(super) fn regions(processes: u8) -> Vec<Region> {
    Omega::<AllRules>::regions(processes)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let n = args.processes.len();
    ensure!(n <= 64, "at most 64 processes");
    ensure!(usize::from(args.id) < n, "--id {} is none of the {n} processes", args.id);
    let (me, n) = (ProcessId(args.id), n as u8);
    let config = ProcessConfig {
        id: me,
        tokens: args.place.tokens(n)?,
        processes: args.processes.clone(),
        memories: vec![(args.memory, regions(n))],
        register_capacity: ROOM,
        max_message_bytes: ROOM,
        wake_delay: Duration::from_millis(5),
        failover: mitra_failover::Config::default(),
    };
    let door = args.place.listen(args.processes[usize::from(args.id)])?;
    let (domain, _faults) = args.place.open()?;
    let mut node = ProcessNode::new(Omega::<AllRules>::new(me, n), &domain, door, &config)?;
    // Before it has reached the memory it knows nothing.
    while node.connected_memories() == 0 {
        node.wait(Duration::from_millis(1));
        ensure!(
            node.crashed_memories().count() == 0,
            "{} is no memory of omega for {n} processes",
            args.memory
        );
    }
    let mut named = None;
    loop {
        let leader = node.process().leader();
        if named.replace(leader) != Some(leader) {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{leader}")?;
            out.flush()?;
        }
        node.wait(Duration::from_millis(1));
    }
}
