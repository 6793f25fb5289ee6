//! A latch that is used several times, and the check that it opens once per use, when all
//! participants have arrived.

use std::cell::RefCell;
use std::rc::Rc;

use mitra_driver::Connection;
use mitra_objects::latch::{Arrive, Arrived, Latch, LatchError, LatchState, Reset};
use mitra_objects::{Execution, PathError, ReadWord};
use mitra_verbs::Buffer;

use super::client::{Script, Turn};
use super::shared_object::{SharedObject, Violations};
use super::{Finding, ObjectMemory};
use mitra_sim::Prng;

const CHECKER: &str = "latch";

/// The arrivals at one identity, by participant.
#[derive(Clone, Default)]
struct Use {
    begun: Vec<bool>,
    acknowledged: Vec<bool>,
}

struct Record {
    uses: Vec<Use>,
    /// The highest identity that a participant has seen.
    identity: u64,
}

/// The highest identity that was seen when an operation began, and the number of acknowledged
/// arrivals at this identity.
#[derive(Clone, Copy)]
struct Before {
    identity: u64,
    arrived: u32,
}

impl Record {
    fn before(&self) -> Before {
        let arrived = self.uses.get(self.identity as usize).map_or(0, |u| count(&u.acknowledged));
        Before { identity: self.identity, arrived }
    }

    fn check(&mut self, state: LatchState, before: Before) -> Result<(), String> {
        if state.identity < before.identity {
            return Err(format!("identity {} after {}", state.identity, before.identity));
        }
        let past = self.uses.iter().take(state.identity as usize);
        if past.clone().any(|u| u.begun.contains(&false)) || state.identity > self.uses.len() as u64 {
            return Err(format!("it has identity {} before all had arrived", state.identity));
        }
        let current = self.uses.get(state.identity as usize);
        let at_most = current.map_or(0, |u| count(&u.begun));
        let at_least = if state.identity == before.identity { before.arrived } else { 0 };
        if !(at_least..=at_most).contains(&state.arrived) {
            return Err(format!("{state:?}, where {at_least} to {at_most} have arrived"));
        }
        if state.is_open && current.is_none_or(|u| u.begun.contains(&false)) {
            return Err(format!("{state:?} is open before all have arrived"));
        }
        self.identity = self.identity.max(state.identity);
        Ok(())
    }
}

fn count(participants: &[bool]) -> u32 {
    participants.iter().filter(|&&is_set| is_set).count() as u32
}

#[derive(Clone)]
pub(super) struct SharedLatch {
    latch: Latch,
    offset: usize,
    record: Rc<RefCell<Record>>,
    violations: Violations,
}

impl SharedLatch {
    pub(super) fn new(memory: &mut ObjectMemory, clients: usize, rng: &mut Prng) -> SharedLatch {
        let (word, offset) = memory.allocate(8);
        let latch = Latch::new(word, clients as u8).expect("a valid number of participants");
        let nobody = Use { begun: vec![false; clients], acknowledged: vec![false; clients] };
        let uses = vec![nobody; rng.between(1, 6) as usize];
        let record = Rc::new(RefCell::new(Record { uses, identity: 0 }));
        SharedLatch { latch, offset, record, violations: Violations::default() }
    }
}

impl SharedObject for SharedLatch {
    fn script(&self, client: usize, rng: &mut Prng) -> Box<dyn Script> {
        Box::new(LatchScript {
            shared: self.clone(),
            participant: client as u8,
            identity: 0,
            stage: Stage::Arriving,
            operation: None,
            rng: Prng::new(rng.bits()),
        })
    }

    fn findings(&self, memory: &Buffer, all_finished: bool) -> Vec<Finding> {
        let state = self.latch.state(memory.load(self.offset));
        let record = self.record.borrow();
        let is_last = state.identity == record.uses.len() as u64 && state.arrived == 0;
        self.violations.require(is_last || !all_finished, || {
            format!("the last state is {state:?} after {} uses", record.uses.len())
        });
        self.violations.findings(CHECKER)
    }
}

struct LatchScript {
    shared: SharedLatch,
    participant: u8,
    /// The identity of the current use. A crash does not lose the identity.
    identity: u64,
    stage: Stage,
    operation: Option<(Under, Before)>,
    rng: Prng,
}

/// The next operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Arriving,
    Looking,
    Resetting,
}

enum Under {
    Arrive(Execution<Arrive>),
    Look(Execution<ReadWord>),
    Reset(Execution<Reset>),
}

enum Ended {
    Arrived(Result<Arrived, LatchError>),
    Seen(LatchState),
    Reset(Result<LatchState, LatchError>),
}

