//! `half-open`: if one end of a connection has closed, the other one closes too.

use core::time::Duration;
use std::sync::Arc;

use mitra_verbs::Provider;

use super::super::{Ends, FailoverWorld, Finding, LIVENESS_LIMIT, SeedRun};
use crate::workload::FailoverQp;
use crate::{SimNic, World};

/// A time in which a queue pair that waits for a receive gets several RNR NAKs. The longest RNR timer of a world is 640 µs.
const RNR_RETRIES: Duration = Duration::from_millis(5);

impl<Q: FailoverQp + 'static> FailoverWorld<Q> {
    /// Runs the world until the other end of a connection that has closed has closed too.
    pub(in super::super) fn check_that_both_ends_close(&mut self, ends: Ends<Q>, result: &mut SeedRun) {
        let reasons = |ends: &Ends<Q>| ends.each_ref().map(|end| end.borrow().endpoint.qp.close_reason());
        if reasons(&ends) == [None; 2] {
            return;
        }
        let detects = self.detects_silence();
        let both = World::programs_are(|| !reasons(&ends).contains(&None));
        let closed = self.world.run_until(both, LIVENESS_LIMIT);
        if let (Err(stalled), true) = (closed, detects) {
            let [a, b] = reasons(&ends);
            let detail = format!("one end closed, the other does not notice: {a:?} {b:?}\n{}", stalled.state);
            result.findings.push(Finding::stuck("half-open", detail));
        }
    }

    /// Closes the vQPs that wait for good for a receive of a peer that has closed, as their programs would. Returns whether there are any.
    ///
    /// A NIC goes on answering RNR after the process that posts the receives has died, or has closed its end without being able to fence this NIC.
    /// Without heartbeats, and with RNR retries without limit, a vQP waits for these receives, as an RC queue pair does.
    pub(in super::super) fn leave_closed_peers(&mut self) -> bool {
        if self.detects_silence() || self.setup.vqp.rnr_retry < 7 || self.setup.has_shared_backup {
            return false;
        }
        let rnr_naks = |nics: &Vec<Arc<SimNic>>| -> u64 {
            let counters = nics.iter().flat_map(|nic| nic.counters());
            counters.filter(|counter| counter.name == "rnr_naks_received").map(|counter| counter.value).sum()
        };
        let before = self.nics.each_ref().map(rnr_naks);
        self.world.run_for(RNR_RETRIES);
        let waits = self.nics.each_ref().map(rnr_naks);
        let mut left = false;
        for ends in &self.connections {
            let is_closed = ends.each_ref().map(|end| end.borrow().endpoint.qp.close_reason().is_some());
            for (h, end) in ends.iter().enumerate() {
                if is_closed[1 - h] && !is_closed[h] && waits[h] > before[h] {
                    end.borrow_mut().endpoint.qp.leave(true);
                    left = true;
                }
            }
        }
        left
    }

    /// Returns whether an end asks whether its peer is alive, without a request that waits for an acknowledgment.
    fn detects_silence(&self) -> bool {
        self.setup.vqp.detector.max_missed_heartbeats > 0
    }
}
