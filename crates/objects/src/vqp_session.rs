use std::sync::Arc;

use mitra_failover::{Completion, Domain, Outcome as VqpOutcome, UnresolvedError, VirtualMr, VirtualQp};
use mitra_verbs::{Access, Buffer, Ended, Error, WcOpcode, WcStatus};

use crate::path::{Path, PathError};
use crate::request::{Outcome, Request};
use crate::scratch::{SCRATCH_BYTES, Scratch};

/// The resources with which operations run over a virtual queue pair, one operation at a time.
///
/// The vQP's completions have the outcomes: success, value lost, executed behind an error, flushed
/// (not executed), or indeterminate. After an outcome other than success the vQP is halted. The
/// session calls [`VirtualQp::resume`] when all requests of the operation have ended, because the
/// operation decides the requests that the vQP could not decide. The application must therefore
/// post no other sends while an operation is under way: the vQP would flush these sends, or execute
/// them before repeated requests of the operation.
#[derive(Debug)]
pub struct VqpSession {
    scratch: Scratch,
    mr: VirtualMr,
    completions: Vec<Completion>,
    others: Vec<Completion>,
}

/// A session and its virtual queue pair, for one call of
/// [`Execution::poll`](crate::Execution::poll).
#[derive(Debug)]
pub struct VqpPath<'a> {
    session: &'a mut VqpSession,
    vqp: &'a mut VirtualQp,
}

impl VqpSession {
    /// Registers the local memory of a session: 64 bytes. The session's requests have the `wr_id`s
    /// from `first_wr_id` to `first_wr_id` + 2³² − 1.
    ///
    /// # Errors
    /// Any error of a NIC; [`Error::Invalid`] if these `wr_id`s exceed 64 bits.
    pub fn new(domain: &Domain, first_wr_id: u64) -> Result<VqpSession, Error> {
        if first_wr_id.checked_add(u64::from(u32::MAX)).is_none() {
            return Err(Error::Invalid("a session needs 2^32 work request numbers; lower first_wr_id"));
        }
        let memory = Arc::new(Buffer::new(SCRATCH_BYTES));
        let mr = domain.register(&memory, Access::LOCAL_WRITE)?;
        let scratch = Scratch::new(memory, mr.sge(0, SCRATCH_BYTES as u32), first_wr_id);
        Ok(VqpSession { scratch, mr, completions: Vec::new(), others: Vec::new() })
    }

    /// Returns the path over this virtual queue pair, which must belong to the domain of
    /// [`VqpSession::new`].
    pub fn over<'a>(&'a mut self, vqp: &'a mut VirtualQp) -> VqpPath<'a> {
        VqpPath { session: self, vqp }
    }

    /// Returns the polled completions of other work requests, in their order.
    pub fn take_other_completions(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.others)
    }

    /// Deregisters the local memory.
    ///
    /// # Errors
    /// Any error of a NIC.
    pub fn close(self, domain: &Domain) -> Result<(), Error> {
        domain.deregister(&self.mr)
    }

    fn outcome(&self, index: usize, completion: &Completion) -> Result<Outcome, PathError> {
        Ok(match completion.outcome {
            VqpOutcome::Failed(status) if status != WcStatus::Flushed => {
                return Err(PathError::Refused(status));
            }
            VqpOutcome::Unresolved(UnresolvedError::Undecided(reason)) => {
                return Err(PathError::Closed(reason));
            }
            outcome => match outcome.ended() {
                Ended::Success => self.scratch.executed(index, completion.opcode != WcOpcode::Write),
                Ended::ValueLost => Outcome::ValueLost,
                Ended::NotExecuted => Outcome::NotExecuted,
                Ended::Unknown => Outcome::Unknown,
            },
        })
    }
}

impl Path for VqpPath<'_> {
    fn post(&mut self, requests: &[Request]) -> Result<(), PathError> {
        if let Some(reason) = self.vqp.close_reason() {
            return Err(PathError::Closed(reason));
        }
        let wrs = self.session.scratch.begin(requests)?;
        self.vqp.post_send_all(wrs).map_err(|refused| PathError::Verb(refused.error))
    }

    fn poll(&mut self, outcomes: &mut [Option<Outcome>]) -> Result<bool, PathError> {
        let mut completions = core::mem::take(&mut self.session.completions);
        self.vqp.poll(&mut completions);
        let mut error = None;
        for completion in completions.drain(..) {
            let is_send = !matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm);
            if !is_send || !self.session.scratch.owns(completion.wr_id) {
                self.session.others.push(completion);
                continue;
            }
            let slot = self.session.scratch.index(completion.wr_id).filter(|&index| index < outcomes.len());
            if let Some(index) = slot {
                match self.session.outcome(index, &completion) {
                    Ok(outcome) => outcomes[index] = Some(outcome),
                    Err(reason) => error = error.or(Some(reason)),
                }
            }
        }
        self.session.completions = completions;
        if let Some(error) = error {
            return Err(error);
        }
        let all = outcomes.iter().all(Option::is_some);
        match self.vqp.close_reason() {
            Some(reason) if !all => return Err(PathError::Closed(reason)),
            None if all && self.vqp.is_halted() => self.vqp.resume(),
            _ => {}
        }
        Ok(all)
    }
}
