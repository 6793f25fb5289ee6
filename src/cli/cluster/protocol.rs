//! The consensus protocols that run over NICs, by name.

use anyhow::{Context, ensure};
use clap::ValueEnum;
use mitra_consensus::aligned_paxos::AlignedPaxos;
use mitra_consensus::broadcast::Broadcast;
use mitra_consensus::cheap_quorum::CheapQuorum;
use mitra_consensus::disk_paxos::DiskPaxos;
use mitra_consensus::fast_and_robust::FastAndRobust;
use mitra_consensus::fast_paxos::{FastPaxos, Quorums};
use mitra_consensus::hbo::Hbo;
use mitra_consensus::paxos::Paxos;
use mitra_consensus::protected_memory_paxos::ProtectedMemoryPaxos;
use mitra_consensus::robust_backup::RobustBackup;
use mitra_consensus::signature::Ed25519;
use mitra_consensus::single_broadcast::SingleBroadcast;
use mitra_consensus::{AllRules, Process, ProcessId, ProcessSet, Region};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A protocol that decides on one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Protocol {
    /// Messages; needs a live majority of the processes
    Paxos,
    /// Messages; any process can propose
    FastPaxos,
    /// Memories with static permissions
    DiskPaxos,
    /// Memories whose only writer is the leader
    ProtectedMemoryPaxos,
    /// Processes and memories vote together
    AlignedPaxos,
    /// Randomized, without a leader; memory i belongs to process i, and all processes share it.
    /// Values: true, false
    Hbo,
    /// Tolerates Byzantine processes: no two correct processes deliver different messages of
    /// process 0. Needs --key
    NonEquivocatingBroadcast,
    /// Tolerates Byzantine processes: process 0 leads; aborts if a process misbehaves. Needs --key
    CheapQuorum,
    /// Tolerates Byzantine processes: Paxos over non-equivocating broadcast. Needs --key
    RobustBackup,
    /// Tolerates Byzantine processes: Cheap Quorum, then Robust Backup if it aborts. Needs --key
    FastAndRobust,
}

/// The number of turns of each process of Robust Backup for which the memories have registers.
const BACKUP_TURNS: u16 = 16;
/// The number of wake-ups after which an undecided process of Cheap Quorum panics.
const PANIC_WAKES: u8 = 100;

type StringBroadcast = Broadcast<String, Ed25519>;
type StringCheapQuorum = CheapQuorum<String, Ed25519>;
type StringRobustBackup = RobustBackup<Paxos<String>, Ed25519>;
type StringFastAndRobust = FastAndRobust<String, Ed25519>;

/// A task to run with a process of any protocol.
pub(super) trait Task {
    type Output;
    fn run<P>(self, process: P) -> anyhow::Result<Self::Output>
    where
        P: Process,
        P::Cell: Serialize + DeserializeOwned,
        P::Message: Serialize + DeserializeOwned,
        P::Value: std::fmt::Display;
}

impl Protocol {
    /// Returns the regions of each memory node.
    pub(super) fn regions(self, processes: u8) -> Vec<Region> {
        match self {
            Protocol::Paxos | Protocol::FastPaxos => Vec::new(),
            Protocol::DiskPaxos => DiskPaxos::<String>::regions(processes),
            Protocol::ProtectedMemoryPaxos => ProtectedMemoryPaxos::<String>::regions(processes),
            Protocol::AlignedPaxos => AlignedPaxos::<String>::regions(processes),
            // All processes share the memory of each, so the owner makes no difference.
            Protocol::Hbo => Hbo::<AllRules>::regions(ProcessId(0), ProcessSet::first(processes)),
            Protocol::NonEquivocatingBroadcast => StringBroadcast::regions(processes, 1),
            Protocol::CheapQuorum => StringCheapQuorum::regions(processes),
            Protocol::RobustBackup => StringRobustBackup::regions(processes, BACKUP_TURNS),
            Protocol::FastAndRobust => StringFastAndRobust::regions(processes, BACKUP_TURNS),
        }
    }