impl LatchScript {
    fn begin(&mut self) -> Under {
        let use_number = self.identity as usize;
        match self.stage {
            Stage::Arriving => {
                self.shared.record.borrow_mut().uses[use_number].begun[usize::from(self.participant)] = true;
                let arrive = self.shared.latch.arrive(self.participant, self.identity);
                Under::Arrive(Execution::new(arrive.expect("few identities")))
            }
            Stage::Looking => Under::Look(Execution::new(self.shared.latch.read())),
            Stage::Resetting => {
                Under::Reset(Execution::new(self.shared.latch.reset(self.identity).expect("few identities")))
            }
        }
    }

    fn end(&mut self, ended: Ended, before: Before) -> Result<(), String> {
        let record = &mut *self.shared.record.borrow_mut();
        let use_number = self.identity as usize;
        match ended {
            Ended::Arrived(Ok(arrived)) => {
                let (state, is_past) = match arrived {
                    Arrived::Counted(state) => (state, false),
                    Arrived::Past(state) => (state, true),
                };
                if is_past != (state.identity > self.identity) || state.identity < self.identity {
                    return Err(format!("{arrived:?} is the result of an arrival at {}", self.identity));
                }
                record.check(state, before)?;
                record.uses[use_number].acknowledged[usize::from(self.participant)] = true;
                // On a fenced path, a reset may be tried before the latch is open.
                self.stage = if self.rng.below(4) == 0 { Stage::Resetting } else { Stage::Looking };
            }
            Ended::Seen(state) => {
                record.check(state, before)?;
                if state.identity > self.identity || state.is_open {
                    self.stage = Stage::Resetting;
                }
            }
            Ended::Reset(Ok(state)) => {
                record.check(state, before)?;
                if state.identity <= self.identity {
                    return Err(format!("{state:?} is the result of a reset of {}", self.identity));
                }
                (self.identity, self.stage) = (self.identity + 1, Stage::Arriving);
            }
            Ended::Reset(Err(LatchError::NotOpen { arrived })) => {
                let state = LatchState { identity: self.identity, arrived, is_open: false };
                record.check(state, before)?;
                self.stage = Stage::Looking;
            }
            Ended::Arrived(Err(error)) | Ended::Reset(Err(error)) => return Err(error.to_string()),
        }
        Ok(())
    }
}

impl Script for LatchScript {
    fn on_new_path(&mut self, has_crashed: bool) {
        if has_crashed {
            // The participant arrives again, which is allowed.
            (self.operation, self.stage) = (None, Stage::Arriving);
        }
        match &mut self.operation {
            None => {}
            Some((Under::Arrive(execution), _)) => execution.fenced(),
            Some((Under::Look(execution), _)) => execution.fenced(),
            Some((Under::Reset(execution), _)) => execution.fenced(),
        }
    }

    fn poll(&mut self, path: &mut Connection) -> Result<Turn, PathError> {
        let uses = self.shared.record.borrow().uses.len() as u64;
        let Some((operation, before)) = &mut self.operation else {
            if self.identity == uses {
                return Ok(Turn::Ended);
            }
            let before = self.shared.record.borrow().before();
            self.operation = Some((self.begin(), before));
            return Ok(Turn::Begun);
        };
        let ended = match operation {
            Under::Arrive(execution) => execution.poll(path)?.map(Ended::Arrived),
            Under::Look(execution) => {
                execution.poll(path)?.map(|content| Ended::Seen(self.shared.latch.state(content)))
            }
            Under::Reset(execution) => execution.poll(path)?.map(Ended::Reset),
        };
        let (Some(ended), before) = (ended, *before) else { return Ok(Turn::Running) };
        self.operation = None;
        if let Err(what) = self.end(ended, before) {
            self.shared.violations.add(what);
            self.identity = uses; // a broken latch may never open
            return Ok(Turn::Between);
        }
        Ok(if self.stage == Stage::Looking { Turn::Waiting } else { Turn::Between })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let all = Use { begun: vec![true, true], acknowledged: vec![true, true] };
        let one = Use { begun: vec![true, false], acknowledged: vec![true, false] };
        Record {
            uses: vec![all, one, Use { begun: vec![false; 2], acknowledged: vec![false; 2] }],
            identity: 1,
        }
    }

    #[test]
    fn states_that_cannot_be_are_found() {
        let state = |identity, arrived, is_open| LatchState { identity, arrived, is_open };
        let check = |state| {
            let mut record = record();
            let before = record.before();
            record.check(state, before)
        };
        assert_eq!(check(state(1, 1, false)), Ok(()));
        assert!(check(state(1, 0, false)).is_err(), "an arrival is lost");
        assert!(check(state(1, 2, true)).is_err(), "it opens early");
        assert!(check(state(0, 2, true)).is_err(), "it goes back");
        assert!(check(state(2, 0, false)).is_err(), "it was reset before it was open");
        assert!(check(state(9, 0, false)).is_err(), "an identity that nobody uses");
    }
}
