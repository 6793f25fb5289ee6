//! What the operations said, beside what is in memory.

use mitra_failover::{Outcome, Resolution, UnresolvedError};
use mitra_verbs::{Buffer, WcStatus};

use super::exchange::{Exchange, place};
use super::{Counts, Failure, UNSTORED};

/// Compares what the operations said with what is in memory.
pub(super) fn check(
    Exchange { outcomes, messages }: &Exchange,
    near: &Buffer,
    far: &Buffer,
    failure: Failure,
    counts: &mut Counts,
) -> Result<(), String> {
    let (mut adds, mut maybe_adds) = (0, 0);
    let mut values = Vec::new();
    let mut sends = Vec::new();
    for (&i, (outcome, resolution)) in outcomes {
        let (executed, maybe) = match outcome {
            Outcome::Success => (true, false),
            Outcome::Unresolved(UnresolvedError::ValueLost) => {
                counts.value_lost += 1;
                (true, false)
            }
            Outcome::Unresolved(UnresolvedError::ExecutedBehindError) => {
                counts.behind_error += 1;
                (true, false)
            }
            Outcome::Unresolved(UnresolvedError::Indeterminate) => {
                counts.indeterminate += 1;
                (false, true)
            }
            Outcome::Unresolved(UnresolvedError::Undecided(_)) => {
                counts.undecided += 1;
                (false, true)
            }
            Outcome::Failed(WcStatus::Flushed) => {
                counts.not_executed += 1;
                (false, false)
            }
            Outcome::Failed(status)
                if failure == Failure::PeerKilled && *status == refusal_without_region(i) =>
            {
                counts.not_executed += 1;
                (false, false)
            }
            other => return Err(format!("operation {i}: {other:?}")),
        };
        match i % 4 {
            0 => {
                adds += u64::from(executed);
                maybe_adds += u64::from(maybe);
                match near.load(place(i) as usize) {
                    _ if *outcome != Outcome::Success => {}
                    // soft-RoCE of Linux 6.1 completes an atomic whose own answer was lost by the
                    // acknowledgement of a repeated request before it, which has no value.
                    UNSTORED if *resolution == Resolution::Direct => counts.unstored += 1,
                    value => values.push(value),
                }
            }
            1 if *outcome == Outcome::Success
                && outcomes.range(..i).all(|(_, (o, _))| *o == Outcome::Success) =>
            {
                let found = near.load(place(i) as usize);
                if found == UNSTORED && *resolution == Resolution::Direct {
                    counts.unstored += 1;
                } else if found != i / 4 {
                    return Err(format!("the compare-and-swap {i} found {found} in place of {}", i / 4));
                }
            }
            3 if executed => sends.push(i),
            3 if !maybe && messages.contains(&i) => {
                return Err(format!("message {i} arrived, and its SEND ended as {outcome:?}"));
            }
            _ => {}
        }
    }
    let counter = far.load(0);
    if !(adds..=adds + maybe_adds).contains(&counter) {
        return Err(format!(
            "{adds} additions were executed, {maybe_adds} perhaps, and the counter is {counter}"
        ));
    }
    let mut distinct = values.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() != values.len() || values.iter().any(|&value| value >= counter) {
        return Err(format!("additions returned {values:?} with the counter at {counter}"));
    }
    if messages.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(format!("messages arrived twice or out of order: {messages:?}"));
    }
    if let Some(lost) = sends.iter().find(|i| !messages.contains(i)) {
        return Err(format!("message {lost} was sent and did not arrive: {messages:?}"));
    }
    Ok(())
}

/// Returns the status of operation `i` if a killed peer refuses it. The kernel destroys the objects
/// of a killed process from the newest to the oldest (Linux: `__uverbs_cleanup_ufile`), so the
/// region goes before the queue pairs, which refuse what comes between. soft-RoCE looks for the
/// region before it touches memory (`rxe_resp.c`, equal in all versions that were read):
/// `check_rkey` refuses a packet of a WRITE or an atomic, and `send_data_in` a packet of a SEND
/// whose receive is in the region. Both end the queue pair. So atomics, and SENDs of one packet,
/// are not executed; of a WRITE, the packets before may be placed.
fn refusal_without_region(i: u64) -> WcStatus {
    if i % 4 == 3 { WcStatus::RemoteOperation } else { WcStatus::RemoteAccess }
}

/// Returns how many additions and messages took effect more often than they were posted.
pub(super) fn count_doubled(Exchange { outcomes, messages }: &Exchange, far: &Buffer) -> u64 {
    let additions = outcomes.keys().filter(|&i| i % 4 == 0).count() as u64;
    let mut distinct = messages.clone();
    distinct.sort_unstable();
    distinct.dedup();
    far.load(0).saturating_sub(additions) + (messages.len() - distinct.len()) as u64
}
