//! One run: two programs over one vQP, the first failure, and the second one at a control message.

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{CloseReason, Completion, Outcome, Policy};
use mitra_sim::workload::{Op, Plan, Verdict, WorkloadPeer, connect_vqp, verify};
use mitra_sim::{Failure, NicId, Testbed};
use mitra_verbs::{Provider, SendFlags, Time, WcStatus};

use super::endpoint::OrderedEndpoint;
use super::scenario::{
    BLINK, First, NEW_RAIL, OLD_RAIL, OUTAGE, PAUSE, PEER_TIMEOUT, Point, Scenario, Second, SeenMessage,
    Strike,
};
use super::windows::{WINDOW_WR_FLAG, Windows};
use crate::hooked_nic::{HookedNic, Moment, observe, set_world, stop_observing, with_world};

/// The first failure happens when this number of operations has ended at the first end.
const ENDED_BEFORE: usize = 8;
/// The number of operations that each end posts after all other operations have ended.
const HELD_BACK: usize = 6;
/// The time between two turns of a program: while something happens, and otherwise.
const STEPS: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(1)];
/// The number of turns without a change after which turns are rare.
const BUSY_TURNS: u32 = 20;
/// The longest time of a run. An operation that has not ended by then is stuck.
const LIMIT: Duration = Duration::from_secs(10);
/// The number of turns within which a refused request ends.
const MAX_STALE_TURNS: usize = 100_000;
/// The most control messages that belong to a recovery.
const MAX_MESSAGES: usize = 30;

struct End {
    peer: WorkloadPeer,
    endpoint: OrderedEndpoint,
}

impl End {
    fn describe(&self) -> String {
        let (peer, vqp) = (&self.peer, &self.endpoint.inner.qp);
        format!("posted {}, ended {}, {vqp:?} {:?}", peer.posted(), peer.ended(), vqp.last_failover())
    }
}

/// The state that the run and the observer of the control messages share.
struct State {
    nics: [Vec<NicId>; 2],
    /// Whether control messages count: the first failure has happened and the recovery is not over.
    counts: bool,
    counted: [usize; 3],
    /// The last datagrams that were counted at each moment. A message that is sent on several rails
    /// counts once.
    last: [Option<(usize, Time, Vec<u8>)>; 3],
    seen: Vec<SeenMessage>,
    strike: Option<Strike>,
    has_struck: bool,
    /// The message that is lost on all rails.
    lost: Option<(usize, Time, Vec<u8>)>,
    paused_until: [Time; 2],
    outage_until: Time,
    dead: [bool; 2],
}

pub struct Run {
    scenario: Scenario,
    ends: [Rc<RefCell<End>>; 2],
    state: Rc<RefCell<State>>,
    windows: Option<Rc<RefCell<Windows>>>,
    plans: [Plan; 2],
    ops: [Vec<Op>; 2],
}

pub struct Report {
    /// Whether all operations of the ends that are alive have ended.
    pub ended: bool,
    pub has_struck: bool,
    pub close_reasons: [Option<CloseReason>; 2],
    pub verdicts: [Verdict; 2],
    pub completions_in_order: [bool; 2],
    pub refused: bool,
    /// Whether a rail that the vQP may use is usable at both ends.
    pub has_good_rail: bool,
    pub nic_died: bool,
    pub window_errors: Vec<String>,
    pub invalidated_keys: usize,
    /// Whether a WRITE by an invalidated key was refused after the run.
    pub refused_stale_key: bool,
    /// The state of both ends, printed when a check fails.
    pub state: String,
}

fn kind_of(bytes: &[u8]) -> &'static str {
    assert_eq!(bytes[0], 5, "the layout of control messages has another version");
    let kinds = [
        "Heartbeat",
        "Propose",
        "Evidence",
        "Resume",
        "Refuse",
        "Closed",
        "NewQp",
        "AskPlaced",
        "Placed",
        "Address",
        "AddressKnown",
        "Question",
        "Answer",
    ];
    kinds[usize::from(bytes[1]) - 1]
}

