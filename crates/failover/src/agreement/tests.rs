//! Two ends that agree, or do not, over a wire that loses, doubles and reorders.

use super::*;
use mitra_verbs::Psn;

/// A small generator, so that every schedule is reproduced by its seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % n
    }
}

struct End {
    agreement: Agreement,
    /// The evidence that this end gives, whatever the ballot.
    mine: Evidence,
    fencing: bool,
    fenced: bool,
    decided: Option<(u8, Evidence)>,
    ended: Option<CloseReason>,
}

struct Net {
    dice: Dice,
    now: Time,
    ends: [End; 2],
    /// Messages under way, by receiver.
    wire: [Vec<Message>; 2],
}

fn evidence(n: u32) -> Evidence {
    Evidence { psn: Some(Psn::new(n)), ..Evidence::default() }
}

impl Net {
    fn new(seed: u64, rails: usize) -> Net {
        let end = |role, n| End {
            agreement: Agreement::new(role, rails, Duration::from_millis(1), Duration::from_secs(60)),
            mine: evidence(n),
            fencing: false,
            fenced: false,
            decided: None,
            ended: None,
        };
        Net {
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: Time::ZERO,
            ends: [end(Role::Zero, 100), end(Role::One, 200)],
            wire: [Vec::new(), Vec::new()],
        }
    }

    fn run_actions(&mut self, i: usize) {
        while let Some(action) = self.ends[i].agreement.poll_action() {
            match action {
                Action::Fence { .. } => self.ends[i].fencing = true,
                Action::Send(m) => {
                    let bytes = m.encode(self.ends[i].agreement.me, 1);
                    let m = Message::decode(&bytes, self.ends[i].agreement.me, 1).unwrap();
                    for _ in 0..[1, 1, 1, 2, 0][self.dice.roll(5) as usize] {
                        self.wire[1 - i].push(m.clone());
                    }
                }
                Action::Decide { rail, theirs } => {
                    let peer = &self.ends[1 - i];
                    assert!(self.ends[i].fenced, "decided before its own fence");
                    assert!(peer.fenced || peer.decided.is_some(), "decided before the peer's fence");
                    assert_eq!(theirs, peer.mine);
                    assert!(self.ends[i].decided.is_none(), "decided twice");
                    self.ends[i].decided = Some((rail, theirs));
                    let now = self.now;
                    self.ends[i].agreement.moved(now, 0);
                }
                Action::PeerMoved { .. } => {}
                Action::End(why) => self.ends[i].ended = Some(why),
            }
        }
    }

    /// One random step: a delivery, a fence that completes, or a timer.
    fn step(&mut self) {
        let i = self.dice.roll(2) as usize;
        match self.dice.roll(4) {
            0 | 1 if !self.wire[i].is_empty() => {
                let at = self.dice.roll(self.wire[i].len() as u64) as usize;
                let m = self.wire[i].swap_remove(at);
                self.ends[i].agreement.handle(self.now, m);
            }
            2 if self.ends[i].fencing => {
                (self.ends[i].fencing, self.ends[i].fenced) = (false, true);
                let mine = self.ends[i].mine.clone();
                self.ends[i].agreement.fenced(self.now, mine);
            }
            _ => {
                self.now += Duration::from_micros(300);
                self.ends[i].agreement.handle_timeout(self.now);
            }
        }
        self.run_actions(i);
    }

    fn settle(&mut self) {
        for _ in 0..20_000 {
            self.step();
            let settled =
                |e: &End| e.ended.is_some() || (e.decided.is_some() && e.agreement.is_move_confirmed());
            if self.ends.iter().all(settled) {
                return;
            }
        }
        panic!("not settled: {:?} {:?}", self.ends[0].agreement, self.ends[1].agreement);
    }
}

#[test]
fn under_loss_doubling_and_reordering_both_ends_move_to_the_same_rail_by_the_same_ballot() {
    for seed in 1..2000 {
        for rails in [2, 3] {
            let mut net = Net::new(seed, rails);
            let first = net.dice.roll(2) as usize;
            net.ends[first].agreement.rail_failed(net.now, 0, true);
            net.run_actions(first);
            for _ in 0..net.dice.roll(30) {
                net.step();
            }
            // The other end detects it too, at some time, or not at all.
            if net.dice.roll(2) == 0 {
                net.ends[1 - first].agreement.rail_failed(net.now, 0, true);
                net.run_actions(1 - first);
            }
            net.settle();
            let [a, b] = &net.ends;
            assert_eq!(a.decided.as_ref().unwrap().0, b.decided.as_ref().unwrap().0, "seed {seed}");
            assert_eq!(a.agreement.ballot(), b.agreement.ballot(), "seed {seed}");
            assert_eq!(a.agreement.active(), b.agreement.active(), "seed {seed}");
        }
    }
}

