//! `mitra kv`: the servers and the clients of the key-value store.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Subcommand;
use mitra_consensus::ProcessId;
use mitra_kv::{Client, ClientError, MemoryState, Server, ServerConfig, StoreConfig};
use serde_json::json;

use super::{ClusterArgs, kv_json};
use crate::cli::complain;

/// Linearizable key-value store over replicated memory; speaks the Redis protocol
///
/// Memory nodes hold the data. Processes serve it, and one of them leads. No acknowledged change is
/// lost while a majority of the memory nodes and one process live.
#[derive(clap::Args)]
#[command(after_help = concat!("\
Example, three memories and three processes on this machine (each line in a terminal of its own, or with &):
  mitra memory kv --listen 127.0.0.1:7001      (also ports 7002 and 7003)
  P=127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 C=127.0.0.1:6401,127.0.0.1:6402,127.0.0.1:6403
  mitra kv serve --id 0 --processes $P --clients $C --memories 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
      (also --id 1, --id 2)
  mitra kv put --servers $C colour blue
  redis-cli -c -p 6401 get colour
A key and its value have at most about 4,000 bytes together. Clients of Redis can use GET, SET (with NX), DEL, EXISTS and
others; docs/consensus.md lists them. Keys never expire, and there is no MULTI.
A memory node that starts again has lost its contents, and is refused for good, unless it has --data DIRECTORY. A process
may start again.
", machines_in_help!(), "\
--json: one object on one line; watch prints one for each change. Each has `key`. get and watch: `value` (null if there is
none; `value_hex` instead if it is not UTF-8), `index` (of the change in the log; null without a value of get); put:
`stored`; cas: `swapped`; delete: `deleted`. serve: one object per event, `event` and what it concerns: `serving`
(`address`), `leader` (`leader`: a process or null), `leads` (`leads`: whether this process does), `memory` (`address`,
`state`: connected, lost, contents_lost or other_layout, `left`: how many are connected). After exit code 3, none.
Exit codes: 0 success, 1 the key does not exist or has another value than expected, 2 bad arguments or input, 3 no answer in
time: no process leads, or a majority of the memory nodes is lost (the message names them); a change may or may not be made."))]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Subcommand)]
enum KvCommand {
    /// Serve clients, together with the other processes of the store
    Serve(Serve),
    /// Print the value of a key
    #[command(after_help = "\
Example:
  mitra kv get --servers 127.0.0.1:6401,127.0.0.1:6402 colour
Prints the value and a line feed, and nothing if the key has no value.
Exit codes: 0 success, 1 the key has no value, 2 bad arguments, 3 no answer in time.")]
    Get {
        #[command(flatten)]
        store: Store,
        /// The key
        key: String,
    },
    /// Set the value of a key
    #[command(after_help = "\
Example:
  mitra kv put colour blue
Prints nothing without --json.
Exit codes: 0 success, 2 bad arguments, 3 no answer in time, and the value may or may not be set.")]
    Put {
        #[command(flatten)]
        store: Store,
        /// The key
        key: String,
        /// The new value
        value: String,
    },
    /// Set the value of a key if it has the expected value
    #[command(after_help = "\
Example:
  mitra kv cas colour blue green
Prints nothing without --json.
Exit codes: 0 success, 1 the key has another value or none, 2 bad arguments, 3 no answer in time, and the value may or may
not be set.")]
    Cas {
        #[command(flatten)]
        store: Store,
        /// The key
        key: String,
        /// Expected value
        expected: String,
        /// The new value
        value: String,
    },
    /// Delete a key
    #[command(after_help = "\
Example:
  mitra kv delete colour
Prints nothing without --json.
Exit codes: 0 success, 1 the key had no value, 2 bad arguments, 3 no answer in time, and the key may or may not be deleted.")]
    Delete {
        #[command(flatten)]
        store: Store,
        /// The key
        key: String,
    },
    /// Print the changes of a key until interrupted
    #[command(after_help = "\
Example:
  mitra kv watch colour
Prints one line for each change from now on, as it is committed: the index of the change in the log, and the new value or
(deleted).
Exit codes: 2 bad arguments, or the connection closed; 3 no server was reached; 130 after Ctrl-C, 143 after SIGTERM.")]
    Watch {
        #[command(flatten)]
        store: Store,
        /// The key
        key: String,
    },
}

