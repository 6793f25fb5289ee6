use std::sync::Arc;

use mitra_verbs::{Access, Buffer, CqId, Error, Mr, PdId, Provider, Qpn, Wc, WcOpcode, WcStatus};

use crate::path::{Path, PathError};
use crate::request::{Outcome, Request};
use crate::scratch::{SCRATCH_BYTES, Scratch};

/// The resources with which operations run over an RC queue pair of one NIC, one operation at a
/// time.
///
/// When the queue pair fails, nothing tells which requests the peer executed, and the peer may
/// still execute requests. The path then ends as [`PathError::Lost`]. The caller fences: it
/// destroys the queue pair at the *peer*, whose NIC executes the requests, or resets that NIC.
#[derive(Debug)]
pub struct RcSession {
    nic: Arc<dyn Provider>,
    scratch: Scratch,
    mr: Mr,
    completions: Vec<Wc>,
}

/// A session and its queue pair, for one call of [`Execution::poll`](crate::Execution::poll).
#[derive(Debug)]
pub struct RcPath<'a> {
    session: &'a mut RcSession,
    qp: Qpn,
    cq: CqId,
}

impl RcSession {
    /// Registers the local memory of a session, 64 bytes, in the protection domain of its queue
    /// pairs.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub fn new(nic: Arc<dyn Provider>, pd: PdId) -> Result<RcSession, Error> {
        let memory = Arc::new(Buffer::new(SCRATCH_BYTES));
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE)?;
        let scratch = Scratch::new(memory, mr.sge(0, SCRATCH_BYTES as u32), 0);
        Ok(RcSession { nic, scratch, mr, completions: Vec::new() })
    }

    /// Returns the path over a connected queue pair whose sends complete in `cq`. The queue pair
    /// and the completion queue serve only this session.
    pub fn over(&mut self, qp: Qpn, cq: CqId) -> RcPath<'_> {
        RcPath { session: self, qp, cq }
    }

    /// Deregisters the local memory.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub fn close(self) -> Result<(), Error> {
        self.nic.dereg_mr(self.mr.id)
    }
}

impl Path for RcPath<'_> {
    fn post(&mut self, requests: &[Request]) -> Result<(), PathError> {
        let wrs: Vec<_> = self.session.scratch.begin(requests)?.collect();
        self.session.nic.post_send_all(self.qp, &wrs).map_err(|refused| PathError::Verb(refused.error))
    }

    fn poll(&mut self, outcomes: &mut [Option<Outcome>]) -> Result<bool, PathError> {
        let mut completions = core::mem::take(&mut self.session.completions);
        let polled = self.session.nic.poll_cq(self.cq, 16, &mut completions);
        let mut error = polled.err().map(PathError::Verb);
        for wc in completions.drain(..).filter(|wc| wc.qpn == self.qp) {
            let slot = self.session.scratch.index(wc.wr_id).filter(|&index| index < outcomes.len());
            let Some(index) = slot else { continue };
            match wc.status {
                WcStatus::Success => {
                    let returns_value = wc.opcode != WcOpcode::Write;
                    outcomes[index] = Some(self.session.scratch.executed(index, returns_value));
                }
                // The NIC flushes the requests behind the first failed request, whether or not the
                // peer executed them.
                WcStatus::RetryExceeded | WcStatus::Flushed => {
                    error = error.or(Some(PathError::Lost(wc.status)));
                }
                status => error = error.or(Some(PathError::Refused(status))),
            }
        }
        self.session.completions = completions;
        error.map_or_else(|| Ok(outcomes.iter().all(Option::is_some)), Err)
    }
}
