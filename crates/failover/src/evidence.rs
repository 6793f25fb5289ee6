//! What a responder can say about what it executed, and what follows from it for each operation.
//!
//! An RC responder executes SEND, WRITE and ATOMIC in posting order, so what a requester does not know after a failure
//! is one number: how long the executed prefix is. Each kind of evidence bounds that number.

use mitra_verbs::{Psn, SavedResult};

/// What one end knows, after its fence, about the operations that it executed for the other. Recorded once per ballot.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Evidence {
    /// The responder's next expected PSN: every packet before it was executed. `None` if the NIC cannot be read.
    pub psn: Option<Psn>,
    /// The highest sequence number in the completion log. `None` without a log, or with an empty one.
    pub log: Option<u64>,
    /// Successful receives since the epoch began, unpolled completions included.
    pub received: u64,
    /// The saved results of atomics. Empty if the NIC cannot be read.
    pub saved: Vec<SavedResult>,
    /// What this end's last Resume said of its torn WRITE with immediate: that Resume may have been lost.
    pub torn: u32,
}

/// How an operation touches the peer: what evidence there can be about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// SEND: consumes a receive.
    Send,
    /// WRITE.
    Write,
    /// WRITE with immediate: consumes a receive after its data.
    WriteImm,
    /// READ: changes nothing.
    Read,
    /// CAS or FAA.
    Atomic,
}

impl Kind {
    /// Whether the receiver's record counts it.
    pub fn two_sided(self) -> bool {
        matches!(self, Kind::Send | Kind::WriteImm)
    }

    /// Whether a completion log entry follows it.
    pub fn logged(self) -> bool {
        matches!(self, Kind::Write | Kind::WriteImm | Kind::Atomic)
    }
}

/// An operation that was posted on the failed rail and has not completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InFlight {
    /// Its sequence number.
    pub seq: u64,
    /// Its kind.
    pub kind: Kind,
    /// PSN of its first packet.
    pub first: Psn,
    /// Its packets, without the log entry's.
    pub packets: u32,
}

/// What is known about the operations that completed before the failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Completed {
    /// Two-sided operations completed in this epoch.
    pub two_sided: u64,
    /// The last of them.
    pub last_two_sided: Option<u64>,
    /// The last completed operation of this epoch whose log entry is known to be written too.
    pub logged: Option<u64>,
    /// A completed operation behind it whose log entry may or may not be written: its sequence number, and the
    /// PSN of the entry.
    pub maybe_logged: Option<(u64, Psn)>,
}

/// What the evidence says of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// It was executed (a READ: accepted).
    Executed,
    /// It was not.
    NotExecuted,
    /// So many of its packets were, and no more.
    Torn(u32),
    /// Not, partly or fully: nothing tells.
    Ambiguous,
}

/// Evidence that stops a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Contradiction {
    /// Two sources disagree about the executed prefix.
    Sources {
        /// The two that disagree.
        what: &'static str,
    },
    /// Operations that completed successfully left no trace: acknowledged, never placed.
    LostAfterAck {
        /// The last operation that did leave one, if any.
        proven: Option<u64>,
        /// The last one that completed.
        completed: u64,
    },
}

/// Judges the operations in flight, in posting order.
///
/// `placed_acks`: the responder's NIC acknowledges only what is in memory
/// ([`mitra_verbs::Capabilities::ack_after_placement`]). Elsewhere a completion proves nothing that the NIC took to its grave.
///
/// With a PSN every operation is decided, to the packet. Without one, the log and the receiver's record bound the
/// executed prefix from both sides; with a log at most one operation is left ambiguous.
pub fn judge(
    ops: &[InFlight],
    completed: Completed,
    evidence: &Evidence,
    log: bool,
    placed_acks: bool,
) -> Result<Vec<Verdict>, Contradiction> {
    let unproven = completed.maybe_logged.filter(|_| !placed_acks && evidence.psn.is_none());
    let completed_log = unproven.map(|(seq, _)| seq).or(completed.logged);
    if let (true, Some(done)) = (log, completed_log)
        && evidence.log.is_none_or(|proven| proven < done)
    {
        return Err(Contradiction::LostAfterAck { proven: evidence.log, completed: done });
    }
    let Some(received) = evidence.received.checked_sub(completed.two_sided) else {
        let completed = completed.last_two_sided.unwrap_or_default();
        return Err(Contradiction::LostAfterAck { proven: evidence.log, completed });
    };
    let verdicts = match evidence.psn {
        Some(psn) => by_psn(ops, completed, psn, log)?,
        None => by_record(ops, received, evidence.log, log),
    };
    // Pair assertions: whichever source decided, the others must agree.
    let seen = ops.iter().zip(&verdicts);
    let executed_two_sided =
        seen.clone().filter(|(op, v)| op.kind.two_sided() && **v == Verdict::Executed).count() as u64;
    if executed_two_sided != received {
        return Err(Contradiction::Sources { what: "receiver record and executed prefix" });
    }
    if log {
        if let Some(psn) = evidence.psn {
            let entries =
                ops.iter().filter(|op| op.kind.logged()).map(|op| (op.seq, op.first.add(op.packets)));
            let logged = completed
                .maybe_logged
                .into_iter()
                .chain(entries)
                .filter(|&(_, entry)| reached(entry, psn) >= 1)
                .map(|(seq, _)| seq)
                .next_back();
            if logged.or(completed.logged) != evidence.log {
                return Err(Contradiction::Sources { what: "completion log and responder PSN" });
            }
        } else if let Some(last) = evidence.log
            && ops.last().is_some_and(|op| op.seq < last)
        {
            return Err(Contradiction::Sources { what: "completion log and posted operations" });
        }
    }
    Ok(verdicts)
}

