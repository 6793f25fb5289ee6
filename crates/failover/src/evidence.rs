//! The evidence of a responder's executed operations, and the verdicts that follow from it.
//!
//! An RC responder executes SENDs, WRITEs and atomics in posting order (IBTA volume 1, 9.7). After
//! a failure, the requester therefore determines one number: the length of the executed prefix.
//! Each source of evidence bounds this number.

use mitra_mutants::Mutant;
use mitra_verbs::{Psn, SavedResult};

/// Half of the 24-bit PSN space. A PSN at this distance or more is an earlier one.
const HALF_PSN_SPACE: u32 = 1 << 23;

/// The record of the operations that an end executed for its peer. An end collects it once per
/// move, after its fence.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Evidence {
    /// The responder's next expected PSN: it executed every earlier packet. `None` if the NIC
    /// cannot be read.
    pub psn: Option<Psn>,
    /// The highest sequence number in the completion log. `None` if the log is empty or absent.
    pub log: Option<u64>,
    /// The number of successful receives since the epoch began, including completions that the
    /// fence drained.
    pub received: u64,
    /// Whether no receive was outstanding, so that the NIC answered the peer's next two-sided
    /// operation with RNR NAKs.
    pub lacks_receive: bool,
    /// The saved results of atomics. Empty if the NIC cannot be read.
    pub saved: Vec<SavedResult>,
    /// The `partial_imm_bytes` in the last Resume of the end that gives this evidence. That Resume
    /// may have been lost.
    pub partial_imm_bytes: u32,
    /// Whether the NIC was alive when its queue pair was fenced. Then all data that it has
    /// acknowledged is in memory: a marker's completion follows earlier writes of the NIC.
    pub is_all_placed: bool,
}

/// What an end's processor has seen of the operations that its NIC executes for the peer in the
/// current epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Placed {
    /// The highest sequence number in the completion log. `None` if the log is empty or absent.
    pub log: Option<u64>,
    /// The number of successful receives.
    pub received: u64,
}

/// The kind of an operation, which determines what evidence of it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Send,
    Write,
    /// Consumes a receive after its data is placed.
    WriteImm,
    /// Does not change the responder's memory.
    Read,
    Atomic,
    /// The bind of a window or a local invalidation. The requester's NIC executes the operation
    /// without a packet, when everything before it has completed. While the operation is in flight,
    /// no other is posted behind it. A verdict is needed only if the NIC has not executed the
    /// operation.
    Local,
}

impl Kind {
    /// Whether the receiver record counts the operation, because it consumes a receive.
    pub fn is_two_sided(self) -> bool {
        matches!(self, Kind::Send | Kind::WriteImm)
    }

    /// Whether the operation is a message to the peer without data in the response.
    pub fn is_message(self) -> bool {
        matches!(self, Kind::Send | Kind::Write | Kind::WriteImm)
    }

    /// Whether `rd_atomic` limits the number of these operations in flight.
    pub fn is_read_or_atomic(self) -> bool {
        matches!(self, Kind::Read | Kind::Atomic)
    }

    pub fn is_logged(self) -> bool {
        matches!(self, Kind::Write | Kind::WriteImm | Kind::Atomic)
    }
}

/// An operation that was posted on the failed rail and has not completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InFlight {
    pub seq: u64,
    pub kind: Kind,
    pub first: Psn,
    /// Without the packet of the log entry.
    pub packets: u32,
    pub logged: bool,
}

/// The requester's record of the operations that completed on the failed rail, in this epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Completed {
    pub two_sided: u64,
    pub last_two_sided: Option<u64>,
    /// The last operation whose log entry was certainly executed, because a later operation
    /// completed.
    pub logged: Option<u64>,
    /// The completed operation after `logged` whose log entry may be missing, and the PSN of the
    /// entry.
    pub maybe_logged: Option<(u64, Psn)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The responder executed the whole operation. A READ counts as executed if the executed prefix
    /// contains it.
    Executed,
    NotExecuted,
    /// The responder executed this number of packets, which is not all of them.
    Torn(u32),
    /// The responder executed none, a part or all of the operation.
    Ambiguous,
}

