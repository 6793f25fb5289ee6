//! From what is known of each operation to what is done with it.

use mitra_verbs::SavedResult;

use crate::config::{Policy, WritePolicy};
use crate::evidence::{InFlight, Kind, Verdict};
use crate::outcome::{Outcome, UnresolvedError};

/// What is done with an operation that was in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Plan {
    /// It ends so.
    End(Outcome),
    /// It was executed, and returned this value.
    Value(u64),
    /// It is sent again on the next rail, without its first packets.
    Replay {
        /// So many packets of it were executed already.
        skip_packets: u32,
    },
}

/// One operation, with what the decision depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// The operation.
    pub op: InFlight,
    /// What the evidence says of it.
    pub verdict: Verdict,
    /// Whether it was posted with FENCE.
    pub fence: bool,
    /// Whether its target may be written again.
    pub writes: WritePolicy,
}

/// Plans what becomes of the operations in flight, in posting order (`exact`).
///
/// `local_placed` says that what the old local NIC received was placed: it was alive when it was fenced.
pub fn exact(cases: &[Case], saved: &[SavedResult], local_placed: bool) -> Vec<Plan> {
    // What lies behind i from a FENCE on: whether anything there that changes the peer's memory began, or may have. (A fence
    // that only READs stand behind keeps nothing from being read again.)
    let mut fenced_behind = vec![Behind::default(); cases.len()];
    let (mut fenced, mut changed) = (Behind::default(), Behind::default());
    for (i, case) in cases.iter().enumerate().rev() {
        fenced_behind[i] = fenced;
        if case.op.kind != Kind::Read {
            changed.began |= matches!(case.verdict, Verdict::Executed | Verdict::Torn(_));
            changed.may_have |= case.verdict == Verdict::Ambiguous;
        }
        if case.fence {
            fenced = changed;
        }
    }
    let mut failed = false;
    cases
        .iter()
        .zip(fenced_behind)
        .map(|(case, fenced)| {
            let plan = if failed { behind_error(case) } else { one(case, fenced, saved, local_placed) };
            failed |= matches!(plan, Plan::End(Outcome::Failed(_) | Outcome::Unresolved(_)));
            plan
        })
        .collect()
}

/// Whether something began, or may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Behind {
    began: bool,
    may_have: bool,
}

fn one(case: &Case, fenced: Behind, saved: &[SavedResult], local_placed: bool) -> Plan {
    let again = Plan::Replay { skip_packets: 0 };
    let repeatable = case.writes == WritePolicy::Repeatable;
    match (case.op.kind, case.verdict) {
        (_, Verdict::NotExecuted) => again,
        // A READ changes nothing: it may be read again unless the application said, by a fence, that what follows
        // must not be seen by it.
        (Kind::Read, _) => match fenced {
            Behind { began: false, may_have: false } => again,
            // The fenced operation began, so the READ's response had reached this end whole.
            Behind { began: true, .. } if local_placed => Plan::End(Outcome::Success),
            _ => named(UnresolvedError::ValueLost),
        },
        (Kind::Atomic, Verdict::Executed) => saved
            .iter()
            .find(|s| s.psn == case.op.first)
            .map_or(named(UnresolvedError::ValueLost), |s| Plan::Value(s.value)),
        (_, Verdict::Executed) => Plan::End(Outcome::Success),
        (Kind::Write | Kind::WriteImm, Verdict::Torn(packets)) => Plan::Replay { skip_packets: packets },
        (Kind::Write | Kind::WriteImm, Verdict::Ambiguous) if repeatable => again,
        // A SEND counts when its receive completes; half of one is not seen, and its buffer is posted again.
        (Kind::Send, Verdict::Torn(_) | Verdict::Ambiguous) => again,
        (Kind::Write | Kind::WriteImm, Verdict::Ambiguous)
        | (Kind::Atomic, Verdict::Torn(_) | Verdict::Ambiguous) => named(UnresolvedError::Indeterminate),
    }
}

/// Behind an operation that ended in an error nothing is replayed.
fn behind_error(case: &Case) -> Plan {
    match (case.op.kind, case.verdict) {
        (Kind::Read, _) | (_, Verdict::NotExecuted) | (Kind::Send, Verdict::Torn(_)) => {
            Plan::End(Outcome::Failed(mitra_verbs::WcStatus::Flushed))
        }
        (_, Verdict::Executed) => named(UnresolvedError::ExecutedBehindError),
        (_, Verdict::Torn(_) | Verdict::Ambiguous) => named(UnresolvedError::Indeterminate),
    }
}