#[test]
fn a_rail_that_the_peer_cannot_use_is_passed_over() {
    for seed in 1..500 {
        let mut net = Net::new(seed, 3);
        net.ends[1].agreement.rail_failed(net.now, 1, true);
        net.ends[0].agreement.rail_failed(net.now, 0, true);
        net.run_actions(0);
        net.settle();
        for end in &net.ends {
            assert_eq!((end.ended, end.agreement.active()), (None, 2), "seed {seed}");
        }
    }
}

#[test]
fn without_a_usable_rail_both_ends_end() {
    for seed in 1..200 {
        let mut net = Net::new(seed, 2);
        net.ends[1].agreement.rail_failed(net.now, 1, true);
        net.ends[0].agreement.rail_failed(net.now, 0, true);
        net.run_actions(0);
        for _ in 0..2000 {
            net.step();
        }
        assert_eq!(net.ends[0].ended, None, "seed {seed}: it waits for one");
        net.now += Duration::from_secs(60);
        for _ in 0..200 {
            net.step();
        }
        assert_eq!(net.ends[0].ended, Some(CloseReason::NoRail), "seed {seed}");
        assert!(net.ends.iter().all(|e| e.decided.is_none()), "seed {seed}");
    }
}

/// Both propose, and the one whose ballot is lower declines the other's, which it can accept a little later.
#[test]
fn two_ends_that_propose_and_decline_do_not_wait_for_each_other_for_ever() {
    for seed in 1..500 {
        let mut net = Net::new(seed, 2);
        for end in 0..2 {
            net.ends[end].agreement.rail_failed(net.now, 0, true);
        }
        net.ends[0].agreement.rail_failed(net.now, 1, false);
        (0..2).for_each(|end| net.run_actions(end));
        for _ in 0..net.dice.roll(60) {
            net.step();
        }
        net.ends[0].agreement.rail_recovered(net.now, 1);
        net.run_actions(0);
        net.settle();
        for end in &net.ends {
            assert_eq!((end.ended, end.agreement.active()), (None, 1), "seed {seed}");
        }
    }
}

/// Its proposer has gone on to another, and has given its evidence for this one: who accepted it now would move alone.
#[test]
fn what_was_declined_stays_declined() {
    let retry = Duration::from_millis(1);
    let mut a = Agreement::new(Role::Zero, 3, retry, Duration::from_secs(5));
    a.rail_failed(Time::ZERO, 1, false);
    let ballot = Ballot::FIRST.next(Role::One).unwrap();
    for _ in 0..2 {
        a.handle(Time::ZERO, Message { ballot, body: Body::Evidence { rail: 1, evidence: evidence(2) } });
        let said = a.poll_action();
        assert!(matches!(said, Some(Action::Send(Message { body: Body::Refuse { .. }, .. }))), "{said:?}");
        assert!(a.is_active() && a.poll_action().is_none());
        a.rail_recovered(Time::ZERO, 1);
    }
}

#[test]
fn a_silent_peer_is_given_up_and_nothing_is_decided() {
    let mut a = Agreement::new(Role::Zero, 2, Duration::from_millis(1), Duration::from_millis(50));
    let mut now = Time::ZERO;
    a.rail_failed(now, 0, true);
    a.fenced(now, evidence(1));
    let mut ended = None;
    while ended.is_none() {
        now += Duration::from_millis(1);
        a.handle_timeout(now);
        while let Some(action) = a.poll_action() {
            match action {
                Action::End(why) => ended = Some(why),
                Action::Decide { .. } => panic!("decided alone"),
                _ => {}
            }
        }
    }
    assert_eq!(ended, Some(CloseReason::PeerUnreachable));
    assert!(now.as_nanos() >= 50_000_000);
}