/// A conflict in the evidence. It closes the vQP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Contradiction {
    /// Two sources of evidence imply different executed prefixes.
    #[error("{sources} imply different executed operations")]
    Sources {
        /// A description of the two sources.
        sources: &'static str,
    },
    /// Operations completed at the requester, but the evidence does not contain them: the responder
    /// acknowledged them without placing their data in memory.
    #[error("operation {completed} was acknowledged, but {}", in_memory(.proven))]
    LostAfterAck {
        /// The last operation in the completion log, by its sequence number. `None` without an
        /// entry.
        proven: Option<u64>,
        /// The sequence number of a completed operation without evidence.
        completed: u64,
    },
}

fn in_memory(proven: &Option<u64>) -> String {
    match proven {
        Some(proven) => format!("only those up to {proven} are in memory"),
        None => "none is proven to be in memory".to_owned(),
    }
}

/// Returns the verdict on each operation in flight, in posting order.
///
/// `log` says whether the vQP keeps a completion log, and `acks_after_placement` whether the
/// responder's NIC acknowledges data only when it is in memory
/// ([`mitra_verbs::Capabilities::ack_after_placement`]). On other NICs, a completion proves nothing
/// about data that the NIC lost when it failed.
///
/// The responder's PSN decides every operation exactly. A NIC whose PSN is not known to be exact
/// gives none ([`mitra_verbs::Capabilities::psn_query`]). Without the PSN, the completion log and
/// the receiver record bound the executed prefix from both sides.
///
/// # Errors
/// A [`Contradiction`] between two sources, or between the evidence and the completions.
pub fn judge(
    ops: &[InFlight],
    completed: Completed,
    evidence: &Evidence,
    log: bool,
    acks_after_placement: bool,
) -> Result<Vec<Verdict>, Contradiction> {
    let is_doubtful = !acks_after_placement
        && evidence.psn.is_none()
        && !evidence.is_all_placed
        && !Mutant::LastAcknowledgementTrusted.is_on();
    let unproven = completed.maybe_logged.filter(|_| is_doubtful);
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
        Some(psn) => judge_by_psn(ops, completed, psn)?,
        None => judge_by_records(ops, received, evidence.log),
    };
    // The other sources must agree with the verdicts.
    let executed_two_sided = ops
        .iter()
        .zip(&verdicts)
        .filter(|(op, verdict)| op.kind.is_two_sided() && **verdict == Verdict::Executed)
        .count() as u64;
    if executed_two_sided != received {
        return Err(Contradiction::Sources { sources: "receiver record and executed prefix" });
    }
    if log {
        if let Some(psn) = evidence.psn {
            let entries = ops.iter().filter(|op| op.logged).map(|op| (op.seq, op.first.add(op.packets)));
            let logged = completed
                .maybe_logged
                .into_iter()
                .chain(entries)
                .filter(|&(_, entry)| packets_before(entry, psn) >= 1)
                .map(|(seq, _)| seq)
                .next_back();
            if logged.or(completed.logged) != evidence.log {
                return Err(Contradiction::Sources { sources: "completion log and responder PSN" });
            }
        } else if let Some(last) = evidence.log
            && ops.last().is_some_and(|op| op.seq < last)
        {
            return Err(Contradiction::Sources { sources: "completion log and posted operations" });
        }
    }
    Ok(verdicts)
}

/// Returns the number of packets from `first` up to, but not including, `next`. 0 if `next` is
/// earlier.
fn packets_before(first: Psn, next: Psn) -> u32 {
    let distance = next.distance(first);
    if distance < HALF_PSN_SPACE { distance } else { 0 }
}

fn judge_by_psn(ops: &[InFlight], completed: Completed, psn: Psn) -> Result<Vec<Verdict>, Contradiction> {
    // The responder executed every completed operation, but perhaps not the log entry of the last
    // one.
    let floor = completed.maybe_logged.map(|(_, entry)| entry).or(ops.first().map(|op| op.first));
    if floor.is_some_and(|floor| psn.distance(floor) >= HALF_PSN_SPACE) {
        return Err(Contradiction::Sources { sources: "responder PSN and completions" });
    }
    if let Some(last) = ops.last() {
        let end = last.packets + u32::from(last.logged);
        if packets_before(last.first, psn) > end {
            return Err(Contradiction::Sources { sources: "responder PSN and posted operations" });
        }
    }
    Ok(ops
        .iter()
        .map(|op| match packets_before(op.first, psn) {
            0 => Verdict::NotExecuted,
            n if n >= op.packets + u32::from(Mutant::LastPacketMissed.is_on()) => Verdict::Executed,
            n => Verdict::Torn(n),
        })
        .collect())
}

