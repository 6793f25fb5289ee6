//! Memory that is revoked while operations on it are in flight and rails fail: either end
//! deregisters a region or invalidates a window.
//!
//! The requester accesses words and counters of two regions of the responder, one of which is
//! revoked. When the revocation is complete, nothing may change the memory any more. Each outcome
//! is true, and no request succeeds that was posted after the revocation. The connection ends with
//! the error of the invalid request.

mod programs;

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;

use mitra_failover::{
    CloseReason, CompletionLogConfig, Config as VqpConfig, Outcome, Secret, UnresolvedError,
};
use mitra_verbs::{Error, LocalAckTimeout, WcStatus, WindowType};

use self::programs::{ADDED, Request, Requester, Responder, Target, When};
use super::faults::{RAIL_FAILURES, draw_time, schedule_nap};
use super::{SeedRun, domain, run_phases};
use mitra_sim::workload::virtual_qps;
use mitra_sim::{AppContext, Config, Failure, Prng, Testbed, World};

/// The time for the liveness phase.
const LIVENESS_LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Revocation {
    /// The responder deregisters the region.
    Deregister,
    /// The requester deregisters the memory for the results of its requests.
    DeregisterResults,
    /// The responder invalidates a window.
    Invalidate,
    /// The requester invalidates a window of the responder by a SEND.
    InvalidateBySend,
    /// The responder frees a window.
    Free(WindowType),
}

impl Revocation {
    const ALL: [Revocation; 6] = [
        Revocation::Deregister,
        Revocation::DeregisterResults,
        Revocation::Invalidate,
        Revocation::InvalidateBySend,
        Revocation::Free(WindowType::Type1),
        Revocation::Free(WindowType::Type2),
    ];

    /// The type of the window through which the requester accesses the region.
    fn window(self) -> Option<WindowType> {
        match self {
            Revocation::Deregister | Revocation::DeregisterResults => None,
            Revocation::Invalidate | Revocation::InvalidateBySend => Some(WindowType::Type2),
            Revocation::Free(window_type) => Some(window_type),
        }
    }

    fn status(self) -> WcStatus {
        match self {
            Revocation::DeregisterResults => WcStatus::LocalProtection,
            _ => WcStatus::RemoteAccess,
        }
    }
}

struct RevocationWorld {
    testbed: Testbed,
    revocation: Revocation,
    requester: Rc<RefCell<Requester>>,
    responder: Rc<RefCell<Responder>>,
    faults: u64,
}

pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    SeedRun::of(|result| {
        let mut world = RevocationWorld::new(seed, kept_records)?;
        world.run(result);
        let requester = world.requester.borrow();
        result.operations = requester.requests.len() as u64;
        result.faults = world.faults;
        result.keep_trace(&world.testbed.world, kept_records, || {
            let requests = requester.requests.iter().enumerate().map(|(i, r)| format!("{i}: {r:?}"));
            [format!("{:?}, {:?}", world.revocation, requester.vqp)].into_iter().chain(requests).collect()
        });
        Ok(())
    })
}

fn draw_vqp(rng: &mut Prng) -> VqpConfig {
    let mut vqp = VqpConfig { send_wrs: 32, recv_wrs: 4, ..VqpConfig::default() };
    vqp.peer_timeout = Duration::from_millis(600);
    vqp.control_retry_interval = Duration::from_micros(500);
    vqp.rd_atomic = rng.between(1, 16) as u8;
    vqp.completion_log = (rng.below(3) == 0).then(CompletionLogConfig::default);
    vqp.detector.local_ack_timeout = LocalAckTimeout::from_code(rng.between(9, 11) as u8);
    vqp.detector.retry_cnt = *rng.pick(&[1, 3, 7]);
    vqp.detector.heartbeat_interval = Duration::from_millis(2);
    vqp.detector.max_missed_heartbeats = *rng.pick(&[8, 40]);
    vqp
}

