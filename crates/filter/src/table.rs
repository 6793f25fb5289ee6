//! The filter for nodes that come and go, over a carrier that loses, repeats and reorders messages.

use core::marker::PhantomData;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use mitra_mutants::Mutant;
use mitra_verbs::Time;

use crate::filter::{FilterAction, FilterCore, Ticket, Verdict};
use crate::message::{Attempt, Grant, Message, Terms};
use crate::rules::{AllRules, Rules};

/// The dimensions of a filter table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TableConfig {
    /// The maximum number of nodes with a grant. The table never has more rows.
    pub rows: usize,
    /// The maximum number of requests of one node whose replies the node does not yet have. A row
    /// keeps at most this number of replies.
    pub window: u16,
    /// The number of requests after which a node must arbitrate again.
    pub requests_per_grant: u32,
    /// The time after which the row of a silent node may be evicted. A request that this node had
    /// outstanding then ends as [`Outcome::Unknown`](crate::Outcome::Unknown). The lease should be
    /// many times the longest time for which a message is delayed or retried.
    pub lease: Duration,
}

impl Default for TableConfig {
    /// A table of 1024 nodes with 16 outstanding requests each, and a lease of 10 s.
    fn default() -> TableConfig {
        TableConfig {
            rows: 1024,
            window: 16,
            requests_per_grant: u32::MAX - 1,
            lease: Duration::from_secs(10),
        }
    }
}

/// The state of one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Row<B> {
    attempt: Attempt,
    number: u64,
    /// The sequence number of the last request that was executed or is being executed.
    last: u32,
    /// The replies to the last requests, up to `last`. `None` while the request is being executed.
    replies: VecDeque<Option<B>>,
    /// The time of the node's last request under this grant, or of a later incarnation's attempt.
    heard: Time,
    /// The grants that were offered to other incarnations of the node and have no request yet, the
    /// earliest first: at most one for each incarnation, and at most [`MAX_OFFERS`]. The first
    /// request under an offered grant replaces this row.
    ///
    /// The row and the other offers stay until this request, because an attempt may be a late
    /// message of an incarnation that has ended and had a greater number.
    offers: VecDeque<Offered>,
}

/// The maximum number of offers of a row. A further offer ends the earliest offer.
const MAX_OFFERS: usize = 8;

/// A grant that was offered to an incarnation while another incarnation has the row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Offered {
    attempt: Attempt,
    number: u64,
}

impl<B> Row<B> {
    fn new(attempt: Attempt, number: u64, now: Time) -> Row<B> {
        Row { attempt, number, last: 0, replies: VecDeque::new(), heard: now, offers: VecDeque::new() }
    }

    fn is_executing(&self) -> bool {
        self.replies.iter().any(Option::is_none)
    }

    /// The last attempt of an incarnation that has the row or an offer.
    fn attempt_of(&self, incarnation: u64) -> Option<Offered> {
        let row = Offered { attempt: self.attempt, number: self.number };
        self.offers.iter().copied().chain([row]).find(|offer| offer.attempt.incarnation == incarnation)
    }

    /// The last attempt of all incarnations.
    fn latest(&self) -> Attempt {
        self.offers.iter().fold(self.attempt, |latest, offer| latest.max(offer.attempt))
    }

    fn add_offer(&mut self, offer: Offered) {
        self.offers.retain(|earlier| earlier.attempt.incarnation != offer.attempt.incarnation);
        if self.offers.len() == MAX_OFFERS {
            self.offers.pop_front();
        }
        self.offers.push_back(offer);
    }

    /// Accepts the offer with this index and ends the earlier offers.
    fn accept_offer(&mut self, index: usize, now: Time) {
        let accepted = self.offers.drain(..=index).next_back();
        if let Some(offer) = accepted {
            self.replace(offer, now);
        }
    }

    /// Replaces the row by a row of another grant. The offers stay.
    fn replace(&mut self, grant: Offered, now: Time) {
        let offers = core::mem::take(&mut self.offers);
        *self = Row { offers, ..Row::new(grant.attempt, grant.number, now) };
    }
}

/// A filter table: a state machine without I/O. The table has one row ⟨node, last sequence number,
/// replies⟩ for each node with a grant, and passes on each request of such a node exactly once.
///
/// The table accepts no request without state that recognizes a copy of it: a request needs a grant
/// that is in the table. After a row is evicted, its grant is never valid again, so the table
/// refuses all copies of requests under it. A full table refuses further nodes and asks the least
/// recently heard node to give its row back. A node that does not answer loses its row after the
/// lease.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FilterTable<N: Ord, B, R = AllRules> {
    incarnation: u64,
    config: TableConfig,
    /// The number of the last grant.
    last_number: u64,
    rows: BTreeMap<N, Row<B>>,
    rules: PhantomData<R>,
}

