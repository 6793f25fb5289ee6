//! A virtual queue pair as an endpoint, and the connection of two of them.

use std::sync::Arc;

use mitra_failover::{Completion, Config, Domain, Outcome, Secret, UnresolvedError, VirtualQp};
use mitra_verbs::{Error, PostError, Provider, RecvWr, Result, SendWr, WcStatus};

use super::{Endpoint, EndpointCompletion, RECV_WR_FLAG, ReportedOutcome, WorkloadPeer};

/// One end of a virtual connection. After an operation has failed, posting resumes as soon as all earlier
/// operations have ended.
#[derive(Debug)]
pub struct VqpEndpoint {
    /// The virtual queue pair.
    pub vqp: VirtualQp,
    /// The completions of operations that did not succeed. Receives are not included.
    pub failures: Vec<Completion>,
    /// Whether [`Endpoint::poll`] takes completions and runs no maintenance ([`VirtualQp::poll_completions`]).
    pub takes_completions_only: bool,
    completions: Vec<Completion>,
}

impl VqpEndpoint {
    /// Creates an endpoint from a virtual queue pair.
    pub fn from_vqp(vqp: VirtualQp) -> VqpEndpoint {
        VqpEndpoint { vqp, failures: Vec::new(), takes_completions_only: false, completions: Vec::new() }
    }
}

impl Endpoint for VqpEndpoint {
    fn post(&mut self, wr: SendWr) -> Result<(), PostError> {
        if self.vqp.is_halted() && self.vqp.close_reason().is_none() {
            if self.vqp.outstanding() > 0 {
                let (queue, qpn) = ("send queue", self.vqp.qpn());
                return Err(PostError { index: 0, error: Error::QueueFull { queue, qpn, depth: 0 } });
            }
            self.vqp.resume();
        }
        self.vqp.post_send(wr).map(|_| ()).map_err(|error| PostError { index: 0, error })
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.vqp.post_recv(wr).map_err(|error| PostError { index: 0, error })
    }

    fn poll(&mut self, out: &mut Vec<EndpointCompletion>) {
        let mut completions = core::mem::take(&mut self.completions);
        match self.takes_completions_only {
            true => self.vqp.poll_completions(&mut completions),
            false => self.vqp.poll(&mut completions),
        };
        for c in completions.drain(..) {
            if !c.is_success() && c.wr_id & RECV_WR_FLAG == 0 {
                self.failures.push(c);
            }
            out.push(EndpointCompletion {
                wr_id: c.wr_id,
                outcome: outcome(c.outcome),
                byte_len: c.byte_len,
                imm: c.imm,
                invalidated: c.invalidated,
            });
        }
        self.completions = completions;
    }

    fn is_idle(&self) -> bool {
        self.vqp.outstanding() == 0
    }
}

/// Returns what an outcome says about execution.
pub(super) fn outcome(outcome: Outcome) -> ReportedOutcome {
    match outcome {
        Outcome::Success => ReportedOutcome::Success,
        Outcome::Failed(WcStatus::Flushed) => ReportedOutcome::NotExecuted,
        Outcome::Unresolved(UnresolvedError::ValueLost | UnresolvedError::ExecutedBehindError) => {
            ReportedOutcome::Executed
        }
        Outcome::Failed(_) | Outcome::Unresolved(_) => ReportedOutcome::Unknown,
    }
}

/// Connects two peers by a virtual queue pair, and registers the memory of each on all rails.
///
/// # Errors
/// Returns the error of the first call to a NIC or a virtual queue pair that failed.
pub fn connect_vqp(
    nics: [Vec<Arc<dyn Provider>>; 2],
    peers: [&mut WorkloadPeer; 2],
    config: Config,
    seed: u64,
) -> Result<[VqpEndpoint; 2]> {
    let [a, b] = nics;
    connect_vqp_in([Domain::new(a)?, Domain::new(b)?], peers, config, seed)
}

/// Connects two peers like [`connect_vqp`], in domains that other virtual queue pairs may share.
///
/// # Errors
/// Returns the error of the first call to a NIC or a virtual queue pair that failed.
pub fn connect_vqp_in(
    [a, b]: [Arc<Domain>; 2],
    peers: [&mut WorkloadPeer; 2],
    config: Config,
    seed: u64,
) -> Result<[VqpEndpoint; 2]> {
    let secret = |bit: u32, salt: u64| Secret::fixed([seed | 1_u64 << bit, seed ^ salt]);
    let mut a = VqpEndpoint::from_vqp(
        VirtualQp::builder(&a).config(config).secret(secret(32, 0x1234_5678_9abc)).build()?,
    );
    let mut b = VqpEndpoint::from_vqp(
        VirtualQp::builder(&b).config(config).secret(secret(33, 0x8765_4321_9abc)).build()?,
    );
    let (info_a, info_b) = (a.vqp.local_info()?, b.vqp.local_info()?);
    a.vqp.connect(&info_b)?;
    b.vqp.connect(&info_a)?;
    let [first, second] = peers;
    let mr_a = a.vqp.domain().register(first.memory(), WorkloadPeer::ACCESS)?;
    let mr_b = b.vqp.domain().register(second.memory(), WorkloadPeer::ACCESS)?;
    a.vqp.import(&mr_b.remote())?;
    b.vqp.import(&mr_a.remote())?;
    first.connect(mr_a.primary(), mr_b.remote().at(0));
    second.connect(mr_b.primary(), mr_a.remote().at(0));
    Ok([a, b])
}
