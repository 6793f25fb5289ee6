//! The two programs: a requester, and a responder that lends memory and revokes it.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{Outcome, VirtualMr, VirtualMw, VirtualQp};
use mitra_verbs::{
    Access, Buffer, Data, Error, Key, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, SgeList, Time, WcStatus,
};

use super::Revocation;
use crate::seeded::memory::{read_all, window_bind};
use mitra_sim::{Prng, SimNic, World};

/// The maximum number of requests.
const REQUESTS: usize = 400;
/// The number of requests that are posted only after the revocation.
const LATE_REQUESTS: usize = 100;
/// The offset of the counter of a region, behind one word for each request.
const COUNTER: usize = 8 * REQUESTS;
const REGION_BYTES: usize = COUNTER + 8;
/// The number that each atomic adds.
pub(super) const ADDED: u64 = 3;
/// The maximum number of requests in flight.
const DEPTH: usize = 24;
/// The size of the result of a READ or atomic.
const RESULT_BYTES: usize = 8;
const BIND_LIMIT: Duration = Duration::from_secs(20);
const RECEIVE: u64 = 1 << 40;
const INVALIDATION: u64 = 1 << 41;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct When {
    /// The number of requests that are posted before the revocation.
    requests: usize,
    /// Whether the revocation waits for a failover, but at most until half of all requests are
    /// posted.
    in_recovery: bool,
}

impl When {
    pub(super) fn draw(rng: &mut Prng) -> When {
        When { requests: rng.between(0, 120) as usize, in_recovery: rng.below(2) == 0 }
    }

    /// Returns whether the revocation is due when `posted` requests are posted.
    fn is_now(self, posted: usize, vqp: &VirtualQp) -> bool {
        posted >= REQUESTS / 2 || posted >= self.requests && !(self.in_recovery && vqp.is_active())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// Writes the request's own word.
    Word { revoked: bool },
    /// Adds to the counter.
    Counter { revoked: bool },
    /// Reads the counter.
    Read { revoked: bool },
    /// Invalidates the window.
    Invalidation,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) target: Target,
    pub(super) outcome: Option<Outcome>,
    /// Whether the request was posted after the revocation.
    pub(super) is_late: bool,
}

impl Request {
    /// Returns whether the request invalidates the window, or may have done so.
    fn may_invalidate(&self) -> bool {
        self.target == Target::Invalidation && self.outcome != Some(Outcome::Failed(WcStatus::Flushed))
    }

    /// Returns whether the request must fail if it was posted after the revocation.
    pub(super) fn is_invalid_if_late(&self, revocation: Revocation) -> bool {
        let takes_results = matches!(self.target, Target::Counter { .. } | Target::Read { .. });
        match (revocation, self.target) {
            (Revocation::DeregisterResults, _) => takes_results,
            (_, Target::Word { revoked } | Target::Counter { revoked } | Target::Read { revoked }) => revoked,
            (_, Target::Invalidation) => false,
        }
    }
}

pub(super) struct Requester {
    pub(super) vqp: VirtualQp,
    pub(super) requests: Vec<Request>,
    revocation: Revocation,
    results: Arc<Buffer>,
    results_mr: VirtualMr,
    /// The content of the results when their memory was deregistered.
    deregistered: Option<Vec<u8>>,
    /// When the requester deregisters its results, or invalidates the window.
    revokes: When,
    in_flight: usize,
    /// The time after the revocation in which the requester posts nothing, and a rail may fail.
    pause: Duration,
    posts_again: Option<Time>,
    kept: Option<RemoteAddr>,
    revoked: Option<RemoteAddr>,
    weights: [u64; 3],
}

impl Requester {
    pub(super) fn new(
        vqp: VirtualQp,
        revocation: Revocation,
        pause: Duration,
        rng: &mut Prng,
    ) -> Result<Requester, Error> {
        let results = Arc::new(Buffer::new(RESULT_BYTES * REQUESTS));
        let results_mr = vqp.domain().register(&results, Access::LOCAL_WRITE)?;
        Ok(Requester {
            vqp,
            requests: Vec::new(),
            revocation,
            results,
            results_mr,
            deregistered: None,
            revokes: When::draw(rng),
            in_flight: 0,
            pause,
            posts_again: None,
            kept: None,
            revoked: None,
            weights: [0; 3].map(|_| rng.below(3)),
        })
    }