fn now() -> Time {
    with_world(|testbed| testbed.world.now())
}

impl Run {
    pub fn new(scenario: &Scenario, strike: Option<Strike>) -> Run {
        let testbed = Testbed::with_config(scenario.seed, scenario.world(), scenario.rails as u8);
        let ids = testbed.nics.each_ref().map(|nics| nics.iter().map(|nic| nic.id()).collect::<Vec<_>>());
        let nics = testbed
            .nics
            .each_ref()
            .map(|nics| nics.iter().map(|nic| HookedNic::new(nic) as Arc<dyn Provider>).collect::<Vec<_>>());
        set_world(testbed);
        let plans = scenario.plans();
        let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
        let [first, second] = &mut peers;
        let endpoints =
            connect_vqp(nics, [first, second], scenario.config(), scenario.seed).expect("the NICs have room");
        let windows = scenario
            .window_type()
            .map(|first| Windows::new(endpoints.each_ref().map(|e| &e.qp), peers.each_ref(), first));
        let mut endpoints = endpoints.into_iter().enumerate();
        let ends = peers.map(|mut peer| {
            peer.hold_back(HELD_BACK);
            let (end, inner) = endpoints.next().expect("there are two");
            let endpoint = OrderedEndpoint::new(inner, end, windows.clone());
            Rc::new(RefCell::new(End { peer, endpoint }))
        });
        let state = Rc::new(RefCell::new(State {
            nics: ids,
            counts: false,
            counted: [0; 3],
            last: [None, None, None],
            seen: Vec::new(),
            strike,
            has_struck: false,
            lost: None,
            paused_until: [Time::ZERO; 2],
            outage_until: Time::ZERO,
            dead: [false; 2],
        }));
        let ops = plans.each_ref().map(Plan::ops);
        let run = Run { scenario: scenario.clone(), ends, state, windows, plans, ops };
        run.watch();
        run
    }

    /// Counts the control messages, and makes the second failure happen at its message.
    fn watch(&self) {
        let (state, ends) = (Rc::clone(&self.state), self.ends.clone());
        observe(Box::new(move |nic, moment, bytes| {
            // These belong to no move.
            if matches!(kind_of(bytes), "Heartbeat" | "Question" | "Answer") {
                return true;
            }
            let at = now();
            let (end, strike) = {
                let state = &mut *state.borrow_mut();
                let end = usize::from(state.nics[1].contains(&nic));
                let this = (end, at, bytes.to_vec());
                if moment == Moment::BeforeSend && state.lost.as_ref() == Some(&this) {
                    return false;
                }
                let last = &mut state.last[moment as usize];
                if last.as_ref() == Some(&this) || !state.counts {
                    return true;
                }
                *last = Some(this.clone());
                let nth = state.counted[moment as usize];
                state.counted[moment as usize] += 1;
                let point = Point { moment, nth };
                state.seen.push(SeenMessage { point, end, kind: kind_of(bytes) });
                if state.has_struck || state.strike.is_none_or(|strike| strike.point != point) {
                    return true;
                }
                state.has_struck = true;
                let second = state.strike.map(|strike| strike.second);
                if second == Some(Second::MessageLost) {
                    state.lost = Some(this);
                    return false;
                }
                (end, second)
            };
            if let Some(second) = strike {
                fail(second, end, &state, &ends);
            }
            true
        }));
    }

