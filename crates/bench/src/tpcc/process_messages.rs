//! The parameters that all processes of a store share, and the messages between them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mitra_failover::{DetectorConfig, Domain, Policy};
use mitra_txn::{Layout, Schema, Timing};
use mitra_txn_rdma::{LinksConfig, QpKind, Token};
use mitra_txn_workloads::tpcc::{self, Scale};
use mitra_verbs::Provider;
use mitra_verbs::fault::Failure;
use serde::{Deserialize, Serialize};

use crate::endpoint::{NicPlacement, RailPair};

/// The registered memory for payload in flight to one memory node, in bytes.
const STAGING_BYTES: usize = 4 << 20;
/// The longest log entry, in bytes: a New-Order of 15 lines needs about 14,000.
const SLOT_BYTES: u32 = 32 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest number of a coordinator's requests in flight to one memory node.
const SEND_WRS: u32 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Variant {
    /// Virtual queue pairs that fence, read the evidence, and replay the rest
    Exact,
    /// Virtual queue pairs that replay all operations in flight: a baseline that corrupts data
    Blanket,
    /// Virtual queue pairs without failover: a baseline whose lives end with a rail
    None,
    /// RC queue pairs on rail 0: the baseline without virtual queue pairs
    Bare,
}

impl Variant {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Variant::Exact => "exact",
            Variant::Blanket => "blanket",
            Variant::None => "none",
            Variant::Bare => "bare",
        }
    }

    pub(crate) fn kind(self) -> QpKind {
        if self == Variant::Bare { QpKind::Rc } else { QpKind::Virtual }
    }

    pub(crate) fn failover(self) -> mitra_failover::Config {
        let policy = match self {
            Variant::Exact | Variant::Bare => Policy::Exact,
            Variant::Blanket => Policy::Blanket,
            Variant::None => Policy::None,
        };
        mitra_failover::Config {
            policy,
            send_wrs: SEND_WRS,
            rd_atomic: 16,
            detector: DetectorConfig {
                heartbeat_interval: Duration::from_millis(20),
                ..DetectorConfig::default()
            },
            ..mitra_failover::Config::default()
        }
    }
}

/// A store of the benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) variant: Variant,
    pub(crate) warehouses: u16,
    pub(crate) memories: u16,
    /// The coordinators that run transactions. One more coordinator loads and checks the store.
    pub(crate) coordinators: u16,
    /// The transactions that a coordinator runs at once.
    pub(crate) terminals: u16,
    /// The number of New-Orders, and of Payments, for which a warehouse has space.
    pub(crate) growth: u64,
    /// The time after which a silent coordinator is taken over.
    pub(crate) timeout: Duration,
    pub(crate) seed: u64,
}

impl Setup {
    pub(crate) fn scale(&self) -> anyhow::Result<Scale> {
        Ok(Scale::full(self.warehouses)?)
    }

    pub(crate) fn layout(&self) -> anyhow::Result<Rc<Layout>> {
        let schema = Schema {
            tables: tpcc::schema(&self.scale()?, self.growth, self.growth),
            nodes: self.memories,
            backups: 1.min(self.memories - 1),
            coordinators: self.coordinators + 1,
            slots: 2 * self.terminals,
            slot_bytes: SLOT_BYTES,
        };
        Ok(Rc::new(Layout::new(schema, tpcc::partition)?))
    }

    pub(crate) fn timing(&self) -> Timing {
        Timing { interval: Duration::from_millis(5).min(self.timeout / 4), timeout: self.timeout }
    }

    /// The tokens need not be secret: the memories listen on loopback addresses, and run only as
    /// long as the benchmark.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        (0..=self.coordinators).map(|coordinator| [coordinator as u8; 16]).collect()
    }

    pub(crate) fn links(&self, coordinator: u16, nodes: &[SocketAddr]) -> anyhow::Result<LinksConfig> {
        Ok(LinksConfig {
            coordinator,
            token: self.tokens()[usize::from(coordinator) - 1],
            fingerprint: self.layout()?.fingerprint(),
            nodes: nodes.to_vec(),
            dead: Vec::new(),
            repeatable: Vec::new(),
            kind: self.variant.kind(),
            failover: self.variant.failover(),
            staging_bytes: STAGING_BYTES,
            timeout: CONNECT_TIMEOUT,
        })
    }
}

/// Opens the two NICs of a process.
pub(crate) fn open() -> anyhow::Result<(Arc<Domain>, RailPair)> {
    let nics = NicPlacement::default().open()?;
    let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    let domain = Domain::with_completion_channels(providers).context("the NICs refuse a domain")?;
    Ok((domain, nics))
}

/// The nanoseconds of a clock that all processes of the machine share.
pub(crate) fn clock() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .unwrap_or_else(|_| nix::sys::time::TimeSpec::new(0, 0));
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    Memory { setup: Setup, node: u16 },
    Coordinator { setup: Setup, coordinator: u16, nodes: Vec<SocketAddr>, history: PathBuf },
}

/// Takes the link of one of the process's rails down, or brings it back. A memory process gets no
/// other messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SetLink {
    pub(crate) rail: usize,
    pub(crate) is_up: bool,
}

impl SetLink {
    pub(crate) fn apply(self, nics: &RailPair) {
        // The NICs are software NICs, which fail on demand.
        let Some(faults) = nics[self.rail].fault_switch() else { return };
        if self.is_up { faults.heal() } else { faults.fail(Failure::LinkDown) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToCoordinator {
    /// Run transactions.
    Run,
    /// Finish the transactions in flight, and answer.
    Pause,
    /// End, with a summary.
    Stop,
    SetLink(SetLink),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FromCoordinator {
    /// The coordinator's first life has begun.
    Live,
    Paused,
    Stopped(Summary),
}

/// The counts of a coordinator process over all its lives.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The attempts without an effect, by reason.
    pub(crate) aborts: std::collections::BTreeMap<String, u64>,
    /// The number of transactions that ended with
    /// [`NotCommitted::Unknown`](mitra_txn::NotCommitted::Unknown).
    pub(crate) unknown: u64,
    pub(crate) failovers: u64,
    /// The lives of this process that have ended, with the reasons.
    pub(crate) ended_lives: Vec<String>,
    /// The times at which this process recovered a life of another coordinator.
    pub(crate) recovered: Vec<u64>,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) doorbells: u64,
    /// The number of records that a committed transaction could not decode.
    pub(crate) corrupt: u64,
}
