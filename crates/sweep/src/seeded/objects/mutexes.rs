//! A mutex and the word that it protects, and the check that one client at a time holds the mutex.

use std::cell::RefCell;
use std::num::NonZeroU16;
use std::rc::Rc;

use mitra_driver::Connection;
use mitra_objects::mutex::{Held, Lock, LockResult, MutexClient, MutexError, MutexState, Unlock};
use mitra_objects::{Execution, Operation, Outcome, PathError, Progress, ReadWord, Request, Word};
use mitra_verbs::Buffer;

use super::client::{Script, Turn};
use super::shared_object::{SharedObject, Violations};
use super::{Finding, ObjectMemory};
use mitra_sim::Prng;

const CHECKER: &str = "mutex";

#[derive(Default)]
struct Record {
    /// The client that knows that it holds the mutex, until it begins to unlock.
    holder: Option<NonZeroU16>,
    /// The number of the last lock that a client knows.
    number: u64,
    /// The content of the protected word: the number of the last lock whose holder wrote the word.
    data: u64,
}

impl Record {
    /// Records a lock of which the client has just learned.
    fn on_lock(&mut self, owner: NonZeroU16, number: u64) -> Result<(), String> {
        if let Some(holder) = self.holder.replace(owner) {
            return Err(format!("{owner} locks while {holder} holds the mutex"));
        }
        if number != self.number + 1 {
            return Err(format!("lock {number} follows lock {}", self.number));
        }
        self.number = number;
        Ok(())
    }

    /// Records the state that a client reads after a crash. Returns whether the client holds the
    /// mutex.
    fn on_restart(&mut self, owner: NonZeroU16, state: MutexState) -> Result<bool, String> {
        let held = self.holder == Some(owner);
        if state.owner != Some(owner) {
            return if held { Err(format!("{owner} lost its lock, {state:?}")) } else { Ok(false) };
        }
        if held || state.number == self.number && self.holder.is_none() {
            // Before the crash, the client had learned of this lock, or had begun to unlock the
            // mutex.
            self.holder = Some(owner);
            return if state.number == self.number { Ok(true) } else { Err(format!("{state:?}")) };
        }
        self.on_lock(owner, state.number).map(|()| true)
    }
}

#[derive(Clone)]
pub(super) struct SharedMutex {
    word: Word,
    data: Word,
    offset: usize,
    record: Rc<RefCell<Record>>,
    violations: Violations,
}

impl SharedMutex {
    pub(super) fn new(memory: &mut ObjectMemory) -> SharedMutex {
        let (word, offset) = memory.allocate(16);
        let (record, violations) = Default::default();
        SharedMutex { word, data: word.nth(1), offset, record, violations }
    }
}

impl SharedObject for SharedMutex {
    fn script(&self, client: usize, rng: &mut Prng) -> Box<dyn Script> {
        let owner = NonZeroU16::MIN.saturating_add(client as u16);
        Box::new(MutexScript {
            mutex: self.clone(),
            owner,
            state: State::Free(MutexClient::new(self.word, owner)),
            sections_left: rng.between(2, 12),
            reads_after_crash: rng.bits(),
        })
    }

    fn findings(&self, memory: &Buffer, all_finished: bool) -> Vec<Finding> {
        let state = MutexState::from_word(memory.load(self.offset));
        let (data, record) = (memory.load(self.offset + 8), self.record.borrow());
        let is_right = state.owner.is_none() && state.number == record.number && data == record.data;
        self.violations.require(is_right || !all_finished, || {
            format!(
                "the last state is {state:?}, and the data is {data}, after lock {}, which wrote {}",
                record.number, record.data
            )
        });
        self.violations.findings(CHECKER)
    }
}

/// Writes a word until the WRITE is executed. Only the holder of a mutex over a fenced path may
/// repeat a WRITE.
struct WriteWord(Word, u64);

impl Operation for WriteWord {
    type Output = ();

    fn start(&mut self) -> Progress<()> {
        Progress::Post([Request::write(self.0, self.1)].into_iter().collect())
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<()> {
        if outcomes.iter().all(|outcome| outcome.is_executed()) { Progress::Done(()) } else { self.start() }
    }
}

/// A client that locks, reads the data, writes the data, and unlocks.
struct MutexScript {
    mutex: SharedMutex,
    owner: NonZeroU16,
    state: State,
    sections_left: u64,
    /// One bit for each crash: whether the client then reads the word before it locks. If not, the
    /// client locks as any other client does.
    reads_after_crash: u64,
}

enum State {
    Free(MutexClient),
    Locking(Execution<Lock>),
    /// The holder reads the data. The flag is set if a crash came when the holder had perhaps
    /// written the data already.
    Reading(Execution<ReadWord>, Held, bool),
    Writing(Execution<WriteWord>, Held),
    Unlocking(Execution<Unlock>),
    Restarting(Execution<ReadWord>),
    Broken,
}

impl MutexScript {
    fn broken(&self, what: String) -> State {
        self.mutex.violations.add(what);
        State::Broken
    }

    fn enter(&self, held: Held, has_crashed: bool) -> State {
        State::Reading(Execution::new(ReadWord(self.mutex.data)), held, has_crashed)
    }