impl<N: Copy + Ord, B: Clone, R: Rules> FilterTable<N, B, R> {
    /// Creates an empty table. The incarnation must differ from the incarnations of all earlier
    /// filters with the same address. A random number is sufficient. Dimensions of 0 become 1.
    pub fn new(incarnation: u64, config: TableConfig) -> FilterTable<N, B, R> {
        let config = TableConfig {
            rows: config.rows.max(1),
            window: config.window.max(1),
            // A message with `last_seq` = `u32::MAX` is not valid.
            requests_per_grant: config.requests_per_grant.clamp(1, u32::MAX - 1),
            lease: config.lease,
        };
        FilterTable { incarnation, config, last_number: 0, rows: BTreeMap::new(), rules: PhantomData }
    }

    /// Returns the number of nodes with a grant.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether no node has a grant.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn terms(&self) -> Terms {
        Terms {
            window: self.config.window,
            last_seq: self.config.requests_per_grant,
            lease_ms: u32::try_from(self.config.lease.as_millis()).unwrap_or(u32::MAX),
        }
    }

    fn grant(&self, number: u64) -> Grant {
        Grant { receiver: self.incarnation, number }
    }

    fn offer(&self, node: N, attempt: Attempt, number: u64) -> FilterAction<N, B> {
        FilterAction::Send(node, Message::Offer(attempt, self.grant(number), self.terms()))
    }

    fn new_number(&mut self) -> u64 {
        self.last_number =
            if R::NUMBERS_GRANTS && !Mutant::GrantsUnnumbered.is_on() { self.last_number + 1 } else { 1 };
        self.last_number
    }

    fn open(&mut self, now: Time, node: N, attempt: Attempt, out: &mut Vec<FilterAction<N, B>>) -> Verdict {
        if let Some(row) = self.rows.get(&node) {
            let own = row.attempt_of(attempt.incarnation);
            let latest = own.map_or_else(|| row.latest(), |own| own.attempt);
            if R::IGNORES_EARLIER_ATTEMPTS && attempt < latest {
                if own.is_some() {
                    return Verdict::Ignored;
                }
                out.push(FilterAction::Send(node, Message::Superseded(attempt, latest.era)));
                return Verdict::Refused;
            }
            if let Some(own) = own.filter(|own| R::RECOGNIZES_OPEN && attempt == own.attempt) {
                out.push(self.offer(node, attempt, own.number));
                return Verdict::Copy;
            }
            // All calls of a sender that opens again have ended. The row must stay while a copy of
            // a request is being executed.
            if row.attempt.incarnation == attempt.incarnation && row.is_executing() {
                return Verdict::Ignored;
            }
        } else if !self.make_room(now, node, attempt, out) {
            return Verdict::Refused;
        }
        let number = self.new_number();
        match self.rows.get_mut(&node) {
            Some(row) if row.attempt.incarnation != attempt.incarnation => {
                row.heard = now;
                row.add_offer(Offered { attempt, number });
            }
            Some(row) => row.replace(Offered { attempt, number }, now),
            None => drop(self.rows.insert(node, Row::new(attempt, number, now))),
        }
        out.push(self.offer(node, attempt, number));
        Verdict::Granted
    }

    /// Returns whether a row is free. If no row is free, asks the least recently heard node for its
    /// row and refuses `node`.
    fn make_room(&mut self, now: Time, node: N, attempt: Attempt, out: &mut Vec<FilterAction<N, B>>) -> bool {
        if self.rows.len() < self.config.rows {
            return true;
        }
        let unused = self.rows.iter().filter(|(_, row)| !row.is_executing());
        let oldest = unused.min_by_key(|(_, row)| row.heard).map(|(&n, row)| (n, row.heard, row.number));
        if let Some((oldest, heard, number)) = oldest {
            if !R::EVICTS_ONLY_UNUSED
                || Mutant::UsedRowEvicted.is_on()
                || now.saturating_since(heard) >= self.config.lease
            {
                self.rows.remove(&oldest);
                return true;
            }
            out.push(FilterAction::Send(oldest, Message::Reclaim(self.grant(number))));
        }
        out.push(FilterAction::Send(node, Message::Full(attempt)));
        false
    }

    /// Removes the row of a grant that its sender gives back. If the row has offers, the
    /// incarnation with the earliest offer gets the row.
    fn release(&mut self, now: Time, node: N, grant: Grant) {
        let Some(row) = self.rows.get_mut(&node).filter(|row| !row.is_executing()) else { return };
        if grant.receiver != self.incarnation {
            return;
        }
        if row.number != grant.number {
            row.offers.retain(|offer| offer.number != grant.number);
        } else if row.offers.is_empty() {
            self.rows.remove(&node);
        } else {
            row.accept_offer(0, now);
        }
    }

    fn request(
        &mut self,
        now: Time,
        node: N,
        (grant, seq, confirmed): (Grant, u32, u32),
        body: B,
        out: &mut Vec<FilterAction<N, B>>,
    ) -> Verdict {
        if !R::REFUSES_WITHOUT_GRANT && !self.rows.contains_key(&node) {
            let attempt = Attempt { era: 0, incarnation: 0, number: 0 };
            if !self.make_room(now, node, attempt, out) {
                return Verdict::Refused;
            }
            self.rows.insert(node, Row { last: seq - 1, ..Row::new(attempt, grant.number, now) });
        }
        let is_present = grant.receiver == self.incarnation
            || !R::CHECKS_INCARNATION
            || Mutant::EarlierFilterTrusted.is_on();
        if let Some(row) = self.rows.get_mut(&node).filter(|_| is_present)
            && let Some(index) = row.offers.iter().position(|offer| offer.number == grant.number)
        {
            // A request of the earlier incarnation may still be executed.
            if row.is_executing() {
                return Verdict::Ignored;
            }
            row.accept_offer(index, now);
        }
        let row = self.rows.get_mut(&node).filter(|row| is_present && row.number == grant.number);
        let Some(row) = row else {
            out.push(FilterAction::Send(node, Message::NoGrant(grant)));
            return Verdict::Refused;
        };
        if !Mutant::LeaseNotRenewed.is_on() {
            row.heard = now;
        }
        // The sequence number before the first reply in the row.
        let before = row.last - row.replies.len() as u32;
        let confirmed =
            confirmed.saturating_sub(before) as usize + usize::from(Mutant::ReplyForgottenEarly.is_on());
        row.replies.drain(..confirmed.min(row.replies.len()));
        let is_copy = if R::RECOGNIZES_LAST && !Mutant::LastRequestRepeated.is_on() {
            seq <= row.last
        } else {
            seq < row.last
        };
        if is_copy {
            let age = (row.last - seq) as usize;
            let reply = row.replies.iter().rev().nth(age).cloned().flatten();
            if let (Some(body), true) = (reply, R::KEEPS_REPLIES) {
                out.push(FilterAction::Send(node, Message::Reply { grant, seq, body }));
            }
            return Verdict::Copy;
        }
        let is_next =
            seq.saturating_sub(row.last) <= 1 || !R::EXECUTES_IN_ORDER || Mutant::RequestsReordered.is_on();
        let has_room = row.replies.len() < self.config.window.into();
        if !is_next || !has_room || seq > self.config.requests_per_grant {
            return Verdict::Ignored;
        }
        row.last = seq;
        row.replies.push_back(None);
        out.push(FilterAction::Execute(Ticket::Request { node, grant, seq }, body));
        Verdict::Executed
    }
}

