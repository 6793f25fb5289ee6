//! A recoverable counter, and the check that each add counts once.

use std::cell::RefCell;
use std::rc::Rc;

use mitra_driver::Connection;
use mitra_objects::recoverable_counter::{Add, CounterClient, CounterLayout};
use mitra_objects::{Execution, PathError, ReadWord, Word};
use mitra_verbs::Buffer;

use super::client::{Script, Turn};
use super::shared_object::{SharedObject, Violations};
use super::{Finding, ObjectMemory};
use mitra_sim::Prng;

const CHECKER: &str = "counter";

/// An executed add: the previous value, if the client knows it, and the number added.
type Executed = (Option<i64>, i64);

/// What the clients know. An add returns the value before the add. All adds have the same sign, so
/// these values tell the order of the adds.
#[derive(Default)]
struct Record {
    executed: Vec<Executed>,
    /// The sums of all executed adds, and of all adds that have begun and may be executed.
    executed_sum: i64,
    begun_sum: i64,
}

impl Record {
    /// Checks that no two adds overlap, and that the adds sum up to `last`. All adds are positive:
    /// the caller multiplies values by the sign.
    fn check(&self, last: i64, all_finished: bool) -> Result<(), String> {
        let sums_up = match all_finished {
            true => last == self.executed_sum,
            false => (self.executed_sum..=self.begun_sum).contains(&last),
        };
        if !sums_up {
            let Record { executed_sum, begun_sum, .. } = self;
            return Err(format!("the value is {last} after adds of {executed_sum}, {begun_sum} begun"));
        }
        let mut known: Vec<(i64, i64)> =
            self.executed.iter().filter_map(|&(before, add)| Some((before?, add))).collect();
        known.sort_unstable();
        let mut end = 0;
        for (before, add) in known {
            if before < end {
                return Err(format!("an add of {add} found {before}, where another add left {end}"));
            }
            end = before + add;
        }
        if end > last { Err(format!("an add left {end}, and the value is {last}")) } else { Ok(()) }
    }
}

#[derive(Clone)]
pub(super) struct Counter {
    word: Word,
    offset: usize,
    layout: CounterLayout,
    sign: i64,
    record: Rc<RefCell<Record>>,
    violations: Violations,
}

impl Counter {
    pub(super) fn new(memory: &mut ObjectMemory, clients: usize, rng: &mut Prng) -> Counter {
        let (word, offset) = memory.allocate(8);
        let layout = CounterLayout::new(clients as u8, rng.between(1, 3) as u8).expect("few clients");
        let sign = *rng.pick(&[1, -1]);
        Counter { word, offset, layout, sign, record: Rc::default(), violations: Violations::default() }
    }
}

impl SharedObject for Counter {
    fn script(&self, client: usize, rng: &mut Prng) -> Box<dyn Script> {
        let requester = client as u8;
        let client = CounterClient::new(self.word, self.layout, requester).expect("a field each");
        Box::new(CounterScript {
            counter: self.clone(),
            new: client.clone(),
            requester,
            state: State::Idle(client),
            executed: 0,
            contributed: 0,
            under_way: Vec::new(),
            calls_left: rng.between(5, 30),
            rng: Prng::new(rng.bits()),
        })
    }

    fn findings(&self, memory: &Buffer, all_finished: bool) -> Vec<Finding> {
        let value = self.layout.value(memory.load(self.offset));
        if let Err(what) = self.record.borrow().check(self.sign * value, all_finished) {
            self.violations.add(what);
        }
        self.violations.findings(CHECKER)
    }
}

struct CounterScript {
    counter: Counter,
    /// The client before its first add.
    new: CounterClient,
    requester: u8,
    state: State,
    /// The number and the sum of the executed adds, and the adds in flight. A crash does not lose
    /// these three.
    executed: u64,
    contributed: i64,
    under_way: Vec<i64>,
    calls_left: u64,
    rng: Prng,
}

enum State {
    Idle(CounterClient),
    Adding(Box<Execution<Add>>),
    /// The number is the least value that the read may return.
    Reading(Execution<ReadWord>, CounterClient, i64),
    Restarting(Execution<ReadWord>),
    Broken,
}

impl CounterScript {
    fn begin(&mut self, client: CounterClient) {
        self.calls_left -= 1;
        if self.rng.below(4) == 0 {
            let at_least = self.counter.record.borrow().executed_sum;
            self.state = State::Reading(Execution::new(client.read()), client, at_least);
            return;
        }
        let count = self.rng.between(1, self.counter.layout.max_adds().into());
        self.under_way = (0..count).map(|_| self.rng.between(1, 1000) as i64).collect();
        self.counter.record.borrow_mut().begun_sum += self.under_way.iter().sum::<i64>();
        let deltas: Vec<i64> = self.under_way.iter().map(|delta| self.counter.sign * delta).collect();
        self.state = match client.add_all(&deltas) {
            Ok(add) => State::Adding(Box::new(Execution::new(add))),
            Err((_, error)) => self.broken(error.to_string()),
        };
    }

