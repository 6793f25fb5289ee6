//! The cost table of docs/objects.md contains the requests that the operations emit.

use std::num::NonZeroU16;

use crate::memory::{Cost, Fate, Memory, word};
use mitra_objects::latch::Latch;
use mitra_objects::mailbox::MailboxWriter;
use mitra_objects::mutex::{LockResult, MutexClient};
use mitra_objects::recoverable_counter::{CounterClient, CounterLayout};
use mitra_objects::{
    Announcements, Change, IndirectCell, Operation, Outcome, Owner, Publication, RecoverableCell,
};

/// Runs an operation, and returns its row of the table and its result.
fn row<O: Operation>(
    (object, case): (&str, &str),
    memory: &mut Memory,
    operation: O,
    fate: Option<Fate>,
) -> (String, O::Output) {
    memory.cost = Cost::default();
    let output = memory.run_with(operation, fate);
    let Cost { reads, writes, cas, faa, round_trips } = memory.cost;
    (format!("| {object} | {case} | {reads} | {writes} | {cas} | {faa} | {round_trips} |"), output)
}

/// The fate of a request that was executed and whose outcome is unknown.
fn unknown() -> Option<Fate> {
    Some(Fate::Failed { executed: 1, outcomes: vec![Some(Outcome::Unknown)] })
}

/// Two owners with announcements in words 0 and 1.
fn owners(memory: &mut Memory) -> [Owner; 2] {
    let announcements = Announcements::new(word(0), 2);
    [1, 2].map(|number| memory.run(Owner::open(announcements, number, Publication::CompareSwap).unwrap()))
}

fn cell_rows() -> Vec<String> {
    let mut memory = Memory::default();
    let [own, other] = owners(&mut memory);
    let (cell, add, object) = (RecoverableCell::new(word(2)), Change::FetchAdd(1), "recoverable cell");
    let own = memory.run(cell.change(own, add)).owner;
    vec![
        row((object, "read"), &mut memory, cell.read(), None).0,
        row((object, "change, last changed by the same owner"), &mut memory, cell.change(own, add), None).0,
        row((object, "change, last changed by another owner"), &mut memory, cell.change(other, add), None).0,
    ]
}

fn indirect_cell_rows() -> Vec<String> {
    let mut memory = Memory::default();
    let [own, other] = owners(&mut memory);
    let (cell, add, object) = (IndirectCell::new(word(2), 2), Change::FetchAdd(1), "indirect cell");
    let own = memory.run(cell.change(own, add)).owner;
    vec![
        row((object, "read"), &mut memory, cell.read(), None).0,
        row((object, "change, last changed by the same owner"), &mut memory, cell.change(own, add), None).0,
        row((object, "change, last changed by another owner"), &mut memory, cell.change(other, add), None).0,
    ]
}

fn counter_rows() -> Vec<String> {
    let (mut memory, object) = (Memory::default(), "recoverable counter");
    let layout = CounterLayout::new(1, 3).unwrap();
    let client = CounterClient::new(word(0), layout, 0).unwrap();
    let read = row((object, "read"), &mut memory, client.read(), None).0;
    let (one, added) = row((object, "add 1 number"), &mut memory, client.add_all(&[1]).unwrap(), None);
    let add = added.unwrap().client.add_all(&[1; 7]).unwrap();
    let (seven, added) = row((object, "add 7 numbers"), &mut memory, add, None);
    let add = added.unwrap().client.add_all(&[1]).unwrap();
    let undecided =
        row((object, "add 1 number, executed with unknown outcome"), &mut memory, add, unknown()).0;
    vec![read, one, seven, undecided]
}

fn latch_rows() -> Vec<String> {
    let (mut memory, object) = (Memory::default(), "latch");
    let latch = Latch::new(word(0), 2).unwrap();
    let arrive = |participant| latch.arrive(participant, 0).unwrap();
    vec![
        row((object, "read"), &mut memory, latch.read(), None).0,
        row((object, "arrive first"), &mut memory, arrive(0), None).0,
        row((object, "arrive after others"), &mut memory, arrive(1), None).0,
        row((object, "reset"), &mut memory, latch.reset(0).unwrap(), None).0,
        row(
            (object, "arrive first, executed with unknown outcome"),
            &mut memory,
            latch.arrive(0, 1).unwrap(),
            unknown(),
        )
        .0,
    ]
}

fn mutex_rows() -> Vec<String> {
    let (mut memory, object) = (Memory::default(), "mutex");
    let client = |owner| MutexClient::new(word(0), NonZeroU16::new(owner).unwrap());
    let held = |locked| match locked {
        Ok(LockResult::Locked(held)) => held,
        other => panic!("not locked: {other:?}"),
    };
    let (first, locked) = row((object, "lock, first of a client"), &mut memory, client(1).lock(), None);
    let unlocked = memory.run(held(locked).unlock()).unwrap();
    let (lock, locked) = row((object, "lock, seen free"), &mut memory, unlocked.lock(), None);
    let other = match memory.run(client(2).lock()) {
        Ok(LockResult::Busy { client, .. }) => client,
        result => panic!("the mutex is held: {result:?}"),
    };
    let refused = row((object, "lock, held by another owner"), &mut memory, other.clone().lock(), None).0;
    let (unlock, unlocked) = row((object, "unlock"), &mut memory, held(locked).unlock(), None);
    let relocked = held(memory.run(unlocked.unwrap().lock()));
    memory.run(relocked.unlock()).unwrap();
    let (since, locked) =
        row((object, "lock, locked by another owner since"), &mut memory, other.lock(), None);
    let unlocked = memory.run(held(locked).unlock()).unwrap();
    let undecided =
        row((object, "lock, executed with unknown outcome"), &mut memory, unlocked.lock(), unknown()).0;
    vec![first, lock, since, refused, unlock, undecided]
}

fn mailbox_rows() -> Vec<String> {
    let (mut memory, object) = (Memory::default(), "mailbox");
    let send =
        |words: &[u64], memory: &Memory| MailboxWriter::resume(word(0), memory.words[0]).send(words).unwrap();
    let operation = send(&[1], &memory);
    let one = row((object, "send 1 word"), &mut memory, operation, None).0;
    let operation = send(&[1], &memory);
    let full = row((object, "send, mailbox full"), &mut memory, operation, None).0;
    memory.words[1] = 1;
    let operation = send(&[1; 7], &memory);
    let seven = row((object, "send 7 words"), &mut memory, operation, None).0;
    vec![one, seven, full]
}

#[test]
fn documented_costs_are_those_of_the_operations() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/objects.md")).unwrap();
    let head = "| object | operation | READ | WRITE | CAS | FAA | round trips |";
    let mut lines = page.lines().skip_while(|line| *line != head).skip(2);
    let rows =
        [cell_rows(), indirect_cell_rows(), counter_rows(), latch_rows(), mutex_rows(), mailbox_rows()];
    let rows = rows.concat();
    println!("{}", rows.join("\n"));
    for row in rows {
        assert_eq!(lines.next(), Some(row.as_str()), "docs/objects.md");
    }
    assert!(!lines.next().is_some_and(|line| line.starts_with('|')), "docs/objects.md has more rows");
}