/// `received` is the number of operations in flight that consumed a receive.
fn judge_by_records(ops: &[InFlight], received: u64, last_log: Option<u64>) -> Vec<Verdict> {
    // Lower bound: an operation in a record was executed, and so were all operations before it.
    let mut consumed = 0;
    let mut proven = 0;
    for (i, op) in ops.iter().enumerate() {
        if op.kind.is_two_sided() && consumed < received + u64::from(Mutant::RecordCountsOneMore.is_on()) {
            consumed += 1;
            proven = i + 1;
        }
        let ahead = u64::from(Mutant::LogEntryProvesNext.is_on());
        if op.logged && last_log.is_some_and(|last| op.seq <= last + ahead) {
            proven = i + 1;
        }
    }
    // Upper bound: if a record would contain an operation but does not, the responder did not
    // execute the operation completely, and executed no later one.
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
                    beyond = op.logged && !Mutant::MissingEntryIgnored.is_on();
                    Verdict::Ambiguous
                }
                Kind::Read => Verdict::Ambiguous,
                Kind::Local => Verdict::NotExecuted,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(kinds: &[(Kind, u32)], log: bool) -> Vec<InFlight> {
        let mut psn = Psn::new(0xff_fffa); // every test crosses the wrap at 2^24
        kinds
            .iter()
            .enumerate()
            .map(|(i, &(kind, packets))| {
                let first = psn;
                let logged = log && kind.is_logged();
                psn = psn.add(packets + u32::from(logged));
                InFlight { seq: 100 + i as u64, kind, first, packets, logged }
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
    fn psn_decides_to_the_packet_across_the_wrap() {
        let ops = ops(&MIXED, false);
        let v = judge(&ops, Completed::default(), &evidence(Some(2), None, 0), false, true).unwrap();
        assert_eq!(v, [Torn(2), NotExecuted, NotExecuted, NotExecuted, NotExecuted]);
        let v = judge(&ops, Completed::default(), &evidence(Some(9), None, 1), false, true).unwrap();
        assert_eq!(v, [Executed, Executed, Executed, NotExecuted, NotExecuted]);
        let v = judge(&ops, Completed::default(), &evidence(Some(12), None, 2), false, true).unwrap();
        assert_eq!(v, [Executed; 5]);
    }

    #[test]
    fn psn_outside_the_posted_packets_is_a_contradiction() {
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
    fn receiver_record_that_disagrees_with_psn_is_a_contradiction() {
        let ops = ops(&MIXED, false);
        let e = judge(&ops, Completed::default(), &evidence(Some(9), None, 0), false, true).unwrap_err();
        assert!(matches!(e, Contradiction::Sources { sources: "receiver record and executed prefix" }));
    }

    #[test]
    fn log_leaves_the_edge_operation_ambiguous() {
        let ops = ops(&MIXED, true);
        let v = judge(&ops, Completed::default(), &evidence(None, None, 0), true, true).unwrap();
        assert_eq!(v, [Ambiguous, NotExecuted, NotExecuted, NotExecuted, NotExecuted]);
        // The receiver record contains the SEND, so the WRITE before it and its log entry were
        // executed.
        let v = judge(&ops, Completed::default(), &evidence(None, Some(100), 1), true, true).unwrap();
        assert_eq!(v, [Executed, Executed, Ambiguous, Ambiguous, NotExecuted]);
        let v = judge(&ops, Completed::default(), &evidence(None, Some(103), 1), true, true).unwrap();
        assert_eq!(v, [Executed, Executed, Executed, Executed, Ambiguous]);
    }

    /// Three WRITEs, of which the last has an entry, and a WRITE whose entry is not due yet.
    fn ops_with_one_entry() -> Vec<InFlight> {
        let psn = Psn::new(0xff_fffa);
        let op = |i: u32, at: u32| InFlight {
            seq: 100 + u64::from(i),
            kind: Write,
            first: psn.add(at),
            packets: 1,
            logged: i == 2,
        };
        vec![op(0, 0), op(1, 1), op(2, 2), op(3, 4)]
    }

    #[test]
    fn entry_of_every_third_write_leaves_three_ambiguous() {
        let ops = ops_with_one_entry();
        let v = judge(&ops, Completed::default(), &evidence(None, None, 0), true, true).unwrap();
        assert_eq!(v, [Ambiguous, Ambiguous, Ambiguous, NotExecuted]);
        let v = judge(&ops, Completed::default(), &evidence(None, Some(102), 0), true, true).unwrap();
        assert_eq!(v, [Executed, Executed, Executed, Ambiguous]);
    }

    #[test]
    fn psn_decides_writes_without_an_entry() {
        let ops = ops_with_one_entry();
        let judge = |psn, log| judge(&ops, Completed::default(), &evidence(Some(psn), log, 0), true, true);
        assert_eq!(judge(1, None).unwrap(), [Executed, NotExecuted, NotExecuted, NotExecuted]);
        assert_eq!(judge(3, None).unwrap(), [Executed, Executed, Executed, NotExecuted]);
        assert_eq!(judge(5, Some(102)).unwrap(), [Executed; 4]);
        // A log entry that the PSN does not contain, a log without an entry that the PSN contains,
        // and a packet that was not posted.
        assert!(judge(3, Some(102)).is_err() && judge(4, None).is_err() && judge(6, Some(102)).is_err());
    }

    #[test]
    fn without_log_and_psn_only_two_sided_operations_bound_the_prefix() {
        let ops = ops(&[(Write, 1), (Atomic, 1), (Send, 1), (Write, 1), (Read, 1)], false);
        let v = judge(&ops, Completed::default(), &evidence(None, None, 0), false, true).unwrap();
        assert_eq!(v, [Ambiguous, Ambiguous, NotExecuted, NotExecuted, NotExecuted]);
        let v = judge(&ops, Completed::default(), &evidence(None, None, 1), false, true).unwrap();
        assert_eq!(v, [Executed, Executed, Executed, Ambiguous, Ambiguous]);
    }

    #[test]
    fn completion_missing_from_the_log_is_lost_after_ack() {
        let done = Completed { logged: Some(99), ..Completed::default() };
        let e = judge(&[], done, &evidence(None, Some(97), 0), true, true).unwrap_err();
        assert_eq!(e, Contradiction::LostAfterAck { proven: Some(97), completed: 99 });
        assert!(judge(&[], done, &evidence(None, Some(99), 0), true, true).is_ok());
    }

    /// The entry of the last completed operation is missing from the log. It was lost on the wire,
    /// or a NIC that acknowledges early has died with the operation.
    #[test]
    fn missing_entry_of_an_acknowledged_operation_is_a_loss_only_if_the_nic_died() {
        let entry = Psn::new(0xff_fffa);
        let done = Completed { logged: Some(98), maybe_logged: Some((99, entry)), ..Completed::default() };
        let judge = |is_all_placed, acks_after_placement| {
            let evidence = Evidence { is_all_placed, ..evidence(None, Some(98), 0) };
            judge(&[], done, &evidence, true, acks_after_placement)
        };
        let lost = Contradiction::LostAfterAck { proven: Some(98), completed: 99 };
        assert_eq!(judge(false, false), Err(lost));
        assert_eq!(judge(true, false), Ok(vec![]));
        assert_eq!(judge(false, true), Ok(vec![]));
    }

    #[test]
    fn log_that_disagrees_with_psn_is_a_contradiction() {
        let ops = ops(&[(Write, 1), (Write, 1)], true);
        assert!(judge(&ops, Completed::default(), &evidence(Some(2), Some(100), 0), true, true).is_ok());
        assert!(judge(&ops, Completed::default(), &evidence(Some(1), None, 0), true, true).is_ok());
        assert!(judge(&ops, Completed::default(), &evidence(Some(2), None, 0), true, true).is_err());
        assert!(judge(&ops, Completed::default(), &evidence(Some(2), Some(101), 0), true, true).is_err());
    }
}
