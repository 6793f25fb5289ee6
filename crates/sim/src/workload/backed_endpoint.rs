//! A queue pair with a shared backup as an endpoint, and the connection of two of them.

use std::sync::Arc;

use mitra_failover::{BackedQp, Completion, Config, SharedBackup};
use mitra_verbs::{Error, PostError, Qpn, RecvWr, Result, SendWr};

use super::vqp_endpoint::outcome;
use super::{Endpoint, EndpointCompletion, RECV_WR_FLAG, WorkloadPeer};

/// One end of a connection with a shared backup. After an operation has failed, posting resumes as soon as
/// all earlier operations have ended.
#[derive(Debug)]
pub struct BackedEndpoint {
    /// The queue pair.
    pub qp: BackedQp,
    /// The completions of operations that did not succeed. Receives are not included.
    pub failures: Vec<Completion>,
    completions: Vec<Completion>,
}

impl Endpoint for BackedEndpoint {
    fn post(&mut self, wr: SendWr) -> Result<(), PostError> {
        if self.qp.is_halted() && self.qp.close_reason().is_none() {
            if self.qp.outstanding() > 0 {
                let error = Error::QueueFull { queue: "send queue", qpn: Qpn::new(0), depth: 0 };
                return Err(PostError { index: 0, error });
            }
            self.qp.resume();
        }
        self.qp.post_send(wr).map(|_| ()).map_err(|error| PostError { index: 0, error })
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.qp.post_recv(wr).map_err(|error| PostError { index: 0, error })
    }

    fn poll(&mut self, out: &mut Vec<EndpointCompletion>) {
        self.completions.clear();
        self.qp.poll(&mut self.completions);
        let failed = self.completions.iter().filter(|c| !c.is_success() && c.wr_id & RECV_WR_FLAG == 0);
        self.failures.extend(failed);
        out.extend(self.completions.iter().map(|c| EndpointCompletion {
            wr_id: c.wr_id,
            outcome: outcome(c.outcome),
            byte_len: c.byte_len,
            imm: c.imm,
            invalidated: c.invalidated,
        }));
    }

    fn is_idle(&self) -> bool {
        self.qp.outstanding() == 0
    }
}

/// Connects two peers by a queue pair with this backup, and registers the memory of each on all rails.
///
/// # Errors
/// Returns the error of the first call to a NIC or a queue pair that failed.
pub fn connect_backed(
    backups: &[Arc<SharedBackup>; 2],
    peers: [&mut WorkloadPeer; 2],
    config: Config,
) -> Result<[BackedEndpoint; 2]> {
    let make = |backup: &Arc<SharedBackup>| backup.queue_pair(config);
    let [mut a, mut b] = [make(&backups[0])?, make(&backups[1])?];
    let (info_a, info_b) = (a.local_info(), b.local_info());
    a.connect(&info_b)?;
    b.connect(&info_a)?;
    let [first, second] = peers;
    let mr_a = a.domain().register(first.memory(), WorkloadPeer::ACCESS)?;
    let mr_b = b.domain().register(second.memory(), WorkloadPeer::ACCESS)?;
    a.import(&mr_b.remote())?;
    b.import(&mr_a.remote())?;
    first.connect(mr_a.primary(), mr_b.remote().at(0));
    second.connect(mr_b.primary(), mr_a.remote().at(0));
    Ok([a, b].map(|qp| BackedEndpoint { qp, failures: Vec::new(), completions: Vec::new() }))
}
