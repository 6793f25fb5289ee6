//! `mitra kv`: the key-value store, its servers and its clients.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Subcommand;
use mitra_consensus::ProcessId;
use mitra_kv::{Client, ClientError, Server, ServerConfig, StoreConfig};

use super::Place;

/// A linearizable key-value store over replicated memory, which Redis' clients understand
///
/// Memories hold the data, processes serve it; one of them leads. Nothing that was acknowledged is lost while a majority of the memories
/// and one process live.
#[derive(clap::Args)]
#[command(after_help = "\
Example, three memories and three processes on this machine (each line in a terminal of its own, or with &):
  mitra memory kv --listen 127.0.0.1:7001      (and 7002, 7003)
  P=127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 C=127.0.0.1:6401,127.0.0.1:6402,127.0.0.1:6403
  mitra kv serve --id 0 --processes $P --clients $C --memories 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003      (and 1, 2)
  mitra kv put --servers $C colour blue
  redis-cli -c -p 6401 get colour
Exit codes: 0 done, 1 there is no such key, or it was not what was expected, 2 bad arguments or input, 3 no leader was reached in time: a change may have been made.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Serve clients, with the other processes of the store
    Serve(Serve),
    /// Print a key's value
    Get {
        #[command(flatten)]
        store: Store,
        key: String,
    },
    /// Give a key a value
    Put {
        #[command(flatten)]
        store: Store,
        key: String,
        value: String,
    },
    /// Give a key a value, if it has the expected one
    Cas {
        #[command(flatten)]
        store: Store,
        key: String,
        /// What it must have
        expected: String,
        value: String,
    },
    /// Take a key's value away
    Delete {
        #[command(flatten)]
        store: Store,
        key: String,
    },
    /// Print a key's changes, until it is ended
    Watch {
        #[command(flatten)]
        store: Store,
        key: String,
    },
}

#[derive(clap::Args)]
struct Serve {
    /// Which process it is, from 0
    #[arg(long)]
    id: u8,
    /// Where each process lets others in, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    processes: Vec<SocketAddr>,
    /// Where each process serves clients, from process 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    clients: Vec<SocketAddr>,
    /// Where each memory lets processes in, from memory 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    memories: Vec<SocketAddr>,
    /// MiB that all keys and values may take, as the memories have it
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=mitra_kv::MAX_CAPACITY_MIB.into()))]
    megabytes: u8,
    /// Milliseconds between two heartbeats: a leader counts as dead after thirteen without one
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    heartbeat: u64,
    #[command(flatten)]
    place: Place,
}

#[derive(clap::Args)]
struct Store {
    /// Where the processes serve clients
    #[arg(
        long,
        value_name = "ADDRESS:PORT,...",
        value_delimiter = ',',
        default_value = "127.0.0.1:6401,127.0.0.1:6402,127.0.0.1:6403"
    )]
    servers: Vec<SocketAddr>,
    /// Seconds to look for a leader
    #[arg(long, default_value_t = 10)]
    timeout: u64,
}

impl Store {
    fn client(&self) -> Client {
        Client::new(self.servers.clone(), Duration::from_secs(self.timeout))
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let done = match &args.what {
        What::Serve(args) => {
            drop(out);
            return serve(args);
        }
        What::Get { store, key } => match store.client().get(key.as_bytes()) {
            Ok(Some((value, _))) => {
                out.write_all(&value)?;
                writeln!(out)?;
                Ok(true)
            }
            other => other.map(|_| false),
        },
        What::Put { store, key, value } => {
            store.client().put(key.as_bytes(), value.as_bytes()).map(|()| true)
        }
        What::Cas { store, key, expected, value } => {
            store.client().cas(key.as_bytes(), Some(expected.as_bytes()), Some(value.as_bytes()))
        }
        What::Delete { store, key } => store.client().delete(key.as_bytes()),
        What::Watch { store, key } => {
            for change in store.client().watch(key.as_bytes())? {
                let (value, index) = change?;
                write!(out, "{index} ")?;
                match value {
                    Some(value) => out.write_all(&value)?,
                    None => write!(out, "(deleted)")?,
                }
                writeln!(out)?;
                out.flush()?;
            }
            Ok(true)
        }
    };
    out.flush()?;
    match done {
        Ok(made) => Ok(ExitCode::from(u8::from(!made))),
        Err(error @ ClientError::NoLeader(..)) => {
            eprintln!("mitra: {error}");
            Ok(ExitCode::from(3))
        }
        Err(error) => Err(error.into()),
    }
}

fn serve(args: &Serve) -> anyhow::Result<ExitCode> {
    let (n, m) = (args.processes.len(), args.memories.len());
    ensure!(n <= 64 && m <= 64, "at most 64 processes and 64 memories");
    ensure!(args.clients.len() == n, "--processes names {n} processes, --clients {}", args.clients.len());
    ensure!(usize::from(args.id) < n, "--id {} is none of the {n} processes", args.id);
    let sizes = StoreConfig { processes: n as u8, memories: m as u8, capacity_mib: args.megabytes };
    let config = ServerConfig {
        store: sizes,
        id: ProcessId(args.id),
        tokens: args.place.tokens(n as u8)?,
        processes: args.processes.clone(),
        memories: args.memories.clone(),
        client_addresses: args.clients.clone(),
        heartbeat_interval: Duration::from_millis(args.heartbeat),
        failover: mitra_failover::Config::default(),
    };
    let door = args.place.listen(args.processes[usize::from(args.id)])?;
    let clients = args.place.listen(args.clients[usize::from(args.id)])?;
    let (domain, _faults) = args.place.open()?;
    let mut server = Server::new(&domain, door, clients, config)?;
    eprintln!("mitra: process {} serves clients at {}", args.id, server.client_address()?);
    let (mut leader, mut leads) = (None, false);
    loop {
        server.run_once()?;
        if server.leader() != leader {
            leader = server.leader();
            eprintln!("mitra: the leader is {}", leader.map_or("nobody".into(), |p| p.to_string()));
        }
        if server.is_leader() != leads {
            leads = server.is_leader();
            eprintln!("mitra: process {} {}", args.id, if leads { "leads" } else { "leads no more" });
        }
    }
}