#[test]
fn an_old_or_replayed_ballot_moves_nothing() {
    let mut net = Net::new(7, 2);
    net.ends[0].agreement.rail_failed(net.now, 0, true);
    net.run_actions(0);
    net.settle();
    let before = net.ends[0].agreement.clone();
    let old = Ballot::FIRST;
    for body in [
        Body::Propose { rail: 0 },
        Body::Evidence { rail: 0, evidence: evidence(9) },
        Body::Resume { seen: true, torn: 0 },
        Body::Refuse { dead: 0 },
        Body::Closed,
    ] {
        net.ends[0].agreement.handle(net.now, Message { ballot: old, body });
    }
    assert_eq!(net.ends[0].agreement, before);
}

/// One end that has moved to rail 1 and has not heard that its peer has.
fn unconfirmed() -> (Agreement, Ballot) {
    let retry = Duration::from_millis(1);
    let mut a = Agreement::new(Role::Zero, 3, retry, Duration::from_secs(5));
    let ballot = Ballot::FIRST.next(Role::One).unwrap();
    a.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 1 } });
    a.fenced(Time::ZERO, evidence(1));
    a.handle(Time::ZERO, Message { ballot, body: Body::Evidence { rail: 1, evidence: evidence(2) } });
    a.moved(Time::ZERO, 0);
    while a.poll_action().is_some() {}
    (a, ballot)
}

#[test]
fn a_lost_resume_comes_with_the_next_evidence_before_anything_is_decided() {
    let (mut a, ballot) = unconfirmed();
    let ballot = ballot.next(Role::One).unwrap();
    a.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 2 } });
    a.fenced(Time::ZERO, evidence(3));
    let theirs = Evidence { torn: 512, ..evidence(4) };
    a.handle(Time::ZERO, Message { ballot, body: Body::Evidence { rail: 2, evidence: theirs } });
    let actions: Vec<Action> = core::iter::from_fn(|| a.poll_action()).collect();
    let moved = actions.iter().position(|x| *x == Action::PeerMoved { torn: 512 });
    let decide = actions.iter().position(|x| matches!(x, Action::Decide { rail: 2, .. }));
    assert!(moved.is_some() && moved < decide, "{actions:?}");
}

#[test]
fn two_ends_that_have_both_moved_do_not_answer_each_other_for_ever() {
    let (mut a, ballot) = unconfirmed();
    let mut answers = 0;
    for _ in 0..1000 {
        let body = Body::Evidence { rail: 1, evidence: evidence(2) };
        a.handle(Time::ZERO, Message { ballot, body });
        while a.poll_action().is_some() {
            answers += 1;
        }
    }
    assert_eq!(answers, 1);
    let later = Time::ZERO + Duration::from_millis(1);
    a.handle(later, Message { ballot, body: Body::Propose { rail: 1 } });
    assert!(matches!(a.poll_action(), Some(Action::Send(Message { body: Body::Evidence { .. }, .. }))));
}

#[test]
fn an_end_that_has_ended_says_so_again_when_asked_and_no_more() {
    let (mut a, ballot) = unconfirmed();
    a.end(CloseReason::RequestError);
    while a.poll_action().is_some() {}
    a.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 2 } });
    assert!(matches!(a.poll_action(), Some(Action::Send(Message { body: Body::Closed, .. }))));
    a.handle(Time::ZERO, Message { ballot, body: Body::Closed });
    assert_eq!(a.poll_action(), None);
}

#[test]
fn a_refusal_counts_for_its_ballot_only_and_until_the_next_move() {
    let retry = Duration::from_millis(1);
    let mut a = Agreement::new(Role::Zero, 3, retry, Duration::from_secs(5));
    a.handle(Time::ZERO, Message { ballot: Ballot::FIRST, body: Body::Refuse { dead: 0b110 } });
    a.rail_failed(Time::ZERO, 0, true);
    assert!(!a.is_active() && a.refused == 0);
    let ballot = a.promised;
    a.handle(Time::ZERO, Message { ballot, body: Body::Refuse { dead: 0b011 } });
    assert_eq!(a.refused, 0b011);
    a.fenced(Time::ZERO, evidence(1));
    let ballot = a.promised;
    a.handle(Time::ZERO, Message { ballot, body: Body::Evidence { rail: 2, evidence: evidence(2) } });
    a.moved(Time::ZERO, 0);
    assert_eq!((a.active(), a.refused), (2, 0));
}
