//! `mitra propose`: a process that takes part in one decision.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use mitra_consensus::{Input, Process, ProcessId};
use mitra_consensus_rdma::{ProcessConfig, ProcessNode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ClusterArgs;
use super::key;
use super::protocol::{Protocol, Task};

/// The time for which a process keeps running after its decision, so that the other processes can
/// learn it.
const DECISION_LINGER: Duration = Duration::from_millis(500);

/// Decide on one value with other processes, over memory nodes (`mitra memory`)
#[derive(clap::Args)]
#[command(after_help = concat!("\
Example (three memories run, see mitra memory --help; each line in a terminal of its own, or with &):
  P=127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 M=127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
  mitra propose protected-memory-paxos --id 0 --processes $P --memories $M   (learns the decision; also --id 2)
  mitra propose protected-memory-paxos blue --id 1 --processes $P --memories $M --lead
Start one process with --lead, after the others: it ends half a second after its decision. fast-paxos, hbo, cheap-quorum,
non-equivocating-broadcast and fast-and-robust need no --lead in the common case; fast-paxos with several values needs it
at one process. Prints the decision, as in `process 1: decided blue`. --json: `process` (the id), `decided` (the value, or
null), `attempts` (the ballots that this process began; of hbo its rounds, of cheap-quorum its polls), `us` (microseconds
since the process became leader or started).
Memory nodes serve one decision: for the next one, start them and all processes again.
", machines_in_help!(), "\
Exit codes: 0 decided, 1 not decided in time, 2 bad arguments or input."))]
pub(crate) struct Args {
    /// Protocol
    protocol: Protocol,
    /// Value to propose. A process that does not lead needs none; process 0 of cheap-quorum,
    /// fast-and-robust and non-equivocating-broadcast leads, and each process of hbo needs one
    value: Option<String>,
    /// Id of this process, from 0
    #[arg(long)]
    id: u8,
    /// Address of each process, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    processes: Vec<SocketAddr>,
    /// Address of each memory node, from memory 0; paxos and fast-paxos need none
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',')]
    memories: Vec<SocketAddr>,
    /// Become the leader once at least half of the memory nodes are connected. Two leaders delay
    /// each other, but never decide different values
    #[arg(long)]
    lead: bool,
    /// Secret key of this process, for the Byzantine protocols (`mitra key`)
    #[arg(long, value_name = "FILE", requires = "keys")]
    key: Option<PathBuf>,
    /// Public keys of all processes, one per line, from process 0
    #[arg(long, value_name = "FILE", requires = "key")]
    keys: Option<PathBuf>,
    /// Number of this decision. Every decision that is signed with the same keys needs a different
    /// number; otherwise, the signatures of one decision are valid in another
    #[arg(long, default_value_t = 0)]
    instance: u64,
    /// Capacity of a register in bytes; the memory nodes need the same value
    #[arg(long, alias = "room", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    register_bytes: u32,
    /// Seconds after which the process gives up
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=super::MAX_TIMEOUT_SECONDS))]
    timeout: u64,
    /// Print one JSON object instead of the line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The object that `--json` prints.
#[derive(Serialize)]
pub(crate) struct Decided {
    process: u8,
    decided: Option<String>,
    attempts: u64,
    us: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (n, m) = (args.processes.len(), args.memories.len());
    ensure!(n <= 64 && m <= 64, "at most 64 processes and 64 memories");
    ensure!(usize::from(args.id) < n, "--id {} is not one of the {n} processes", args.id);
    let me = ProcessId(args.id);
    args.protocol.check_value(me, args.lead, args.value.is_some())?;
    let keys = match (&args.key, &args.keys) {
        (Some(secret), Some(public)) => Some(key::keys(me, n as u8, secret, public, args.instance)?),
        _ => None,
    };
    let decided = args.protocol.with(me, (n as u8, m as u8), args.value.clone(), keys, args)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&decided)?)?;
    } else if let Some(value) = &decided.decided {
        writeln!(out, "process {}: decided {value}", args.id)?;
    }
    out.flush()?;
    if decided.decided.is_none() {
        crate::cli::complain(format_args!(
            "no decision within {} s: too few processes or memory nodes are connected, or they know an earlier process {}; \
             start the others, or give --timeout more seconds",
            args.timeout, args.id
        ));
    }
    Ok(ExitCode::from(u8::from(decided.decided.is_none())))
}

impl Task for &Args {
    type Output = Decided;

    fn run<P>(self, process: P) -> anyhow::Result<Decided>
    where
        P: Process,
        P::Cell: Serialize + DeserializeOwned,
        P::Message: Serialize + DeserializeOwned,
        P::Value: std::fmt::Display,
    {
        self.cluster.check_reach(&self.memories)?;
        self.cluster.check_reach(&self.processes)?;
        let n = self.processes.len() as u8;
        let config = ProcessConfig {
            id: ProcessId(self.id),
            tokens: self.cluster.tokens(n)?,
            processes: self.processes.clone(),
            memories: self.memories.iter().map(|&at| (at, self.protocol.regions(n))).collect(),
            register_capacity: self.register_bytes as usize,
            max_message_bytes: 2 * self.register_bytes as usize,
            wake_delay: Duration::from_millis(20),
            failover: mitra_failover::Config::default(),
        };
        let listener = self.cluster.listen(self.processes[usize::from(self.id)])?;
        let (domain, _faults) = self.cluster.open()?;
        let mut node = ProcessNode::new(process, &domain, listener, &config)?;
        let end = Instant::now() + Duration::from_secs(self.timeout);
        let mut begun = Instant::now();
        let mut must_lead = self.lead;
        while node.process().decision().is_none() && Instant::now() < end {
            if must_lead && 2 * node.connected_memories() >= self.memories.len() {
                (must_lead, begun) = (false, Instant::now());
                node.handle_input(Input::Leader(ProcessId(self.id)));
            }
            node.wait(Duration::from_millis(1));
        }
        let us = begun.elapsed().as_secs_f64() * 1e6;
        let linger_until = Instant::now() + DECISION_LINGER;
        while node.process().decision().is_some() && Instant::now() < linger_until {
            node.wait(Duration::from_millis(1));
        }
        let decided = node.process().decision().map(ToString::to_string);
        Ok(Decided { process: self.id, decided, attempts: node.process().attempts(), us })
    }
}
