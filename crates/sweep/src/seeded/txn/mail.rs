//! The messages of TCP connections between coordinators and memory nodes. Messages arrive late, and
//! in any order.

use core::time::Duration;

use mitra_txn_rdma::{Answer, Hello};
use mitra_verbs::Time;

use mitra_sim::Prng;

/// The position of a process in the list of all started processes.
pub(super) type ProcessId = usize;

pub(super) struct Mail {
    questions: Vec<(Time, ProcessId, Hello)>,
    answers: Vec<(Time, ProcessId, Hello, Answer)>,
    /// The longest delay of a message, in nanoseconds.
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

    pub(super) fn ask(&mut self, now: Time, by: ProcessId, hello: Hello) {
        let at = self.arrival(now);
        self.questions.push((at, by, hello));
    }

    pub(super) fn answer(&mut self, now: Time, to: ProcessId, hello: Hello, answer: Answer) {
        let at = self.arrival(now);
        self.answers.push((at, to, hello, answer));
    }

    pub(super) fn next_question(&mut self, now: Time, node: u16) -> Option<(ProcessId, Hello)> {
        let at = self.questions.iter().position(|(at, _, hello)| *at <= now && hello.node == node)?;
        let (_, by, hello) = self.questions.remove(at);
        Some((by, hello))
    }

    pub(super) fn next_answer(&mut self, now: Time, to: ProcessId) -> Option<(Hello, Answer)> {
        let at = self.answers.iter().position(|(at, by, _, _)| *at <= now && *by == to)?;
        let (_, _, hello, answer) = self.answers.remove(at);
        Some((hello, answer))
    }
}
