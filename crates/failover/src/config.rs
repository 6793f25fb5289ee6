use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use mitra_verbs::{LocalAckTimeout, RnrTimer};

/// What to do with the operations that were in flight when a rail failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Fence, read the evidence, replay only what was not executed, recover values, name what cannot be known.
    #[default]
    Exact,
    /// Seed `000`'s transparent overlay: no fence, no evidence, no metadata. Sends again what its class allows
    /// (SEND, WRITE, READ) and refuses atomics. A baseline: it may double a WRITE that its reader consumed.
    Transparent,
    /// Sends everything in flight again. A baseline: it corrupts.
    Blanket,
    /// The queue pair dies with its rail, as without a vQP. A baseline.
    None,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::Exact, Policy::Transparent, Policy::Blanket, Policy::None];

    /// Its name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Exact => "exact",
            Policy::Transparent => "transparent",
            Policy::Blanket => "blanket",
            Policy::None => "none",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(s: &str) -> Result<Policy, ParsePolicyError> {
        let known = Policy::ALL.into_iter().find(|policy| policy.name() == s);
        known.ok_or_else(|| ParsePolicyError::new(s, "exact, transparent, blanket or none"))
    }
}

/// What becomes of a WRITE that may or may not have been executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WritePolicy {
    /// It ends in [`crate::UnresolvedError::Indeterminate`].
    #[default]
    Strict,
    /// It is written again: the application declares that nobody consumes or overwrites the target before the
    /// WRITE completes.
    Repeatable,
}

impl WritePolicy {
    /// All of them.
    pub const ALL: [WritePolicy; 2] = [WritePolicy::Strict, WritePolicy::Repeatable];

    /// Its name in options.
    pub const fn name(self) -> &'static str {
        match self {
            WritePolicy::Strict => "strict",
            WritePolicy::Repeatable => "repeatable",
        }
    }
}

impl fmt::Display for WritePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WritePolicy {
    type Err = ParsePolicyError;

    fn from_str(s: &str) -> Result<WritePolicy, ParsePolicyError> {
        let known = WritePolicy::ALL.into_iter().find(|writes| writes.name() == s);
        known.ok_or_else(|| ParsePolicyError::new(s, "strict or repeatable"))
    }
}

/// Why a [`Policy`] or [`WritePolicy`] was not understood: one line that says what would be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given:?} is none of the choices; say {choices}")]
pub struct ParsePolicyError {
    given: String,
    choices: &'static str,
}

impl ParsePolicyError {
    fn new(given: &str, choices: &'static str) -> ParsePolicyError {
        ParsePolicyError { given: given.to_owned(), choices }
    }
}

/// Whether the old path is fenced before the evidence is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Fencing {
    /// Always, in production.
    #[default]
    On,
    /// Never: shows what the fence is for. A delayed packet may then execute after the evidence was read.
    Off,
}

/// When a silent rail counts as failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DetectorConfig {
    /// Time between two heartbeats on each rail.
    pub heartbeat_interval: Duration,
    /// So many of them missed in a row on the active rail fail it. 0 switches heartbeats off.
    pub max_missed_heartbeats: u32,
    /// A peer that was never heard of may not have connected yet: it is given so long, if that is longer.
    pub first_contact_timeout: Duration,
    /// The RC queue pairs' time-out code: 4.096 µs · 2^timeout.
    pub local_ack_timeout: LocalAckTimeout,
    /// Their retransmissions.
    pub retry_cnt: u8,
}

impl Default for DetectorConfig {
    /// Heartbeats every 20 ms, five missed; retransmission after 67 ms, seven times.
    fn default() -> DetectorConfig {
        DetectorConfig {
            heartbeat_interval: Duration::from_millis(20),
            max_missed_heartbeats: 5,
            first_contact_timeout: Duration::ZERO,
            local_ack_timeout: LocalAckTimeout::from_code(14),
            retry_cnt: 7,
        }
    }
}

/// How a virtual queue pair behaves. Both ends must have the same `policy`, `log` and `rd_atomic`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// What to do on a failure.
    pub policy: Policy,
    /// What becomes of a WRITE at the edge; a single request can override it.
    pub write_policy: WritePolicy,
    /// Keep a completion log at the responder: evidence that survives the responder's NIC, for one more small
    /// packet per WRITE and atomic.
    pub completion_log: bool,
    /// The log has room for so many requests of the peer's at a time; by default as many as `send_wrs`.
    pub completion_log_entries: Option<u32>,
    /// Fence the old path. [`Fencing::Off`] is for demonstrations.
    pub fencing: Fencing,
    /// When a rail counts as failed.
    pub detector: DetectorConfig,
    /// Requests outstanding in the send queue.
    pub send_wrs: u32,
    /// Requests outstanding in the receive queue.
    pub recv_wrs: u32,
    /// READs and atomics outstanding, to host-visible completion: never more than the responder saves results for.
    pub rd_atomic: u8,
    /// Control messages are sent again after this long ...
    pub control_retry_interval: Duration,
    /// ... and the peer counts as unreachable after this long without the answers that a recovery needs.
    pub peer_timeout: Duration,
    /// RNR retries of the rails' queue pairs (7 is for ever) ...
    pub rnr_retry: u8,
    /// ... and how long the peer is to wait in between (the 5-bit code).
    pub min_rnr_timer: RnrTimer,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            policy: Policy::Exact,
            write_policy: WritePolicy::Strict,
            completion_log: false,
            completion_log_entries: None,
            fencing: Fencing::On,
            detector: DetectorConfig::default(),
            send_wrs: 128,
            recv_wrs: 128,
            rd_atomic: 16,
            control_retry_interval: Duration::from_millis(2),
            peer_timeout: Duration::from_secs(5),
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::from_code(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for writes in WritePolicy::ALL {
            assert_eq!(writes.to_string().parse(), Ok(writes));
        }
        let error = "exactly".parse::<Policy>().unwrap_err().to_string();
        assert_eq!(error, "\"exactly\" is none of the choices; say exact, transparent, blanket or none");
        let error = "".parse::<WritePolicy>().unwrap_err().to_string();
        assert_eq!(error, "\"\" is none of the choices; say strict or repeatable");
    }
}