impl RevocationWorld {
    fn new(seed: u64, kept_records: usize) -> Result<RevocationWorld, Error> {
        let rng = &mut Prng::stream(seed, "revocation");
        let mut config = Config::swarm(seed);
        config.host.pause_ppm = 0;
        let capabilities = &mut config.capabilities;
        (capabilities.reset, capabilities.ack_after_placement, capabilities.write_order) = (true, true, true);
        capabilities.psn_query = rng.below(4) > 0;
        capabilities.saved_results = rng.below(4) > 0;
        let rails = rng.between(2, 3);
        let mut testbed = Testbed::from_world(World::with_trace_len(seed, config, kept_records), rails as u8);
        let domains = [domain(&testbed.nics[0])?, domain(&testbed.nics[1])?];
        let secrets = [1, 2].map(|end| Secret::fixed([rng.bits() & !3 | end, rng.bits()]));
        let [vqp_a, vqp_b] = virtual_qps(domains, draw_vqp(rng), secrets)?;
        let revocation = *rng.pick(&Revocation::ALL);
        let mut responder = Responder::new(vqp_b, &testbed.nics[1], revocation, When::draw(rng))?;
        let pause = *Prng::stream(seed, "pause after revocation").pick(&[0, 0, 500, 2_000, 8_000]);
        let mut requester = Requester::new(vqp_a, revocation, Duration::from_micros(pause), rng)?;
        responder.offer(&mut testbed.world, &mut requester)?;
        let (requester, responder) = (Rc::new(RefCell::new(requester)), Rc::new(RefCell::new(responder)));
        let mut made = RevocationWorld { testbed, revocation, requester, responder, faults: 0 };
        made.add_programs();
        made.schedule_faults(rng, rails as usize);
        Ok(made)
    }

