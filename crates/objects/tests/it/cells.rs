//! Recoverable and indirect cells: results, recovery after each possible failure, limits, and
//! hostile memory.

use crate::memory::{Fate, Memory, word};
use mitra_objects::Outcome::{NotExecuted, Unknown, ValueLost};
use mitra_objects::{
    Announcements, CellError, Change, Changed, Finished, IndirectCell, Operation, Outcome, Owner, Progress,
    Publication, RecoverableCell, Requests,
};

/// The number of owners. Their announcements are words 0 and 1; the cell begins at word 2.
const OWNERS: u8 = 2;
const CELL: usize = 2;

fn owner(memory: &mut Memory, number: u8, publication: Publication) -> Owner {
    memory.run(Owner::open(Announcements::new(word(0), OWNERS), number, publication).unwrap())
}

fn add(owner: Owner, add: u32) -> mitra_objects::ChangeCell {
    RecoverableCell::new(word(CELL as u64)).change(owner, Change::FetchAdd(add))
}

fn indirect() -> IndirectCell {
    IndirectCell::new(word(CELL as u64), OWNERS)
}

/// Runs a change whose attempt fails after `executed` requests, and returns the owner and the
/// result.
fn change_with<V>(
    memory: &mut Memory,
    change: impl Operation<Output = Finished<Changed<V>>>,
    reads: usize,
    executed: usize,
    outcomes: &[Outcome],
) -> (Owner, Result<Changed<V>, CellError>) {
    let fate = Fate::Failed { executed, outcomes: outcomes.iter().map(|&outcome| Some(outcome)).collect() };
    let fates = (0..reads).map(|_| Fate::Executed).chain([fate]);
    let finished = memory.run_with(change, fates);
    (finished.owner, finished.result)
}

#[test]
fn changes_return_the_value_before_and_refused_swaps_the_value_found() {
    let mut memory = Memory::default();
    memory.words[CELL] = RecoverableCell::initial_word(40);
    let cell = RecoverableCell::new(word(CELL as u64));
    let first = owner(&mut memory, 1, Publication::CompareSwap);
    let Finished { owner: first, result } = memory.run(add(first, 2));
    assert_eq!(result, Ok(Changed::From(40)));
    let second = owner(&mut memory, 2, Publication::CompareSwap);
    let swap = |expected, new| Change::CompareSwap { expected, new };
    let Finished { owner: second, result } = memory.run(cell.change(second, swap(40, 1)));
    assert_eq!(result, Ok(Changed::Not(42)));
    assert_eq!(memory.run(cell.change(second, swap(42, u32::MAX))).result, Ok(Changed::From(42)));
    assert_eq!(memory.run(add(first, 3)).result, Ok(Changed::From(u32::MAX)), "the value wraps around");
    assert_eq!(memory.run(cell.read()), 2);
    assert_eq!(RecoverableCell::value_of(memory.words[CELL]), 2);
}

#[test]
fn indirect_cell_holds_64_bits_and_its_initial_value() {
    let mut memory = Memory::default();
    memory.words[CELL + IndirectCell::INITIAL_VALUE_OFFSET / 8] = u64::MAX;
    let mut first = owner(&mut memory, 1, Publication::CompareSwap);
    let mut second = owner(&mut memory, 2, Publication::Write);
    assert_eq!(memory.run(indirect().read()), Ok(u64::MAX));
    let mut value = u64::MAX;
    for step in 1..6 {
        for owner in [&mut first, &mut second] {
            let finished = memory.run(indirect().change(owner.clone(), Change::FetchAdd(step << 40)));
            assert_eq!(finished.result, Ok(Changed::From(value)));
            *owner = finished.owner;
            value = value.wrapping_add(step << 40);
            assert_eq!(memory.run(indirect().read()), Ok(value));
            let words = &memory.words[CELL..CELL + IndirectCell::bytes(OWNERS) / 8];
            assert_eq!(IndirectCell::value_of(words), Some(value));
        }
    }
    let refused = indirect().change(first, Change::CompareSwap { expected: 1, new: 2 });
    assert_eq!(memory.run(refused).result, Ok(Changed::Not(value)));
}

