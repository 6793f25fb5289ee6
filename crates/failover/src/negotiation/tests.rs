//! Tests of two negotiating ends over a network that loses, duplicates and reorders messages.

use super::*;
use crate::control_message::Body;
use crate::secret::SecretWord;
use mitra_prng::Prng;
use mitra_verbs::Psn;

struct End {
    negotiation: RailNegotiation,
    /// The same for every ballot.
    local_evidence: Evidence,
    fencing: bool,
    fenced: bool,
    decided: Option<(u8, Evidence)>,
    closed: Option<CloseReason>,
}

struct Net {
    rng: Prng,
    now: Time,
    ends: [End; 2],
    in_transit: [Vec<Message>; 2],
}

fn evidence(n: u32) -> Evidence {
    Evidence { psn: Some(Psn::new(n)), ..Evidence::default() }
}

impl Net {
    fn new(seed: u64, rails: usize) -> Net {
        let end = |role, n| End {
            negotiation: RailNegotiation::new(role, rails, Duration::from_millis(1), Duration::from_secs(60)),
            local_evidence: evidence(n),
            fencing: false,
            fenced: false,
            decided: None,
            closed: None,
        };
        Net {
            rng: Prng::new(seed),
            now: Time::ZERO,
            ends: [end(Role::Zero, 100), end(Role::One, 200)],
            in_transit: [Vec::new(), Vec::new()],
        }
    }

    fn run_actions(&mut self, i: usize) {
        while let Some(action) = self.ends[i].negotiation.poll_action() {
            match action {
                Action::Fence { .. } => self.ends[i].fencing = true,
                Action::Send(m) => {
                    let bytes = m.encode(self.ends[i].negotiation.role, SecretWord::new(1));
                    let m =
                        Message::decode(&bytes, self.ends[i].negotiation.role, SecretWord::new(1)).unwrap();
                    for _ in 0..[1, 1, 1, 2, 0][self.rng.below(5) as usize] {
                        self.in_transit[1 - i].push(m.clone());
                    }
                }
                Action::Decide { rail, peer_evidence } => {
                    let peer = &self.ends[1 - i];
                    assert!(self.ends[i].fenced, "decided before its own fence");
                    assert!(peer.fenced || peer.decided.is_some(), "decided before the peer's fence");
                    assert_eq!(peer_evidence, peer.local_evidence);
                    assert!(self.ends[i].decided.is_none(), "decided twice");
                    self.ends[i].decided = Some((rail, peer_evidence));
                    let now = self.now;
                    self.ends[i].negotiation.moved(now, 0);
                }
                Action::PeerMoved { .. } | Action::Stay => {}
                Action::Close { reason, .. } => {
                    self.ends[i].closed = Some(reason);
                    self.ends[i].negotiation.closed(None);
                }
            }
        }
    }

    /// Executes one random step: the delivery of a message, the completion of a fence, or a timer.
    fn step(&mut self) {
        let i = self.rng.below(2) as usize;
        match self.rng.below(4) {
            0 | 1 if !self.in_transit[i].is_empty() => {
                let at = self.rng.below(self.in_transit[i].len() as u64) as usize;
                let m = self.in_transit[i].swap_remove(at);
                self.ends[i].negotiation.handle(self.now, m);
            }
            2 if self.ends[i].fencing => {
                (self.ends[i].fencing, self.ends[i].fenced) = (false, true);
                let evidence = self.ends[i].local_evidence.clone();
                self.ends[i].negotiation.fenced(self.now, evidence);
            }
            _ => {
                self.now += Duration::from_micros(300);
                self.ends[i].negotiation.handle_timeout(self.now);
            }
        }
        self.run_actions(i);
    }

    fn run_until_settled(&mut self) {
        for _ in 0..20_000 {
            self.step();
            let settled =
                |e: &End| e.closed.is_some() || (e.decided.is_some() && e.negotiation.is_move_confirmed());
            if self.ends.iter().all(settled) {
                return;
            }
        }
        panic!("not settled: {:?} {:?}", self.ends[0].negotiation, self.ends[1].negotiation);
    }
}

