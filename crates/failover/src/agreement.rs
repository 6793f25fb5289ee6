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

/// How often a peer that declines is asked again before it is given up: each time costs an epoch.
const ASKS: u32 = 32;

/// Why a vQP ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloseReason {
    /// No rail is left that both ends can use.
    NoRail,
    /// The peer did not answer on any rail: it cannot be fenced, so nothing is decided.
    PeerUnreachable,
    /// This end's old NIC could not be fenced.
    Unfenced,
    /// The rail that a recovery moved to failed too before the peer had confirmed the move, and no other was left to hear it by.
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
    End(CloseReason),
}

/// Where an end stands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Active,
    Moving(Moving),
    Closed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Moving {
    ballot: Ballot,
    rail: u8,
    /// Whether this end proposed the ballot.
    proposed: bool,
    /// When the ballot was adopted.
    begun: Time,
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
    /// Sending Resume until the peer's was seen, and seldom after this.
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
    /// Rails that this end cannot use now ...
    dead: u8,
    /// ... and those of them whose NIC has died, or, of the active rail, whose queue pair is lost, by its retries or in a peer's
    /// silence. A link that is down may come back in time.
    broken: u8,
    /// Rails that were left, and whose next queue pair does not stand at this end.
    spent: u8,
    /// Rails that were left, and whose next queue pair the peer has not said to stand at its end.
    unsure: u8,
    /// By rail: the ballot by which it was left last.
    left: [Option<Ballot>; MAX_RAILS],
    /// Rails that the peer said it cannot use.
    refused: u8,
    /// Since when the active rail has failed and no move can begin: the last one is not confirmed, or no other rail is ready
    /// yet.
    stranded: Option<Time>,
    /// The ballot that this end declined last: it stays declined. Its proposer goes on to another, although it has given its
    /// evidence for this one.
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
            broken: 0,
            spent: 0,
            unsure: 0,
            left: [None; MAX_RAILS],
            refused: 0,
            stranded: None,
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
    pub fn is_move_confirmed(&self) -> bool {
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

    /// A rail cannot be used now at this end. `broken`: nor can its queue pair ever be. Of a NIC that is dead it may be said again.
    pub fn rail_failed(&mut self, now: Time, rail: usize, broken: bool) {
        self.dead |= 1 << rail;
        self.broken |= u8::from(broken) << rail;
        match &self.phase {
            Phase::Active if rail == self.active() || self.stranded.is_some() => self.propose(now),
            // The move goes on as long as the peer can be heard, and the next begins when it is confirmed.
            Phase::Moving(_) if self.all() & !self.broken == 0 => self.end(CloseReason::FailedDuringRecovery),
            Phase::Closed | Phase::Active | Phase::Moving(_) => {}
        }
    }

    /// A rail can be used again at this end, as far as its device goes.
    pub fn rail_recovered(&mut self, now: Time, rail: usize) {
        let bit = 1 << rail;
        if self.is_active() && rail == self.active() {
            // It goes on as if nothing had been, unless its queue pair has not outlived it.
            if self.broken & bit == 0 {
                self.dead &= !bit;
                self.stranded = None;
            }
            return;
        }
        self.dead &= !bit;
        self.broken &= !bit;
        self.try_again(now);
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
        self.end(CloseReason::Unfenced);
    }

    /// The driver has decided and replays on the new rail: operations may be posted again. `torn` bytes of a
    /// WRITE with immediate are not replayed.
    pub fn moved(&mut self, now: Time, torn: u32) {
        let Phase::Moving(m) = &self.phase else { return };
        let (ballot, rail) = (m.ballot, m.rail);
        let mine = m.mine.clone().unwrap_or_default();
        let old = self.active;
        self.spent |= 1 << old;
        self.unsure = (self.unsure | 1 << old) & !(1 << rail);
        self.left[usize::from(old)] = Some(ballot);
        self.active = rail;
        self.current = ballot;
        (self.torn, self.awaits) = (torn, true);
        // What the peer could not use may have healed by the next move; then it says so again.
        self.refused = 0;
        self.phase = Phase::Active;
        self.tail = Some(Tail { ballot, rail, mine, until: now + self.give_up, answered: None });
        self.next_send = Some(now + self.retry);
        self.say(ballot, Body::Resume { seen: false, torn: self.torn });
        if self.dead & (1 << rail) != 0 {
            self.propose(now);
        }
    }

    /// Ends the vQP from above (its driver met a contradiction, or its user closed it).
    pub fn end(&mut self, why: CloseReason) {
        if self.phase == Phase::Closed {
            return;
        }
        if why != CloseReason::PeerClosed {
            self.say(self.promised, Body::Closed);
        }
        self.phase = Phase::Closed;
        self.tail = None;
        self.next_send = None;
        self.actions.push(Action::End(why));
    }

    /// A message from the peer: its cookie and shape were good.
    pub fn handle(&mut self, now: Time, message: Message) {
        let ballot = message.ballot;
        match message.body {
            Body::Closed => {
                if self.phase != Phase::Closed && ballot >= self.current {
                    self.end(CloseReason::PeerClosed);
                }
            }
            // It may not have heard that this end has ended.
            _ if self.phase == Phase::Closed => self.say(self.promised, Body::Closed),
            // A path is the driver's to make.
            Body::Heartbeat | Body::Path(_) => {}
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
                    self.try_again(now);
                }
                if self.is_active() && self.current == ballot && !seen {
                    self.say(ballot, Body::Resume { seen: true, torn: self.torn });
                }
            }
            Body::Refuse { dead } => {
                if let Phase::Moving(m) = &self.phase
                    && m.proposed
                    && m.ballot == ballot
                {
                    // Even if the peer could use the rail by now: what was declined stays declined.
                    self.refused = dead | 1 << m.rail;
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
                self.end(if self.is_refused() { CloseReason::NoRail } else { CloseReason::PeerUnreachable })
            }
            // What the peer could not use then it may be able to use now: a new ballot asks.
            Phase::Moving(m) if now.saturating_since(m.begun) >= self.give_up / ASKS && self.is_refused() => {
                self.refused = 0;
                self.propose(now);
            }
            Phase::Moving(_) => self.send_progress(now),
            Phase::Active => {
                let since = self.stranded.filter(|_| self.broken & (1 << self.active) != 0);
                if since.is_some_and(|since| now.saturating_since(since) >= self.give_up) {
                    return self.end(self.nowhere());
                }
                self.next_send = self.stranded.map(|_| now + self.retry);
                // The peer has our evidence or will ask for it. Without its Resume no other move can begin: who hears nothing
                // for long asks seldom, but goes on asking. All links may have been down meanwhile.
                let Some(tail) = &self.tail else { return };
                let pause = if tail.until > now { self.retry } else { self.give_up / ASKS };
                self.next_send = Some(now + pause);
                let ballot = tail.ballot;
                self.say(ballot, Body::Resume { seen: false, torn: self.torn });
            }
            Phase::Closed => self.next_send = None,
        }
    }

    fn all(&self) -> u8 {
        u8::MAX >> (MAX_RAILS as u32 - u32::from(self.rails))
    }

    /// Rails beside the active one that this end's devices can use.
    fn others(&self) -> u8 {
        self.all() & !self.dead & !(1 << self.active)
    }

    /// Starts a move of our own, or a higher ballot of one that was refused; or waits until one can start.
    fn propose(&mut self, now: Time) {
        let ready = !(self.spent | self.unsure | self.refused);
        let candidate = (1..self.rails)
            .map(|i| (self.active + i) % self.rails)
            .find(|&rail| self.others() & ready & (1 << rail) != 0);
        match candidate {
            // With a move unconfirmed the peer may still be moving to the rail that failed now.
            Some(rail) if self.tail.is_none() => {
                let Some(ballot) = self.promised.next(self.me) else {
                    return self.end(CloseReason::EpochsUsedUp);
                };
                self.adopt(now, ballot, rail, true);
                self.send_progress(now);
            }
            _ => self.wait(now),
        }
    }

    fn adopt(&mut self, now: Time, ballot: Ballot, rail: u8, proposed: bool) {
        self.promised = ballot;
        match &mut self.phase {
            Phase::Moving(m) => {
                // The fence and what it found do not depend on the ballot; the peer's evidence must come with it.
                (m.ballot, m.rail, m.proposed, m.begun, m.theirs) = (ballot, rail, proposed, now, None);
            }
            _ => {
                self.stranded = None;
                let (mine, theirs) = (None, None);
                let (begun, since) = (now, now);
                self.phase = Phase::Moving(Moving { ballot, rail, proposed, begun, mine, theirs, since });
                // Its queue pair is lost anyway. If its NIC is too, that will be said again.
                self.broken &= !(1 << self.active);
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
        let usable = self.others() & !self.spent;
        if rail >= self.rails || usable & (1 << rail) == 0 {
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

mod failback;
#[cfg(test)]
mod flaps;
#[cfg(test)]
mod tests;
