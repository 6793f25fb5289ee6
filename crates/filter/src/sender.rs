//! The sender's side of a [`FilterTable`](crate::FilterTable).

use core::marker::PhantomData;
use core::time::Duration;
use std::collections::VecDeque;

use crate::calls::{Action, Calls, Outcome, RetryTimer, SenderCore, Submit};
use crate::message::{Attempt, Grant, Message, Terms};
use crate::rules::{AllRules, Rules};
use mitra_mutants::Mutant;

/// The state of a sender's arbitration.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Link {
    /// The sender has no grant and does not need a grant.
    Closed,
    Opening,
    Open(OpenLink),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct OpenLink {
    grant: Grant,
    terms: Terms,
    /// The sequence number of the first call in the queue.
    first_seq: u32,
    /// The number of calls at the front of the queue that were sent under this grant.
    sent: usize,
}

/// A call that needs the filter. A call leaves the queue when it and all calls before it have
/// ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Call<B> {
    id: u64,
    body: B,
    ended: bool,
}

/// A sender: a state machine without I/O. The sender retries each call until the filter answers, or
/// until no evidence can show whether the call was executed.
///
/// A sender has one filter. The sender first *arbitrates*: it asks for a grant, which names a fresh
/// sequence. The filter executes the calls of one sender in the order of submission, except
/// idempotent calls. Several calls may be outstanding, as many as the window of the grant.
///
/// The incarnation must differ from the incarnations of all earlier senders with the same node.
/// With a greater incarnation, for example the time of the start, a late message of an earlier
/// incarnation has no effect.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sender<B, R = AllRules> {
    attempt: Attempt,
    link: Link,
    queue: VecDeque<Call<B>>,
    calls: Calls<B>,
    timer: RetryTimer,
    rules: PhantomData<R>,
}

impl<B: Clone, R: Rules> Sender<B, R> {
    /// Creates a sender with room for `max_calls` outstanding calls.
    pub fn new(incarnation: u64, max_calls: usize) -> Sender<B, R> {
        Sender {
            attempt: Attempt { era: incarnation, incarnation, number: 0 },
            link: Link::Closed,
            queue: VecDeque::new(),
            calls: Calls::new(max_calls),
            timer: RetryTimer::default(),
            rules: PhantomData,
        }
    }

    fn open(&mut self, out: &mut Vec<Action<B>>) {
        // After 2^32 attempts the number would repeat, so the next era begins.
        match self.attempt.number.checked_add(1) {
            Some(number) => self.attempt.number = number,
            None => {
                self.attempt.era = self.attempt.era.wrapping_add(1);
                self.attempt.number = 1;
            }
        }
        self.link = Link::Opening;
        out.push(Action::Send(Message::Open(self.attempt)));
    }

    /// Sends the calls that the window allows and that were not sent, or arbitrates if these calls
    /// need a grant.
    fn advance(&mut self, out: &mut Vec<Action<B>>) {
        if self.queue.is_empty() {
            return;
        }
        match &self.link {
            Link::Opening => return,
            Link::Closed => return self.open(out),
            // All sequence numbers are used, and all requests under them have ended.
            Link::Open(open) if open.sent == 0 && open.first_seq > open.terms.last_seq => {
                return self.open(out);
            }
            Link::Open(_) => {}
        }
        while let Link::Open(open) = &mut self.link {
            let seq = open.first_seq.saturating_add(open.sent as u32);
            if open.sent >= self.queue.len().min(open.terms.window.into()) || seq > open.terms.last_seq {
                return;
            }
            open.sent += 1;
            self.send(seq, out);
        }
    }

    fn send(&self, seq: u32, out: &mut Vec<Action<B>>) {
        let Link::Open(open) = &self.link else { return };
        let call = &self.queue[(seq - open.first_seq) as usize];
        let confirmed = if R::CONFIRMS_RECEIVED { open.first_seq - 1 } else { seq - 1 };
        let body = call.body.clone();
        out.push(Action::Send(Message::Request { grant: open.grant, seq, confirmed, body }));
    }

    fn take_offer(&mut self, attempt: Attempt, grant: Grant, terms: Terms) -> bool {
        if self.link != Link::Opening
            || (R::MATCHES_OFFERS && !Mutant::EarlierOfferTaken.is_on() && attempt != self.attempt)
        {
            return false;
        }
        self.link = Link::Open(OpenLink { grant, terms, first_seq: 1, sent: 0 });
        true
    }

    fn take_reply(&mut self, grant: Grant, seq: u32, body: B, out: &mut Vec<Action<B>>) -> bool {
        let Link::Open(open) = &mut self.link else { return false };
        let index = if R::MATCHES_REPLIES && !Mutant::ReplyTakenForAnother.is_on() {
            seq.checked_sub(open.first_seq).map(|i| i as usize)
        } else {
            Some(0)
        };
        let Some(index) = index.filter(|&i| open.grant == grant && i < open.sent) else { return false };
        let call = &mut self.queue[index];
        if call.ended {
            return false;
        }
        call.ended = true;
        out.push(Action::Done { call: call.id, outcome: Outcome::Answered(body) });
        while self.queue.front().is_some_and(|call| call.ended) {
            self.queue.pop_front();
            open.first_seq += 1;
            open.sent -= 1;
            if !R::ARBITRATES_AT_WRAP && open.first_seq > open.terms.last_seq {
                open.first_seq = 1;
            }
        }
        true
    }

