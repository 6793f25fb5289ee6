//! Two ends whose rails come and go for long, over a wire that keeps messages of moves that are long over.

use super::tests::Dice;
use super::*;
use crate::message::Path;
use mitra_verbs::{Psn, Qpn};

const RAILS: usize = 3;

struct End {
    agreement: Agreement,
    /// The evidence that it gives for each of its moves names itself and counts them.
    mine: Vec<Evidence>,
    fencing: bool,
    /// What it moved by and to.
    moves: Vec<(Ballot, usize)>,
    /// By rail: the ballot that its queue pair was made for, and whether it is connected to the peer's for the same.
    made: [(Option<Ballot>, bool); RAILS],
    ended: Option<CloseReason>,
}

struct Net {
    dice: Dice,
    now: Time,
    ends: [End; 2],
    /// Messages under way, by receiver, with the rail that they came by.
    wire: [Vec<(usize, Message)>; 2],
    /// Cables, by end and rail.
    up: [[bool; RAILS]; 2],
}

impl Net {
    fn new(seed: u64) -> Net {
        let end = |role| End {
            agreement: Agreement::new(role, RAILS, Duration::from_millis(1), Duration::from_secs(60)),
            mine: Vec::new(),
            fencing: false,
            moves: Vec::new(),
            made: [(None, true); RAILS],
            ended: None,
        };
        Net {
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: Time::ZERO,
            ends: [end(Role::Zero), end(Role::One)],
            wire: [Vec::new(), Vec::new()],
            up: [[true; RAILS]; 2],
        }
    }

    /// What leaves by a rail whose cables are in comes, sometimes doubled, sometimes much later, sometimes never.
    fn send(&mut self, i: usize, rail: usize, message: &Message) {
        if self.up[0][rail] && self.up[1][rail] {
            for _ in 0..[1, 1, 1, 2, 0][self.dice.roll(5) as usize] {
                self.wire[1 - i].push((rail, message.clone()));
            }
        }
    }

    fn run_actions(&mut self, i: usize) {
        while let Some(action) = self.ends[i].agreement.poll_action() {
            match action {
                Action::Fence { rail } => {
                    let end = &mut self.ends[i];
                    assert_eq!(usize::from(rail), end.agreement.active());
                    end.fencing = true;
                    if self.up[i][usize::from(rail)] {
                        end.agreement.rail_recovered(self.now, usize::from(rail));
                    }
                }
                Action::Send(message) => (0..RAILS).for_each(|rail| self.send(i, rail, &message)),
                Action::Decide { rail, theirs } => self.decide(i, usize::from(rail), &theirs),
                Action::PeerMoved { .. } => {}
                Action::End(why) => self.ends[i].ended = Some(why),
            }
        }
    }

    fn decide(&mut self, i: usize, rail: usize, theirs: &Evidence) {
        let number = self.ends[i].moves.len();
        assert_eq!(self.ends[i].mine.len(), number + 1, "its own fence, and once");
        assert_eq!(Some(theirs), self.ends[1 - i].mine.get(number), "the peer's evidence of this very move");
        assert!(self.ends[i].made[rail].1, "its queue pair of the new rail is connected");
        assert_eq!(self.ends[0].made[rail], self.ends[1].made[rail], "to the peer's of the same time");
        let now = self.now;
        let end = &mut self.ends[i];
        end.agreement.moved(now, 0);
        assert_eq!(end.agreement.active(), rail);
        end.moves.push((end.agreement.ballot(), rail));
        if let Some(peers) = self.ends[1 - i].moves.get(number) {
            assert_eq!(Some(peers), self.ends[i].moves.get(number), "the same ballot, and the same rail");
        }
    }