    /// Runs until everything has ended. Returns the control messages of the recovery, and the
    /// results.
    pub fn run(self) -> (Vec<SeenMessage>, Report) {
        let deadline = now() + LIMIT;
        let mut quiet = 0;
        let mut failed_at = None;
        let mut released = false;
        while now() < deadline {
            let active = turn(&self.state, &self.ends);
            quiet = if active { 0 } else { quiet + 1 };
            run_world(STEPS[usize::from(quiet > BUSY_TURNS)]);
            if failed_at.is_none() && self.ends[0].borrow().peer.ended() >= ENDED_BEFORE {
                failed_at = Some(now());
                self.fail_first();
                self.state.borrow_mut().counts = true;
            }
            self.stop_counting(failed_at);
            let ended = released && self.all_done() && self.windows_settled();
            if ended && self.all_received() && self.survivor_has_closed() {
                break;
            }
            let settled = failed_at.is_some_and(|at| now().saturating_since(at) > BLINK * 3);
            if !released && settled && now() >= self.last_wake() && self.may_release() {
                self.ends.iter().for_each(|end| end.borrow_mut().peer.hold_back(0));
                released = true;
            }
        }
        let ended = released && self.all_done() && self.windows_settled();
        self.state.borrow_mut().counts = false;
        for _ in 0..30 {
            turn(&self.state, &self.ends);
            run_world(STEPS[0] * 2);
        }
        with_world(|testbed| testbed.world.run_for(Duration::from_millis(2)));
        self.report(ended)
    }

    /// The time at which all paused programs run again and the last outage is over.
    fn last_wake(&self) -> Time {
        let state = self.state.borrow();
        state.paused_until[0].max(state.paused_until[1]).max(state.outage_until)
    }

    fn fail_first(&self) {
        let (end, failure) = match self.scenario.first {
            First::LinkDown(end) | First::Blink(end) => (end, Failure::LinkDown),
            First::NicDies(end) => (end, Failure::NicDead),
        };
        let nic = self.state.borrow().nics[end][OLD_RAIL];
        let blinks = matches!(self.scenario.first, First::Blink(_));
        with_world(|testbed| {
            testbed.world.fail(nic, failure);
            if blinks {
                testbed.world.after(BLINK, move |world| world.set_link(nic, true));
            }
        });
    }

    /// Stops counting when the recovery is over. After a blink, the recovery is over when the old
    /// rail is rebuilt.
    fn stop_counting(&self, failed_at: Option<Time>) {
        let Some(failed_at) = failed_at else { return };
        let has_moved = self.ends.iter().all(|end| {
            let vqp = &end.borrow().endpoint.inner.qp;
            vqp.is_move_confirmed() && vqp.active_rail() == NEW_RAIL
        });
        let is_over = match self.scenario.first {
            First::Blink(_) => has_moved && now().saturating_since(failed_at) > BLINK * 3,
            _ => has_moved,
        };
        let mut state = self.state.borrow_mut();
        state.counts &= !is_over && state.counted[0] < MAX_MESSAGES;
    }

    fn is_alive(&self, h: usize) -> bool {
        !self.state.borrow().dead[h]
    }

    /// Returns whether all operations of the ends that are alive have ended, except those held
    /// back. The end of an unsignalled operation is unknown until a later operation completes, so
    /// such operations count as ended.
    fn may_release(&self) -> bool {
        (0..2).all(|h| {
            let peer = &self.ends[h].borrow().peer;
            let ops = &self.ops[h];
            let only_unsignalled = peer.posted() + HELD_BACK == ops.len()
                && ops[peer.ended()..peer.posted()].iter().all(|op| !op.flags.contains(SendFlags::SIGNALED));
            !self.is_alive(h) || peer.is_done() || only_unsignalled
        })
    }

    fn all_done(&self) -> bool {
        (0..2).all(|h| !self.is_alive(h) || self.ends[h].borrow().peer.is_done())
    }

    /// Returns whether no operation of a window is in flight. True if an end has closed or died.
    fn windows_settled(&self) -> bool {
        let is_over =
            |h: usize| !self.is_alive(h) || self.ends[h].borrow().endpoint.inner.qp.close_reason().is_some();
        let Some(windows) = &self.windows else { return true };
        is_over(0) || is_over(1) || (0..2).all(|h| windows.borrow().is_settled(h))
    }

