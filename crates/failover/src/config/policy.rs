//! The policies of a vQP. The feature `baselines` adds the policies with which measurements and
//! demonstrations compare [`Policy::Exact`].

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// The wait of [`Policy::Delay`], NCCL's default (`NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY`).
#[cfg(feature = "baselines")]
const EVIDENCE_DELAY: Duration = Duration::from_millis(10);

/// The treatment of the operations that were in flight when a rail failed.
///
/// The number of a policy is its code in the connection parameters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// The vQP fences the old rail, exchanges evidence, replays only operations that were not
    /// executed, recovers return values, and reports each operation that it cannot decide with an
    /// [`UnresolvedError`](crate::UnresolvedError).
    #[default]
    Exact = 0,
    /// A baseline without fence or evidence: the vQP replays every SEND, WRITE and READ up to the
    /// first atomic, which ends in an error. A WRITE may be executed again after a reader has
    /// consumed its data.
    #[cfg(feature = "baselines")]
    Transparent = 1,
    /// A baseline that replays every operation in flight, including atomics. It corrupts data.
    #[cfg(feature = "baselines")]
    Blanket = 2,
    /// A baseline without failover: the vQP closes when its rail fails.
    #[cfg(feature = "baselines")]
    None = 3,
    /// A baseline that decides by evidence without a fence, as NCCL does: the vQP waits 10 ms, and
    /// then reads the evidence. The old rail may execute a packet that is delayed by more than
    /// 10 ms, although the vQP has replayed the operation of the packet.
    #[cfg(feature = "baselines")]
    Delay = 4,
}

#[cfg(feature = "baselines")]
impl Policy {
    const ALL: &[Policy] =
        &[Policy::Exact, Policy::Transparent, Policy::Blanket, Policy::None, Policy::Delay];
    const CHOICES: &str = "exact, transparent, blanket, none or delay";

    pub(crate) fn may_execute_twice(self) -> bool {
        matches!(self, Policy::Transparent | Policy::Blanket | Policy::Delay)
    }

    pub(crate) fn closes_with_rail(self) -> bool {
        self == Policy::None
    }

    pub(crate) fn decides_by_evidence(self) -> bool {
        matches!(self, Policy::Exact | Policy::Delay)
    }

    /// The time between the failure and the reading of the evidence, in place of a fence.
    pub(crate) fn evidence_delay(self) -> Option<Duration> {
        (self == Policy::Delay).then_some(EVIDENCE_DELAY)
    }
}

#[cfg(not(feature = "baselines"))]
impl Policy {
    const ALL: &[Policy] = &[Policy::Exact];
    const CHOICES: &str = "exact";

    pub(crate) fn may_execute_twice(self) -> bool {
        false
    }

    pub(crate) fn closes_with_rail(self) -> bool {
        false
    }

    pub(crate) fn decides_by_evidence(self) -> bool {
        true
    }

    pub(crate) fn evidence_delay(self) -> Option<Duration> {
        None
    }
}

impl Policy {
    /// The name in command-line options and environment variables.
    pub const fn name(self) -> &'static str {
        ["exact", "transparent", "blanket", "none", "delay"][self as usize]
    }

    pub(crate) fn is_exact(self) -> bool {
        self == Policy::Exact
    }

    pub(crate) fn from_code(code: u8) -> Option<Policy> {
        Policy::ALL.iter().copied().find(|&policy| policy as u8 == code)
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
        parse(Policy::ALL, Policy::name, Policy::CHOICES, s)
    }
}

/// The treatment of a WRITE if no evidence tells whether the responder executed it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WritePolicy {
    /// The WRITE ends in [`UnresolvedError::Indeterminate`](crate::UnresolvedError::Indeterminate).
    #[default]
    Strict,
    /// The vQP replays the WRITE. The application guarantees that no program reads or overwrites
    /// the target memory before the WRITE completes.
    Repeatable,
}

impl WritePolicy {
    const ALL: &[WritePolicy] = &[WritePolicy::Strict, WritePolicy::Repeatable];

    /// The name in command-line options and environment variables.
    pub const fn name(self) -> &'static str {
        ["strict", "repeatable"][self as usize]
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
        parse(WritePolicy::ALL, WritePolicy::name, "strict or repeatable", s)
    }
}

fn parse<P: Copy>(
    all: &[P],
    name: fn(P) -> &'static str,
    choices: &'static str,
    given: &str,
) -> Result<P, ParsePolicyError> {
    let known = all.iter().copied().find(|&policy| name(policy) == given);
    known.ok_or_else(|| ParsePolicyError { given: given.to_owned(), choices })
}

/// The error of parsing a [`Policy`] or [`WritePolicy`]. Its message is one line that lists the
/// valid names.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given:?} is none of the choices; say {choices}")]
pub struct ParsePolicyError {
    given: String,
    choices: &'static str,
}

/// Whether the vQP fences the old rail before it collects the evidence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Fencing {
    /// The vQP fences the old rail.
    #[default]
    On,
    /// The vQP collects the evidence without a fence. A delayed packet may then be executed after
    /// the evidence was collected, which demonstrates why the fence is necessary.
    #[cfg(feature = "baselines")]
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_names_survive_display_and_parse() {
        for &policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for &writes in WritePolicy::ALL {
            assert_eq!(writes.to_string().parse(), Ok(writes));
        }
        let error = "exactly".parse::<Policy>().unwrap_err().to_string();
        assert_eq!(
            error,
            "\"exactly\" is none of the choices; say exact, transparent, blanket, none or delay"
        );
        let error = "".parse::<WritePolicy>().unwrap_err().to_string();
        assert_eq!(error, "\"\" is none of the choices; say strict or repeatable");
    }
}
