//! The scenarios: the programs, the first failure, and the failure in the recovery.

use mitra_failover::{CompletionLogConfig, Config, Policy};
use mitra_sim::workload::{OpKind, Plan};
use mitra_verbs::{LocalAckTimeout, WindowType};

use core::time::Duration;

use crate::hooked_nic::Moment;

/// The rail on which a vQP begins, and which fails first.
pub const OLD_RAIL: usize = 0;
/// The rail to which the vQP moves.
pub const NEW_RAIL: usize = 1;

pub const PEER_TIMEOUT: Duration = Duration::from_millis(400);
/// How long a paused process stands still.
pub const PAUSE: Duration = Duration::from_millis(300);
/// How long all rails are down.
pub const OUTAGE: Duration = Duration::from_millis(50);
/// How long the link of the old rail is down if it recovers.
pub const BLINK: Duration = Duration::from_millis(2);

/// The failure that begins the recovery. `usize` is the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    LinkDown(usize),
    /// The link is down for [`BLINK`]. The messages that rebuild the old rail are part of the
    /// recovery.
    Blink(usize),
    NicDies(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Second {
    /// The message is lost on all rails.
    MessageLost,
    NewRailDown(usize),
    NewNicDies(usize),
    OldRailBack,
    ProcessPauses(usize),
    ProcessDies(usize),
    /// All links of an end go down. After [`OUTAGE`], one rail is up.
    Outage {
        end: usize,
        back: usize,
    },
}

/// A moment of a control message: the `nth` of its kind, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    pub moment: Moment,
    pub nth: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strike {
    pub point: Point,
    pub second: Second,
}

/// A moment of a control message of a recovery without a second failure.
#[derive(Clone, Debug)]
#[allow(dead_code)] // the fields are for the reader of a failure
pub struct SeenMessage {
    pub point: Point,
    pub end: usize,
    pub kind: &'static str,
}

/// The features that the programs use besides the operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    Plain,
    /// The vQPs are in the mode `durable`, and the NICs acknowledge data before they place it.
    Durable,
    /// The operations use memory windows, which are invalidated and bound again.
    Windows,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub policy: Policy,
    pub variant: Variant,
    pub rails: usize,
    pub first: First,
    pub kinds: Vec<OpKind>,
    pub completion_log: bool,
}

impl Scenario {
    /// Returns the scenario with number `seed`. Twelve consecutive numbers have all first failures
    /// with two and three rails. Sixty consecutive numbers combine these cases with all mixes of
    /// operations.
    pub fn of(seed: u64, policy: Policy, variant: Variant) -> Scenario {
        let firsts = [
            First::LinkDown(0),
            First::LinkDown(1),
            First::Blink(0),
            First::Blink(1),
            First::NicDies(0),
            First::NicDies(1),
        ];
        let mixes: [&[OpKind]; 5] = [
            &OpKind::ALL,
            &[OpKind::Write, OpKind::Block],
            &[OpKind::Send, OpKind::WriteImm],
            &[OpKind::FetchAdd, OpKind::CompareSwap],
            &[OpKind::Read],
        ];
        let without_atomics = |kind: &OpKind| !matches!(kind, OpKind::FetchAdd | OpKind::CompareSwap);
        let mut kinds = mixes[(seed + seed / 12) as usize % mixes.len()].to_vec();
        if policy != Policy::Exact {
            kinds.retain(without_atomics);
        }
        if kinds.is_empty() {
            kinds.push(OpKind::Write);
        }
        Scenario {
            seed,
            policy,
            variant,
            rails: 2 + (seed / 2) as usize % 2,
            first: firsts[seed as usize % firsts.len()],
            kinds,
            completion_log: policy == Policy::Exact && (seed % 7 < 4 || variant == Variant::Durable),
        }
    }

    pub fn world(&self) -> mitra_sim::Config {
        let mut world = mitra_sim::Config::fault_free();
        world.capabilities.ack_after_placement &= self.variant != Variant::Durable;
        world
    }

    /// Returns the type of the first end's window. The second end's window has the other type.
    /// `None` if the programs use no windows.
    pub fn window_type(&self) -> Option<WindowType> {
        let is_type_1 = (self.seed / 3) % 2 == 1;
        (self.variant == Variant::Windows).then_some(if is_type_1 {
            WindowType::Type1
        } else {
            WindowType::Type2
        })
    }

    pub fn config(&self) -> Config {
        let mut config = Config {
            policy: self.policy,
            completion_log: self.completion_log.then(|| CompletionLogConfig {
                durable: self.variant == Variant::Durable,
                ..CompletionLogConfig::default()
            }),
            peer_timeout: PEER_TIMEOUT,
            control_retry_interval: Duration::from_millis(1),
            send_wrs: 32,
            recv_wrs: 32,
            ..Config::default()
        };
        config.detector.local_ack_timeout = LocalAckTimeout::from_code(7);
        config.detector.heartbeat_interval = Duration::from_millis(1);
        config.detector.max_missed_heartbeats = 8;
        config
    }

    pub fn plans(&self) -> [Plan; 2] {
        [1, 2].map(|tag| {
            let mut plan = Plan::new(self.seed * 2 + u64::from(tag), 30).only(&self.kinds);
            (plan.tag, plan.depth, plan.receives, plan.max_len) = (tag, 12, 16, 5_000);
            plan.unsignalled_ppm = 100_000;
            plan
        })
    }
}

impl Second {
    pub fn all(scenario: &Scenario, message: &SeenMessage) -> Vec<Second> {
        let mut all = Vec::new();
        if message.point.moment != Moment::AfterSend {
            all.push(Second::MessageLost);
        }
        let old_may_return = !matches!(scenario.first, First::NicDies(_));
        if matches!(scenario.first, First::LinkDown(_)) {
            all.push(Second::OldRailBack);
        }
        for end in 0..2 {
            all.extend([
                Second::NewRailDown(end),
                Second::NewNicDies(end),
                Second::ProcessPauses(end),
                Second::ProcessDies(end),
                Second::Outage { end, back: NEW_RAIL },
            ]);
            if old_may_return {
                all.push(Second::Outage { end, back: OLD_RAIL });
            }
        }
        all
    }
}
