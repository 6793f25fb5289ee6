//! The two ends of a vQP agree on its rail: promise, fence, exchange evidence, move, confirm.
//!
//! A state machine without I/O. Each end accepts only ballots above the one it promised, and gives its evidence only
//! after its fence, so when both have the other's evidence nothing can execute on the old rail any more, and both
//! decide from facts that cannot change. Messages may be lost, doubled, delayed and reordered: they are idempotent,
//! sent again until answered, and bound to their ballot.

use core::time::Duration;

use mitra_verbs::Time;
use smallvec::SmallVec;

use crate::ballot::{Ballot, Role};
use crate::evidence::Evidence;
use crate::message::{Body, Message};

/// The most rails that a vQP can have: one bit each.
pub const MAX_RAILS: usize = 8;

/// Why a vQP ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// No rail is left that both ends can use.
    NoRail,
    /// The peer did not answer on any rail: it cannot be fenced, so nothing is decided.
    PeerUnreachable,
    /// This end's old NIC could not be fenced.
    Unfenced,
    /// A second failure struck during a recovery. (To be survived by a later version.)
    FailedDuringRecovery,
    /// The evidence contradicts itself or the completions.
    Contradiction,
    /// The epochs are used up.
    EpochsUsedUp,
    /// A request broke a rule (a wrong key, a message too long): as with any RC queue pair, that is the end of it.
    RequestError,
    /// The application closed it.
    Closed,
    /// The peer ended it.
    PeerClosed,
}

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Freeze, fence this rail, record the evidence, then call [`Agreement::fenced`].
    Fence {
        /// The old rail.
        rail: u8,
    },
    /// Send this on every rail that can be used.
    Send(Message),
    /// Both ends are fenced: decide from the peer's evidence, replay on the new rail.
    Decide {
        /// The new rail.
        rail: u8,
        /// What the peer executed for this end.
        theirs: Evidence,
    },
    /// The peer has moved too; so many bytes of its torn WRITE with immediate had arrived before.
    PeerMoved {
        /// Bytes.
        torn: u32,
    },
    /// The vQP has ended.
    End(Ended),
}

/// Where an end stands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Active,
    Moving(Moving),
    Ended,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Moving {
    ballot: Ballot,
    rail: u8,
    /// Whether this end proposed the ballot.
    proposed: bool,
    mine: Option<Evidence>,
    theirs: Option<Evidence>,
    since: Time,
}

/// The last move, kept until both ends have confirmed it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Tail {
    ballot: Ballot,
    rail: u8,
    mine: Evidence,
    /// Sending Resume until the peer's was seen, or for this long.
    until: Time,
    /// When the evidence was given again last.
    answered: Option<Time>,
}

/// One end's part in agreeing on the rail.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Agreement {
    me: Role,
    rails: u8,
    active: u8,
    /// The ballot under which `active` was bound.
    current: Ballot,
    /// The highest ballot promised.
    promised: Ballot,
    /// Rails that this end cannot use now.
    dead: u8,
    /// Rails that were fenced: not used again (failback comes with a later version).
    spent: u8,
    /// Rails that the peer said it cannot use.
    refused: u8,
    /// The ballot that this end declined last: it stays declined.
    declined: Option<Ballot>,
    phase: Phase,
    tail: Option<Tail>,
    /// What Resume says of the last move.
    torn: u32,
    /// Whether the peer has still to say how much of its torn WRITE with immediate had arrived before the last move.
    awaits: bool,
    retry: Duration,
    give_up: Duration,
    next_send: Option<Time>,
    actions: SmallVec<[Action; 4]>,
}

impl Agreement {
    /// Both ends start on rail 0 with the first ballot.
    pub fn new(me: Role, rails: usize, retry: Duration, give_up: Duration) -> Agreement {
        assert!((1..=MAX_RAILS).contains(&rails), "a vQP has 1 to {MAX_RAILS} rails");
        Agreement {
            me,
            rails: rails as u8,
            active: 0,
            current: Ballot::FIRST,
            promised: Ballot::FIRST,
            dead: 0,
            spent: 0,
            refused: 0,
            declined: None,
            phase: Phase::Active,
            tail: None,
            torn: 0,
            awaits: false,
            retry,
            give_up,
            next_send: None,
            actions: SmallVec::new(),
        }
    }

    /// The rail in use.
    pub fn active(&self) -> usize {
        usize::from(self.active)
    }

    /// The ballot in force.
    pub fn ballot(&self) -> Ballot {
        self.current
    }

