//! What repeating an operation does, and the evidence that makes repeating it unnecessary.

use mitra_verbs::{SendFlags, SendOp};

use crate::evidence::Kind;

/// What a second execution of an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RepeatClass {
    /// The second execution has no effect, because the operation changes no memory of the peer.
    Harmless,
    /// The second execution writes the same bytes again. A program that has consumed or overwritten
    /// the target in the meantime sees the old data once more, for example a flag that it has
    /// reset.
    HarmlessUntilConsumed,
    /// The second execution delivers the message or the notification once more.
    Delivered,
    /// The second execution changes the memory again and returns another value.
    Executed,
}

/// The source of the value that an operation returns, if its completion was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LostValue {
    /// The operation returns no value.
    None,
    /// A repetition of the operation. It is impossible if a later operation with
    /// [`SendFlags::FENCE`] changed memory.
    Repeat,
    /// The responder's saved results, if its NIC can be read.
    SavedResult,
}

/// The effect of a second execution of an operation, and the evidence of the first execution
/// ([`idempotence`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Idempotence {
    /// The effect of a second execution.
    pub class: RepeatClass,
    /// Whether the responder's PSN shows how many packets of the operation were executed. The PSN
    /// can be read while the responder's NIC answers.
    pub by_responder_psn: bool,
    /// Whether the completion log can prove the execution. The log survives the responder's NIC.
    /// The log leaves the first operation behind its last entry undecided.
    pub by_completion_log: bool,
    /// Whether the receiver record shows the delivery of the message or of the notification. The
    /// record survives the responder's NIC.
    pub by_receiver_record: bool,
    /// The source of the returned value.
    pub lost_value: LostValue,
    /// Whether an earlier READ must not be executed again after this operation, because the
    /// operation has [`SendFlags::FENCE`] and may change the memory that the READ read.
    pub fixes_earlier_reads: bool,
}

/// Returns the effect of a second execution of an operation, and the evidence of the first
/// execution. The decisions of [`Policy::Exact`] follow from both.
///
/// No evidence exists for a local operation (a bind or a local invalidation), because it sends no
/// packet. None is needed.
///
/// [`Policy::Exact`]: crate::Policy::Exact
pub fn idempotence(op: &SendOp, flags: SendFlags) -> Idempotence {
    Kind::of(op).idempotence(flags.contains(SendFlags::FENCE))
}