// Hazard: two ends propose different rails
#[test]
fn both_ends_move_by_the_same_ballot_despite_loss_duplication_and_reordering() {
    for seed in 1..2000 {
        for rails in [2, 3] {
            let mut net = Net::new(seed, rails);
            let first = net.rng.below(2) as usize;
            net.ends[first].negotiation.rail_failed(net.now, 0, RailFailure::QpFailed);
            net.run_actions(first);
            for _ in 0..net.rng.below(30) {
                net.step();
            }
            // In half of the runs, the other end detects the failure too, at a later time.
            if net.rng.below(2) == 0 {
                net.ends[1 - first].negotiation.rail_failed(net.now, 0, RailFailure::QpFailed);
                net.run_actions(1 - first);
            }
            net.run_until_settled();
            let [a, b] = &net.ends;
            assert_eq!(a.decided.as_ref().unwrap().0, b.decided.as_ref().unwrap().0, "seed {seed}");
            assert_eq!(a.negotiation.ballot(), b.negotiation.ballot(), "seed {seed}");
            assert_eq!(a.negotiation.active(), b.negotiation.active(), "seed {seed}");
        }
    }
}

#[test]
fn rail_that_the_peer_cannot_use_is_skipped() {
    for seed in 1..500 {
        let mut net = Net::new(seed, 3);
        net.ends[1].negotiation.rail_failed(net.now, 1, RailFailure::QpFailed);
        net.ends[0].negotiation.rail_failed(net.now, 0, RailFailure::QpFailed);
        net.run_actions(0);
        net.run_until_settled();
        for end in &net.ends {
            assert_eq!((end.closed, end.negotiation.active()), (None, 2), "seed {seed}");
        }
    }
}

#[test]
fn both_ends_close_without_a_usable_rail() {
    for seed in 1..200 {
        let mut net = Net::new(seed, 2);
        net.ends[1].negotiation.rail_failed(net.now, 1, RailFailure::QpFailed);
        net.ends[0].negotiation.rail_failed(net.now, 0, RailFailure::QpFailed);
        net.run_actions(0);
        for _ in 0..2000 {
            net.step();
        }
        assert_eq!(net.ends[0].closed, None, "seed {seed}: the end waits for a rail");
        net.now += Duration::from_secs(60);
        for _ in 0..200 {
            net.step();
        }
        assert_eq!(net.ends[0].closed, Some(CloseReason::NoRail), "seed {seed}");
        assert!(net.ends.iter().all(|e| e.decided.is_none()), "seed {seed}");
    }
}

/// Both ends propose rail 1. At first, end 0 cannot use the rail and may decline end 1's ballot.
/// Later, end 0 can use the rail.
#[test]
fn two_ends_that_propose_and_decline_do_not_deadlock() {
    for seed in 1..500 {
        let mut net = Net::new(seed, 2);
        for end in 0..2 {
            net.ends[end].negotiation.rail_failed(net.now, 0, RailFailure::QpFailed);
        }
        net.ends[0].negotiation.rail_failed(net.now, 1, RailFailure::LinkDown);
        (0..2).for_each(|end| net.run_actions(end));
        for _ in 0..net.rng.below(60) {
            net.step();
        }
        net.ends[0].negotiation.rail_recovered(net.now, 1);
        net.run_actions(0);
        net.run_until_settled();
        for end in &net.ends {
            assert_eq!((end.closed, end.negotiation.active()), (None, 1), "seed {seed}");
        }
    }
}

fn end(rails: usize) -> RailNegotiation {
    RailNegotiation::new(Role::Zero, rails, Duration::from_millis(1), Duration::from_secs(5))
}

fn receive(end: &mut RailNegotiation, ballot: Ballot, body: Body) {
    end.handle(Time::ZERO, Message { ballot, body });
}

fn propose(rail: u8) -> Body {
    Body::Propose { rail, home: None }
}

fn evidence_for(rail: u8, evidence: Evidence) -> Body {
    Body::Evidence { rail, home: None, evidence }
}

fn refuse(unusable: u8, promised_epoch: u16) -> Body {
    Body::Refuse { unusable, promised_epoch, home: None }
}

/// The proposer may have sent its evidence for the declined ballot before it proposed another one.
/// An end that accepted the declined ballot later would move alone.
#[test]
fn declined_ballot_stays_declined() {
    let mut a = end(3);
    a.rail_failed(Time::ZERO, 1, RailFailure::LinkDown);
    let ballot = Ballot::FIRST.next(Role::One).unwrap();
    for _ in 0..2 {
        receive(&mut a, ballot, evidence_for(1, evidence(2)));
        let action = a.poll_action();
        assert!(
            matches!(action, Some(Action::Send(Message { body: Body::Refuse { .. }, .. }))),
            "{action:?}"
        );
        assert!(a.is_active() && a.poll_action().is_none());
        a.rail_recovered(Time::ZERO, 1);
    }
}