impl<N: Copy + Ord, B: Clone, R: Rules> FilterCore<N, B> for FilterTable<N, B, R> {
    fn receive(
        &mut self,
        now: Time,
        node: N,
        message: Message<B>,
        out: &mut Vec<FilterAction<N, B>>,
    ) -> Verdict {
        match message {
            Message::Open(attempt) => self.open(now, node, attempt, out),
            Message::Request { grant, seq, confirmed, body } if seq > 0 => {
                self.request(now, node, (grant, seq, confirmed), body, out)
            }
            Message::Release(grant) => {
                self.release(now, node, grant);
                Verdict::Ignored
            }
            Message::Call { incarnation, id, body } => {
                out.push(FilterAction::Execute(Ticket::Call { node, incarnation, id }, body));
                Verdict::Executed
            }
            _ => Verdict::Ignored,
        }
    }

    fn complete(&mut self, ticket: Ticket<N>, reply: B, out: &mut Vec<FilterAction<N, B>>) {
        match ticket {
            Ticket::Request { node, grant, seq } => {
                let Some(row) = self.rows.get_mut(&node) else { return };
                if row.number != grant.number || row.last < seq {
                    return;
                }
                let age = (row.last - seq) as usize;
                if let Some(saved) = row.replies.iter_mut().rev().nth(age) {
                    *saved = Some(reply.clone());
                }
                out.push(FilterAction::Send(node, Message::Reply { grant, seq, body: reply }));
            }
            Ticket::Call { node, incarnation, id } => {
                let message = Message::CallReply { incarnation, id, body: reply };
                out.push(FilterAction::Send(node, message));
            }
            Ticket::Bit { .. } => {}
        }
    }
}