/// Plans without evidence, for the baselines.
pub fn baseline(policy: Policy, kinds: &[Kind]) -> Vec<Plan> {
    let mut failed = false;
    kinds
        .iter()
        .map(|kind| {
            let flushed = Plan::End(Outcome::Failed(mitra_verbs::WcStatus::Flushed));
            match policy {
                _ if failed => flushed,
                Policy::Transparent if *kind == Kind::Atomic => {
                    failed = true;
                    named(UnresolvedError::Indeterminate)
                }
                Policy::None => flushed,
                _ => Plan::Replay { skip_packets: 0 },
            }
        })
        .collect()
}

fn named(error: UnresolvedError) -> Plan {
    Plan::End(Outcome::Unresolved(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mitra_verbs::{Psn, WcStatus};

    fn case(kind: Kind, verdict: Verdict) -> Case {
        let op = InFlight { seq: 0, kind, first: Psn::new(5), packets: 4 };
        Case { op, verdict, fence: false, writes: WritePolicy::Strict }
    }
    const FLUSHED: Plan = Plan::End(Outcome::Failed(WcStatus::Flushed));
    const OK: Plan = Plan::End(Outcome::Success);
    const AGAIN: Plan = Plan::Replay { skip_packets: 0 };

    #[test]
    fn a_torn_write_continues_where_it_was_torn() {
        let plans = exact(&[case(Kind::Write, Verdict::Torn(3))], &[], true);
        assert_eq!(plans, [Plan::Replay { skip_packets: 3 }]);
    }

    #[test]
    fn behind_an_error_nothing_is_replayed() {
        let plans = exact(
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
                named(UnresolvedError::ValueLost),
                named(UnresolvedError::ExecutedBehindError),
                named(UnresolvedError::Indeterminate),
                FLUSHED
            ]
        );
    }

    #[test]
    fn an_atomic_gets_its_value_only_from_a_result_saved_under_its_own_psn() {
        let own = SavedResult { psn: Psn::new(5), value: 77 };
        let other = SavedResult { psn: Psn::new(6), value: 78 };
        let atomic = [case(Kind::Atomic, Verdict::Executed)];
        assert_eq!(exact(&atomic, &[other, own], true), [Plan::Value(77)]);
        assert_eq!(exact(&atomic, &[other], true), [named(UnresolvedError::ValueLost)]);
    }

    #[test]
    fn a_read_is_read_again_unless_a_fence_behind_it_began() {
        let read = case(Kind::Read, Verdict::Executed);
        let fenced = |verdict| Case { fence: true, ..case(Kind::Write, verdict) };
        let first = |cases: &[Case], placed| exact(cases, &[], placed)[0];
        assert_eq!(first(&[read], true), AGAIN);
        assert_eq!(first(&[read, case(Kind::Write, Verdict::Executed)], true), AGAIN);
        assert_eq!(first(&[read, fenced(Verdict::NotExecuted)], true), AGAIN);
        let fenced_read = Case { fence: true, ..case(Kind::Read, Verdict::Executed) };
        assert_eq!(first(&[read, fenced_read], true), AGAIN);
        let behind_it = [read, fenced_read, case(Kind::Send, Verdict::Executed)];
        assert_eq!(first(&behind_it, false), named(UnresolvedError::ValueLost));
        assert_eq!(first(&[read, fenced(Verdict::Executed)], true), OK);
        assert_eq!(first(&[read, fenced(Verdict::Executed)], false), named(UnresolvedError::ValueLost));
        assert_eq!(first(&[read, fenced(Verdict::Ambiguous)], true), named(UnresolvedError::ValueLost));
    }

    #[test]
    fn the_edge_write_is_repeated_only_when_declared_repeatable() {
        let edge = case(Kind::Write, Verdict::Ambiguous);
        assert_eq!(exact(&[edge], &[], true), [named(UnresolvedError::Indeterminate)]);
        assert_eq!(exact(&[Case { writes: WritePolicy::Repeatable, ..edge }], &[], true), [AGAIN]);
        let atomic = Case { writes: WritePolicy::Repeatable, ..case(Kind::Atomic, Verdict::Ambiguous) };
        assert_eq!(exact(&[atomic], &[], true), [named(UnresolvedError::Indeterminate)]);
    }

    #[test]
    fn baselines_do_what_their_names_say() {
        let kinds = [Kind::Write, Kind::Atomic, Kind::Send];
        assert_eq!(baseline(Policy::Blanket, &kinds), [AGAIN; 3]);
        assert_eq!(baseline(Policy::None, &kinds), [FLUSHED; 3]);
        assert_eq!(
            baseline(Policy::Transparent, &kinds),
            [AGAIN, named(UnresolvedError::Indeterminate), FLUSHED]
        );
    }
}