#[test]
fn silent_peer_closes_the_vqp_undecided() {
    let mut a = RailNegotiation::new(Role::Zero, 2, Duration::from_millis(1), Duration::from_millis(50));
    let mut now = Time::ZERO;
    a.rail_failed(now, 0, RailFailure::QpFailed);
    a.fenced(now, evidence(1));
    let mut closed = None;
    while closed.is_none() {
        now += Duration::from_millis(1);
        a.handle_timeout(now);
        while let Some(action) = a.poll_action() {
            match action {
                Action::Close { reason, .. } => closed = Some(reason),
                Action::Decide { .. } => panic!("decided alone"),
                _ => {}
            }
        }
    }
    assert_eq!(closed, Some(CloseReason::PeerUnreachable));
    assert!(now.as_nanos() >= 50_000_000);
}

// Hazard: a host pauses and wakes in an old epoch
#[test]
fn old_ballot_changes_nothing() {
    let mut net = Net::new(7, 2);
    net.ends[0].negotiation.rail_failed(net.now, 0, RailFailure::QpFailed);
    net.run_actions(0);
    net.run_until_settled();
    let before = net.ends[0].negotiation.clone();
    let old = Ballot { proposer: Role::One, ..Ballot::FIRST };
    for (body, asks) in [
        (propose(0), true),
        (evidence_for(0, evidence(9)), true),
        (Body::Resume { has_peer_resume: true, partial_imm_bytes: 0 }, false),
        (refuse(0, 0), false),
        (Body::Closed { evidence: None }, false),
    ] {
        net.ends[0].negotiation.handle(net.now, Message { ballot: old, body });
        let answer = net.ends[0].negotiation.poll_action();
        let refuses = matches!(answer, Some(Action::Send(Message { body: Body::Refuse { .. }, .. })));
        assert_eq!(refuses, asks, "{answer:?}");
    }
    net.ends[0].negotiation.handle(net.now, Message { ballot: Ballot::FIRST, body: propose(0) });
    assert_eq!(net.ends[0].negotiation.poll_action(), None, "this end's own old ballot");
    assert_eq!(net.ends[0].negotiation, before);
}

#[test]
fn both_ends_fence_as_soon_as_the_peer_has_accepted() {
    let [mut proposer, mut acceptor] = [Role::Zero, Role::One]
        .map(|role| RailNegotiation::new(role, 2, Duration::from_millis(1), Duration::from_secs(5)));
    let actions =
        |end: &mut RailNegotiation| -> Vec<Action> { core::iter::from_fn(|| end.poll_action()).collect() };
    proposer.rail_failed(Time::ZERO, 0, RailFailure::LinkDown);
    let proposal = actions(&mut proposer);
    let [Action::Send(propose)] = &proposal[..] else { panic!("not yet accepted: {proposal:?}") };
    acceptor.handle(Time::ZERO, propose.clone());
    assert_eq!(actions(&mut acceptor), [Action::Send(propose.clone()), Action::Fence { rail: 0 }]);
    proposer.handle(Time::ZERO, propose.clone());
    assert_eq!(actions(&mut proposer), [Action::Fence { rail: 0 }]);
    proposer.handle(Time::ZERO, propose.clone());
    assert_eq!(actions(&mut proposer), []);
}

#[test]
fn acceptance_of_an_earlier_proposal_fences_nothing() {
    let mut a = end(3);
    a.rail_failed(Time::ZERO, 0, RailFailure::LinkDown);
    let Some(Action::Send(first)) = a.poll_action() else { panic!("no proposal") };
    receive(&mut a, first.ballot, refuse(1 << 1, first.ballot.epoch));
    let Some(Action::Send(second)) = a.poll_action() else { panic!("no second proposal") };
    assert!(second.ballot > first.ballot);
    a.handle(Time::ZERO, first);
    assert_eq!(a.poll_action(), None);
    a.handle(Time::ZERO, second);
    assert_eq!(a.poll_action(), Some(Action::Fence { rail: 0 }));
}

/// The peer refuses all rails while its links are down. When they come up, this end's link of the
/// new rail goes down.
#[test]
fn refusal_that_names_no_rail_permits_a_rail_that_was_refused() {
    let mut a = end(2);
    a.allow_replacing_active_qps();
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let first = a.promised();
    receive(&mut a, first, propose(1));
    a.fenced(Time::ZERO, evidence(1));
    let refusal = |unusable| refuse(unusable, first.epoch);
    receive(&mut a, first, refusal(0b11));
    a.rail_failed(Time::ZERO, 1, RailFailure::LinkDown);
    assert_eq!(a.promised(), first);
    receive(&mut a, first, refusal(0));
    assert!(a.promised() > first);
    assert!(matches!(&a.phase, Phase::Moving(m) if m.rail == 0));
}

