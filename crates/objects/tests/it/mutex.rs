//! The mutex: a retry of a lock succeeds, and a copy of an earlier request changes nothing.

use std::num::NonZeroU16;

use crate::memory::{Fate, Memory, word};
use mitra_objects::Outcome::{NotExecuted, Unknown, ValueLost};
use mitra_objects::mutex::{Held, LockResult, MAX_NUMBER, MutexClient, MutexError, MutexState};
use mitra_objects::{Operation, Progress};

fn client(owner: u16) -> MutexClient {
    MutexClient::new(word(0), NonZeroU16::new(owner).unwrap())
}

fn state(owner: u16, number: u64) -> MutexState {
    MutexState { owner: NonZeroU16::new(owner), number }
}

fn locked(result: Result<LockResult, MutexError>) -> Held {
    match result {
        Ok(LockResult::Locked(held)) => held,
        other => panic!("not locked: {other:?}"),
    }
}

#[test]
fn one_owner_at_a_time_holds_the_mutex() {
    let mut memory = Memory::default();
    let mut other = client(u16::MAX);
    for number in 1..4 {
        let held = locked(memory.run(client(1).lock()));
        assert_eq!((held.number(), MutexState::from_word(memory.words[0])), (number, state(1, number)));
        for _ in 0..2 {
            let Ok(LockResult::Busy { client, holder }) = memory.run(other.lock()) else {
                panic!("the mutex is held");
            };
            assert_eq!(holder, state(1, number));
            other = client;
        }
        memory.run(held.unlock()).unwrap();
        assert_eq!(MutexState::from_word(memory.words[0]), state(0, number));
    }
}

#[test]
fn retry_by_the_same_owner_and_number_is_told_yes() {
    for executed in [0, 1] {
        for outcome in [Unknown, NotExecuted, ValueLost] {
            let fate = || [Fate::Failed { executed, outcomes: vec![Some(outcome)] }];
            if (executed, outcome) == (1, NotExecuted) {
                continue;
            }
            let mut memory = Memory::default();
            let held = locked(memory.run_with(client(7).lock(), fate()));
            assert_eq!((held.number(), memory.words[0]), (1, 7 << 48 | 1));
            memory.run_with(held.unlock(), fate()).unwrap();
            assert_eq!(memory.words[0], 1);
        }
    }
}

#[test]
fn unlock_is_done_if_a_copy_of_it_was_and_others_locked_since() {
    let mut memory = Memory::default();
    let held = locked(memory.run(client(1).lock()));
    let unknown = Fate::Failed { executed: 0, outcomes: vec![Some(Unknown)] };
    memory.words[0] = 2 << 48 | 2;
    memory.run_with(held.clone().unlock(), [unknown]).unwrap();
    assert_eq!(memory.words[0], 2 << 48 | 2);
    let found = state(2, 2);
    assert_eq!(memory.run(held.unlock()), Err(MutexError::NotHeld { found }), "no copy can have done it");
}

#[test]
fn word_that_lost_its_lock_or_went_back_is_reported() {
    let mut memory = Memory::default();
    let held = locked(memory.run(client(1).lock()));
    memory.words[0] = 0;
    let found = state(0, 0);
    assert_eq!(memory.run(held.clone().unlock()), Err(MutexError::NotHeld { found }));
    memory.words[0] = 1 << 48 | 1;
    let client = memory.run(held.unlock()).unwrap();
    memory.words[0] = 0;
    assert_eq!(memory.run(client.lock()), Err(MutexError::WentBack { found }));
}

#[test]
fn owner_resumes_its_lock_after_a_restart() {
    let mut memory = Memory::default();
    for number in 1..3 {
        let held = locked(memory.run(client(1).lock()));
        if number == 1 {
            memory.run(held.unlock()).unwrap();
        }
    }
    let Ok(LockResult::Busy { client: restarted, holder }) = memory.run(client(1).lock()) else {
        panic!("the earlier life holds the mutex");
    };
    assert_eq!(client(2).resume(holder), Err(MutexError::NotHeld { found: holder }));
    memory.run(restarted.resume(holder).unwrap().unlock()).unwrap();
    assert_eq!(MutexState::from_word(memory.words[0]), state(0, 2));
}

/// The next life of an owner does not know the requests of the earlier life, and must not mistake a
/// lock of the earlier life for its own.
#[test]
fn lock_of_an_earlier_life_is_busy_for_the_next_life() {
    for number in [1, 2, 3] {
        for outcome in [None, Some(Unknown), Some(NotExecuted), Some(ValueLost)] {
            let mut memory = Memory::default();
            memory.words[0] = 7 << 48 | number;
            let fate = outcome.map(|outcome| Fate::Failed { executed: 0, outcomes: vec![Some(outcome)] });
            let Ok(LockResult::Busy { client: restarted, holder }) = memory.run_with(client(7).lock(), fate)
            else {
                panic!("lock {number} is that of the earlier life");
            };
            assert_eq!(holder, state(7, number));
            let held = restarted.resume(holder).unwrap();
            assert_eq!(held.number(), number);
        }
    }
}

#[test]
fn delayed_unlock_of_an_earlier_life_frees_no_lock_of_another() {
    let mut memory = Memory::default();
    let held = locked(memory.run(client(7).lock()));
    let Progress::Post(delayed) = held.unlock().start() else { panic!("an unlock posts a request") };
    // The client crashes, and its unlock is on its way. The next life does not read the word
    // itself.
    let second_life = memory.run(client(7).lock());
    assert!(matches!(second_life, Ok(LockResult::Busy { .. })), "{second_life:?}");
    memory.execute(delayed[0]);
    let other = locked(memory.run(client(8).lock()));
    assert_eq!((other.number(), memory.words[0]), (2, 8 << 48 | 2));
    memory.execute(delayed[0]);
    assert_eq!(memory.words[0], 8 << 48 | 2);
}

#[test]
fn numbers_are_never_used_again() {
    let mut memory = Memory::default();
    memory.words[0] = MAX_NUMBER - 1;
    let held = locked(memory.run(client(1).lock()));
    assert_eq!(held.number(), MAX_NUMBER);
    let client = memory.run(held.unlock()).unwrap();
    assert_eq!(memory.run(client.lock()), Err(MutexError::NumbersUsedUp));
    assert_eq!(memory.run(self::client(2).lock()), Err(MutexError::NumbersUsedUp));
    assert_eq!(memory.words[0], MAX_NUMBER);
}
