//! The latch: an arrival counts once, and only at its identity.

use crate::memory::{Fate, Memory, word};
use mitra_objects::Outcome::{NotExecuted, Unknown, ValueLost};
use mitra_objects::latch::{Arrived, Latch, LatchError, LatchState};

fn latch(participants: u8) -> Latch {
    Latch::new(word(0), participants).unwrap()
}

#[test]
fn latch_opens_with_the_last_arrival_and_is_reset_only_then() {
    for participants in [1, 2, 48] {
        let (latch, mut memory) = (latch(participants), Memory::default());
        for identity in 0..3 {
            for p in 0..participants {
                let reset = memory.run(latch.reset(identity).unwrap());
                assert_eq!(reset, Err(LatchError::NotOpen { arrived: p.into() }));
                let arrived = u32::from(p) + 1;
                let state = LatchState { identity, arrived, is_open: p + 1 == participants };
                for _ in 0..2 {
                    let result = memory.run(latch.arrive(p, identity).unwrap());
                    assert_eq!(result, Ok(Arrived::Counted(state)), "again: nothing new");
                }
                assert_eq!(latch.state(memory.run(latch.read())), state);
            }
            for _ in 0..2 {
                let next = LatchState { identity: identity + 1, arrived: 0, is_open: false };
                assert_eq!(memory.run(latch.reset(identity).unwrap()), Ok(next), "again: nothing new");
            }
            let past = memory.run(latch.arrive(0, identity).unwrap());
            assert!(matches!(past, Ok(Arrived::Past(state)) if state.arrived == 0), "{past:?}");
        }
        let early = memory.run(latch.arrive(0, 9).unwrap());
        assert_eq!(early, Err(LatchError::NotYetReset { current: 3 }));
        assert_eq!(memory.run(latch.reset(9).unwrap()), Err(LatchError::NotYetReset { current: 3 }));
    }
}

#[test]
fn arrival_and_reset_without_outcome_are_repeated() {
    for executed in [0, 1] {
        for outcome in [Unknown, NotExecuted, ValueLost] {
            let fate = || [Fate::Failed { executed, outcomes: vec![Some(outcome)] }];
            let (latch, mut memory) = (latch(1), Memory::default());
            let open = LatchState { identity: 0, arrived: 1, is_open: true };
            let arrived = memory.run_with(latch.arrive(0, 0).unwrap(), fate());
            assert_eq!(arrived, Ok(Arrived::Counted(open)));
            let reset = memory.run_with(latch.reset(0).unwrap(), fate());
            assert_eq!(reset, Ok(LatchState { identity: 1, arrived: 0, is_open: false }));
        }
    }
}

#[test]
fn stale_copies_change_nothing() {
    let (latch, mut memory) = (latch(2), Memory::default());
    let copy = |operation: &mut mitra_objects::latch::Arrive| {
        let mitra_objects::Progress::Post(requests) = mitra_objects::Operation::start(operation) else {
            panic!("an arrival posts");
        };
        requests[0]
    };
    let first = copy(&mut latch.arrive(0, 0).unwrap());
    for participant in 0..2 {
        memory.run(latch.arrive(participant, 0).unwrap()).unwrap();
        let before = memory.words[0];
        memory.execute(first);
        assert_eq!(memory.words[0], before);
    }
    memory.run(latch.reset(0).unwrap()).unwrap();
    memory.execute(first);
    assert_eq!(latch.state(memory.words[0]), LatchState { identity: 1, arrived: 0, is_open: false });
}

#[test]
fn limits_are_errors() {
    for participants in [0, 49, 64, 255] {
        assert_eq!(Latch::new(word(0), participants), Err(LatchError::Participants(participants)));
    }
    let latch = latch(48);
    assert_eq!(latch.max_identity(), 65_535);
    assert_eq!(latch.arrive(48, 0), Err(LatchError::NoSuchParticipant(48)));
    assert!(latch.arrive(47, 65_535).is_ok() && latch.reset(65_534).is_ok());
    assert_eq!(latch.arrive(0, 65_536), Err(LatchError::IdentitiesUsedUp));
    assert_eq!(latch.reset(65_535), Err(LatchError::IdentitiesUsedUp));
    assert_eq!(latch.reset(u64::MAX), Err(LatchError::IdentitiesUsedUp));
}