/// Returns an end that has moved to rail 1 without the peer's Resume, and the ballot of the move.
fn moved_unconfirmed() -> (RailNegotiation, Ballot) {
    let mut a = end(3);
    let ballot = Ballot::FIRST.next(Role::One).unwrap();
    receive(&mut a, ballot, propose(1));
    a.fenced(Time::ZERO, evidence(1));
    receive(&mut a, ballot, evidence_for(1, evidence(2)));
    a.moved(Time::ZERO, 0);
    while a.poll_action().is_some() {}
    (a, ballot)
}

/// The queue pair of the old rail fails again after its fence has begun, for example because the
/// NIC's address changes. Both ends replace it.
#[test]
fn failure_of_a_fenced_queue_pair_does_not_exclude_the_rail_later() {
    let mut a = end(2);
    let ballot = Ballot::FIRST.next(Role::One).unwrap();
    receive(&mut a, ballot, propose(1));
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    a.fenced(Time::ZERO, evidence(1));
    receive(&mut a, ballot, evidence_for(1, evidence(2)));
    a.moved(Time::ZERO, 0);
    a.local_qp_connected(0);
    a.peer_qp_connected(Time::ZERO, 0);
    assert!((a.active(), a.is_usable(0)) == (1, true), "{a:?}");
}

#[test]
fn next_evidence_replaces_a_lost_resume_before_the_decision() {
    let (mut a, ballot) = moved_unconfirmed();
    let ballot = ballot.next(Role::One).unwrap();
    receive(&mut a, ballot, propose(2));
    a.fenced(Time::ZERO, evidence(3));
    let peer_evidence = Evidence { partial_imm_bytes: 512, ..evidence(4) };
    receive(&mut a, ballot, evidence_for(2, peer_evidence));
    let actions: Vec<Action> = core::iter::from_fn(|| a.poll_action()).collect();
    let moved = actions.iter().position(|x| *x == Action::PeerMoved { partial_imm_bytes: 512 });
    let decide = actions.iter().position(|x| matches!(x, Action::Decide { rail: 2, .. }));
    assert!(moved.is_some() && moved < decide, "{actions:?}");
}

#[test]
fn two_moved_ends_do_not_answer_each_other_forever() {
    let (mut a, ballot) = moved_unconfirmed();
    let mut answers = 0;
    for _ in 0..1000 {
        receive(&mut a, ballot, evidence_for(1, evidence(2)));
        while a.poll_action().is_some() {
            answers += 1;
        }
    }
    assert_eq!(answers, 1);
    let later = Time::ZERO + Duration::from_millis(1);
    a.handle(later, Message { ballot, body: propose(1) });
    assert!(matches!(a.poll_action(), Some(Action::Send(Message { body: Body::Evidence { .. }, .. }))));
}

#[test]
fn closed_end_answers_requests_with_closed_and_nothing_else() {
    let (mut a, ballot) = moved_unconfirmed();
    a.close(CloseReason::RequestError);
    a.closed(None);
    while a.poll_action().is_some() {}
    receive(&mut a, ballot, propose(2));
    assert!(matches!(a.poll_action(), Some(Action::Send(Message { body: Body::Closed { .. }, .. }))));
    while a.poll_action().is_some() {}
    receive(&mut a, ballot, Body::Closed { evidence: None });
    assert_eq!(a.poll_action(), None);
}

#[test]
fn refusal_holds_for_its_ballot_until_the_next_move() {
    let mut a = end(3);
    receive(&mut a, Ballot::FIRST, refuse(0b110, 9));
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    assert!(!a.is_active() && a.rails_with(RailState::REFUSED) == 0);
    let ballot = a.promised;
    receive(&mut a, ballot, refuse(0b011, 2));
    assert_eq!(a.rails_with(RailState::REFUSED), 0b011);
    a.fenced(Time::ZERO, evidence(1));
    let ballot = a.promised;
    receive(&mut a, ballot, evidence_for(2, evidence(2)));
    a.moved(Time::ZERO, 0);
    assert_eq!((a.active(), a.rails_with(RailState::REFUSED)), (2, 0));
}

