//! The options and constants that all processes of a store agree on.

use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mitra_txn::{Layout, RecordKey, Schema, TableId, TableSchema, Timing};
use mitra_txn_rdma::{CallError, ConnectError, LinksConfig, NodeConfig, QpKind, Refusal};
use mitra_txn_workloads::smallbank;
use mitra_txn_workloads::tpcc::{self, Scale, Table};
use serde::{Deserialize, Serialize};

use crate::cli::cluster::ClusterArgs;

/// The transactions that a coordinator runs at once.
pub(super) const TASKS: u16 = 16;
/// The number of New-Orders, and of Payments, for which a warehouse has space.
const GROWTH: u64 = 20_000;
/// The longest log entry, in bytes: a New-Order of 15 lines needs about 14,000.
const SLOT_BYTES: u32 = 32 << 10;
/// The registered memory for the payload under way at one node, in bytes.
const STAGING_BYTES: usize = 4 << 20;
/// The time for which a process tries to reach a memory node that does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A coordinator is taken over after a time that is longer than the failover of a rail.
pub(super) const TIMING: Timing =
    Timing { interval: Duration::from_millis(5), timeout: Duration::from_secs(1) };

/// The transactions of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
pub(super) enum Workload {
    /// TPC-C 5.11 without think times
    Tpcc,
    /// SmallBank: six short transactions on accounts
    Smallbank,
}

/// The options that all processes of a store agree on.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoreArgs {
    /// What the tables are, and the transactions
    #[arg(long, value_enum, default_value = "tpcc")]
    pub(super) workload: Workload,
    /// tpcc: number of warehouses; each needs about 250 MB for each copy of its records
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    warehouses: u16,
    /// smallbank: number of accounts
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    accounts: u32,
    /// Number of memory nodes (their addresses: --nodes)
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) memories: u16,
    /// Number of coordinators, 2 to 64: `local` uses one, and checks with the last; programs that
    /// use the library can have more
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    coordinators: u8,
    /// Number of backups of each record, less than the number of memory nodes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=63))]
    backups: u16,
}

impl StoreArgs {
    pub(super) fn scale(&self) -> anyhow::Result<Scale> {
        Ok(Scale::full(self.warehouses)?)
    }

    pub(super) fn accounts(&self) -> u64 {
        self.accounts.into()
    }

    /// The number of the coordinator that checks, and runs no transactions.
    pub(super) fn checker(&self) -> u16 {
        self.coordinators.into()
    }

    /// A number that only processes with the same tables, transactions and records have. The layout
    /// alone is the same for some numbers of accounts.
    fn fingerprint(&self, layout: &Layout) -> u64 {
        layout.fingerprint()
            ^ match self.workload {
                Workload::Tpcc => u64::from(self.warehouses),
                Workload::Smallbank => self.accounts(),
            }
    }

    pub(super) fn layout(&self) -> anyhow::Result<Rc<Layout>> {
        let backups = self.backups;
        ensure!(
            backups < self.memories,
            "--backups {backups} needs --memories {} at least: copies of a record are on different memory nodes",
            backups + 1
        );
        let tables = match self.workload {
            Workload::Tpcc => tpcc::schema(&self.scale()?, GROWTH, GROWTH),
            Workload::Smallbank => self.bank_tables(),
        };
        let schema = Schema {
            tables,
            nodes: self.memories,
            backups,
            coordinators: self.coordinators.into(),
            // A transaction may still be applied when the next one begins.
            slots: 2 * TASKS,
            slot_bytes: SLOT_BYTES,
        };
        let partition: fn(RecordKey) -> u32 = match self.workload {
            Workload::Tpcc => tpcc::partition,
            Workload::Smallbank => |at| at.key as u32,
        };
        Ok(Rc::new(Layout::new(schema, partition)?))
    }

    /// The two tables of SmallBank. The tables with lower numbers belong to other workloads, and
    /// are empty.
    fn bank_tables(&self) -> Vec<TableSchema> {
        let empty = TableSchema { max_value_bytes: 0, partitions: 1, records: 1, group_bits: 0 };
        let partitions = self.memories.into();
        let records = self.accounts.div_ceil(partitions);
        let balances = TableSchema { max_value_bytes: 8, partitions, records, group_bits: 0 };
        let table = |number| match TableId(number) {
            smallbank::SAVINGS | smallbank::CHECKING => balances.clone(),
            _ => empty.clone(),
        };
        (0..=smallbank::CHECKING.0).map(table).collect()
    }

    /// The names of the tables that have records, with their numbers.
    pub(super) fn table_names(&self) -> Vec<(String, TableId)> {
        match self.workload {
            Workload::Tpcc => {
                Table::ALL.iter().map(|table| (snake_case(&format!("{table:?}")), table.id())).collect()
            }
            Workload::Smallbank => {
                vec![("savings".to_owned(), smallbank::SAVINGS), ("checking".to_owned(), smallbank::CHECKING)]
            }
        }
    }

    pub(super) fn node(&self, id: u16, cluster: &ClusterArgs) -> anyhow::Result<NodeConfig> {
        ensure!(
            id < self.memories,
            "--id {id} is not one of the {} memory nodes, which count from 0",
            self.memories
        );
        let layout = self.layout()?;
        Ok(NodeConfig {
            node: mitra_txn::NodeId(id),
            bytes: usize::try_from(layout.bytes())?,
            fingerprint: self.fingerprint(&layout),
            tokens: cluster.tokens(self.coordinators)?,
            kind: QpKind::Virtual,
            failover: mitra_failover::Config::default(),
        })
    }

    pub(super) fn links(
        &self,
        coordinator: u16,
        nodes: &[SocketAddr],
        cluster: &ClusterArgs,
    ) -> anyhow::Result<LinksConfig> {
        ensure!(
            nodes.len() == usize::from(self.memories),
            "--nodes has {} addresses, and --memories is {}",
            nodes.len(),
            self.memories
        );
        let NodeConfig { fingerprint, tokens, kind, failover, .. } = self.node(0, cluster)?;
        cluster.check_reach(nodes)?;
        Ok(LinksConfig {
            coordinator,
            token: tokens[usize::from(coordinator) - 1],
            fingerprint,
            nodes: nodes.to_vec(),
            dead: Vec::new(),
            repeatable: Vec::new(),
            kind,
            failover,
            staging_bytes: STAGING_BYTES,
            timeout: CONNECT_TIMEOUT,
        })
    }
}

/// Connects to the memory nodes. Repeats the attempt while another process connects as the same
/// coordinator, or while the nodes still hold connections of processes that were killed.
pub(super) fn connect<T>(mut connect: impl FnMut() -> Result<T, ConnectError>) -> anyhow::Result<T> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    loop {
        let error = match connect() {
            Ok(connected) => return Ok(connected),
            Err(error) => error,
        };
        let ConnectError::Node { error: CallError::Refused(refusal), node } = &error else {
            return Err(error.into());
        };
        match refusal {
            Refusal::Layout => {
                let node = node.0;
                return Err(error).with_context(|| {
                    format!(
                        "memory node {node} was started with another --workload, --warehouses, --accounts, --memories, --coordinators or --backups, or by another version of Mitra"
                    )
                });
            }
            Refusal::Incarnation(_) | Refusal::Lives(_) if Instant::now() < deadline => {
                // A random time, so that two processes do not meet again.
                thread::sleep(Duration::from_millis(20 + getrandom::u64()? % 200));
            }
            _ => return Err(error.into()),
        }
    }
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}