    /// Whether the processes communicate through memory nodes, and not only by messages.
    pub(super) fn has_memory_nodes(self) -> bool {
        !matches!(self, Protocol::Paxos | Protocol::FastPaxos)
    }

    /// Checks that a process has a value if the protocol may decide the value of that process.
    /// `leads` is whether the process becomes the leader.
    pub(super) fn check_value(self, me: ProcessId, leads: bool, has_value: bool) -> anyhow::Result<()> {
        let (needs_each, needs_first) = match self {
            Protocol::Hbo => (true, false),
            Protocol::NonEquivocatingBroadcast | Protocol::CheapQuorum | Protocol::FastAndRobust => {
                (false, true)
            }
            // A leader of Fast Paxos without a value of its own proposes one that another process
            // has proposed.
            Protocol::FastPaxos => return Ok(()),
            _ => (false, false),
        };
        let name = self.to_possible_value().map_or_else(String::new, |it| it.get_name().to_owned());
        ensure!(has_value || !needs_each, "each process of {name} needs a VALUE to propose: true or false");
        ensure!(
            has_value || !needs_first || me != ProcessId(0),
            "process 0 needs a VALUE to propose, because it leads {name}"
        );
        ensure!(
            has_value || !leads,
            "--lead needs a VALUE to propose; give one, or leave --lead to another process"
        );
        Ok(())
    }

    /// Runs `task` with a process that proposes `value`. Byzantine protocols sign with `keys`. The
    /// caller has checked the value ([`Protocol::check_value`]).
    pub(super) fn with<T: Task>(
        self,
        me: ProcessId,
        (n, m): (u8, u8),
        value: Option<String>,
        keys: Option<Ed25519>,
        task: T,
    ) -> anyhow::Result<T::Output> {
        // No process proposes this default, because `check_value` asks the processes that propose
        // for a value.
        let input = value.clone().unwrap_or_default();
        let signed = || {
            keys.context(
                "the Byzantine protocols sign their messages: give --key and --keys (see `mitra key`)",
            )
        };
        match self {
            Protocol::Paxos => task.run(Paxos::<String>::new(me, n, input)),
            Protocol::FastPaxos => {
                let f = (n - 1) / 3;
                let quorums = Quorums::new(n, f, f).filter(|_| n > 0);
                let quorums =
                    quorums.ok_or_else(|| anyhow::anyhow!("{n} processes are too few for this protocol"))?;
                task.run(FastPaxos::<String>::new(me, quorums, value))
            }
            Protocol::DiskPaxos => task.run(DiskPaxos::<String>::new(me, n, m, input)),
            Protocol::ProtectedMemoryPaxos => task.run(ProtectedMemoryPaxos::<String>::new(me, n, m, input)),
            Protocol::AlignedPaxos => task.run(AlignedPaxos::<String>::new(me, n, m, input)),
            Protocol::Hbo => {
                ensure!(
                    n == m,
                    "hbo needs one memory node per process, not {n} processes and {m} memory nodes"
                );
                let proposal =
                    input.parse().map_err(|_| anyhow::anyhow!("the values of hbo are true and false"))?;
                task.run(Hbo::<AllRules>::new(me, n, ProcessSet::first(n).without(me), proposal))
            }
            Protocol::NonEquivocatingBroadcast => {
                let sender = ProcessId(0);
                let message = value.filter(|_| me == sender);
                task.run(SingleBroadcast::new(StringBroadcast::new(me, n, m, 1, signed()?), message, sender))
            }
            Protocol::CheapQuorum => {
                task.run(StringCheapQuorum::new(me, (n, m), PANIC_WAKES, signed()?, input))
            }
            Protocol::RobustBackup => {
                task.run(StringRobustBackup::new(me, (n, m), BACKUP_TURNS, signed()?, input))
            }
            Protocol::FastAndRobust => {
                task.run(StringFastAndRobust::new(me, (n, m), PANIC_WAKES, BACKUP_TURNS, signed()?, input))
            }
        }
    }
}