    fn broken(&self, what: String) -> State {
        self.counter.violations.add(what);
        State::Broken
    }

    /// Ends the adds in flight. `previous` has an element for each executed add, in order. The
    /// other adds will never be executed.
    fn end_adds(&mut self, previous: &[Option<i64>]) {
        let record = &mut *self.counter.record.borrow_mut();
        for (nth, add) in self.under_way.drain(..).enumerate() {
            match previous.get(nth) {
                Some(before) => {
                    record.executed.push((before.map(|value| self.counter.sign * value), add));
                    record.executed_sum += add;
                    self.contributed += add;
                    self.executed += 1;
                }
                None => record.begun_sum -= add,
            }
        }
    }

    /// Continues after a crash. The field in the content of the word tells how many adds were
    /// executed.
    fn restart(&mut self, content: u64) -> State {
        let field = self.counter.layout.field(content, self.requester);
        let executed = field.wrapping_sub(self.executed) & u64::from(self.counter.layout.max_adds());
        if executed > self.under_way.len() as u64 {
            return self.broken(format!("{executed} of {} adds were executed", self.under_way.len()));
        }
        self.end_adds(&vec![None; executed as usize]);
        match self.new.clone().resume(content, self.counter.sign * self.contributed) {
            Ok(client) => State::Idle(client),
            Err(error) => self.broken(error.to_string()),
        }
    }
}

impl Script for CounterScript {
    fn on_new_path(&mut self, has_crashed: bool) {
        if has_crashed && !matches!(self.state, State::Broken) {
            self.state = State::Restarting(Execution::new(ReadWord(self.counter.word)));
            return;
        }
        match &mut self.state {
            State::Adding(execution) => execution.fenced(),
            State::Reading(execution, ..) | State::Restarting(execution) => execution.fenced(),
            State::Idle(_) | State::Broken => {}
        }
    }

    fn poll(&mut self, path: &mut Connection) -> Result<Turn, PathError> {
        match &mut self.state {
            State::Broken => return Ok(Turn::Ended),
            State::Idle(_) if self.calls_left == 0 => return Ok(Turn::Ended),
            State::Idle(client) => {
                let client = client.clone();
                self.begin(client);
                return Ok(Turn::Begun);
            }
            State::Adding(execution) => {
                let Some(result) = execution.poll(path)? else { return Ok(Turn::Running) };
                self.state = match result {
                    Ok(added) => {
                        self.end_adds(&added.previous);
                        State::Idle(added.client)
                    }
                    Err(error) => self.broken(error.to_string()),
                };
            }
            State::Reading(execution, client, at_least) => {
                let Some(content) = execution.poll(path)? else { return Ok(Turn::Running) };
                let (value, at_least) = (self.counter.sign * self.counter.layout.value(content), *at_least);
                let at_most = self.counter.record.borrow().begun_sum;
                self.counter.violations.require((at_least..=at_most).contains(&value), || {
                    format!("a read returned {value}, which is not from {at_least} to {at_most}")
                });
                self.state = State::Idle(client.clone());
            }
            State::Restarting(execution) => {
                let Some(content) = execution.poll(path)? else { return Ok(Turn::Running) };
                self.state = self.restart(content);
            }
        }
        Ok(Turn::Between)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(executed: &[Executed], begun_sum: i64) -> Record {
        let executed_sum = executed.iter().map(|&(_, add)| add).sum();
        Record { executed: executed.to_vec(), executed_sum, begun_sum }
    }

    #[test]
    fn right_adds_are_accepted() {
        let adds = [(Some(5), 2), (Some(0), 5), (None, 3), (Some(10), 1)];
        assert_eq!(record(&adds, 11).check(11, true), Ok(()));
        assert_eq!(record(&adds, 15).check(13, false), Ok(()));
    }

    #[test]
    fn lost_and_doubled_adds_and_wrong_values_are_found() {
        let adds = [(Some(0), 5), (Some(5), 2)];
        for last in [5, 12, 14] {
            assert!(record(&adds, 7).check(last, true).is_err(), "{last}");
            assert!(record(&adds, 7).check(last, false).is_err(), "{last}");
        }
        assert!(record(&[(Some(0), 5), (Some(4), 2)], 7).check(7, true).is_err(), "adds overlap");
        assert!(record(&[(Some(1), 5), (Some(6), 2)], 7).check(7, true).is_err(), "the first add found 1");
    }
}