    /// Runs a turn. Returns whether the program was active.
    pub(super) fn step(&mut self, now: Time, rng: &mut Prng, is_revoked: bool) -> bool {
        let mut completions = Vec::new();
        self.vqp.poll(&mut completions);
        let mut is_active = !completions.is_empty();
        for completion in completions {
            self.requests[completion.wr_id as usize].outcome = Some(completion.outcome);
            self.in_flight -= 1;
        }
        if self.in_flight == 0 {
            self.vqp.resume(); // behind a request whose value is lost
        }
        if self.revocation == Revocation::DeregisterResults
            && self.deregistered.is_none()
            && self.revokes.is_now(self.requests.len(), &self.vqp)
        {
            // After `Ok`, neither a NIC nor a recovery writes to the memory. A dead NIC was reset.
            self.deregistered =
                self.vqp.domain().deregister(&self.results_mr).is_ok().then(|| read_all(&self.results));
            is_active = true;
        }
        let is_late = is_revoked || self.deregistered.is_some();
        if is_late && *self.posts_again.get_or_insert(now + self.pause) > now {
            return is_active;
        }
        for _ in 0..rng.below(6) {
            is_active |= self.post(rng, is_late);
        }
        is_active
    }

    fn post(&mut self, rng: &mut Prng, is_late: bool) -> bool {
        let i = self.requests.len();
        let limit = if is_late { REQUESTS } else { REQUESTS - LATE_REQUESTS };
        if i == limit || self.in_flight == DEPTH || self.vqp.close_reason().is_some() {
            return false;
        }
        let (Some(kept), Some(to_revoke)) = (self.kept, self.revoked) else { return false };
        let invalidates = self.revocation == Revocation::InvalidateBySend
            && self.revokes.is_now(i, &self.vqp)
            && !self.requests.iter().any(Request::may_invalidate);
        let revoked = rng.below(2) == 0;
        let target = match rng.below(3 + self.weights.iter().sum::<u64>()) {
            _ if invalidates => Target::Invalidation,
            n if n <= self.weights[0] => Target::Word { revoked },
            n if n <= self.weights[0] + 1 + self.weights[1] => Target::Counter { revoked },
            _ => Target::Read { revoked },
        };
        let base = if revoked { to_revoke } else { kept };
        let at = |offset: usize| RemoteAddr { addr: base.addr + offset as u64, ..base };
        let result = || Data::sge(self.results_mr.sge((RESULT_BYTES * i) as u64, RESULT_BYTES as u32));
        let (op, data) = match target {
            Target::Word { .. } => (SendOp::Write(at(8 * i)), Data::inline(&(i as u64 + 1).to_ne_bytes())),
            Target::Counter { .. } => (SendOp::FetchAdd { remote: at(COUNTER), add: ADDED }, result()),
            Target::Read { .. } => (SendOp::Read(at(COUNTER)), result()),
            Target::Invalidation => (SendOp::SendWithInvalidate(to_revoke.rkey), Data::empty()),
        };
        let wr = SendWr::new(i as u64, op, data).with_flags(SendFlags::SIGNALED);
        let is_posted = self.vqp.post_send(wr).is_ok();
        if is_posted {
            self.requests.push(Request { target, outcome: None, is_late });
            self.in_flight += 1;
        }
        is_posted
    }

    pub(super) fn is_done(&self) -> bool {
        self.in_flight == 0 && self.vqp.close_reason().is_some()
    }

    pub(super) fn with_outcome(&self, is_wanted: impl Fn(Outcome) -> bool) -> Vec<usize> {
        let requests = self.requests.iter().enumerate();
        requests.filter(|(_, r)| r.outcome.is_some_and(&is_wanted)).map(|(i, _)| i).collect()
    }

    /// Returns the offset of a result that changed after the deregistration.
    pub(super) fn touched(&self) -> Option<usize> {
        first_difference(self.deregistered.as_ref()?, &read_all(&self.results))
    }
}

pub(super) struct Responder {
    pub(super) vqp: VirtualQp,
    revocation: Revocation,
    kept: Arc<Buffer>,
    lent: Arc<Buffer>,
    lent_mr: VirtualMr,
    window: Option<(VirtualMw, Key)>,
    /// The content of the revoked memory when the revocation was complete.
    pub(super) revoked: Option<Vec<u8>>,
    revokes: When,
    has_begun: bool,
    nics: Vec<Arc<SimNic>>,
    /// The NICs that hung and still executed requests when the invalidation was posted. A NIC that
    /// hangs cannot invalidate.
    hung: Vec<Arc<SimNic>>,
    /// Whether a NIC of `hung` still executed requests when the invalidation was complete.
    pub(super) still_grants: bool,
}