/// A lower ballot would be refused again.
#[test]
fn proposal_after_a_refusal_is_above_the_ballot_that_the_peer_promised() {
    let mut a = end(3);
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let ballot = a.promised;
    receive(&mut a, ballot, refuse(0b010, 40));
    let proposals = core::iter::from_fn(|| a.poll_action()).filter_map(|action| match action {
        Action::Send(Message { ballot, body: Body::Propose { rail, .. } }) => Some((ballot.epoch, rail)),
        _ => None,
    });
    assert_eq!(proposals.last(), Some((41, 2)));
}

/// The peer accepted the first ballot only.
#[test]
fn evidence_for_an_earlier_ballot_decides_nothing() {
    let mut a = end(3);
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let first = a.promised;
    receive(&mut a, first, evidence_for(1, evidence(2)));
    let second = first.next(Role::One).unwrap();
    receive(&mut a, second, propose(2));
    a.fenced(Time::ZERO, evidence(1));
    let decisions = |a: &mut RailNegotiation| {
        core::iter::from_fn(|| a.poll_action()).filter(|x| matches!(x, Action::Decide { .. })).count()
    };
    assert_eq!(decisions(&mut a), 0);
    receive(&mut a, second, evidence_for(2, evidence(2)));
    assert_eq!(decisions(&mut a), 1);
}

#[test]
fn evidence_repeats_the_bytes_of_a_resume_that_may_be_lost() {
    let mut a = end(3);
    let first = Ballot::FIRST.next(Role::One).unwrap();
    receive(&mut a, first, propose(1));
    a.fenced(Time::ZERO, evidence(1));
    receive(&mut a, first, evidence_for(1, evidence(2)));
    a.moved(Time::ZERO, 512);
    let second = first.next(Role::One).unwrap();
    receive(&mut a, second, propose(2));
    a.fenced(Time::ZERO, evidence(3));
    let sent = core::iter::from_fn(|| a.poll_action()).filter_map(|action| match action {
        Action::Send(Message { ballot, body: Body::Evidence { evidence, .. } }) if ballot == second => {
            Some(evidence.partial_imm_bytes)
        }
        _ => None,
    });
    assert_eq!(sent.last(), Some(512));
}

#[test]
fn end_that_declines_a_proposal_still_asks_for_the_resume_of_its_last_move() {
    let (mut a, ballot) = moved_unconfirmed();
    // The peer has this end's Resume, so it may propose, but its own Resume was lost. This end
    // cannot use the proposed rail, and the peer stays.
    a.rail_failed(Time::ZERO, 2, RailFailure::LinkDown);
    let next = ballot.next(Role::One).unwrap();
    receive(&mut a, next, propose(2));
    let refusal = a.poll_action();
    assert!(matches!(&refusal, Some(Action::Send(Message { body: Body::Refuse { .. }, .. }))), "{refusal:?}");
    a.handle_timeout(a.poll_timeout().expect("the Resume is sent again"));
    let body = Body::Resume { has_peer_resume: false, partial_imm_bytes: 0 };
    assert_eq!(a.poll_action(), Some(Action::Send(Message { ballot, body })));
    receive(&mut a, ballot, Body::Resume { has_peer_resume: true, partial_imm_bytes: 7 });
    assert_eq!(a.poll_action(), Some(Action::PeerMoved { partial_imm_bytes: 7 }));
}

#[test]
fn end_that_stays_after_a_refusal_still_asks_for_the_resume_of_its_last_move() {
    let (mut a, ballot) = moved_unconfirmed();
    a.rail_failed(Time::ZERO, 2, RailFailure::LinkDown);
    let next = ballot.next(Role::One).unwrap();
    receive(&mut a, next, propose(2));
    while a.poll_action().is_some() {}
    // The peer is silent on the active rail and refuses the only other rail with queue pairs. This
    // end stays on the active rail. The peer's Resume is still missing.
    let now = Time::ZERO + Duration::from_secs(1);
    a.rail_recovered(now, 2);
    a.rail_failed(now, 1, RailFailure::Silent);
    let proposal = a.poll_action();
    let Some(Action::Send(Message { ballot: proposed, body: Body::Propose { rail: 2, .. } })) = proposal
    else {
        panic!("{proposal:?}");
    };
    let body = refuse(1 << 2, proposed.epoch);
    a.handle(now, Message { ballot: proposed, body });
    assert_eq!(a.poll_action(), Some(Action::Stay));
    a.handle_timeout(a.poll_timeout().expect("the Resume is sent again"));
    let body = Body::Resume { has_peer_resume: false, partial_imm_bytes: 0 };
    assert_eq!(a.poll_action(), Some(Action::Send(Message { ballot, body })));
}
