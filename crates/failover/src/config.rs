use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use mitra_verbs::{LocalAckTimeout, RnrTimer};

/// The treatment of the operations that were in flight when a rail failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Fences the old rail, reads the evidence, replays only what was not executed, recovers return values, and reports what stays
    /// unknown as an [`UnresolvedError`](crate::UnresolvedError).
    #[default]
    Exact,
    /// A baseline without fence, evidence or metadata: sends SEND, WRITE and READ again and fails atomics. It may execute a WRITE again
    /// after its reader has consumed it.
    Transparent,
    /// A baseline that sends everything in flight again. It corrupts data.
    Blanket,
    /// A baseline without failover: the vQP closes when its rail fails.
    None,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 4] = [Policy::Exact, Policy::Transparent, Policy::Blanket, Policy::None];

    /// The name in command-line options and environment variables.
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

/// The treatment of a WRITE if no evidence tells whether the responder executed it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WritePolicy {
    /// The WRITE ends in [`UnresolvedError::Indeterminate`](crate::UnresolvedError::Indeterminate).
    #[default]
    Strict,
    /// The vQP writes again. The application guarantees that nobody consumes or overwrites the target before the WRITE completes.
    Repeatable,
}

impl WritePolicy {
    /// All policies.
    pub const ALL: [WritePolicy; 2] = [WritePolicy::Strict, WritePolicy::Repeatable];

    /// The name in command-line options and environment variables.
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
        let known = WritePolicy::ALL.into_iter().find(|policy| policy.name() == s);
        known.ok_or_else(|| ParsePolicyError::new(s, "strict or repeatable"))
    }
}

/// The error of parsing a [`Policy`] or [`WritePolicy`]. Its message is one line that lists the valid names.
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

/// Whether the vQP fences the old rail before it reads the evidence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Fencing {
    /// The vQP fences. Production needs this.
    #[default]
    On,
    /// The vQP does not fence, which demonstrates the need for it: a delayed packet may execute after the evidence was read.
    Off,
}

/// The parameters of the failure detectors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DetectorConfig {
    /// The time between two heartbeats on each rail, and between two probes of a failed one.
    pub heartbeat_interval: Duration,
    /// The number of heartbeats missed in a row on the active rail at which the rail has failed. 0 switches heartbeats off.
    pub max_missed_heartbeats: u32,
    /// The least time to wait for the first message of a peer, which may not have connected yet.
    pub first_contact_timeout: Duration,
    /// The local ACK timeout of the RC queue pairs: the time until a requester retransmits.
    pub local_ack_timeout: LocalAckTimeout,
    /// The retransmissions of the RC queue pairs before a request fails with `RETRY_EXC`; at most 7.
    pub retry_cnt: u8,
}

impl Default for DetectorConfig {
    /// Heartbeats every 20 ms with five missed ones allowed; retransmission after 67 ms, seven times.
    fn default() -> DetectorConfig {
        DetectorConfig {
            heartbeat_interval: Duration::from_millis(20),
            max_missed_heartbeats: 5,
            first_contact_timeout: Duration::ZERO,
            local_ack_timeout: LocalAckTimeout::from_duration(Duration::from_millis(67)),
            retry_cnt: 7,
        }
    }
}

/// The configuration of a virtual queue pair. Both ends need the same `policy`, `completion_log` and `rd_atomic`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// The treatment of operations in flight on a failed rail.
    pub policy: Policy,
    /// The treatment of WRITEs without evidence; [`VirtualQp::post_send_with`](crate::VirtualQp::post_send_with) overrides it for one
    /// request.
    pub write_policy: WritePolicy,
    /// Whether to keep a completion log at the responder: evidence that outlives the responder's NIC, at the price of one small packet
    /// per WRITE and atomic.
    pub completion_log: bool,
    /// The requests of the peer for which this end's completion log has slots. `None`: as many as `send_wrs`.
    pub completion_log_entries: Option<u32>,
    /// Whether to fence the old rail. [`Fencing::Off`] is for demonstrations.
    pub fencing: Fencing,
    /// The parameters of the failure detectors.
    pub detector: DetectorConfig,
    /// The most requests outstanding in the send queue.
    pub send_wrs: u32,
    /// The most requests outstanding in the receive queue.
    pub recv_wrs: u32,
    /// The most READs and atomics outstanding until their completion is host-visible. The responder saves as many results.
    pub rd_atomic: u8,
    /// The time after which a control message without an answer is sent again.
    pub control_retry_interval: Duration,
    /// The time without the answers that a failover needs after which the peer counts as unreachable and the vQP closes.
    pub peer_timeout: Duration,
    /// The RNR retries of the RC queue pairs; 7 retries without limit.
    pub rnr_retry: u8,
    /// The time that the peer waits after an RNR NAK.
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
            min_rnr_timer: RnrTimer::from_duration(Duration::from_micros(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_names_survive_display_and_parse() {
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

    #[test]
    fn default_durations_have_the_codes_14_and_1() {
        let config = Config::default();
        assert_eq!((config.detector.local_ack_timeout.code(), config.min_rnr_timer.code()), (14, 1));
    }
}