impl Responder {
    pub(super) fn new(
        vqp: VirtualQp,
        nics: &[Arc<SimNic>],
        revocation: Revocation,
        revokes: When,
    ) -> Result<Responder, Error> {
        let [kept, lent] = [(); 2].map(|()| Arc::new(Buffer::new(REGION_BYTES)));
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::WINDOW_BIND;
        let lent_mr = vqp.domain().register(&lent, access)?;
        let window = match revocation.window() {
            Some(window_type) => {
                let mw = vqp.domain().alloc_mw(window_type)?;
                let key = mw.primary().rkey.with_consumer_bits(9);
                Some((mw, key))
            }
            None => None,
        };
        Ok(Responder {
            vqp,
            revocation,
            kept,
            lent,
            lent_mr,
            window,
            revoked: None,
            revokes,
            has_begun: false,
            nics: nics.to_vec(),
            hung: Vec::new(),
            still_grants: false,
        })
    }

    /// Gives the requester access to both regions.
    ///
    /// # Errors
    /// Any error of a queue pair or NIC; [`Error::Invalid`] if the window is not bound in time.
    pub(super) fn offer(&mut self, world: &mut World, to: &mut Requester) -> Result<(), Error> {
        let kept = self.vqp.domain().register(&self.kept, Access::LOCAL_WRITE | Access::REMOTE)?;
        to.vqp.import(&kept.remote())?;
        to.kept = Some(kept.remote().at(0));
        for _ in 0..2 {
            self.vqp.post_recv(RecvWr { wr_id: RECEIVE, sges: SgeList::new() })?;
        }
        let Some((mw, key)) = &self.window else {
            to.vqp.import(&self.lent_mr.remote())?;
            to.revoked = Some(self.lent_mr.remote().at(0));
            return Ok(());
        };
        self.vqp.post_send(window_bind(INVALIDATION, &self.lent_mr, mw, *key))?;
        to.vqp.import(&mw.remote(*key))?;
        to.revoked = Some(RemoteAddr { addr: self.lent_mr.primary().addr, rkey: *key });
        let limit = world.now() + BIND_LIMIT;
        let mut bound = Vec::new();
        world.without_noise(|world| {
            while bound.is_empty() && world.now() < limit {
                self.vqp.poll(&mut bound);
                to.vqp.progress();
                world.run_for(Duration::from_micros(20));
            }
        });
        match &bound[..] {
            [bind] if bind.is_success() => Ok(()),
            _ => Err(Error::Invalid("a window was not bound when the world began")),
        }
    }

    /// Runs a turn when the peer has posted `posted` requests. Returns whether the program was
    /// active.
    pub(super) fn step(&mut self, posted: usize) -> bool {
        let mut completions = Vec::new();
        self.vqp.poll(&mut completions);
        let mut is_active = !completions.is_empty();
        for completion in completions {
            let is_invalidated = match completion.wr_id {
                RECEIVE => completion.is_success() && completion.invalidated.is_some(),
                _ => completion.is_success(),
            };
            if is_invalidated {
                self.still_grants |= self.hung.iter().any(|nic| nic.hangs_and_executes());
                self.revoked.get_or_insert_with(|| read_all(&self.lent));
            } else if completion.wr_id == INVALIDATION && self.vqp.close_reason().is_none() {
                self.vqp.resume();
                self.has_begun = false; // the invalidation was not executed
            }
        }
        if !self.has_begun && self.revokes.is_now(posted, &self.vqp) && self.vqp.close_reason().is_none() {
            self.has_begun = true;
            self.revoke();
            is_active = true;
        }
        is_active
    }

    fn revoke(&mut self) {
        let domain = Arc::clone(self.vqp.domain());
        let revoked = match (self.revocation, &self.window) {
            (Revocation::Deregister, _) => domain.deregister(&self.lent_mr),
            (Revocation::Free(_), Some((mw, _))) => domain.dealloc_mw(mw),
            (Revocation::Invalidate, Some((_, key))) => {
                self.hung = self.nics.iter().filter(|nic| nic.hangs_and_executes()).map(Arc::clone).collect();
                let wr = SendWr::new(INVALIDATION, SendOp::LocalInvalidate(*key), Data::empty());
                let _ = self.vqp.post_send(wr.with_flags(SendFlags::SIGNALED)); // the vQP may be closed
                return;
            }
            _ => return,
        };
        if revoked.is_ok() {
            self.revoked = Some(read_all(&self.lent));
        }
    }

    /// Returns the offset of revoked memory that changed after the revocation.
    pub(super) fn touched(&self) -> Option<usize> {
        first_difference(self.revoked.as_ref()?, &read_all(&self.lent))
    }

    pub(super) fn word(&self, revoked: bool, request: usize) -> u64 {
        self.region(revoked).load(8 * request)
    }

    pub(super) fn counter(&self, revoked: bool) -> u64 {
        self.region(revoked).load(COUNTER)
    }

    fn region(&self, revoked: bool) -> &Buffer {
        if revoked { &self.lent } else { &self.kept }
    }
}

fn first_difference(before: &[u8], now: &[u8]) -> Option<usize> {
    before.iter().zip(now).position(|(before, now)| before != now)
}
