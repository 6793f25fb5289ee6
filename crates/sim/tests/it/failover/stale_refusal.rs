//! An outdated refusal of the active rail. Seed 20056262 of the workload `failover` found it first.

use core::time::Duration;

use mitra_failover::rail_negotiation::{
    Action, Body, CloseReason, Evidence, Message, RailFailure, RailNegotiation, Role,
};
use mitra_verbs::Time;

const RETRY: Duration = Duration::from_millis(5);
const TIMEOUT: Duration = Duration::from_millis(600);

/// An end of the negotiation, and the messages that it has sent.
struct End {
    negotiation: RailNegotiation,
    outbox: Vec<Message>,
    decided: Option<u8>,
    closed: Option<CloseReason>,
}

impl End {
    fn new(role: Role) -> End {
        let mut negotiation = RailNegotiation::new(role, 2, RETRY, TIMEOUT);
        negotiation.allow_replacing_active_qps();
        End { negotiation, outbox: Vec::new(), decided: None, closed: None }
    }

    /// Calls `act`, and does what the negotiation asks for. Each fence and each move completes at
    /// once.
    fn act(&mut self, now: Time, act: impl FnOnce(&mut RailNegotiation)) {
        act(&mut self.negotiation);
        while let Some(action) = self.negotiation.poll_action() {
            match action {
                Action::Send(message) => self.outbox.push(message),
                Action::Fence { .. } => self.negotiation.fenced(now, Evidence::default()),
                Action::Decide { rail, .. } => {
                    self.decided = Some(rail);
                    self.negotiation.moved(now, 0);
                }
                Action::Close { reason, .. } => self.closed = Some(reason),
                _ => {}
            }
        }
    }

    fn fail(&mut self, now: Time, rail: usize, failure: RailFailure) {
        self.act(now, |negotiation| negotiation.rail_failed(now, rail, failure));
    }

    fn receive_all(&mut self, now: Time, messages: Vec<Message>) {
        messages
            .into_iter()
            .for_each(|message| self.act(now, |negotiation| negotiation.handle(now, message)));
    }

    fn heartbeat(&self) -> Message {
        let body = Body::Heartbeat { unusable: self.negotiation.local_unusable() };
        Message { ballot: self.negotiation.ballot(), body }
    }
}

/// Both ends can use rail 0 again after 3 ms, and all messages arrive. Before that, the end whose
/// rail 1 has died receives its peer's refusal of rail 0.
#[test]
fn refusal_that_is_out_of_date_does_not_close_the_vqp() {
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    for has_heartbeats in [false, true] {
        let (mut a, mut b) = (End::new(Role::Zero), End::new(Role::One));
        a.fail(at(10), 0, RailFailure::QpFailed);
        b.fail(at(10), 0, RailFailure::LinkDown);
        a.fail(at(10), 1, RailFailure::NicDead);
        let (to_b, to_a) = (core::mem::take(&mut a.outbox), core::mem::take(&mut b.outbox));
        b.receive_all(at(11), to_b);
        a.receive_all(at(11), to_a);
        let refusal = core::mem::take(&mut b.outbox);
        assert!(refusal.iter().any(|message| matches!(message.body, Body::Refuse { .. })), "{refusal:?}");
        a.receive_all(at(12), refusal);
        b.act(at(13), |negotiation| negotiation.rail_recovered(at(13), 0));
        for ms in 13..2_000 {
            let now = at(ms);
            let to_b = core::mem::take(&mut a.outbox);
            b.receive_all(now, to_b);
            let to_a = core::mem::take(&mut b.outbox);
            a.receive_all(now, to_a);
            if has_heartbeats && ms % 20 == 0 {
                let (to_b, to_a) = (a.heartbeat(), b.heartbeat());
                b.receive_all(now, vec![to_b]);
                a.receive_all(now, vec![to_a]);
            }
            a.act(now, |negotiation| negotiation.handle_timeout(now));
            b.act(now, |negotiation| negotiation.handle_timeout(now));
        }
        assert_eq!([a.closed, b.closed], [None; 2], "heartbeats {has_heartbeats}");
        assert_eq!([a.decided, b.decided], [Some(0); 2], "heartbeats {has_heartbeats}");
    }
}
