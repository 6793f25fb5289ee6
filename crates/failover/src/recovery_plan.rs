//! The plan for each operation that was in flight on a failed rail, from the verdict on its execution.

use mitra_verbs::{SavedResult, WcStatus};

use crate::completion::{Outcome, UnresolvedError};
use crate::config::{Policy, WritePolicy};
use crate::evidence::{InFlight, Kind, Verdict};

/// The treatment of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Plan {
    /// The operation ends with this outcome.
    End(Outcome),
    /// The operation succeeds and returns this value.
    Value(u64),
    /// The operation is sent again on the next rail, without its first packets.
    Replay {
        /// The number of packets that the responder has executed already.
        skip_packets: u32,
    },
}

/// An operation in flight, with everything that its plan depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// The operation.
    pub op: InFlight,
    /// The verdict of the evidence.
    pub verdict: Verdict,
    /// Whether the work request has the FENCE flag.
    pub fence: bool,
    /// Whether the vQP may repeat an ambiguous WRITE.
    pub write_policy: WritePolicy,
}

/// Plans the operations in flight, in posting order, for [`Policy::Exact`].
///
/// `local_placed` says that the local NIC was alive when it was fenced, so everything that it received is in memory.
pub fn plan_exact(cases: &[Case], saved: &[SavedResult], local_placed: bool) -> Vec<Plan> {
    // For each operation: the changes to the peer's memory from the nearest FENCE behind the operation onward. A fence with only READs
    // behind it does not restrict the repetition of a READ.
    let mut fenced_behind = vec![Changes::default(); cases.len()];
    let (mut fenced, mut changes) = (Changes::default(), Changes::default());
    for (i, case) in cases.iter().enumerate().rev() {
        fenced_behind[i] = fenced;
        if case.op.kind != Kind::Read {
            changes.began |= matches!(case.verdict, Verdict::Executed | Verdict::Torn(_));
            changes.may_have_begun |= case.verdict == Verdict::Ambiguous;
        }
        if case.fence {
            fenced = changes;
        }
    }
    let mut failed = false;
    cases
        .iter()
        .zip(fenced_behind)
        .map(|(case, fenced)| {
            let plan =
                if failed { plan_behind_error(case) } else { plan_one(case, fenced, saved, local_placed) };
            failed |= matches!(plan, Plan::End(Outcome::Failed(_) | Outcome::Unresolved(_)));
            plan
        })
        .collect()
}

/// Whether any of some operations began to change the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Changes {
    began: bool,
    may_have_begun: bool,
}

fn plan_one(case: &Case, fenced: Changes, saved: &[SavedResult], local_placed: bool) -> Plan {
    let replay = Plan::Replay { skip_packets: 0 };
    let repeatable = case.write_policy == WritePolicy::Repeatable;
    match (case.op.kind, case.verdict) {
        (_, Verdict::NotExecuted) => replay,
        // A READ has no effect, so repeating it is safe unless the application used a fence to order changes behind it.
        (Kind::Read, _) => match fenced {
            Changes { began: false, may_have_begun: false } => replay,
            // The fenced operation began, so the requester had received the whole READ response.
            Changes { began: true, .. } if local_placed => Plan::End(Outcome::Success),
            _ => unresolved(UnresolvedError::ValueLost),
        },
        (Kind::Atomic, Verdict::Executed) => saved
            .iter()
            .find(|s| s.psn == case.op.first)
            .map_or(unresolved(UnresolvedError::ValueLost), |s| Plan::Value(s.value)),
        (_, Verdict::Executed) => Plan::End(Outcome::Success),
        (Kind::Write | Kind::WriteImm, Verdict::Torn(packets)) => Plan::Replay { skip_packets: packets },
        (Kind::Write | Kind::WriteImm, Verdict::Ambiguous) if repeatable => replay,
        // A SEND takes effect when its receive completes. The receiver posts the buffer of an incomplete one again.
        (Kind::Send, Verdict::Torn(_) | Verdict::Ambiguous) => replay,
        (Kind::Write | Kind::WriteImm, Verdict::Ambiguous)
        | (Kind::Atomic, Verdict::Torn(_) | Verdict::Ambiguous) => unresolved(UnresolvedError::Indeterminate),
    }
}

/// Plans an operation behind one that ended in an error: nothing there is replayed.
fn plan_behind_error(case: &Case) -> Plan {
    match (case.op.kind, case.verdict) {
        (Kind::Read, _) | (_, Verdict::NotExecuted) | (Kind::Send, Verdict::Torn(_)) => {
            Plan::End(Outcome::Failed(WcStatus::Flushed))
        }
        (_, Verdict::Executed) => unresolved(UnresolvedError::ExecutedBehindError),
        (_, Verdict::Torn(_) | Verdict::Ambiguous) => unresolved(UnresolvedError::Indeterminate),
    }
}

/// Plans the operations in flight without evidence, for the baseline policies.
pub fn plan_baseline(policy: Policy, kinds: &[Kind]) -> Vec<Plan> {
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
    use mitra_verbs::Psn;

    fn case(kind: Kind, verdict: Verdict) -> Case {
        let op = InFlight { seq: 0, kind, first: Psn::new(5), packets: 4 };
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
    fn nothing_behind_an_error_is_replayed() {
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
    fn read_is_repeated_unless_a_fenced_operation_behind_it_began() {
        let read = case(Kind::Read, Verdict::Executed);
        let fenced = |verdict| Case { fence: true, ..case(Kind::Write, verdict) };
        let first = |cases: &[Case], placed| plan_exact(cases, &[], placed)[0];
        assert_eq!(first(&[read], true), REPLAY);
        assert_eq!(first(&[read, case(Kind::Write, Verdict::Executed)], true), REPLAY);
        assert_eq!(first(&[read, fenced(Verdict::NotExecuted)], true), REPLAY);
        let fenced_read = Case { fence: true, ..case(Kind::Read, Verdict::Executed) };
        assert_eq!(first(&[read, fenced_read], true), REPLAY);
        let behind_it = [read, fenced_read, case(Kind::Send, Verdict::Executed)];
        assert_eq!(first(&behind_it, false), unresolved(UnresolvedError::ValueLost));
        assert_eq!(first(&[read, fenced(Verdict::Executed)], true), OK);
        assert_eq!(first(&[read, fenced(Verdict::Executed)], false), unresolved(UnresolvedError::ValueLost));
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
