//! `bounded`: the lists of a vQP are no longer than its configuration allows.

use super::super::End;
use super::{Connection, Finding};
use mitra_sim::workload::FailoverQp;

/// The most operations on windows of one rail: a bind, and its repetition on a new queue pair.
const WINDOW_OPERATIONS: usize = 2;

/// The most actions that wait for the next run of the negotiation after one event.
const ACTIONS: usize = 4;

impl<Q: FailoverQp> End<Q> {
    /// To be called after a turn of the program, which has taken the completions.
    pub(in super::super) fn check_lengths(&mut self, rails: usize) {
        if self.too_long.is_some() {
            return;
        }
        for lengths in self.endpoint.qp.state_lengths() {
            // A completion stays in the list only if it waits for the peer's Resume.
            let most = lengths.max_operations + 2 * lengths.max_receives;
            let lists = [
                ("operations", lengths.operations, lengths.max_operations),
                ("receives", lengths.receives, lengths.max_receives),
                ("completions", lengths.completions, most),
                ("actions", lengths.actions, ACTIONS),
                ("window operations", lengths.window_operations, WINDOW_OPERATIONS * rails),
            ];
            let too_long = lists.iter().find(|(_, length, bound)| length > bound);
            let text = too_long.map(|(name, length, bound)| format!("{length} {name}, at most {bound}"));
            self.too_long = self.too_long.take().or(text);
        }
    }
}

pub(super) fn check<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> Vec<Finding> {
    let too_long = connection.ends.iter().filter_map(|end| end.too_long.clone());
    too_long.map(|text| Finding::violation("bounded", text)).collect()
}
