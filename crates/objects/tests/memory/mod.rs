//! A memory on which tests execute operations without a NIC, with outcomes that the tests choose.
#![allow(dead_code, unreachable_pub)] // each test binary uses some of the helpers

use mitra_objects::{Operation, Outcome, Progress, Request, Word, WordOp};
use mitra_verbs::{Key, RemoteAddr};

/// The number of requests of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    pub reads: usize,
    pub writes: usize,
    pub cas: usize,
    pub faa: usize,
    /// The number of batches: each takes a round trip.
    pub round_trips: usize,
}

#[derive(Default)]
pub struct Memory {
    pub words: [u64; 16],
    pub cost: Cost,
}

pub fn word(index: u64) -> Word {
    Word::new(RemoteAddr { addr: 8 * index, rkey: Key(1) }).unwrap()
}

/// The execution of a batch of requests.
pub enum Fate {
    /// All requests are executed.
    Executed,
    /// The first `executed` requests are executed, and the operation gets these outcomes. `None`
    /// stands for the value that the request returned.
    Failed { executed: usize, outcomes: Vec<Option<Outcome>> },
}

impl Memory {
    pub fn execute(&mut self, request: Request) -> u64 {
        let word = &mut self.words[(request.word.remote().addr / 8) as usize];
        let before = *word;
        match request.op {
            WordOp::Read => self.cost.reads += 1,
            WordOp::Write(value) => {
                self.cost.writes += 1;
                *word = value;
                return 0;
            }
            WordOp::CompareSwap { compare, swap } => {
                self.cost.cas += 1;
                if before == compare {
                    *word = swap;
                }
            }
            WordOp::FetchAdd(add) => {
                self.cost.faa += 1;
                *word = before.wrapping_add(add);
            }
        }
        before
    }

    pub fn run<O: Operation>(&mut self, operation: O) -> O::Output {
        self.run_with(operation, [])
    }

    /// Runs an operation. `fates` apply to the first batches. All later batches are executed.
    pub fn run_with<O: Operation>(
        &mut self,
        mut operation: O,
        fates: impl IntoIterator<Item = Fate>,
    ) -> O::Output {
        let mut fates = fates.into_iter();
        let mut progress = operation.start();
        for _ in 0..100 {
            let requests = match progress {
                Progress::Done(output) => return output,
                Progress::Post(requests) => requests,
            };
            self.cost.round_trips += 1;
            let (executed, given) = match fates.next().unwrap_or(Fate::Executed) {
                Fate::Executed => (requests.len(), vec![None; requests.len()]),
                Fate::Failed { executed, outcomes } => (executed, outcomes),
            };
            assert_eq!(given.len(), requests.len(), "one outcome for each of {requests:?}");
            let values: Vec<u64> =
                requests[..executed].iter().map(|&request| self.execute(request)).collect();
            let outcomes: Vec<Outcome> = given
                .into_iter()
                .enumerate()
                .map(|(n, outcome)| outcome.unwrap_or_else(|| Outcome::Executed { value: values[n] }))
                .collect();
            progress = operation.on_outcomes(&outcomes);
        }
        panic!("the operation does not end");
    }
}
