//! The common parts of both kinds of senders: the interface, idempotent calls, and the retry timer.

use core::time::Duration;
use std::collections::VecDeque;

use crate::message::Message;

/// The number of times that the retry interval doubles.
pub const MAX_DOUBLINGS: u8 = 10;

/// A request of a sender to its driver.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action<B> {
    /// Send a message to the filter.
    Send(Message<B>),
    /// Call [`SenderCore::timeout`] after the retry interval, doubled this number of times, at most
    /// [`MAX_DOUBLINGS`]. Replaces the timer that was set before.
    SetTimer {
        /// The number of doublings.
        doublings: u8,
    },
    /// Nothing is outstanding: remove the timer.
    StopTimer,
    /// A call has ended.
    Done {
        /// The number of the call.
        call: u64,
        /// The result.
        outcome: Outcome<B>,
    },
}

/// The result of a call.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome<B> {
    /// The reply to the call. The call was executed, exactly once unless it is idempotent.
    Answered(B),
    /// The filter lost its state while the call was outstanding, or the connection ended. The call
    /// was executed once or not at all, and no evidence shows which.
    Unknown,
}

/// The result of submitting a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum Submit {
    /// The call has this number.
    Accepted(u64),
    /// The sender has no room for another outstanding call, and added none.
    Full,
}

/// A sender of calls: a state machine without I/O.
pub trait SenderCore<B> {
    /// Adds a call that must be executed exactly once.
    fn submit(&mut self, body: B, out: &mut Vec<Action<B>>) -> Submit;
    /// Adds a call that may be executed several times, at any time until it is answered, and in any
    /// order with other calls.
    fn submit_idempotent(&mut self, body: B, out: &mut Vec<Action<B>>) -> Submit;
    /// Handles a message from the filter.
    fn receive(&mut self, message: Message<B>, out: &mut Vec<Action<B>>);
    /// Sends the outstanding calls again. The driver calls this function when the timer of
    /// [`Action::SetTimer`] expires.
    fn timeout(&mut self, out: &mut Vec<Action<B>>);
    /// Ends all outstanding calls as [`Outcome::Unknown`].
    fn abandon(&mut self, out: &mut Vec<Action<B>>);
    /// Returns the number of outstanding calls.
    fn outstanding(&self) -> usize;
    /// Returns the time for which the filter keeps the state of a silent sender, or `None` if the
    /// filter sets no limit.
    fn lease(&self) -> Option<Duration>;
    /// Makes the sender arbitrate again before its next call, if no call is outstanding. The driver
    /// calls this function when the filter may have received nothing from the sender for a large
    /// part of the lease, and may therefore have evicted the sender.
    fn expire_grant(&mut self);
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct RetryTimer {
    is_set: bool,
    doublings: u8,
}

impl RetryTimer {
    /// A call is outstanding.
    pub(crate) fn start<B>(&mut self, out: &mut Vec<Action<B>>) {
        if !self.is_set {
            self.restart(true, out);
        }
    }

    /// The filter has answered, so the back-off ends. `outstanding` says whether another answer is
    /// expected.
    pub(crate) fn restart<B>(&mut self, outstanding: bool, out: &mut Vec<Action<B>>) {
        self.doublings = 0;
        self.is_set = outstanding;
        out.push(if outstanding { Action::SetTimer { doublings: 0 } } else { Action::StopTimer });
    }

    /// The timer has expired, and everything was sent again.
    pub(crate) fn expired<B>(&mut self, outstanding: bool, out: &mut Vec<Action<B>>) {
        self.is_set = outstanding;
        self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
        if outstanding {
            out.push(Action::SetTimer { doublings: self.doublings });
        }
    }
}

/// The outstanding idempotent calls of a sender, and the numbers of all its calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Calls<B> {
    next_id: u64,
    max_calls: usize,
    /// The incarnation, the number and the content of each call.
    idempotent: VecDeque<(u64, u64, B)>,
}

impl<B: Clone> Calls<B> {
    pub(crate) fn new(max_calls: usize) -> Calls<B> {
        Calls { next_id: 1, max_calls, idempotent: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.idempotent.len()
    }

    /// Returns the number of the next call, or `None` if there is no room for it. `queued` is the
    /// number of outstanding calls that are not idempotent.
    pub(crate) fn next_id(&mut self, queued: usize) -> Option<u64> {
        if queued + self.idempotent.len() >= self.max_calls {
            return None;
        }
        self.next_id += 1;
        Some(self.next_id - 1)
    }

    pub(crate) fn submit(
        &mut self,
        queued: usize,
        incarnation: u64,
        body: B,
        out: &mut Vec<Action<B>>,
    ) -> Option<u64> {
        let id = self.next_id(queued)?;
        self.idempotent.push_back((incarnation, id, body.clone()));
        out.push(Action::Send(Message::Call { incarnation, id, body }));
        Some(id)
    }

    /// Returns whether the reply is to an outstanding call.
    pub(crate) fn take_reply(
        &mut self,
        incarnation: u64,
        id: u64,
        body: B,
        out: &mut Vec<Action<B>>,
    ) -> bool {
        let call = self.idempotent.iter().position(|call| (call.0, call.1) == (incarnation, id));
        let Some(index) = call else { return false };
        self.idempotent.remove(index);
        out.push(Action::Done { call: id, outcome: Outcome::Answered(body) });
        true
    }

    pub(crate) fn resend(&self, out: &mut Vec<Action<B>>) {
        for &(incarnation, id, ref body) in &self.idempotent {
            out.push(Action::Send(Message::Call { incarnation, id, body: body.clone() }));
        }
    }

    pub(crate) fn abandon(&mut self, out: &mut Vec<Action<B>>) {
        for (_, call, _) in self.idempotent.drain(..) {
            out.push(Action::Done { call, outcome: Outcome::Unknown });
        }
    }
}
