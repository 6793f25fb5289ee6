//! Tests of two negotiating ends whose rails fail and recover many times. The network may deliver
//! messages of earlier moves late.

use super::*;
use crate::control_message::{Body, NewQp};
use mitra_prng::Prng;
use mitra_verbs::{Psn, Qpn};

const RAILS: usize = 3;

struct End {
    negotiation: RailNegotiation,
    /// This end's evidence of each move. All are different.
    evidence_given: Vec<Evidence>,
    fencing: bool,
    moves: Vec<(Ballot, usize)>,
    /// By rail, the ballot of the queue pair (`None` for the first), and whether it is connected to
    /// the peer's queue pair of the same ballot.
    qps: [(Option<Ballot>, bool); RAILS],
    closed: Option<CloseReason>,
}

struct Net {
    rng: Prng,
    now: Time,
    ends: [End; 2],
    /// The messages in transit to each end, with the rails that carry them.
    in_transit: [Vec<(usize, Message)>; 2],
    link_up: [[bool; RAILS]; 2],
}

impl Net {
    fn new(seed: u64) -> Net {
        let new = |role| {
            let mut negotiation =
                RailNegotiation::new(role, RAILS, Duration::from_millis(1), Duration::from_secs(60));
            negotiation.allow_replacing_active_qps();
            if seed.is_multiple_of(3) {
                negotiation.prefer(1, Duration::from_millis(3));
            }
            negotiation
        };
        let end = |role| End {
            negotiation: new(role),
            evidence_given: Vec::new(),
            fencing: false,
            moves: Vec::new(),
            qps: [(None, true); RAILS],
            closed: None,
        };
        Net {
            rng: Prng::new(seed),
            now: Time::ZERO,
            ends: [end(Role::Zero), end(Role::One)],
            in_transit: [Vec::new(), Vec::new()],
            link_up: [[true; RAILS]; 2],
        }
    }

    /// Sends a message of end `i` on a rail, if both links of the rail are up. The message may
    /// arrive twice, much later, or never.
    fn send(&mut self, i: usize, rail: usize, message: &Message) {
        if self.link_up[0][rail] && self.link_up[1][rail] {
            for _ in 0..[1, 1, 1, 2, 0][self.rng.below(5) as usize] {
                self.in_transit[1 - i].push((rail, message.clone()));
            }
        }
    }

    fn run_actions(&mut self, i: usize) {
        while let Some(action) = self.ends[i].negotiation.poll_action() {
            match action {
                Action::Fence { rail } => {
                    let end = &mut self.ends[i];
                    assert_eq!(usize::from(rail), end.negotiation.active());
                    end.fencing = true;
                    if self.link_up[i][usize::from(rail)] {
                        end.negotiation.rail_recovered(self.now, usize::from(rail));
                    }
                }
                Action::Send(message) => (0..RAILS).for_each(|rail| self.send(i, rail, &message)),
                Action::Decide { rail, peer_evidence } => self.decide(i, usize::from(rail), &peer_evidence),
                Action::PeerMoved { .. } | Action::Stay => {}
                Action::Close { reason, .. } => {
                    self.ends[i].closed = Some(reason);
                    self.ends[i].negotiation.closed(None);
                }
            }
        }
    }

    fn decide(&mut self, i: usize, rail: usize, peer_evidence: &Evidence) {
        let number = self.ends[i].moves.len();
        assert_eq!(self.ends[i].evidence_given.len(), number + 1, "an end fences exactly once per move");
        assert_eq!(
            Some(peer_evidence),
            self.ends[1 - i].evidence_given.get(number),
            "the peer's evidence is of this move"
        );
        if rail != self.ends[i].negotiation.active() {
            assert!(self.ends[i].qps[rail].1, "the queue pair of the new rail is connected");
            assert_eq!(
                self.ends[0].qps[rail], self.ends[1].qps[rail],
                "both queue pairs are of the same ballot"
            );
        }
        let now = self.now;
        let end = &mut self.ends[i];
        end.negotiation.moved(now, 0);
        assert_eq!(end.negotiation.active(), rail);
        end.moves.push((end.negotiation.ballot(), rail));
        if let Some(peers) = self.ends[1 - i].moves.get(number) {
            assert_eq!(
                Some(peers),
                self.ends[i].moves.get(number),
                "both ends move by the same ballot to the same rail"
            );
        }
    }

