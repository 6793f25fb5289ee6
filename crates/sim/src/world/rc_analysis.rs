use mitra_verbs::WcStatus;

use super::World;
use crate::rc_flow::{QpAddress, RcFlow, RetryFinding};
use crate::world_state::lock;

impl World {
    /// Observes the requests of a connection from now on, for [`World::rc_findings`].
    pub fn analyse_rc(&mut self, flow: RcFlow) {
        lock(&self.shared).rc_flows.push(flow);
    }

    /// Returns the rules that the retransmissions of a queue pair have violated. `failure` is the
    /// status of its first failed request.
    pub fn rc_findings(&self, requester: QpAddress, failure: Option<WcStatus>) -> Vec<RetryFinding> {
        let world = lock(&self.shared);
        let flows = world.rc_flows.iter().filter(|flow| flow.requester == requester);
        flows.flat_map(|flow| flow.findings(failure)).collect()
    }
}