impl Kind {
    pub fn of(op: &SendOp) -> Kind {
        match op {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_) => Kind::Send,
            SendOp::Write(_) => Kind::Write,
            SendOp::WriteWithImm(..) => Kind::WriteImm,
            SendOp::Read(_) => Kind::Read,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Kind::Atomic,
            SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => Kind::Local,
        }
    }

    pub fn has_effect(self) -> bool {
        !matches!(self, Kind::Read)
    }

    pub fn idempotence(self, fence: bool) -> Idempotence {
        Idempotence {
            class: match self {
                Kind::Read | Kind::Local => RepeatClass::Harmless,
                Kind::Write => RepeatClass::HarmlessUntilConsumed,
                Kind::Send | Kind::WriteImm => RepeatClass::Delivered,
                Kind::Atomic => RepeatClass::Executed,
            },
            by_responder_psn: self != Kind::Local,
            by_completion_log: self.is_logged(),
            by_receiver_record: self.is_two_sided(),
            lost_value: match self {
                Kind::Read => LostValue::Repeat,
                Kind::Atomic => LostValue::SavedResult,
                Kind::Send | Kind::Write | Kind::WriteImm | Kind::Local => LostValue::None,
            },
            fixes_earlier_reads: fence && self.has_effect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use mitra_verbs::{Key, Psn, RemoteAddr, SavedResult};

    use super::*;
    use crate::completion::{Outcome, UnresolvedError};
    use crate::config::WritePolicy;
    use crate::evidence::{Completed, Evidence, InFlight, Verdict, judge};
    use crate::recovery_plan::{Case, Plan, plan_exact};

    const REMOTE: RemoteAddr = RemoteAddr { addr: 0, rkey: Key(0) };
    const COLUMNS: [SendOp; 4] = [
        SendOp::Send,
        SendOp::Write(REMOTE),
        SendOp::Read(REMOTE),
        SendOp::FetchAdd { remote: REMOTE, add: 1 },
    ];

    /// A failure: the first cell of its row in the table of docs/promises.md, and the evidence that
    /// it leaves. Only rows whose other cells differ by operation are tested.
    struct Failure {
        row: &'static str,
        responder_nic_readable: bool,
        log: bool,
    }

    const FAILURES: [Failure; 4] = [
        Failure { row: "link dead, both NICs alive", responder_nic_readable: true, log: false },
        Failure { row: "requester's NIC dead or hung", responder_nic_readable: true, log: true },
        Failure {
            row: "responder's NIC dead or hung, host alive, log on",
            responder_nic_readable: false,
            log: true,
        },
        Failure { row: "the same, log off", responder_nic_readable: false, log: false },
    ];

    /// Returns the plans for two equal operations in flight. The first `executed` of the two were
    /// executed, with their log entries.
    fn plans(op: &SendOp, failure: &Failure, executed: usize) -> Vec<Plan> {
        let kind = Kind::of(op);
        let step = 1 + u32::from(failure.log && kind.is_logged());
        let ops: Vec<InFlight> = (0..2)
            .map(|i| InFlight {
                seq: i,
                kind,
                first: Psn::new(i as u32 * step),
                packets: 1,
                logged: step > 1,
            })
            .collect();
        let done = &ops[..executed];
        let last_log = done.last().filter(|op| failure.log && op.kind.is_logged()).map(|op| op.seq);
        let saved = |op: &InFlight| SavedResult { psn: op.first, value: 40 + op.seq };
        let readable = failure.responder_nic_readable;
        let evidence = Evidence {
            psn: readable.then(|| Psn::new(executed as u32 * step)),
            log: last_log,
            received: if kind.is_two_sided() { executed as u64 } else { 0 },
            saved: done.iter().filter(|op| readable && op.kind == Kind::Atomic).map(saved).collect(),
            ..Evidence::default()
        };
        let verdicts = judge(&ops, Completed::default(), &evidence, failure.log, true).expect("consistent");
        let cases: Vec<Case> = ops
            .iter()
            .zip(verdicts)
            .map(|(&op, verdict)| Case { op, verdict, fence: false, write_policy: WritePolicy::Strict })
            .collect();
        plan_exact(&cases, &evidence.saved, true)
    }

    /// Returns the words of the promise table that describe the plan.
    fn cell(plan: Plan) -> &'static str {
        match plan {
            Plan::Replay { skip_packets: 0 } | Plan::End(Outcome::Success) => "exactly once",
            Plan::Value(_) => "with value",
            Plan::End(Outcome::Unresolved(UnresolvedError::ValueLost)) => "`ValueLost`",
            Plan::End(Outcome::Unresolved(UnresolvedError::Indeterminate)) => "`Indeterminate`",
            _ => "something else",
        }
    }

    #[test]
    fn decisions_are_those_of_the_promise_table() {
        let document = include_str!("../../../docs/promises.md");
        for failure in &FAILURES {
            let row = document.lines().find(|line| line.starts_with(&format!("| {} |", failure.row)));
            let promised: Vec<&str> = row.expect("the row exists").split('|').skip(2).collect();
            for (op, promise) in COLUMNS.iter().zip(promised) {
                for executed in 0..=2 {
                    for (i, plan) in plans(op, failure, executed).into_iter().enumerate().take(executed + 1) {
                        let cell = cell(plan);
                        // "step 6" is the rule that a READ is sent again.
                        let promise = match promise.trim() {
                            "step 6" => "exactly once",
                            "the same" => "executed ones `ValueLost`, the one at the edge `Indeterminate`",
                            text => text,
                        };
                        assert!(
                            promise.contains(cell)
                                || (cell == "exactly once" && promise.contains("at the edge")),
                            "{op:?} {i} of {executed} executed, {}: {cell}, promised {promise}",
                            failure.row
                        );
                        // Operations behind an error are not replayed.
                        if cell.starts_with('`') {
                            break;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn evidence_of_an_operation_decides_it() {
        for op in COLUMNS.iter().chain(&[SendOp::WriteWithImm(REMOTE, 0)]) {
            let about = idempotence(op, SendFlags::empty());
            for failure in &FAILURES {
                // The receiver record alone does not decide a WRITE with immediate, because the
                // data is placed before the record counts it.
                let decided = about.by_responder_psn && failure.responder_nic_readable
                    || about.by_receiver_record && !about.by_completion_log
                    || about.class == RepeatClass::Harmless;
                let unknown = plans(op, failure, 0).iter().any(|plan| cell(*plan) == "`Indeterminate`");
                assert_eq!(unknown, !decided, "{op:?}, {}", failure.row);
                if about.by_completion_log && failure.log {
                    assert_ne!(cell(plans(op, failure, 2)[0]), "`Indeterminate`", "{op:?}, {}", failure.row);
                }
            }
        }
    }

    #[test]
    fn value_of_an_executed_atomic_comes_from_saved_results() {
        let atomic = &COLUMNS[3];
        assert_eq!(idempotence(atomic, SendFlags::empty()).lost_value, LostValue::SavedResult);
        assert_eq!(plans(atomic, &FAILURES[0], 1)[0], Plan::Value(40));
        assert_eq!(cell(plans(atomic, &FAILURES[2], 2)[0]), "`ValueLost`");
    }

    #[test]
    fn fence_on_an_operation_with_effect_fixes_earlier_reads() {
        for (behind, fence) in [
            (SendOp::Write(REMOTE), true),
            (SendOp::Write(REMOTE), false),
            (SendOp::Read(REMOTE), true),
            (SendOp::FetchAdd { remote: REMOTE, add: 1 }, true),
        ] {
            let flags = if fence { SendFlags::FENCE } else { SendFlags::empty() };
            let op =
                |seq, kind| InFlight { seq, kind, first: Psn::new(seq as u32), packets: 1, logged: false };
            let case =
                |op, fence| Case { op, verdict: Verdict::Executed, fence, write_policy: WritePolicy::Strict };
            let cases = [case(op(0, Kind::Read), false), case(op(1, Kind::of(&behind)), fence)];
            let read_again = plan_exact(&cases, &[], true)[0] == Plan::Replay { skip_packets: 0 };
            assert_eq!(read_again, !idempotence(&behind, flags).fixes_earlier_reads, "{behind:?} {flags:?}");
        }
    }
}