    /// Creates and connects the new queue pair of end `i` on a rail that was left, as
    /// `vqp::rail_rejoin` does. `message` is the peer's message, or `None` for a probe.
    fn exchange_qp(&mut self, i: usize, rail: usize, message: Option<(Ballot, NewQp)>) {
        let now = self.now;
        let end = &mut self.ends[i];
        let Some(left) = end.negotiation.left_by(rail).filter(|_| self.link_up[i][rail]) else { return };
        if end.qps[rail].0 != Some(left) {
            assert!(
                rail != end.negotiation.active() || !end.negotiation.may_post(),
                "a queue pair on which operations are posted is not replaced"
            );
            end.qps[rail] = (Some(left), false);
        }
        let mut asks = message.is_none();
        if let Some((ballot, qp)) = message {
            if ballot != left {
                return;
            }
            end.qps[rail].1 = true;
            end.negotiation.local_qp_connected(rail);
            if qp.connected {
                end.negotiation.peer_qp_connected(now, rail);
                let (peers, connected) = self.ends[1 - i].qps[rail];
                assert!(peers > Some(left) || peers == Some(left) && connected, "the peer's is connected");
            }
            if !qp.asks {
                return self.run_actions(i);
            }
            asks = !qp.connected;
        }
        let connected = !self.ends[i].negotiation.is_local_qp_missing(rail);
        let qp = NewQp { rail: rail as u8, connected, asks, qpn: Qpn::new(2), psn: Psn::new(0) };
        self.send(i, rail, &Message { ballot: left, body: Body::NewQp(qp) });
        self.run_actions(i);
    }

    fn step(&mut self) {
        let i = self.rng.below(2) as usize;
        match self.rng.below(6) {
            0..=2 if !self.in_transit[i].is_empty() => {
                let at = self.rng.below(self.in_transit[i].len() as u64) as usize;
                let (rail, message) = self.in_transit[i].swap_remove(at);
                match message.body {
                    Body::NewQp(qp) => self.exchange_qp(i, rail, Some((message.ballot, qp))),
                    _ => self.ends[i].negotiation.handle(self.now, message),
                }
            }
            3 if self.ends[i].fencing => {
                let end = &mut self.ends[i];
                end.fencing = false;
                let evidence = Evidence {
                    psn: Some(Psn::new(1000 * i as u32 + end.evidence_given.len() as u32)),
                    ..Evidence::default()
                };
                end.evidence_given.push(evidence.clone());
                end.negotiation.fenced(self.now, evidence);
            }
            4 => {
                let rail = self.rng.below(RAILS as u64) as usize;
                if self.ends[i].negotiation.awaits_new_qps(rail) {
                    self.exchange_qp(i, rail, None);
                }
            }
            _ => {
                self.now += Duration::from_micros(300);
                self.ends[i].negotiation.handle_timeout(self.now);
                self.ends[i].negotiation.drive_failback(self.now);
            }
        }
        self.run_actions(i);
    }

    fn inject_fault(&mut self) {
        let (i, rail) = (self.rng.below(2) as usize, self.rng.below(RAILS as u64) as usize);
        let negotiation = &mut self.ends[i].negotiation;
        let active = negotiation.active();
        match self.rng.below(4) {
            0 if negotiation.is_active() => negotiation.rail_failed(self.now, active, RailFailure::QpFailed),
            1 if self.link_up[i][rail] => {
                self.link_up[i][rail] = false;
                negotiation.rail_failed(self.now, rail, RailFailure::LinkDown);
            }
            _ if !self.link_up[i][rail] => {
                self.link_up[i][rail] = true;
                negotiation.rail_recovered(self.now, rail);
            }
            _ => {}
        }
        self.run_actions(i);
    }
}