#[test]
fn change_is_decided_after_every_failure() {
    // The requests of an attempt: two to publish, one for the other owner's announcement, and the
    // change.
    for executed in 0..=4 {
        for lost in [Unknown, ValueLost, NotExecuted] {
            if (lost == NotExecuted && executed > 0) || (lost == ValueLost && executed < 4) {
                continue; // the evidence never lies
            }
            let mut memory = Memory::default();
            let other = owner(&mut memory, 2, Publication::CompareSwap);
            memory.run(add(other, 5));
            let mine = owner(&mut memory, 1, Publication::CompareSwap);
            let (mine, result) = change_with(&mut memory, add(mine, 10), 1, executed, &[lost; 4]);
            assert_eq!(result, Ok(Changed::From(5)), "{executed} executed, {lost:?}");
            assert_eq!(RecoverableCell::value_of(memory.words[CELL]), 15, "{executed} executed, {lost:?}");
            let finished = memory.run(add(mine, 1));
            assert_eq!(finished.result, Ok(Changed::From(15)));
            assert_eq!(memory.words[0] >> 1, finished.owner.last_sequence(), "the announcement is current");

            let mut memory = Memory::default();
            let other = owner(&mut memory, 2, Publication::Write);
            memory.run(indirect().change(other, Change::FetchAdd(5)));
            let mine = owner(&mut memory, 1, Publication::Write);
            // The record is written first, and one WRITE publishes.
            let change = indirect().change(mine, Change::FetchAdd(10));
            let (mine, result) = change_with(&mut memory, change, 2, executed, &[lost; 4]);
            assert_eq!(result, Ok(Changed::From(5)), "{executed} executed, {lost:?}");
            assert_eq!(memory.run(indirect().read()), Ok(15), "{executed} executed, {lost:?}");
            let next = indirect().change(mine, Change::FetchAdd(1));
            assert_eq!(memory.run(next).result, Ok(Changed::From(15)));
        }
    }
}

fn posted<T>(progress: Progress<T>) -> Requests {
    match progress {
        Progress::Post(requests) => requests,
        Progress::Done(_) => panic!("the operation ends too early"),
    }
}

/// Executes the requests that an operation posts, and passes their values to it.
fn step<O: Operation>(
    memory: &mut Memory,
    operation: &mut O,
    progress: Progress<O::Output>,
) -> Progress<O::Output> {
    let outcomes: Vec<Outcome> =
        posted(progress).iter().map(|&r| Outcome::Executed { value: memory.execute(r) }).collect();
    operation.on_outcomes(&outcomes)
}

#[test]
fn change_is_repeated_if_another_owner_was_faster() {
    let mut memory = Memory::default();
    let mine = owner(&mut memory, 1, Publication::CompareSwap);
    let mut change = add(mine, 10);
    let progress = change.start();
    let attempt = step(&mut memory, &mut change, progress);
    let other = owner(&mut memory, 2, Publication::CompareSwap);
    memory.run(add(other, 100));
    let again = step(&mut memory, &mut change, attempt);
    let Progress::Done(finished) = step(&mut memory, &mut change, again) else {
        panic!("the second attempt succeeds");
    };
    assert_eq!(finished.result, Ok(Changed::From(100)));
    assert_eq!(RecoverableCell::value_of(memory.words[CELL]), 110);
    assert_eq!(finished.owner.last_sequence(), 1, "the announcement of the first attempt serves the second");
}

#[test]
fn record_that_the_tag_names_is_never_written() {
    let mut memory = Memory::default();
    let mine = owner(&mut memory, 1, Publication::Write);
    let Finished { owner: mine, .. } = memory.run(indirect().change(mine, Change::FetchAdd(5)));
    // A client has read the tag when the owner changes the cell and begins the next change.
    let mut refused = indirect()
        .change(owner(&mut memory, 2, Publication::Write), Change::CompareSwap { expected: 9, new: 1 });
    let progress = refused.start();
    let reads_record = step(&mut memory, &mut refused, progress);
    let Finished { owner: mine, .. } = memory.run(indirect().change(mine, Change::FetchAdd(1)));
    let mut next = indirect().change(mine, Change::FetchAdd(100));
    let progress = next.start();
    let progress = step(&mut memory, &mut next, progress);
    let attempt = posted(step(&mut memory, &mut next, progress));
    memory.execute(attempt[0]);
    assert_eq!(memory.run(indirect().read()), Ok(6), "only the free record was written");

    let mut progress = step(&mut memory, &mut refused, reads_record);
    let finished = loop {
        match progress {
            Progress::Done(finished) => break finished,
            post => progress = step(&mut memory, &mut refused, post),
        }
    };
    assert_eq!(finished.result, Ok(Changed::Not(6)), "106 was never the value of the cell");
}