    /// Whether operations may be posted.
    pub fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// Whether the last move has been confirmed by the peer.
    pub fn is_settled(&self) -> bool {
        self.is_active() && self.tail.is_none()
    }

    /// When [`Agreement::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next_send
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        (!self.actions.is_empty()).then(|| self.actions.remove(0))
    }

    /// A rail cannot be used any more at this end.
    pub fn rail_failed(&mut self, now: Time, rail: usize) {
        let bit = 1 << rail;
        let known = self.dead & bit != 0;
        self.dead |= bit;
        match &self.phase {
            Phase::Ended => {}
            Phase::Active if rail == self.active() => self.propose(now),
            Phase::Moving(m) if usize::from(m.rail) == rail && !known => {
                self.end(Ended::FailedDuringRecovery)
            }
            Phase::Active | Phase::Moving(_) => {}
        }
    }

    /// A rail can be used again at this end, if its queue pair was not fenced.
    pub fn rail_recovered(&mut self, rail: usize) {
        self.dead &= !(1 << rail);
    }

    /// The driver's fence is confirmed; this is what was executed for the peer.
    pub fn fenced(&mut self, now: Time, evidence: Evidence) {
        let torn = self.torn;
        if let Phase::Moving(m) = &mut self.phase
            && m.mine.is_none()
        {
            m.mine = Some(Evidence { torn, ..evidence });
            self.send_progress(now);
            self.decide_if_ready();
        }
    }

    /// The driver could not fence its old NIC.
    pub fn unfenced(&mut self) {
        self.end(Ended::Unfenced);
    }

    /// The driver has decided and replays on the new rail: operations may be posted again. `torn` bytes of a
    /// WRITE with immediate are not replayed.
    pub fn moved(&mut self, now: Time, torn: u32) {
        let Phase::Moving(m) = &self.phase else { return };
        let (ballot, rail) = (m.ballot, m.rail);
        let mine = m.mine.clone().unwrap_or_default();
        self.spent |= 1 << self.active;
        self.active = rail;
        self.current = ballot;
        (self.torn, self.awaits) = (torn, true);
        // What the peer could not use may have healed by the next move; then it says so again.
        self.refused = 0;
        self.phase = Phase::Active;
        self.tail = Some(Tail { ballot, rail, mine, until: now + self.give_up, answered: None });
        self.next_send = Some(now + self.retry);
        self.say(ballot, Body::Resume { seen: false, torn: self.torn });
    }

    /// Ends the vQP from above (its driver met a contradiction, or its user closed it).
    pub fn end(&mut self, why: Ended) {
        if self.phase == Phase::Ended {
            return;
        }
        if why != Ended::PeerClosed {
            self.say(self.promised, Body::Closed);
        }
        self.phase = Phase::Ended;
        self.tail = None;
        self.next_send = None;
        self.actions.push(Action::End(why));
    }

    /// A message from the peer: its cookie and shape were good.
    pub fn handle(&mut self, now: Time, message: Message) {
        let ballot = message.ballot;
        match message.body {
            Body::Closed => {
                if self.phase != Phase::Ended && ballot >= self.current {
                    self.end(Ended::PeerClosed);
                }
            }
            // It may not have heard that this end has ended.
            _ if self.phase == Phase::Ended => self.say(self.promised, Body::Closed),
            Body::Heartbeat => {}
            Body::Propose { rail } => self.on_propose(now, ballot, rail),
            Body::Evidence { rail, evidence } => {
                self.on_propose(now, ballot, rail);
                if let Phase::Moving(m) = &mut self.phase
                    && m.ballot == ballot
                    && m.rail == rail
                    && m.theirs.is_none()
                {
                    if core::mem::take(&mut self.awaits) {
                        // Its Resume never came, but it moved then: the same word comes with what it says now.
                        self.actions.push(Action::PeerMoved { torn: evidence.torn });
                    }
                    m.theirs = Some(evidence);
                    self.decide_if_ready();
                }
            }
            Body::Resume { seen, torn } => {
                if let Some(tail) = &self.tail
                    && tail.ballot == ballot
                {
                    self.tail = None;
                    self.next_send = None;
                    self.awaits = false;
                    self.actions.push(Action::PeerMoved { torn });
                }
                if self.is_active() && self.current == ballot && !seen {
                    self.say(ballot, Body::Resume { seen: true, torn: self.torn });
                }
            }
            Body::Refuse { dead } => {
                if let Phase::Moving(m) = &self.phase
                    && m.proposed
                    && m.ballot == ballot
                    && dead & (1 << m.rail) != 0
                {
                    self.refused |= dead;
                    self.propose(now);
                }
            }
        }
    }

    /// Time passes: what was not answered is said again, and a peer that stays silent is given up.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.next_send.is_none_or(|t| t > now) {
            return;
        }
        match &self.phase {
            Phase::Moving(m) if now.saturating_since(m.since) >= self.give_up => {
                self.end(Ended::PeerUnreachable)
            }
            Phase::Moving(_) => self.send_progress(now),
            Phase::Active => {
                let Some(tail) = &self.tail else {
                    self.next_send = None;
                    return;
                };
                if tail.until <= now {
                    // The peer has our evidence or will ask for it; without its Resume we keep the evidence, silently.
                    self.next_send = None;
                    return;
                }
                let ballot = tail.ballot;
                self.next_send = Some(now + self.retry);
                self.say(ballot, Body::Resume { seen: false, torn: self.torn });
            }
            Phase::Ended => self.next_send = None,
        }
    }

    fn usable(&self, rail: u8) -> bool {
        rail < self.rails && (self.dead | self.spent) & (1 << rail) == 0
    }

    /// Starts a move of our own, or a higher ballot of one that was refused.
    fn propose(&mut self, now: Time) {
        if self.tail.is_some() {
            // The peer may still be moving to the rail that failed now.
            return self.end(Ended::FailedDuringRecovery);
        }
        let candidate = (1..self.rails)
            .map(|i| (self.active + i) % self.rails)
            .find(|&rail| self.usable(rail) && self.refused & (1 << rail) == 0);
        let Some(rail) = candidate else { return self.end(Ended::NoRail) };
        let Some(ballot) = self.promised.next(self.me) else { return self.end(Ended::EpochsUsedUp) };
        self.adopt(now, ballot, rail, true);
        self.send_progress(now);
    }

    fn adopt(&mut self, now: Time, ballot: Ballot, rail: u8, proposed: bool) {
        self.promised = ballot;
        match &mut self.phase {
            Phase::Moving(m) => {
                // The fence and what it found do not depend on the ballot; the peer's evidence must come with it.
                (m.ballot, m.rail, m.proposed, m.theirs) = (ballot, rail, proposed, None);
            }
            _ => {
                let (mine, theirs) = (None, None);
                self.phase = Phase::Moving(Moving { ballot, rail, proposed, mine, theirs, since: now });
                self.actions.push(Action::Fence { rail: self.active });
            }
        }
    }

    fn on_propose(&mut self, now: Time, ballot: Ballot, rail: u8) {
        if let Some(tail) = &mut self.tail
            && tail.ballot == ballot
        {
            // The peer has not got our evidence yet: the same again. But not for each copy of its message: it may have
            // moved too, and take our answer for a question.
            if tail.answered.is_some_and(|t| now.saturating_since(t) < self.retry / 2) {
                return;
            }
            tail.answered = Some(now);
            let body = Body::Evidence { rail: tail.rail, evidence: tail.mine.clone() };
            return self.say(ballot, body);
        }
        if self.declined == Some(ballot) {
            return self.decline(ballot);
        }
        if ballot <= self.promised {
            return; // old, or ours, or under way
        }
        // Who proposes has no unconfirmed move of its own, so it has seen our last Resume although its own was lost.
        self.tail = None;
        if rail == self.active || !self.usable(rail) {
            self.promised = ballot;
            self.declined = Some(ballot);
            return self.decline(ballot);
        }
        self.adopt(now, ballot, rail, false);
        self.send_progress(now);
    }

    /// Says what the peer needs next.
    fn send_progress(&mut self, now: Time) {
        let Phase::Moving(m) = &self.phase else { return };
        self.next_send = Some(now + self.retry);
        let (ballot, rail) = (m.ballot, m.rail);
        let body = match &m.mine {
            Some(evidence) => Body::Evidence { rail, evidence: evidence.clone() },
            None if m.proposed => Body::Propose { rail },
            None => return,
        };
        self.say(ballot, body);
    }

    fn decline(&mut self, ballot: Ballot) {
        let dead = self.dead | self.spent | (1 << self.active);
        self.say(ballot, Body::Refuse { dead });
    }

    fn decide_if_ready(&mut self) {
        if let Phase::Moving(Moving { mine: Some(_), theirs: Some(theirs), rail, .. }) = &self.phase {
            self.actions.push(Action::Decide { rail: *rail, theirs: theirs.clone() });
        }
    }

    fn say(&mut self, ballot: Ballot, body: Body) {
        self.actions.push(Action::Send(Message { ballot, body }));
    }
}

#[cfg(test)]
mod tests;