#[test]
fn flapping_rails_never_separate_the_two_ends() {
    let mut max_moves = 0;
    for seed in 1..1000 {
        let mut net = Net::new(seed);
        let max_steps = 5 << net.rng.below(8);
        for _ in 0..60 {
            net.inject_fault();
            for _ in 0..net.rng.below(max_steps) {
                net.step();
            }
        }
        for i in 0..2 {
            for rail in 0..RAILS {
                if !net.link_up[i][rail] {
                    net.link_up[i][rail] = true;
                    net.ends[i].negotiation.rail_recovered(net.now, rail);
                    net.run_actions(i);
                }
            }
        }
        let is_settled = |net: &Net| {
            let is_confirmed = |end: &End| {
                end.negotiation.is_move_confirmed()
                    && end.negotiation.may_post()
                    && !end.negotiation.is_stranded()
            };
            net.ends.iter().all(is_confirmed) && net.ends[0].moves == net.ends[1].moves
        };
        for _ in 0..60_000 {
            if is_settled(&net) {
                break;
            }
            net.step();
        }
        let [a, b] = &net.ends;
        assert!(
            is_settled(&net),
            "seed {seed}: {:?} {:?}\n{:?}\n{:?}",
            a.closed,
            b.closed,
            a.negotiation,
            b.negotiation
        );
        assert_eq!((a.closed, b.closed), (None, None), "seed {seed}");
        max_moves = max_moves.max(a.moves.len());
    }
    assert!(max_moves > 10, "no seed made more than {max_moves} moves");
}

/// Takes every rail but `up` down at end 1. End 0 does not learn of it.
fn net_with_one_rail(seed: u64, up: usize) -> Net {
    let mut net = Net::new(seed);
    for rail in (0..RAILS).filter(|&rail| rail != up) {
        net.link_up[1][rail] = false;
        net.ends[1].negotiation.rail_failed(net.now, rail, RailFailure::LinkDown);
        net.run_actions(1);
    }
    net
}

/// The end whose link blinks proposes before it fences, so it does not fence the only rail that
/// works.
#[test]
fn blink_of_the_only_rail_that_both_ends_can_use_moves_nothing() {
    for seed in 1..500 {
        let mut net = net_with_one_rail(seed, 0);
        net.link_up[0][0] = false;
        net.ends[0].negotiation.rail_failed(net.now, 0, RailFailure::LinkDown);
        net.run_actions(0);
        for _ in 0..net.rng.below(100) {
            net.step();
        }
        net.link_up[0][0] = true;
        net.ends[0].negotiation.rail_recovered(net.now, 0);
        net.run_actions(0);
        for _ in 0..20_000 {
            if net.ends.iter().all(|end| end.negotiation.may_post()) {
                break;
            }
            net.step();
        }
        for end in &net.ends {
            assert!(end.negotiation.may_post() && end.closed.is_none(), "seed {seed}: {:?}", end.negotiation);
            assert!(!end.fencing && end.evidence_given.is_empty() && end.moves.is_empty(), "seed {seed}");
        }
    }
}

/// Two rails fail and recover in turn every 2 ms, for ten minutes. The moves become rare, so the
/// epochs suffice.
#[test]
fn rails_that_fail_in_turn_use_up_few_epochs() {
    let mut net = Net::new(1);
    for round in 0..300_000 {
        let rail = net.ends[0].negotiation.active();
        let fails = !(round as usize).is_multiple_of(2);
        if fails && net.ends[0].negotiation.is_active() {
            net.ends[0].negotiation.rail_failed(net.now, rail, RailFailure::QpFailed);
        }
        net.run_actions(0);
        for _ in 0..20 {
            net.step();
        }
        net.now += Duration::from_millis(2);
    }
    assert!(net.ends.iter().all(|end| end.closed.is_none()));
    let moves = net.ends[0].moves.len();
    assert!((60..600).contains(&moves), "{moves} moves");
}

#[test]
fn failed_queue_pair_of_the_only_rail_that_both_ends_can_use_is_replaced() {
    for seed in 1..500 {
        let mut net = net_with_one_rail(seed, 0);
        net.ends[0].negotiation.rail_failed(net.now, 0, RailFailure::QpFailed);
        net.run_actions(0);
        for _ in 0..20_000 {
            if net.ends.iter().all(|end| end.negotiation.may_post() && !end.moves.is_empty()) {
                break;
            }
            net.step();
        }
        for end in &net.ends {
            assert!(end.negotiation.may_post() && end.closed.is_none(), "seed {seed}: {:?}", end.negotiation);
            assert_eq!(end.moves.last().map(|last| last.1), Some(0), "seed {seed}");
        }
        assert_eq!(net.ends[0].qps[0], net.ends[1].qps[0], "seed {seed}");
    }
}