#[test]
fn change_that_another_owner_overwrote_is_known_to_have_happened() {
    let mut memory = Memory::default();
    let mine = owner(&mut memory, 1, Publication::CompareSwap);
    let mut change = add(mine, 10);
    let read = posted(change.start());
    let word_before = memory.execute(read[0]);
    let attempt = posted(change.on_outcomes(&[Outcome::Executed { value: word_before }]));
    for &request in &attempt {
        memory.execute(request);
    }
    let other = owner(&mut memory, 2, Publication::CompareSwap);
    assert_eq!(memory.run(add(other, 100)).result, Ok(Changed::From(10)));
    let read = posted(change.on_outcomes(&vec![Unknown; attempt.len()]));
    let word_now = memory.execute(read[0]);
    let read = posted(change.on_outcomes(&[Outcome::Executed { value: word_now }]));
    let announcement = memory.execute(read[0]);
    let Progress::Done(finished) = change.on_outcomes(&[Outcome::Executed { value: announcement }]) else {
        panic!("the change is decided");
    };
    assert_eq!(finished.result, Ok(Changed::From(0)));
    assert_eq!(RecoverableCell::value_of(memory.words[CELL]), 110);
}

#[test]
fn sequence_numbers_are_never_used_twice() {
    let mut memory = Memory::default();
    // The announcement has the number before the highest number.
    memory.words[0] = ((1 << 24) - 2) << 1;
    let mine = owner(&mut memory, 1, Publication::CompareSwap);
    assert_eq!(mine.last_sequence(), (1 << 24) - 2);
    let Finished { owner: mine, result } = memory.run(add(mine, 1));
    assert_eq!(result, Ok(Changed::From(0)));
    let before = memory.words;
    let Finished { owner: mine, result } = memory.run(add(mine, 1));
    assert_eq!(result, Err(CellError::SequencesUsedUp { owner: 1, max: (1 << 24) - 1 }));
    assert_eq!(memory.words, before, "nothing was changed");
    assert!(result.unwrap_err().to_string().contains("new owner number"));
    // The sequence numbers of indirect cells go on.
    memory.words[CELL] = 0;
    assert_eq!(memory.run(indirect().change(mine, Change::FetchAdd(7))).result, Ok(Changed::From(0)));
}

#[test]
fn numbers_without_an_announcement_are_refused() {
    let announcements = Announcements::new(word(0), OWNERS);
    for number in [0, 3, 255] {
        let error = CellError::NoSuchOwner { owner: number, owners: OWNERS };
        assert_eq!(Owner::open(announcements, number, Publication::Write).unwrap_err(), error);
    }
    // Memory that is no cell names an owner that does not exist. Nothing is written.
    let mut memory = Memory::default();
    memory.words[CELL] = u64::MAX;
    let mine = owner(&mut memory, 1, Publication::Write);
    let before = memory.words;
    let error = CellError::NoSuchOwner { owner: 255, owners: OWNERS };
    let finished = memory.run(add(mine, 1));
    assert_eq!(finished.result, Err(error));
    assert_eq!(memory.run(indirect().read()), Err(error));
    assert_eq!(memory.run(indirect().change(finished.owner, Change::FetchAdd(1))).result, Err(error));
    assert_eq!(memory.words, before);
}

#[test]
fn owner_goes_on_after_a_restart() {
    let mut memory = Memory::default();
    for expected in 0..4 {
        let mine = owner(&mut memory, 1, Publication::CompareSwap);
        assert_eq!(mine.last_sequence(), u64::from(expected));
        assert_eq!(memory.run(add(mine, 1)).result, Ok(Changed::From(expected)));
    }
}