/// How many packets from `first` on lie before the responder's next expected PSN.
fn reached(first: Psn, next: Psn) -> u32 {
    let distance = next.distance(first);
    if distance < 1 << 23 { distance } else { 0 }
}

fn by_psn(
    ops: &[InFlight],
    completed: Completed,
    psn: Psn,
    log: bool,
) -> Result<Vec<Verdict>, Contradiction> {
    // All that completed was executed, but for a log entry that nothing has completed behind.
    let floor = completed.maybe_logged.map(|(_, entry)| entry).or(ops.first().map(|op| op.first));
    if floor.is_some_and(|floor| psn.distance(floor) >= 1 << 23) {
        return Err(Contradiction::Sources { what: "responder PSN and completions" });
    }
    if let Some(last) = ops.last() {
        let end = last.packets + u32::from(log && last.kind.logged());
        if reached(last.first, psn) > end {
            return Err(Contradiction::Sources { what: "responder PSN and posted operations" });
        }
    }
    Ok(ops
        .iter()
        .map(|op| match reached(op.first, psn) {
            0 => Verdict::NotExecuted,
            n if n >= op.packets => Verdict::Executed,
            n => Verdict::Torn(n),
        })
        .collect())
}

fn by_record(ops: &[InFlight], received: u64, last_log: Option<u64>, log: bool) -> Vec<Verdict> {
    // Lower bound: the last operation that left a trace.
    let mut consumed = 0;
    let mut proven = 0;
    for (i, op) in ops.iter().enumerate() {
        if op.kind.two_sided() && consumed < received {
            consumed += 1;
            proven = i + 1;
        }
        if op.kind.logged() && last_log.is_some_and(|last| op.seq <= last) {
            proven = i + 1;
        }
    }
    // Upper bound: behind the first operation that would have left a trace, nothing began.
    let mut beyond = false;
    ops.iter()
        .enumerate()
        .map(|(i, op)| {
            if i < proven {
                return Verdict::Executed;
            }
            if beyond {
                return Verdict::NotExecuted;
            }
            match op.kind {
                Kind::Send => {
                    beyond = true;
                    Verdict::NotExecuted
                }
                Kind::WriteImm => {
                    beyond = true;
                    Verdict::Ambiguous
                }
                Kind::Write | Kind::Atomic => {
                    beyond = log;
                    Verdict::Ambiguous
                }
                Kind::Read => Verdict::Ambiguous,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(kinds: &[(Kind, u32)], log: bool) -> Vec<InFlight> {
        let mut psn = Psn::new(0xff_fffa); // so that every test crosses the wrap
        kinds
            .iter()
            .enumerate()
            .map(|(i, &(kind, packets))| {
                let first = psn;
                psn = psn.add(packets + u32::from(log && kind.logged()));
                InFlight { seq: 100 + i as u64, kind, first, packets }
            })
            .collect()
    }

    const MIXED: [(Kind, u32); 5] =
        [(Kind::Write, 3), (Kind::Send, 2), (Kind::Read, 4), (Kind::Atomic, 1), (Kind::WriteImm, 2)];

    use Kind::{Atomic, Read, Send, Write};
    use Verdict::{Ambiguous, Executed, NotExecuted, Torn};

    fn evidence(psn: Option<u32>, log: Option<u64>, received: u64) -> Evidence {
        Evidence { psn: psn.map(|n| Psn::new(0xff_fffa).add(n)), log, received, ..Evidence::default() }
    }

    #[test]
    fn a_psn_decides_to_the_packet_across_the_wrap() {
        let ops = ops(&MIXED, false);
        let v = judge(&ops, Completed::default(), &evidence(Some(2), None, 0), false, true).unwrap();
        assert_eq!(v, [Torn(2), NotExecuted, NotExecuted, NotExecuted, NotExecuted]);
        let v = judge(&ops, Completed::default(), &evidence(Some(9), None, 1), false, true).unwrap();
        assert_eq!(v, [Executed, Executed, Executed, NotExecuted, NotExecuted]);
        let v = judge(&ops, Completed::default(), &evidence(Some(12), None, 2), false, true).unwrap();
        assert_eq!(v, [Executed; 5]);
    }

    #[test]
    fn a_psn_before_the_first_or_behind_the_last_packet() {
        let ops = ops(&MIXED, false);
        let before = Evidence { psn: Some(Psn::new(0xff_fff0)), ..Evidence::default() };
        assert!(judge(&ops, Completed::default(), &before, false, true).is_err());
        assert_eq!(
            judge(&ops, Completed::default(), &evidence(Some(0), None, 0), false, true).unwrap(),
            [NotExecuted; 5]
        );
        assert!(judge(&ops, Completed::default(), &evidence(Some(13), None, 2), false, true).is_err());
    }

    #[test]
    fn the_record_must_agree_with_the_psn() {
        let ops = ops(&MIXED, false);
        let e = judge(&ops, Completed::default(), &evidence(Some(9), None, 0), false, true).unwrap_err();
        assert!(matches!(e, Contradiction::Sources { what: "receiver record and executed prefix" }));
    }

    #[test]
    fn a_log_leaves_one_operation_at_the_edge() {
        let ops = ops(&MIXED, true);
        let v = judge(&ops, Completed::default(), &evidence(None, None, 0), true, true).unwrap();
        assert_eq!(v, [Ambiguous, NotExecuted, NotExecuted, NotExecuted, NotExecuted]);
        // The send was received, so the write before it was executed although its log is all there is.
        let v = judge(&ops, Completed::default(), &evidence(None, Some(100), 1), true, true).unwrap();
        assert_eq!(v, [Executed, Executed, Ambiguous, Ambiguous, NotExecuted]);
        let v = judge(&ops, Completed::default(), &evidence(None, Some(103), 1), true, true).unwrap();
        assert_eq!(v, [Executed, Executed, Executed, Executed, Ambiguous]);
    }

    #[test]
    fn without_log_or_psn_only_two_sided_operations_bound_anything() {
        let ops = ops(&[(Write, 1), (Atomic, 1), (Send, 1), (Write, 1), (Read, 1)], false);
        let v = judge(&ops, Completed::default(), &evidence(None, None, 0), false, true).unwrap();
        assert_eq!(v, [Ambiguous, Ambiguous, NotExecuted, NotExecuted, NotExecuted]);
        let v = judge(&ops, Completed::default(), &evidence(None, None, 1), false, true).unwrap();
        assert_eq!(v, [Executed, Executed, Executed, Ambiguous, Ambiguous]);
    }

    #[test]
    fn a_completion_without_a_trace_was_lost_after_its_acknowledgement() {
        let done = Completed { logged: Some(99), ..Completed::default() };
        let e = judge(&[], done, &evidence(None, Some(97), 0), true, true).unwrap_err();
        assert_eq!(e, Contradiction::LostAfterAck { proven: Some(97), completed: 99 });
        assert!(judge(&[], done, &evidence(None, Some(99), 0), true, true).is_ok());
    }

    #[test]
    fn the_log_must_agree_with_the_psn() {
        let ops = ops(&[(Write, 1), (Write, 1)], true);
        assert!(judge(&ops, Completed::default(), &evidence(Some(2), Some(100), 0), true, true).is_ok());
        assert!(judge(&ops, Completed::default(), &evidence(Some(1), None, 0), true, true).is_ok());
        assert!(judge(&ops, Completed::default(), &evidence(Some(2), None, 0), true, true).is_err());
        assert!(judge(&ops, Completed::default(), &evidence(Some(2), Some(101), 0), true, true).is_err());
    }
}