#[derive(clap::Args)]
#[command(after_help = "\
Example:
  mitra kv serve --id 0 --processes 127.0.0.1:7101 --clients 127.0.0.1:6401 --memories 127.0.0.1:7001
(one process and one memory node: mitra memory kv --processes 1 --memories 1 --listen 127.0.0.1:7001)
Prints on standard error: the leader when it changes, and memory nodes that are lost, refused or back. Runs until it is
interrupted.
Exit codes: 2 bad arguments or input, 130 after Ctrl-C, 143 after SIGTERM.")]
struct Serve {
    /// Id of this process, from 0
    #[arg(long)]
    id: u8,
    /// Address of each process, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    processes: Vec<SocketAddr>,
    /// Client address of each process, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    clients: Vec<SocketAddr>,
    /// Address of each memory node, from memory 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    memories: Vec<SocketAddr>,
    /// Capacity for all keys and values in MiB; the memory nodes need the same value
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=mitra_kv::MAX_CAPACITY_MIB.into()))]
    megabytes: u8,
    /// Milliseconds between two heartbeats; a leader that misses thirteen is considered failed, on
    /// a busy machine after up to a second more
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    heartbeat: u64,
    /// Print one JSON object per event on standard output, instead of lines on standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(clap::Args)]
struct Store {
    /// Client addresses of the processes
    #[arg(
        long,
        value_name = "ADDRESS:PORT,...",
        value_delimiter = ',',
        default_value = "127.0.0.1:6401,127.0.0.1:6402,127.0.0.1:6403"
    )]
    servers: Vec<SocketAddr>,
    /// Seconds to look for a leader
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=super::MAX_TIMEOUT_SECONDS))]
    timeout: u64,
    /// Print one JSON object; `mitra kv --help` describes its fields
    #[arg(long)]
    json: bool,
}