    fn add_programs(&mut self) {
        let [a, b] = self.testbed.hosts;
        let (requester, responder) = (Rc::clone(&self.requester), Rc::clone(&self.responder));
        self.testbed.world.add_app(a, move |ctx: &mut AppContext<'_>| {
            let is_revoked = responder.borrow().revoked.is_some();
            let now = ctx.now();
            if requester.borrow_mut().step(now, ctx.rng(), is_revoked) {
                ctx.mark_active();
            }
        });
        let (requester, responder) = (Rc::clone(&self.requester), Rc::clone(&self.responder));
        self.testbed.world.add_app(b, move |ctx: &mut AppContext<'_>| {
            let posted = requester.borrow().requests.len();
            if responder.borrow_mut().step(posted) {
                ctx.mark_active();
            }
        });
    }

    /// Schedules failures. The last rail stays usable.
    fn schedule_faults(&mut self, rng: &mut Prng, rails: usize) {
        let count = rng.below(4);
        for _ in 0..count {
            let nic = self.testbed.rail(rng.index(rails - 1))[rng.index(2)];
            let at = draw_time(rng, 1_000, 2_000_000, 4);
            let failure = *rng.pick(&RAIL_FAILURES);
            let down = Duration::from_nanos(rng.between(1_000, 20_000_000));
            let heals = failure == Failure::LinkDown && rng.below(2) == 0;
            self.testbed.world.after(at, move |world| {
                world.fail(nic, failure);
                if heals {
                    world.after(down, move |world| world.set_link(nic, true));
                }
            });
        }
        if rng.below(3) == 0 {
            let (host, nap) = (self.testbed.hosts[rng.index(2)], rng.between(10_000, 3_000_000));
            let after = Duration::from_nanos(rng.between(1_000, 2_000_000));
            schedule_nap(&mut self.testbed.world, host, after, Duration::from_nanos(nap));
        }
        self.faults = count;
    }

    fn run(&mut self, result: &mut SeedRun) {
        let (requester, responder) = (Rc::clone(&self.requester), Rc::clone(&self.responder));
        let is_done =
            move |_: &World| requester.borrow().is_done() && responder.borrow().vqp.close_reason().is_some();
        let world = &mut self.testbed.world;
        let ended = run_phases(world, is_done, Duration::from_millis(60), World::heal, LIVENESS_LIMIT);
        result.must_reach("stuck", ended);
        world.heal();
        // Late packets arrive.
        world.run_for(Duration::from_millis(5));
        result.must_reach("packets", world.run_until_quiet());
        self.check(result);
    }

    fn check(&self, result: &mut SeedRun) {
        let (requester, responder) = (self.requester.borrow(), self.responder.borrow());
        let reasons = [requester.vqp.close_reason(), responder.vqp.close_reason()];
        for (name, touched) in [("responder", responder.touched()), ("requester", requester.touched())] {
            if let Some(offset) = touched {
                let text = format!("revoked memory of the {name} changed at offset {offset}; {reasons:?}");
                result.violation("touched", text);
            }
        }
        if responder.still_grants {
            let text = "a NIC that hung before the invalidation was not reset when this was complete";
            result.violation("granted", text);
        }
        let allowed = [CloseReason::RequestError, CloseReason::PeerClosed];
        if let Some(reason) = reasons.iter().flatten().find(|reason| !allowed.contains(reason)) {
            result.violation(
                "reason",
                format!("{reason:?}, although a rail was usable and a request was invalid"),
            );
        }
        let named = Outcome::Failed(self.revocation.status());
        let refused: Vec<usize> = requester.with_outcome(|outcome| outcome == named);
        let is_own_error = reasons[0] == Some(CloseReason::RequestError);
        let failed = requester.with_outcome(
            |outcome| matches!(outcome, Outcome::Failed(status) if status != WcStatus::Flushed),
        );
        let values_lost = requester.with_outcome(|o| o == Outcome::Unresolved(UnresolvedError::ValueLost));
        // If a recovered value cannot be stored, its atomic ends like an atomic whose value is
        // lost.
        if is_own_error
            && refused.is_empty()
            && values_lost.is_empty()
            && responder.vqp.qp_error_event().is_none()
        {
            result.violation("unnamed", format!("no request ended as {named:?}; {failed:?}"));
        }
        if let Some(other) = failed.iter().find(|request| !refused.contains(request)) {
            result.violation(
                "wrong-error",
                format!("request {other} ended as {:?}", requester.requests[*other]),
            );
        }
        for (i, request) in requester.requests.iter().enumerate() {
            if let Some(text) = self.check_request(i, request, &responder) {
                result.violation("outcome", text);
            }
        }
        check_counters(&requester, &responder, result);
    }

    fn check_request(&self, i: usize, request: &Request, responder: &Responder) -> Option<String> {
        let outcome = request.outcome?;
        let is_executed = outcome == Outcome::Success;
        if is_executed && request.is_late && request.is_invalid_if_late(self.revocation) {
            return Some(format!("request {i} was posted after the revocation and succeeded: {request:?}"));
        }
        let Target::Word { revoked, .. } = request.target else { return None };
        let found = responder.word(revoked, i);
        let expected = i as u64 + 1;
        let is_flushed = matches!(outcome, Outcome::Failed(_));
        let is_wrong = match found {
            0 => is_executed,
            _ => is_flushed || found != expected,
        };
        is_wrong.then(|| format!("request {i} ended as {outcome:?}, and its word is {found}"))
    }
}

/// Checks that the value of each counter agrees with the outcomes of the additions.
fn check_counters(requester: &Requester, responder: &Responder, result: &mut SeedRun) {
    for revoked in [false, true] {
        let adds = requester.requests.iter().filter(|r| r.target == Target::Counter { revoked });
        let (mut least, mut most) = (0, 0);
        for add in adds {
            let executed = [
                Outcome::Success,
                Outcome::Unresolved(UnresolvedError::ValueLost),
                Outcome::Unresolved(UnresolvedError::ExecutedBehindError),
            ];
            let may_be = !matches!(add.outcome, Some(Outcome::Failed(_)));
            // The requester refuses to store the result after the responder has executed the
            // request.
            let may_be = may_be || add.outcome == Some(Outcome::Failed(WcStatus::LocalProtection));
            least += u64::from(add.outcome.is_some_and(|outcome| executed.contains(&outcome)));
            most += u64::from(may_be);
        }
        let counter = responder.counter(revoked) / ADDED;
        if !(least..=most).contains(&counter) {
            result.violation("counter", format!("{counter} additions, between {least} and {most} were told"));
        }
    }
}
