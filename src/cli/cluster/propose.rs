//! `mitra propose`: a process that decides once with others.

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

use super::Place;
use super::key::keys as keys_of;
use super::protocol::{Protocol, Task};

/// A decision is heard of by those that poll: who has decided stays a while, for the others.
const LINGER: Duration = Duration::from_millis(500);

/// Decide on one value with other processes, over memories that `mitra memory` lends
#[derive(clap::Args)]
#[command(after_help = "\
Example (three memories run, see mitra memory --help):
  P=127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 M=127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
  mitra propose protected-memory-paxos --id 1 --processes $P --memories $M --lead blue
One process leads (of fast-paxos, hbo, cheap-quorum and fast-and-robust where all is well: none need to); one alone decides where the protocol lets it. What was decided goes to standard output (--json: `decided`,
`attempts`, `us` since it led or began). Exit codes: 0 it has decided, 1 it has not in time, 2 bad arguments or input.")]
pub(crate) struct Args {
    /// By which protocol
    protocol: Protocol,
    /// What to propose
    value: Option<String>,
    /// Which process it is, from 0
    #[arg(long)]
    id: u8,
    /// Where each process lets others in, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    processes: Vec<SocketAddr>,
    /// Where each memory lets processes in, from memory 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',')]
    memories: Vec<SocketAddr>,
    /// Take the lead, once a majority of the memories can be reached: where two do, they hinder each other, and agree all the same
    #[arg(long)]
    lead: bool,
    /// What this process signs with, where processes lie (`mitra key`)
    #[arg(long, value_name = "FILE", requires = "keys")]
    key: Option<PathBuf>,
    /// The public halves of all, a line each, from process 0
    #[arg(long, value_name = "FILE", requires = "key")]
    keys: Option<PathBuf>,
    /// Which decision this is: another number for each that is signed with the same keys, or what was said in one counts in another
    #[arg(long, default_value_t = 0)]
    instance: u64,
    /// Bytes that a register has room for, as the memories have it
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    room: u32,
    /// Give up after so many seconds
    #[arg(long, default_value_t = 30)]
    timeout: u64,
    /// One JSON object instead of the value
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Serialize)]
pub(crate) struct Decided {
    decided: Option<String>,
    attempts: u64,
    us: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (n, m) = (args.processes.len(), args.memories.len());
    ensure!(n <= 64 && m <= 64, "at most 64 processes and 64 memories");
    ensure!(usize::from(args.id) < n, "--id {} is none of the {n} processes", args.id);
    let me = ProcessId(args.id);
    let keys = match (&args.key, &args.keys) {
        (Some(key), Some(keys)) => Some(keys_of(me, n as u8, key, keys, args.instance)?),
        _ => None,
    };
    let decided = args.protocol.with(me, (n as u8, m as u8), args.value.clone(), keys, args)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&decided)?)?;
    } else if let Some(value) = &decided.decided {
        writeln!(out, "{value}")?;
    }
    out.flush()?;
    if decided.decided.is_none() {
        eprintln!(
            "mitra: nothing was decided in {} s: too few processes or memories are there, or they knew an earlier process {}",
            args.timeout, args.id
        );
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
        let n = self.processes.len() as u8;
        let regions = |memory: usize| self.protocol.regions(n, memory as u8);
        let config = ProcessConfig {
            id: ProcessId(self.id),
            tokens: self.place.tokens(n)?,
            processes: self.processes.clone(),
            memories: self.memories.iter().enumerate().map(|(i, &at)| (at, regions(i))).collect(),
            register_capacity: self.room as usize,
            max_message_bytes: 2 * self.room as usize,
            wake_delay: Duration::from_millis(20),
            failover: mitra_failover::Config::default(),
        };
        let door = self.place.listen(self.processes[usize::from(self.id)])?;
        let (domain, _faults) = self.place.open()?;
        let mut node = ProcessNode::new(process, &domain, door, &config)?;
        let end = Instant::now() + Duration::from_secs(self.timeout);
        let mut begun = Instant::now();
        let mut leads = !self.lead;
        while node.process().decision().is_none() && Instant::now() < end {
            if !leads && 2 * node.connected_memories() >= self.memories.len() {
                (leads, begun) = (true, Instant::now());
                node.handle_input(Input::Leader(ProcessId(self.id)));
            }
            node.wait(Duration::from_millis(1));
        }
        let us = begun.elapsed().as_secs_f64() * 1e6;
        let heard = Instant::now() + LINGER;
        while node.process().decision().is_some() && Instant::now() < heard {
            node.wait(Duration::from_millis(1));
        }
        let decided = node.process().decision().map(ToString::to_string);
        Ok(Decided { decided, attempts: node.process().attempts(), us })
    }
}
