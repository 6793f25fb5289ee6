//! A virtual queue pair as an endpoint, and two of them connected.

use std::sync::Arc;

use mitra_failover::{Completion, Config, Domain, Outcome, UnresolvedError, VirtualQp};
use mitra_verbs::{Error, PostError, Provider, RecvWr, Result, SendWr, WcStatus};

use super::{Done, Ending, Endpoint, Party, RECEIVE};

/// A virtual queue pair. When it halts at an error, it goes on after everything before has ended.
#[derive(Debug)]
pub struct VqpEndpoint {
    /// The queue pair itself.
    pub vqp: VirtualQp,
    /// What did not succeed, sends only.
    pub failures: Vec<Completion>,
    completions: Vec<Completion>,
}

impl VqpEndpoint {
    /// An unconnected one.
    ///
    /// # Errors
    /// What the NICs refuse.
    pub fn new(nics: Vec<Arc<dyn Provider>>, config: Config, secret: [u64; 2]) -> Result<VqpEndpoint> {
        Ok(VqpEndpoint::of(VirtualQp::new(Domain::new(nics)?, config, secret)?))
    }

    /// This one: several may share a domain.
    pub fn of(vqp: VirtualQp) -> VqpEndpoint {
        VqpEndpoint { vqp, failures: Vec::new(), completions: Vec::new() }
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

    fn poll(&mut self, out: &mut Vec<Done>) {
        let mut completions = core::mem::take(&mut self.completions);
        self.vqp.poll(&mut completions);
        for c in completions.drain(..) {
            if !c.is_success() && c.wr_id & RECEIVE == 0 {
                self.failures.push(c);
            }
            out.push(Done { wr_id: c.wr_id, ending: ending(c.outcome), byte_len: c.byte_len, imm: c.imm });
        }
        self.completions = completions;
    }

    fn is_idle(&self) -> bool {
        self.vqp.outstanding() == 0
    }
}

/// What an outcome says about execution.
fn ending(outcome: Outcome) -> Ending {
    match outcome {
        Outcome::Success => Ending::Success,
        Outcome::Failed(WcStatus::Flushed) => Ending::NotExecuted,
        Outcome::Unresolved(UnresolvedError::ValueLost | UnresolvedError::ExecutedBehindError) => {
            Ending::Executed
        }
        Outcome::Failed(_) | Outcome::Unresolved(_) => Ending::Unknown,
    }
}

/// Two parties, each registered on all rails, and a virtual queue pair between them.
///
/// # Errors
/// What the NICs or the queue pairs refuse.
pub fn connect_vqp(
    nics: [Vec<Arc<dyn Provider>>; 2],
    parties: [&mut Party; 2],
    config: Config,
    seed: u64,
) -> Result<[VqpEndpoint; 2]> {
    let [a, b] = nics;
    connect_vqp_in([Domain::new(a)?, Domain::new(b)?], parties, config, seed)
}

/// The same in domains that others may use too.
///
/// # Errors
/// What the NICs or the queue pairs refuse.
pub fn connect_vqp_in(
    [a, b]: [Arc<Domain>; 2],
    parties: [&mut Party; 2],
    config: Config,
    seed: u64,
) -> Result<[VqpEndpoint; 2]> {
    let secret = |bit: u32, salt: u64| [seed | 1_u64 << bit, seed ^ salt];
    let mut a = VqpEndpoint::of(VirtualQp::new(a, config, secret(32, 0x1234_5678_9abc))?);
    let mut b = VqpEndpoint::of(VirtualQp::new(b, config, secret(33, 0x8765_4321_9abc))?);
    let (info_a, info_b) = (a.vqp.local_info()?, b.vqp.local_info()?);
    a.vqp.connect(&info_b)?;
    b.vqp.connect(&info_a)?;
    let [first, second] = parties;
    let at_a = a.vqp.domain().register(first.memory(), Party::ACCESS)?;
    let at_b = b.vqp.domain().register(second.memory(), Party::ACCESS)?;
    a.vqp.import(&at_b.remote())?;
    b.vqp.import(&at_a.remote())?;
    first.connect(at_a.primary(), at_b.remote().at(0));
    second.connect(at_b.primary(), at_a.remote().at(0));
    Ok([a, b])
}