    /// As a vQP makes and connects the queue pairs of rails that were left.
    fn path(&mut self, i: usize, rail: usize, said: Option<(Ballot, Path)>) {
        let now = self.now;
        let end = &mut self.ends[i];
        let Some(left) = end.agreement.left(rail).filter(|_| self.up[i][rail]) else { return };
        if end.made[rail].0 != Some(left) {
            assert!(rail != end.agreement.active(), "a rail in use is not touched");
            end.made[rail] = (Some(left), false);
        }
        let mut asks = said.is_none();
        if let Some((ballot, path)) = said {
            if ballot != left {
                return;
            }
            end.made[rail].1 = true;
            end.agreement.renewed(rail);
            if path.connected {
                end.agreement.peer_renewed(now, rail);
            }
            if !path.asks {
                return self.run_actions(i);
            }
            asks = !path.connected;
        }
        let connected = end.made[rail].1;
        let path = Path { rail: rail as u8, connected, asks, qpn: Qpn::new(2), psn: Psn::new(0) };
        self.send(i, rail, &Message { ballot: left, body: Body::Path(path) });
        self.run_actions(i);
    }

    fn step(&mut self) {
        let i = self.dice.roll(2) as usize;
        match self.dice.roll(6) {
            0..=2 if !self.wire[i].is_empty() => {
                let at = self.dice.roll(self.wire[i].len() as u64) as usize;
                let (rail, message) = self.wire[i].swap_remove(at);
                match message.body {
                    Body::Path(path) => self.path(i, rail, Some((message.ballot, path))),
                    _ => self.ends[i].agreement.handle(self.now, message),
                }
            }
            3 if self.ends[i].fencing => {
                let end = &mut self.ends[i];
                end.fencing = false;
                let evidence = Evidence {
                    psn: Some(Psn::new(1000 * i as u32 + end.mine.len() as u32)),
                    ..Evidence::default()
                };
                end.mine.push(evidence.clone());
                end.agreement.fenced(self.now, evidence);
            }
            4 => {
                let rail = self.dice.roll(RAILS as u64) as usize;
                if self.ends[i].agreement.is_waiting(rail) {
                    self.path(i, rail, None);
                }
            }
            _ => {
                self.now += Duration::from_micros(300);
                self.ends[i].agreement.handle_timeout(self.now);
            }
        }
        self.run_actions(i);
    }

    /// A cable comes out or goes in again, or the queue pair in use gives up.
    fn strike(&mut self) {
        let (i, rail) = (self.dice.roll(2) as usize, self.dice.roll(RAILS as u64) as usize);
        let agreement = &mut self.ends[i].agreement;
        let active = agreement.active();
        match self.dice.roll(4) {
            0 if agreement.is_active() => agreement.rail_failed(self.now, active, true),
            1 if self.up[i][rail] => {
                self.up[i][rail] = false;
                agreement.rail_failed(self.now, rail, false);
            }
            _ if !self.up[i][rail] => {
                self.up[i][rail] = true;
                agreement.rail_recovered(self.now, rail);
            }
            _ => {}
        }
        self.run_actions(i);
    }
}

#[test]
fn rails_that_come_and_go_never_part_the_two_ends() {
    let mut most = 0;
    for seed in 1..1000 {
        let mut net = Net::new(seed);
        let calm = 5 << net.dice.roll(8);
        for _ in 0..60 {
            net.strike();
            for _ in 0..net.dice.roll(calm) {
                net.step();
            }
        }
        for i in 0..2 {
            for rail in 0..RAILS {
                if !net.up[i][rail] {
                    net.up[i][rail] = true;
                    net.ends[i].agreement.rail_recovered(net.now, rail);
                    net.run_actions(i);
                }
            }
        }
        let is_over = |net: &Net| {
            let calm = |end: &End| end.agreement.is_move_confirmed() && !end.agreement.is_stranded();
            net.ends.iter().all(calm) && net.ends[0].moves == net.ends[1].moves
        };
        for _ in 0..60_000 {
            if is_over(&net) {
                break;
            }
            net.step();
        }
        let [a, b] = &net.ends;
        assert!(
            is_over(&net),
            "seed {seed}: {:?} {:?}\n{:?}\n{:?}",
            a.ended,
            b.ended,
            a.agreement,
            b.agreement
        );
        assert_eq!((a.ended, b.ended), (None, None), "seed {seed}");
        most = most.max(a.moves.len());
    }
    assert!(most > 10, "{most} moves at most");
}
