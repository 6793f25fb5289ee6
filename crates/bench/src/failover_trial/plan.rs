//! The plan of a trial, which both processes have: the operations, the policy and the fault.

use std::fmt;
use std::time::Duration;

use mitra_failover::{CompletionLogConfig, Config, DetectorConfig, Failback, Policy};
use serde::{Deserialize, Serialize};

use crate::bench_qp::{Op, QUEUE_DEPTH, RD_ATOMIC};
use crate::endpoint::{Layout, NicPlacement};

/// The operations that the requester posts in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Mix {
    /// 3 WRITE : 3 SEND : 1 READ : 1 FAA. A quarter of the operations are READs and atomics, so the
    /// limit of `RD_ATOMIC` outstanding READs and atomics allows four times as many operations in
    /// flight.
    Even,
    /// 6 READ : 2 WRITE.
    ReadHeavy,
    /// 6 WRITE : 1 READ : 1 FAA.
    WriteHeavy,
    /// 6 FAA : 1 READ : 1 WRITE.
    AtomicHeavy,
}

impl Mix {
    pub(crate) const HEAVY: [Mix; 3] = [Mix::ReadHeavy, Mix::WriteHeavy, Mix::AtomicHeavy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Mix::Even => "even",
            Mix::ReadHeavy => "read-heavy",
            Mix::WriteHeavy => "write-heavy",
            Mix::AtomicHeavy => "atomic-heavy",
        }
    }

    pub(crate) fn op(self, number: u64) -> Op {
        use Op::{Faa, Read, Send, Write};
        let ops = match self {
            Mix::Even => [Write, Send, Write, Read, Send, Write, Send, Faa],
            Mix::ReadHeavy => [Read, Read, Read, Write, Read, Read, Read, Write],
            Mix::WriteHeavy => [Write, Write, Write, Read, Write, Write, Write, Faa],
            Mix::AtomicHeavy => [Faa, Faa, Faa, Read, Faa, Faa, Faa, Write],
        };
        ops[(number % 8) as usize]
    }

    /// Returns the number of operations of a kind among the first `count`.
    pub(super) fn count(self, op: Op, count: u64) -> u64 {
        (0..count).filter(|&number| self.op(number) == op).count() as u64
    }
}

/// The treatment of the operations in flight: a policy of the vQP, or a baseline without a vQP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum TrialPolicy {
    Exact,
    Transparent,
    Blanket,
    Delay,
    None,
    /// [`crate::resend_baseline`].
    Cached,
}

impl TrialPolicy {
    pub(crate) const ALL: [TrialPolicy; 6] = [
        TrialPolicy::Exact,
        TrialPolicy::Transparent,
        TrialPolicy::Blanket,
        TrialPolicy::Delay,
        TrialPolicy::Cached,
        TrialPolicy::None,
    ];

    pub(crate) fn name(self) -> &'static str {
        self.of_vqp().map_or("cached", Policy::name)
    }

    /// Returns the policy of the vQP, or `None` for the baseline without a vQP.
    fn of_vqp(self) -> Option<Policy> {
        match self {
            TrialPolicy::Exact => Some(Policy::Exact),
            TrialPolicy::Transparent => Some(Policy::Transparent),
            TrialPolicy::Blanket => Some(Policy::Blanket),
            TrialPolicy::Delay => Some(Policy::Delay),
            TrialPolicy::None => Some(Policy::None),
            TrialPolicy::Cached => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// The link goes down when the `nth` packet reaches a stage of `docs/faults.md`. The stage
    /// determines the process whose link fails.
    Link {
        /// The stage, 1 to 7.
        stage: u8,
        /// The packet number, from 1.
        nth: u32,
    },
    /// After this many completions the requester's NIC of rail 0 loses every packet in both
    /// directions. No port event reports the loss.
    Silent(u64),
    /// After this many completions the requester resets its NIC of rail 0, which ends the queue
    /// pairs there.
    Reset(u64),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Link { stage, nth } => write!(f, "link-down@{stage}:{nth}"),
            Fault::Reset(after) => write!(f, "reset after {after} completions"),
            Fault::Silent(after) => write!(f, "silent loss after {after} completions"),
        }
    }
}

impl Fault {
    pub(crate) fn at_requester(self) -> bool {
        match self {
            Fault::Link { stage, .. } => matches!(stage, 1 | 2 | 7),
            Fault::Silent(_) | Fault::Reset(_) => true,
        }
    }
}

/// The ends that sleep until an event, instead of polling.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Sleepers {
    pub(crate) requester: bool,
    pub(crate) responder: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TrialPlan {
    pub(crate) placement: NicPlacement,
    pub(crate) policy: TrialPolicy,
    pub(crate) mix: Mix,
    pub(crate) log: bool,
    pub(crate) in_flight: u32,
    pub(crate) size: usize,
    pub(crate) heartbeat: Duration,
    pub(crate) misses: u32,
    /// The time for which both ends must have been able to use rail 0 before the vQP moves back to
    /// it. `None` if it moves only when its rail fails.
    pub(crate) failback: Option<Duration>,
    pub(crate) sleepers: Sleepers,
    /// The fault. In a run without a fault, `Err` has the number of round trips to measure on the
    /// rail.
    pub(crate) fault: Result<Fault, u64>,
}

impl TrialPlan {
    pub(super) fn config(&self) -> Config {
        Config {
            policy: self.policy.of_vqp().unwrap_or_default(),
            completion_log: self.log.then(CompletionLogConfig::default),
            detector: DetectorConfig {
                heartbeat_interval: self.heartbeat,
                max_missed_heartbeats: self.misses,
                ..DetectorConfig::default()
            },
            failback: self.failback.map(|delay| Failback { rail: 0, delay }),
            send_wrs: self.in_flight,
            recv_wrs: QUEUE_DEPTH,
            rd_atomic: RD_ATOMIC,
            ..Config::default()
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout::new(self.size)
    }
}