impl Store {
    fn client(&self) -> Client {
        Client::new(self.servers.clone(), Duration::from_secs(self.timeout))
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let done = match &args.command {
        KvCommand::Serve(args) => return serve(args),
        KvCommand::Get { store, key } => get(store, key),
        KvCommand::Put { store, key, value } => {
            let done = store.client().put(key.as_bytes(), value.as_bytes()).map(|()| true);
            report(done, store, key, kv_json::stored)
        }
        KvCommand::Cas { store, key, expected, value } => {
            let (expected, value) = (Some(expected.as_bytes()), Some(value.as_bytes()));
            report(store.client().cas(key.as_bytes(), expected, value), store, key, kv_json::swapped)
        }
        KvCommand::Delete { store, key } => {
            report(store.client().delete(key.as_bytes()), store, key, kv_json::deleted)
        }
        KvCommand::Watch { store, key } => watch(store, key),
    };
    match done {
        Ok(succeeded) => Ok(ExitCode::from(u8::from(!succeeded))),
        Err(error) => match error.downcast_ref::<ClientError>() {
            Some(
                no_answer @ (ClientError::NoLeader(..)
                | ClientError::NoServer(..)
                | ClientError::MajorityLost(..)),
            ) => {
                complain(no_answer);
                Ok(ExitCode::from(3))
            }
            _ => Err(error),
        },
    }
}

/// Prints the result of a change with `--json`, and returns whether it was made.
fn report(
    done: Result<bool, ClientError>,
    store: &Store,
    key: &str,
    json: fn(&str, bool) -> serde_json::Value,
) -> anyhow::Result<bool> {
    let done = done?;
    if store.json {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", json(key, done))?;
        out.flush()?;
    }
    Ok(done)
}

fn get(store: &Store, key: &str) -> anyhow::Result<bool> {
    let found = store.client().get(key.as_bytes())?;
    let mut out = std::io::stdout().lock();
    match &found {
        _ if store.json => {
            let (value, index) = found.as_ref().map(|(value, index)| (&value[..], *index)).unzip();
            writeln!(out, "{}", kv_json::value(key, value, index))?;
        }
        Some((value, _)) => {
            out.write_all(value)?;
            writeln!(out)?;
        }
        None => {}
    }
    out.flush()?;
    Ok(found.is_some())
}

fn watch(store: &Store, key: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    for change in store.client().watch(key.as_bytes())? {
        let (value, index) = change?;
        if store.json {
            write!(out, "{}", kv_json::value(key, value.as_deref(), Some(index)))?;
        } else {
            write!(out, "{index} ")?;
            match value {
                Some(value) => out.write_all(&value)?,
                None => write!(out, "(deleted)")?,
            }
        }
        writeln!(out)?;
        out.flush()?;
    }
    Ok(true)
}

fn serve(args: &Serve) -> anyhow::Result<ExitCode> {
    let (n, m) = (args.processes.len(), args.memories.len());
    ensure!(n <= 64 && m <= 64, "at most 64 processes and 64 memories");
    ensure!(
        args.clients.len() == n,
        "--processes has {n} addresses, but --clients has {}",
        args.clients.len()
    );
    ensure!(usize::from(args.id) < n, "--id {} is not one of the {n} processes", args.id);
    args.cluster.check_reach(&args.memories)?;
    args.cluster.check_reach(&args.processes)?;
    let sizes = StoreConfig { processes: n as u8, memories: m as u8, capacity_mib: args.megabytes };
    let config = ServerConfig {
        store: sizes,
        id: ProcessId(args.id),
        tokens: args.cluster.tokens(n as u8)?,
        processes: args.processes.clone(),
        memories: args.memories.clone(),
        client_addresses: args.clients.clone(),
        heartbeat_interval: Duration::from_millis(args.heartbeat),
        failover: mitra_failover::Config::default(),
    };
    let listener = args.cluster.listen(args.processes[usize::from(args.id)])?;
    let clients = args.cluster.listen(args.clients[usize::from(args.id)])?;
    let (domain, _faults) = args.cluster.open()?;
    let mut server = Server::new(&domain, listener, clients, config)?;
    let report = |text: String, event: serde_json::Value| -> std::io::Result<()> {
        match args.json {
            true => writeln!(std::io::stdout(), "{event}"),
            false => writeln!(std::io::stderr(), "mitra: {text}"),
        }
    };
    let address = server.client_address()?;
    report(
        format!("process {} serves clients at {address}", args.id),
        json!({"event": "serving", "address": address}),
    )?;
    let (mut leader, mut leads) = (None, false);
    let mut memories: Vec<MemoryState> = vec![MemoryState::Connecting; m];
    loop {
        server.run_once()?;
        for (text, event) in memory_changes(&server, &mut memories) {
            report(text, event)?;
        }
        if server.leader() != leader {
            leader = server.leader();
            report(
                format!("the leader is {}", leader.map_or("unknown".into(), |p| format!("process {}", p.0))),
                json!({"event": "leader", "leader": leader.map(|p| p.0)}),
            )?;
        }
        if server.is_leader() != leads {
            leads = server.is_leader();
            report(
                format!("process {} {}", args.id, if leads { "leads" } else { "no longer leads" }),
                json!({"event": "leads", "leads": leads}),
            )?;
        }
    }
}

/// Returns the line and the object of each memory node that was lost or refused, or is back, since
/// the last call. `reported` has the states that were reported.
fn memory_changes(server: &Server, reported: &mut [MemoryState]) -> Vec<(String, serde_json::Value)> {
    let left = server.memories().filter(|(_, state)| *state == MemoryState::Connected).count();
    let all = reported.len();
    let mut changes = Vec::new();
    for ((address, state), reported) in server.memories().zip(reported) {
        let before = std::mem::replace(
            reported,
            match state {
                // A broken connection may be replaced at once.
                MemoryState::Connecting => *reported,
                other => other,
            },
        );
        if *reported == before || before == MemoryState::Connecting && state == MemoryState::Connected {
            continue;
        }
        let (name, what) = match state {
            MemoryState::Lost => ("lost", "is lost"),
            MemoryState::ContentsLost => ("contents_lost", "is refused, because it has lost its contents"),
            MemoryState::OtherLayout => {
                ("other_layout", "is refused, because its --processes, --memories or --megabytes are others")
            }
            MemoryState::Connecting | MemoryState::Connected => ("connected", "is back"),
        };
        let few = if 2 * left > all { "" } else { ", too few to answer clients" };
        let text = format!("memory node {address} {what}; {left} of {all} are left{few}");
        changes.push((text, json!({"event": "memory", "address": address, "state": name, "left": left})));
    }
    changes
}
