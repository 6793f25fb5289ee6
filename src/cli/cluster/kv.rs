//! `mitra kv`: the servers and the clients of the key-value store.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Subcommand;
use mitra_consensus::ProcessId;
use mitra_kv::{Client, ClientError, Server, ServerConfig, StoreConfig};

use super::ClusterArgs;

/// Linearizable key-value store over replicated memory; speaks the Redis protocol
///
/// Memory nodes hold the data. Processes serve it, and one of them leads. No acknowledged change is lost while a
/// majority of the memory nodes and one process live.
#[derive(clap::Args)]
#[command(after_help = "\
Example, three memories and three processes on this machine (each line in a terminal of its own, or with &):
  mitra memory kv --listen 127.0.0.1:7001      (also ports 7002 and 7003)
  P=127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 C=127.0.0.1:6401,127.0.0.1:6402,127.0.0.1:6403
  mitra kv serve --id 0 --processes $P --clients $C --memories 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
      (also --id 1, --id 2)
  mitra kv put --servers $C colour blue
  redis-cli -c -p 6401 get colour
Exit codes: 0 success, 1 the key does not exist or has another value than expected, 2 bad arguments or input, 3 no leader
responded in time, and the change may or may not have been made.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Subcommand)]
enum KvCommand {
    /// Serve clients, together with the other processes of the store
    Serve(Serve),
    /// Print the value of a key
    Get {
        #[command(flatten)]
        store: Store,
        key: String,
    },
    /// Set the value of a key
    Put {
        #[command(flatten)]
        store: Store,
        key: String,
        value: String,
    },
    /// Set the value of a key if it has the expected value
    Cas {
        #[command(flatten)]
        store: Store,
        key: String,
        /// Expected value
        expected: String,
        value: String,
    },
    /// Delete a key
    Delete {
        #[command(flatten)]
        store: Store,
        key: String,
    },
    /// Print the changes of a key until interrupted
    Watch {
        #[command(flatten)]
        store: Store,
        key: String,
    },
}

#[derive(clap::Args)]
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
    /// Milliseconds between two heartbeats; a leader that misses thirteen is considered failed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    heartbeat: u64,
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
    let result = match &args.command {
        KvCommand::Serve(args) => {
            drop(out);
            return serve(args);
        }
        KvCommand::Get { store, key } => match store.client().get(key.as_bytes()) {
            Ok(Some((value, _))) => {
                out.write_all(&value)?;
                writeln!(out)?;
                Ok(true)
            }
            other => other.map(|_| false),
        },
        KvCommand::Put { store, key, value } => {
            store.client().put(key.as_bytes(), value.as_bytes()).map(|()| true)
        }
        KvCommand::Cas { store, key, expected, value } => {
            store.client().cas(key.as_bytes(), Some(expected.as_bytes()), Some(value.as_bytes()))
        }
        KvCommand::Delete { store, key } => store.client().delete(key.as_bytes()),
        KvCommand::Watch { store, key } => {
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
    match result {
        Ok(succeeded) => Ok(ExitCode::from(u8::from(!succeeded))),
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
    ensure!(
        args.clients.len() == n,
        "--processes has {n} addresses, but --clients has {}",
        args.clients.len()
    );
    ensure!(usize::from(args.id) < n, "--id {} is not one of the {n} processes", args.id);
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
    eprintln!("mitra: process {} serves clients at {}", args.id, server.client_address()?);
    let (mut leader, mut leads) = (None, false);
    loop {
        server.run_once()?;
        if server.leader() != leader {
            leader = server.leader();
            eprintln!("mitra: the leader is {}", leader.map_or("unknown".into(), |p| p.to_string()));
        }
        if server.is_leader() != leads {
            leads = server.is_leader();
            eprintln!("mitra: process {} {}", args.id, if leads { "leads" } else { "no longer leads" });
        }
    }
}