    /// Posts a WRITE by an invalidated key. Returns its completion, or `Err` if none came. Returns
    /// `None` if no such WRITE is possible: no rail is left, an end has closed or died, no key is
    /// known to be invalidated, or `post_send` fails.
    fn use_stale_key(&self) -> Option<Result<Completion, String>> {
        let windows = self.windows.as_ref()?;
        let user = (self.scenario.seed % 2) as usize;
        let is_open =
            |h: usize| self.is_alive(h) && self.ends[h].borrow().endpoint.inner.qp.close_reason().is_none();
        if !is_open(0) || !is_open(1) || !self.has_good_rail() {
            return None;
        }
        let mut completions = Vec::new();
        {
            let vqp = &mut self.ends[user].borrow_mut().endpoint.inner.qp;
            vqp.resume();
            let wr = windows.borrow().stale_write(user, vqp)?;
            vqp.post_send(wr).ok()?;
        }
        for _ in 0..MAX_STALE_TURNS {
            for h in 0..2 {
                self.ends[h].borrow_mut().endpoint.inner.qp.poll(&mut completions);
            }
            if let Some(completion) = completions.iter().find(|c| c.wr_id == WINDOW_WR_FLAG) {
                return Some(Ok(*completion));
            }
            run_world(STEPS[0]);
        }
        Some(Err("a WRITE by an invalidated key does not end".to_owned()))
    }

    /// Returns whether the survivor of a process's death has closed. True if both processes are
    /// alive.
    fn survivor_has_closed(&self) -> bool {
        (0..2)
            .all(|h| self.is_alive(h) || self.ends[1 - h].borrow().endpoint.inner.qp.close_reason().is_some())
    }

    /// Returns whether each end has received all messages that the other end reports as executed.
    /// True if an end has closed or died, and for every policy except `Exact`.
    fn all_received(&self) -> bool {
        let [a, b] = self.ends.each_ref().map(|end| end.borrow());
        let received = |own: &End, other: &End| {
            own.peer.responder_log().received.len() >= other.peer.delivered_messages()
        };
        let closed = [&a, &b].iter().any(|end| end.endpoint.inner.qp.close_reason().is_some());
        // The baseline drops messages that arrive on the old rail after the receives were posted on
        // the new rail.
        let may_lose = self.scenario.policy != Policy::Exact;
        may_lose || closed || !self.is_alive(0) || !self.is_alive(1) || received(&a, &b) && received(&b, &a)
    }

    /// Returns whether a rail that the vQP may use is usable at both ends.
    fn has_good_rail(&self) -> bool {
        let state = self.state.borrow();
        let is_good = |rail: usize| {
            (0..2).all(|h| {
                !state.dead[h]
                    && with_world(|testbed| {
                        let nic = &testbed.nics[h][rail];
                        testbed
                            .world
                            .faults(state.nics[h][rail], |faults| faults.dma_ok() && faults.link_up())
                            && nic.query_port().is_ok()
                    })
            })
        };
        // A baseline fences no rail, so it never returns to a rail that has failed.
        let new_rail_failed = state.has_struck
            && state.strike.is_some_and(|strike| {
                matches!(
                    strike.second,
                    Second::NewRailDown(_) | Second::NewNicDies(_) | Second::Outage { .. }
                )
            });
        let first = match self.scenario.policy {
            Policy::Exact => OLD_RAIL,
            _ if new_rail_failed => NEW_RAIL + 1,
            _ => NEW_RAIL,
        };
        (first..self.scenario.rails).any(is_good)
    }

