//! `half-open`: if one end of a connection has closed, the other one closes too.

use super::super::{Ends, FailoverWorld, LIVENESS_LIMIT, SeedRun};
use mitra_sim::World;
use mitra_sim::workload::FailoverQp;

impl<Q: FailoverQp + 'static> FailoverWorld<Q> {
    /// If one end of a connection has closed, runs the world until the other end has closed too.
    pub(in super::super) fn check_that_both_ends_close(&mut self, ends: Ends<Q>, result: &mut SeedRun) {
        let reasons = |ends: &Ends<Q>| ends.each_ref().map(|end| end.borrow().endpoint.qp.close_reason());
        if reasons(&ends) == [None; 2] {
            return;
        }
        let both = World::programs_are(|| !reasons(&ends).contains(&None));
        let closed = self.world.run_until(both, LIVENESS_LIMIT);
        // Without heartbeats, an end asks about its peer only while work waits for the peer.
        if let (Err(stalled), true) = (closed, self.setup.has_heartbeats()) {
            let [a, b] = reasons(&ends);
            let detail = format!("one end closed, the other does not notice: {a:?} {b:?}\n{}", stalled.state);
            result.stuck("half-open", detail);
        }
    }
}