    /// The filter has no row for the grant. No evidence shows whether a request that was sent under
    /// the grant was executed.
    fn lose_grant(&mut self, grant: Grant, out: &mut Vec<Action<B>>) -> bool {
        let Link::Open(open) = &self.link else { return false };
        if open.grant != grant {
            return false;
        }
        let sent = if R::REPORTS_UNKNOWN && !Mutant::UnknownCallRepeated.is_on() { open.sent } else { 0 };
        for call in self.queue.drain(..sent) {
            if !call.ended {
                out.push(Action::Done { call: call.id, outcome: Outcome::Unknown });
            }
        }
        self.link = Link::Closed;
        true
    }

    fn release(&mut self, grant: Grant, out: &mut Vec<Action<B>>) {
        match &self.link {
            // The grant may be in the offer that the sender waits for.
            Link::Opening => return,
            Link::Open(open) if open.grant == grant => {
                if R::RELEASES_ONLY_IDLE && open.sent > 0 {
                    return;
                }
                self.link = Link::Closed;
            }
            _ => {}
        }
        out.push(Action::Send(Message::Release(grant)));
    }
}

impl<B: Clone, R: Rules> SenderCore<B> for Sender<B, R> {
    fn submit(&mut self, body: B, out: &mut Vec<Action<B>>) -> Submit {
        let Some(id) = self.calls.next_id(self.queue.len()) else { return Submit::Full };
        self.queue.push_back(Call { id, body, ended: false });
        self.advance(out);
        self.timer.start(out);
        Submit::Accepted(id)
    }

    fn submit_idempotent(&mut self, body: B, out: &mut Vec<Action<B>>) -> Submit {
        let Some(id) = self.calls.submit(self.queue.len(), self.attempt.incarnation, body, out) else {
            return Submit::Full;
        };
        self.timer.start(out);
        Submit::Accepted(id)
    }

    fn receive(&mut self, message: Message<B>, out: &mut Vec<Action<B>>) {
        let progress = match message {
            Message::Offer(attempt, grant, terms) => self.take_offer(attempt, grant, terms),
            Message::Reply { grant, seq, body } => self.take_reply(grant, seq, body, out),
            Message::NoGrant(grant) => self.lose_grant(grant, out),
            Message::Reclaim(grant) => {
                self.release(grant, out);
                false
            }
            Message::Superseded(attempt, latest) => {
                let refused = self.link == Link::Opening && attempt == self.attempt && latest >= attempt.era;
                if refused {
                    self.attempt = Attempt { era: latest.saturating_add(1), number: 0, ..self.attempt };
                    self.link = Link::Closed;
                }
                refused
            }
            Message::CallReply { incarnation, id, body } => self.calls.take_reply(incarnation, id, body, out),
            // The timer sends `Open` again, with back-off.
            Message::Full(_) => false,
            // These are messages to a filter.
            Message::Open(_)
            | Message::Request { .. }
            | Message::Release(_)
            | Message::Call { .. }
            // A sender of this kind sends no bit.
            | Message::BitRequest { .. }
            | Message::BitReply { .. } => false,
        };
        if progress {
            self.advance(out);
            self.timer.restart(self.outstanding() > 0, out);
        }
    }

    fn timeout(&mut self, out: &mut Vec<Action<B>>) {
        match &self.link {
            Link::Closed => {}
            Link::Opening => out.push(Action::Send(Message::Open(self.attempt))),
            Link::Open(open) => {
                for (index, seq) in (open.first_seq..).take(open.sent).enumerate() {
                    if !self.queue[index].ended {
                        self.send(seq, out);
                    }
                }
            }
        }
        self.calls.resend(out);
        self.timer.expired(self.outstanding() > 0, out);
    }

    fn abandon(&mut self, out: &mut Vec<Action<B>>) {
        for call in self.queue.drain(..).filter(|call| !call.ended) {
            out.push(Action::Done { call: call.id, outcome: Outcome::Unknown });
        }
        self.calls.abandon(out);
        self.link = Link::Closed;
        self.timer.restart(false, out);
    }

    fn outstanding(&self) -> usize {
        self.queue.len() + self.calls.len()
    }

    fn lease(&self) -> Option<Duration> {
        match &self.link {
            Link::Open(open) => Some(Duration::from_millis(open.terms.lease_ms.into())),
            _ => None,
        }
    }

    fn expire_grant(&mut self) {
        if self.queue.is_empty() && self.link != Link::Opening {
            self.link = Link::Closed;
        }
    }
}