    fn report(self, ended: bool) -> (Vec<SeenMessage>, Report) {
        stop_observing();
        let has_good_rail = self.has_good_rail();
        let mut state = self.state.borrow_mut();
        let nic_died = matches!(self.scenario.first, First::NicDies(_))
            || state.strike.is_some_and(|strike| matches!(strike.second, Second::NewNicDies(_)));
        self.ends.iter().for_each(|end| end.borrow_mut().peer.sweep());
        let ends = self.ends.each_ref().map(|end| end.borrow());
        let [a, b] = &ends;
        let window_errors = |w: &Rc<RefCell<Windows>>| core::mem::take(&mut w.borrow_mut().errors);
        let mut report = Report {
            ended,
            has_struck: state.has_struck,
            close_reasons: [a, b].map(|end| end.endpoint.inner.qp.close_reason()),
            verdicts: [
                verify(&self.plans[0], a.peer.requester_log(), b.peer.responder_log()),
                verify(&self.plans[1], b.peer.requester_log(), a.peer.responder_log()),
            ],
            completions_in_order: [a, b].map(|end| end.endpoint.in_order),
            refused: [a, b].iter().any(|end| end.peer.requester_log().refused.is_some()),
            has_good_rail,
            nic_died,
            window_errors: self.windows.as_ref().map(window_errors).unwrap_or_default(),
            invalidated_keys: self.windows.as_ref().map_or(0, |w| w.borrow().invalidated_keys()),
            refused_stale_key: false,
            state: [a, b].map(|end| end.describe()).join("\n"),
        };
        let seen = core::mem::take(&mut state.seen);
        drop((state, ends));
        match self.use_stale_key() {
            None => {}
            Some(Ok(Completion { outcome: Outcome::Failed(WcStatus::RemoteAccess), .. })) => {
                report.refused_stale_key = true;
            }
            Some(Ok(other)) => {
                report.window_errors.push(format!("a WRITE by an invalidated key: {other:?}"));
            }
            Some(Err(error)) => report.window_errors.push(error),
        }
        (seen, report)
    }
}

fn run_world(time: Duration) {
    with_world(|testbed| testbed.world.run_for(time));
}

/// Runs one turn of each program that is not paused. Returns whether a program did something.
fn turn(state: &RefCell<State>, ends: &[Rc<RefCell<End>>; 2]) -> bool {
    let mut active = false;
    for (h, end) in ends.iter().enumerate() {
        let (dead, paused_until) = (state.borrow().dead[h], state.borrow().paused_until[h]);
        // `try_borrow_mut` fails for a program that is in a turn: `fail` pauses it in the middle of
        // the turn and calls this function.
        if !dead
            && now() >= paused_until
            && let Ok(mut end) = end.try_borrow_mut()
        {
            let End { peer, endpoint } = &mut *end;
            active |= peer.step(endpoint);
        }
    }
    active
}

/// Makes the second failure happen. `in_turn` is the end whose program is in a turn.
fn fail(second: Second, in_turn: usize, state: &RefCell<State>, ends: &[Rc<RefCell<End>>; 2]) {
    let nics = state.borrow().nics.clone();
    let fail = |nic: NicId, failure| with_world(|testbed| testbed.world.fail(nic, failure));
    let set_link_up = |rail: usize, after: Duration| {
        let both = [nics[0][rail], nics[1][rail]];
        with_world(|testbed| {
            testbed
                .world
                .after(after, move |world| both.into_iter().for_each(|nic| world.set_link(nic, true)))
        });
    };
    match second {
        Second::MessageLost => {}
        Second::NewRailDown(end) => fail(nics[end][NEW_RAIL], Failure::LinkDown),
        Second::NewNicDies(end) => fail(nics[end][NEW_RAIL], Failure::NicDead),
        Second::OldRailBack => set_link_up(OLD_RAIL, Duration::ZERO),
        Second::ProcessDies(end) => {
            state.borrow_mut().dead[end] = true;
            nics[end].iter().for_each(|&nic| fail(nic, Failure::NicDead));
        }
        Second::ProcessPauses(end) if end != in_turn => {
            state.borrow_mut().paused_until[end] = now() + PAUSE;
        }
        Second::ProcessPauses(end) => {
            // The program stops here, in the middle of its turn. The world and the other program
            // continue.
            let until = now() + PAUSE;
            state.borrow_mut().paused_until[end] = until;
            let mut quiet = 0;
            while now() < until {
                quiet = if turn(state, ends) { 0 } else { quiet + 1 };
                run_world(STEPS[usize::from(quiet > BUSY_TURNS)]);
            }
        }
        Second::Outage { end, back } => {
            nics[end].iter().for_each(|&nic| fail(nic, Failure::LinkDown));
            set_link_up(back, OUTAGE);
            state.borrow_mut().outage_until = now() + OUTAGE;
        }
    }
    debug_assert!(PAUSE < PEER_TIMEOUT && OUTAGE < PEER_TIMEOUT);
}
