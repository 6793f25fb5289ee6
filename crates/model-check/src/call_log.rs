//! The record of the calls of a world with an endpoint filter, and the properties of exactly-once
//! execution.

use std::collections::VecDeque;

use mitra_filter::{FilterAction, FilterCore, Message, Outcome};

/// The content of a call: the node that made it, and its number among the node's calls.
pub type Body = (u8, u8);
/// A reply: `u8::MAX`, and the number of the execution that produced the reply.
pub type Reply = (u8, u8);

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct CallLog {
    /// The executed calls in order.
    executions: Vec<Body>,
    /// The calls with a reply, each with the number of the execution.
    answers: Vec<(Body, u8)>,
    /// Whether a call ended as unknown although no state was lost.
    pub(crate) groundless: bool,
}

impl CallLog {
    fn execute(&mut self, body: Body) -> Reply {
        self.executions.push(body);
        (u8::MAX, self.executions.len() as u8 - 1)
    }

    /// Performs the actions of a filter: executes the calls, gives the filter their replies, and
    /// returns the messages to send, in order.
    pub(crate) fn perform<N>(
        &mut self,
        filter: &mut impl FilterCore<N, Body>,
        actions: Vec<FilterAction<N, Body>>,
    ) -> Vec<(N, Message<Body>)> {
        let mut actions = VecDeque::from(actions);
        let mut messages = Vec::new();
        while let Some(action) = actions.pop_front() {
            match action {
                FilterAction::Send(node, message) => messages.push((node, message)),
                FilterAction::Execute(ticket, body) => {
                    let mut out = Vec::new();
                    filter.complete(ticket, self.execute(body), &mut out);
                    actions.extend(out);
                }
            }
        }
        messages
    }

    /// Records the result of a call. `state_was_lost` says whether a call may be unknown.
    pub(crate) fn end(&mut self, body: Body, outcome: &Outcome<Reply>, state_was_lost: bool) {
        match outcome {
            Outcome::Answered((_, execution)) => self.answers.push((body, *execution)),
            Outcome::Unknown => self.groundless |= !state_was_lost,
        }
    }

    pub(crate) fn at_most_once(&self) -> bool {
        self.executions.iter().enumerate().all(|(i, body)| !self.executions[..i].contains(body))
    }

    /// Returns whether every reply is from the execution of its call.
    pub(crate) fn replies_are_right(&self) -> bool {
        self.answers
            .iter()
            .all(|(body, execution)| self.executions.get(usize::from(*execution)) == Some(body))
    }

    /// Returns whether the calls of each node were executed in the order in which the node made
    /// them.
    pub(crate) fn is_in_order(&self) -> bool {
        self.executions.iter().enumerate().all(|(i, &(node, number))| {
            self.executions[..i].iter().all(|&(other, earlier)| other != node || earlier <= number)
        })
    }

    /// Returns the first property that does not hold. Does not check whether calls end.
    pub(crate) fn violated(&self) -> Option<&'static str> {
        [
            ("at most once", self.at_most_once()),
            ("right reply", self.replies_are_right()),
            ("order", self.is_in_order()),
            ("unknown only after lost state", !self.groundless),
        ]
        .into_iter()
        .find_map(|(name, holds)| (!holds).then_some(name))
    }
}

pub(crate) const PROPERTIES: &[&str] =
    &["at most once", "right reply", "order", "unknown only after lost state", "calls end"];
