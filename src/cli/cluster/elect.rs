//! `mitra elect`: a process that takes part in the election of a leader by Ω.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use mitra_consensus::omega::Omega;
use mitra_consensus::{AllRules, ProcessId, Region};
use mitra_consensus_rdma::{ExtraTimeout, ProcessConfig, ProcessNode};

use super::ClusterArgs;
use crate::cli::complain;

/// The capacity of a register in bytes.
pub(super) const REGISTER_CAPACITY: usize = 64;
/// The interval at which a leader writes its heartbeat, and others read it on an idle machine.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(5);
/// A process that runs again after this time was kept waiting for a processor.
const TOLERATED_DELAY: Duration = Duration::from_millis(20);
/// A process that has not reached the memory node after this time says so, once.
const SILENCE: Duration = Duration::from_secs(5);
/// The most by which the interval of readers grows on a busy machine.
const MAX_EXTRA_TIMEOUT: Duration = Duration::from_secs(1);

/// Elect a leader with other processes, by the failure detector Ω over one memory node
///
/// Prints the leader whenever it changes, with the id of this process. Any number of processes may
/// crash: the live processes agree on a live leader while the memory node lives.
#[derive(clap::Args)]
#[command(after_help = concat!("\
Example (each line in a terminal of its own, or with &):
  mitra memory omega --listen 127.0.0.1:7001
  P=127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103
  mitra elect --id 0 --processes $P --memory 127.0.0.1:7001      (also --id 1, --id 2)
Prints `process 1: process 0 leads`, at first and whenever the leader changes. --json: one object per line, with `process`
(the id of this process) and `leader` (the id of the leader).
On a busy machine the leader may change several times, and processes may disagree for a while.
Prints nothing until the memory node answers, but on standard error after 5 s. A process that starts again with the same
--id is refused, says so in the same way, and goes on trying: start the memory node and all processes again.
Runs until it is interrupted.
", machines_in_help!(), "\
Exit codes: 2 bad arguments or input, 130 after Ctrl-C, 143 after SIGTERM."))]
pub(crate) struct Args {
    /// Id of this process, from 0
    #[arg(long)]
    id: u8,
    /// Address of each process, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    processes: Vec<SocketAddr>,
    /// Address of the memory node
    #[arg(long, value_name = "ADDRESS:PORT")]
    memory: SocketAddr,
    /// Print one JSON object for each leader
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn regions(processes: u8) -> Vec<Region> {
    Omega::<AllRules>::regions(processes)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let n = args.processes.len();
    ensure!(n <= 64, "at most 64 processes");
    ensure!(usize::from(args.id) < n, "--id {} is not one of the {n} processes", args.id);
    args.cluster.check_reach(&[args.memory])?;
    args.cluster.check_reach(&args.processes)?;
    let (me, n) = (ProcessId(args.id), n as u8);
    let config = ProcessConfig {
        id: me,
        tokens: args.cluster.tokens(n)?,
        processes: args.processes.clone(),
        memories: vec![(args.memory, regions(n))],
        register_capacity: REGISTER_CAPACITY,
        max_message_bytes: REGISTER_CAPACITY,
        wake_delay: HEARTBEAT_INTERVAL,
        failover: mitra_failover::Config::default(),
    };
    let listener = args.cluster.listen(args.processes[usize::from(args.id)])?;
    let (domain, _faults) = args.cluster.open()?;
    let mut node = ProcessNode::new(Omega::<AllRules>::new(me, n), &domain, listener, &config)?;
    // A process that has not reached the memory does not know the state of the election.
    let mut complain_at = Some(Instant::now() + SILENCE);
    while node.connected_memories() == 0 {
        node.wait(HEARTBEAT_INTERVAL);
        if complain_at.take_if(|at| Instant::now() >= *at).is_some() {
            complain(format_args!(
                "the memory node {} does not answer, or knows an earlier process {}; start it, or start all again",
                args.memory, args.id
            ));
        }
        ensure!(
            node.crashed_memories().count() == 0,
            "{} is not a memory node for omega with {n} processes",
            args.memory
        );
    }
    let mut printed: Option<ProcessId> = None;
    let mut extra_timeout = ExtraTimeout::new(TOLERATED_DELAY, MAX_EXTRA_TIMEOUT, Instant::now());
    loop {
        let leader = node.process().leader();
        extra_timeout.step(Instant::now());
        if printed.is_some_and(|printed| printed != leader) {
            // The leader failed, or it was kept waiting: the readers double their interval.
            extra_timeout.raise(2 * extra_timeout.current().max(HEARTBEAT_INTERVAL), Instant::now());
        }
        // The leader itself writes at the interval of an idle machine.
        let waits = if leader == me { Duration::ZERO } else { extra_timeout.current() };
        node.set_wake_delay(HEARTBEAT_INTERVAL + waits);
        if printed.replace(leader) != Some(leader) {
            let mut out = std::io::stdout().lock();
            match args.json {
                true => writeln!(out, "{}", serde_json::json!({"process": me.0, "leader": leader.0}))?,
                false => writeln!(out, "process {}: process {} leads", me.0, leader.0)?,
            }
            out.flush()?;
        }
        node.wait(HEARTBEAT_INTERVAL);
    }
}
