//! The messages between coordinators and memory nodes beside the NICs. They arrive late, and in any
//! order.

use core::time::Duration;

use mitra_txn_rdma::{Answer, Hello};
use mitra_verbs::Time;

use crate::Prng;

/// A process: its position among all that were ever started.
pub(super) type ProcessId = usize;

/// The messages under way.
pub(super) struct Mail {
    questions: Vec<(Time, ProcessId, Hello)>,
    answers: Vec<(Time, ProcessId, Hello, Answer)>,
    /// The longest delay of a message that is late.
    longest: u64,
    rng: Prng,
}

impl Mail {
    pub(super) fn new(longest: Duration, rng: Prng) -> Mail {
        Mail { questions: Vec::new(), answers: Vec::new(), longest: longest.as_nanos() as u64, rng }
    }

    fn arrival(&mut self, now: Time) -> Time {
        let longest = if self.rng.below(8) == 0 { self.longest } else { 60_000 };
        now + Duration::from_nanos(self.rng.between(5_000, longest.max(5_001)))
    }

    /// Sends a question to the node that it names.
    pub(super) fn ask(&mut self, now: Time, by: ProcessId, hello: Hello) {
        let at = self.arrival(now);
        self.questions.push((at, by, hello));
    }

    /// Answers a question.
    pub(super) fn answer(&mut self, now: Time, to: ProcessId, hello: Hello, answer: Answer) {
        let at = self.arrival(now);
        self.answers.push((at, to, hello, answer));
    }

    /// Takes a question that has arrived at a node.
    pub(super) fn next_question(&mut self, now: Time, node: u16) -> Option<(ProcessId, Hello)> {
        let at = self.questions.iter().position(|(at, _, hello)| *at <= now && hello.node == node)?;
        let (_, by, hello) = self.questions.remove(at);
        Some((by, hello))
    }

    /// Takes an answer that has arrived at a process, with its question.
    pub(super) fn next_answer(&mut self, now: Time, to: ProcessId) -> Option<(Hello, Answer)> {
        let at = self.answers.iter().position(|(at, by, _, _)| *at <= now && *by == to)?;
        let (_, _, hello, answer) = self.answers.remove(at);
        Some((hello, answer))
    }
}
