//! The plan for each operation that was in flight on a failed rail, from the verdict on its
//! execution.

use mitra_mutants::Mutant;
use mitra_verbs::{SavedResult, WcStatus};

use crate::completion::{Outcome, UnresolvedError};
use crate::config::WritePolicy;
use crate::evidence::{InFlight, Kind, Verdict};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Plan {
    End(Outcome),
    Value(u64),
    /// The operation is sent again on the next rail, without the first packets, which the responder
    /// executed.
    Replay {
        skip_packets: u32,
    },
}

/// An operation in flight, with what its plan depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    pub op: InFlight,
    pub verdict: Verdict,
    pub fence: bool,
    /// Only for a WRITE with an ambiguous verdict.
    pub write_policy: WritePolicy,
}

/// Plans the operations in flight, in posting order, for
/// [`Policy::Exact`](crate::Policy::Exact).
///
/// `local_placed` says whether the local NIC was alive when it was fenced, so that all data that it
/// received is in memory.
pub fn plan_exact(cases: &[Case], saved: &[SavedResult], local_placed: bool) -> Vec<Plan> {
    // `fenced_after[i]` tells whether the next FENCE operation after operation i, or any operation
    // behind that one, changed the peer's memory. READs change no
    // memory, so a fence with only READs behind it permits the repetition of an earlier READ.
    let mut fenced_after = vec![Changes::default(); cases.len()];
    let (mut fenced, mut changes) = (Changes::default(), Changes::default());
    for (i, case) in cases.iter().enumerate().rev() {
        fenced_after[i] = fenced;
        if case.op.kind.has_effect() {
            changes.began |= case.verdict == Verdict::Executed
                || matches!(case.verdict, Verdict::Torn(_)) && !Mutant::TornFencedWriteForgotten.is_on();
            changes.may_have_begun |= case.verdict == Verdict::Ambiguous;
        }
        if case.fence {
            fenced = changes;
        }
    }
    let mut failed = false;
    cases
        .iter()
        .zip(fenced_after)
        .map(|(case, fenced)| {
            let plan =
                if failed { plan_after_error(case) } else { plan_one(case, fenced, saved, local_placed) };
            failed |= matches!(plan, Plan::End(Outcome::Failed(_) | Outcome::Unresolved(_)));
            plan
        })
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Changes {
    /// An operation certainly changed at least a part of the peer's memory.
    began: bool,
    /// An operation may have changed a part of the peer's memory.
    may_have_begun: bool,
}

fn plan_one(case: &Case, fenced: Changes, saved: &[SavedResult], local_placed: bool) -> Plan {
    let replay = Plan::Replay { skip_packets: 0 };
    let repeatable = case.write_policy == WritePolicy::Repeatable || Mutant::AmbiguousWriteRepeated.is_on();
    match (case.op.kind, case.verdict) {
        (_, Verdict::NotExecuted) | (Kind::Local, _) => replay,
        // A READ has no effect and is repeated, unless changes may have been executed behind a
        // later fence.
        (Kind::Read, _) if Mutant::FencedReadRepeated.is_on() => replay,
        (Kind::Read, _) => match fenced {
            Changes { began: false, may_have_begun: false } => replay,
            Changes { began: false, .. } if Mutant::PerhapsFencedReadRepeated.is_on() => replay,
            // An operation behind the fence began, so the requester's NIC had received the whole
            // READ response.
            Changes { began: true, .. } if local_placed || Mutant::DeadNicTrusted.is_on() => {
                Plan::End(Outcome::Success)
            }
            _ => unresolved(UnresolvedError::ValueLost),
        },
        (Kind::Atomic, Verdict::Executed) => saved
            .iter()
            .find(|s| s.psn == case.op.first || Mutant::ValueOfAnotherAtomic.is_on())
            .map_or(unresolved(UnresolvedError::ValueLost), |s| Plan::Value(s.value)),
        (Kind::Atomic, Verdict::Ambiguous) if Mutant::AmbiguousAtomicRepeated.is_on() => replay,
        (_, Verdict::Executed) => Plan::End(Outcome::Success),
        (Kind::Write | Kind::WriteImm, Verdict::Torn(_)) if Mutant::TornWriteFromByteZero.is_on() => replay,
        (Kind::Write | Kind::WriteImm, Verdict::Torn(packets)) => {
            Plan::Replay { skip_packets: packets + u32::from(Mutant::TornWriteSkipsOneMore.is_on()) }
        }
        (Kind::Write | Kind::WriteImm, Verdict::Ambiguous) if repeatable => replay,
        // A SEND takes effect when its receive completes. Without this completion, the receiver
        // posts the receive again on the new rail.
        (Kind::Send, Verdict::Torn(_) | Verdict::Ambiguous) => replay,
        (Kind::Write | Kind::WriteImm, Verdict::Ambiguous)
        | (Kind::Atomic, Verdict::Torn(_) | Verdict::Ambiguous) => unresolved(UnresolvedError::Indeterminate),
    }
}

/// Plans an operation behind an operation that ended in an error. The planned operation is not
/// replayed.
fn plan_after_error(case: &Case) -> Plan {
    match (case.op.kind, case.verdict) {
        (Kind::Read | Kind::Local, _) | (_, Verdict::NotExecuted) | (Kind::Send, Verdict::Torn(_)) => {
            Plan::End(Outcome::Failed(WcStatus::Flushed))
        }
        (_, Verdict::Executed) if Mutant::ExecutedBehindErrorFlushed.is_on() => {
            Plan::End(Outcome::Failed(WcStatus::Flushed))
        }
        (_, Verdict::Executed) => unresolved(UnresolvedError::ExecutedBehindError),
        (_, Verdict::Torn(_)) if Mutant::TornBehindErrorFlushed.is_on() => {
            Plan::End(Outcome::Failed(WcStatus::Flushed))
        }
        (_, Verdict::Torn(_) | Verdict::Ambiguous) => unresolved(UnresolvedError::Indeterminate),
    }
}

/// Plans the operations in flight of an unreliable connection, for which no evidence exists. A
/// message may have been executed, so it is not sent again. All other operations are replayed, and
/// the next rail executes or refuses them.
pub fn plan_unreliable(kinds: &[Kind]) -> Vec<Plan> {
    kinds
        .iter()
        .map(|kind| match kind.is_message() {
            true => Plan::End(Outcome::Success),
            false => Plan::Replay { skip_packets: 0 },
        })
        .collect()
}

/// For the baseline policies, which use no evidence.
#[cfg(feature = "baselines")]
pub fn plan_baseline(policy: crate::config::Policy, kinds: &[Kind]) -> Vec<Plan> {
    use crate::config::Policy;

    let mut failed = false;
    kinds
        .iter()
        .map(|kind| {
            let flushed = Plan::End(Outcome::Failed(WcStatus::Flushed));
            match policy {
                _ if failed => flushed,
                Policy::Transparent if *kind == Kind::Atomic => {
                    failed = true;
                    unresolved(UnresolvedError::Indeterminate)
                }
                Policy::None => flushed,
                _ => Plan::Replay { skip_packets: 0 },
            }
        })
        .collect()
}

fn unresolved(error: UnresolvedError) -> Plan {
    Plan::End(Outcome::Unresolved(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Policy;
    use mitra_verbs::Psn;

    fn case(kind: Kind, verdict: Verdict) -> Case {
        let op = InFlight { seq: 0, kind, first: Psn::new(5), packets: 4, logged: false };
        Case { op, verdict, fence: false, write_policy: WritePolicy::Strict }
    }
    const FLUSHED: Plan = Plan::End(Outcome::Failed(WcStatus::Flushed));
    const OK: Plan = Plan::End(Outcome::Success);
    const REPLAY: Plan = Plan::Replay { skip_packets: 0 };

    #[test]
    fn torn_write_resumes_at_first_unexecuted_packet() {
        let plans = plan_exact(&[case(Kind::Write, Verdict::Torn(3))], &[], true);
        assert_eq!(plans, [Plan::Replay { skip_packets: 3 }]);
    }

    #[test]
    fn operations_after_an_error_are_not_replayed() {
        let plans = plan_exact(
            &[
                case(Kind::Write, Verdict::Executed),
                case(Kind::Atomic, Verdict::Executed),
                case(Kind::Send, Verdict::Executed),
                case(Kind::Write, Verdict::Torn(1)),
                case(Kind::Write, Verdict::NotExecuted),
            ],
            &[],
            true,
        );
        assert_eq!(
            plans,
            [
                OK,
                unresolved(UnresolvedError::ValueLost),
                unresolved(UnresolvedError::ExecutedBehindError),
                unresolved(UnresolvedError::Indeterminate),
                FLUSHED
            ]
        );
    }

    #[test]
    fn atomic_takes_its_value_from_result_saved_under_its_psn() {
        let own = SavedResult { psn: Psn::new(5), value: 77 };
        let other = SavedResult { psn: Psn::new(6), value: 78 };
        let atomic = [case(Kind::Atomic, Verdict::Executed)];
        assert_eq!(plan_exact(&atomic, &[other, own], true), [Plan::Value(77)]);
        assert_eq!(plan_exact(&atomic, &[other], true), [unresolved(UnresolvedError::ValueLost)]);
    }

    #[test]
    fn read_is_repeated_unless_a_later_fenced_operation_began() {
        let read = case(Kind::Read, Verdict::Executed);
        let fenced = |verdict| Case { fence: true, ..case(Kind::Write, verdict) };
        let first = |cases: &[Case], placed| plan_exact(cases, &[], placed)[0];
        assert_eq!(first(&[read], true), REPLAY);
        assert_eq!(first(&[read, case(Kind::Write, Verdict::Executed)], true), REPLAY);
        assert_eq!(first(&[read, fenced(Verdict::NotExecuted)], true), REPLAY);
        let fenced_read = Case { fence: true, ..case(Kind::Read, Verdict::Executed) };
        assert_eq!(first(&[read, fenced_read], true), REPLAY);
        let with_later_send = [read, fenced_read, case(Kind::Send, Verdict::Executed)];
        assert_eq!(first(&with_later_send, false), unresolved(UnresolvedError::ValueLost));
        assert_eq!(first(&[read, fenced(Verdict::Executed)], true), OK);
        assert_eq!(first(&[read, fenced(Verdict::Executed)], false), unresolved(UnresolvedError::ValueLost));
        assert_eq!(first(&[read, fenced(Verdict::Torn(1))], true), OK);
        assert_eq!(first(&[read, fenced(Verdict::Torn(1))], false), unresolved(UnresolvedError::ValueLost));
        assert_eq!(first(&[read, fenced(Verdict::Ambiguous)], true), unresolved(UnresolvedError::ValueLost));
    }

    #[test]
    fn ambiguous_write_is_repeated_only_if_declared_repeatable() {
        let edge = case(Kind::Write, Verdict::Ambiguous);
        assert_eq!(plan_exact(&[edge], &[], true), [unresolved(UnresolvedError::Indeterminate)]);
        assert_eq!(
            plan_exact(&[Case { write_policy: WritePolicy::Repeatable, ..edge }], &[], true),
            [REPLAY]
        );
        let atomic = Case { write_policy: WritePolicy::Repeatable, ..case(Kind::Atomic, Verdict::Ambiguous) };
        assert_eq!(plan_exact(&[atomic], &[], true), [unresolved(UnresolvedError::Indeterminate)]);
    }

    #[test]
    fn messages_of_unreliable_connections_are_not_sent_again() {
        let kinds = [Kind::Send, Kind::Write, Kind::WriteImm, Kind::Local];
        assert_eq!(plan_unreliable(&kinds), [OK, OK, OK, REPLAY]);
    }

    #[test]
    fn baseline_policies_plan_without_evidence() {
        let kinds = [Kind::Write, Kind::Atomic, Kind::Send];
        assert_eq!(plan_baseline(Policy::Blanket, &kinds), [REPLAY; 3]);
        assert_eq!(plan_baseline(Policy::None, &kinds), [FLUSHED; 3]);
        assert_eq!(
            plan_baseline(Policy::Transparent, &kinds),
            [REPLAY, unresolved(UnresolvedError::Indeterminate), FLUSHED]
        );
    }
}