    fn on_lock_result(&mut self, result: Result<LockResult, MutexError>) -> (State, Turn) {
        let held = match result {
            Ok(LockResult::Locked(held)) => held,
            // This client locked the mutex before a crash, and the old path is fenced.
            Ok(LockResult::Busy { client, holder }) if holder.owner == Some(self.owner) => {
                return (self.restart(client, holder), Turn::Between);
            }
            Ok(LockResult::Busy { client, .. }) => return (State::Free(client), Turn::Waiting),
            Err(error) => return (self.broken(error.to_string()), Turn::Between),
        };
        self.sections_left -= 1;
        let locked = self.mutex.record.borrow_mut().on_lock(self.owner, held.number());
        match locked {
            Ok(()) => (self.enter(held, false), Turn::Between),
            Err(what) => (self.broken(what), Turn::Between),
        }
    }

    fn client(&self) -> MutexClient {
        MutexClient::new(self.mutex.word, self.owner)
    }

    /// Continues after a crash, with the state in the word.
    fn restart(&mut self, client: MutexClient, state: MutexState) -> State {
        let restarted = self.mutex.record.borrow_mut().on_restart(self.owner, state);
        match restarted {
            Ok(false) => State::Free(client),
            Ok(true) => match client.resume(state) {
                Ok(held) => self.enter(held, true),
                Err(error) => self.broken(error.to_string()),
            },
            Err(what) => self.broken(what),
        }
    }

    fn on_data(&self, content: u64, held: Held, has_crashed: bool) -> State {
        let last = self.mutex.record.borrow().data;
        let number = held.number();
        if content != last && !(has_crashed && content == number) {
            return self.broken(format!("holder {number} read {content}, where {last} was written last"));
        }
        State::Writing(Execution::new(WriteWord(self.mutex.data, number)), held)
    }
}

impl Script for MutexScript {
    fn on_new_path(&mut self, has_crashed: bool) {
        match &mut self.state {
            State::Broken => {}
            _ if has_crashed => {
                // A client that locks no more must free a mutex that it held before the crash.
                let reads = self.reads_after_crash & 1 == 1 || self.sections_left == 0;
                self.reads_after_crash = self.reads_after_crash.rotate_right(1);
                self.state = if reads {
                    State::Restarting(Execution::new(ReadWord(self.mutex.word)))
                } else {
                    State::Free(self.client())
                };
            }
            State::Locking(execution) => execution.fenced(),
            State::Reading(execution, ..) | State::Restarting(execution) => execution.fenced(),
            State::Writing(execution, _) => execution.fenced(),
            State::Unlocking(execution) => execution.fenced(),
            State::Free(_) => {}
        }
    }

    fn poll(&mut self, path: &mut Connection) -> Result<Turn, PathError> {
        let mut turn = Turn::Between;
        let next = match &mut self.state {
            State::Broken => return Ok(Turn::Ended),
            State::Free(_) if self.sections_left == 0 => return Ok(Turn::Ended),
            State::Free(client) => {
                self.state = State::Locking(Execution::new(client.clone().lock()));
                return Ok(Turn::Begun);
            }
            State::Locking(execution) => match execution.poll(path)? {
                None => return Ok(Turn::Running),
                Some(result) => {
                    let (state, next_turn) = self.on_lock_result(result);
                    turn = next_turn;
                    state
                }
            },
            State::Reading(execution, held, has_crashed) => match execution.poll(path)? {
                None => return Ok(Turn::Running),
                Some(content) => {
                    let (held, has_crashed) = (held.clone(), *has_crashed);
                    self.on_data(content, held, has_crashed)
                }
            },
            State::Writing(execution, held) => match execution.poll(path)? {
                None => return Ok(Turn::Running),
                Some(()) => {
                    let record = &mut *self.mutex.record.borrow_mut();
                    record.data = held.number();
                    record.holder = None;
                    State::Unlocking(Execution::new(held.clone().unlock()))
                }
            },
            State::Unlocking(execution) => match execution.poll(path)? {
                None => return Ok(Turn::Running),
                Some(Ok(client)) => State::Free(client),
                Some(Err(error)) => self.broken(error.to_string()),
            },
            State::Restarting(execution) => match execution.poll(path)? {
                None => return Ok(Turn::Running),
                Some(content) => self.restart(self.client(), MutexState::from_word(content)),
            },
        };
        self.state = next;
        Ok(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NonZeroU16 = NonZeroU16::MIN;
    const B: NonZeroU16 = NonZeroU16::MAX;

    #[test]
    fn two_holders_and_unknown_locks_are_found() {
        let held = || Record { holder: Some(A), number: 3, data: 2 };
        assert!(held().on_lock(B, 4).is_err(), "two holders");
        let free = || Record { holder: None, ..held() };
        assert_eq!(free().on_lock(B, 4), Ok(()));
        assert!(free().on_lock(B, 3).is_err(), "a number twice");
        assert!(free().on_lock(B, 5).is_err(), "nobody learnt of lock 4");
    }

    #[test]
    fn crashed_holder_has_its_lock() {
        let state = |owner, number| MutexState { owner, number };
        let held = || Record { holder: Some(A), number: 3, data: 2 };
        assert_eq!(held().on_restart(A, state(Some(A), 3)), Ok(true));
        assert!(held().on_restart(A, state(None, 3)).is_err(), "another one unlocked");
        assert!(held().on_restart(A, state(Some(A), 4)).is_err(), "locked twice");
        let free = || Record { holder: None, ..held() };
        assert_eq!(free().on_restart(A, state(Some(A), 4)), Ok(true), "the crash hid the result of the lock");
        assert_eq!(free().on_restart(A, state(Some(A), 3)), Ok(true), "the unlock was not executed");
        assert_eq!(free().on_restart(A, state(None, 3)), Ok(false));
    }
}
