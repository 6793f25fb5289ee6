//! Scripted schedules that broke the first draft of the protocol. `docs/transactions.md` has their
//! numbers, and the tests of the other schedules.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use mitra_txn::{
    Abort, Access, Attempt, Command, Conflict, Coordinator, Copies, Inspection, Inspector, Layout, Life,
    Loader, Location, LockWord, NodeId, NotCommitted, Op, Outcome, Place, PlaceKind, RecordKey, Recovery,
    RecoveryStep, Request, Schema, Session, Step, TableId, TableSchema, Timing, Transaction as _, Write,
};

use crate::memory::Memory;
use crate::workload::{COPIES, SLOT_BYTES, resolve, slot};

const FIRST: Life = Life { coordinator: 1, incarnation: 2 };
const SECOND: Life = Life { coordinator: 2, incarnation: 1 };
const THIRD: Life = Life { coordinator: 3, incarnation: 1 };

/// The record `index`, whose primary is on node `index`.
fn record(index: u32) -> Copies {
    resolve(Place { table: TableId(0), partition: 0, kind: PlaceKind::Record, index }).unwrap()
}

fn lock_at(memory: &Memory, at: Location) -> LockWord {
    LockWord::from_bits(u64::from_le_bytes(memory.bytes(at.node, at.at, 8).try_into().unwrap()))
}

/// The version and the value, which are one byte each here.
fn content_at(memory: &Memory, at: Location) -> (u8, u8) {
    let bytes = memory.bytes(at.node, at.at, 48);
    (bytes[8], bytes[40])
}

fn execute(memory: &mut Memory, requests: &[Request]) -> Vec<Outcome> {
    requests.iter().map(|request| memory.execute(request)).collect()
}

/// Runs an attempt until it posts requests for which `is_wanted` is true. Returns these requests,
/// not executed.
fn run_until(
    memory: &mut Memory,
    attempt: &mut Attempt,
    mut step: Step,
    is_wanted: impl Fn(&[Request]) -> bool,
) -> Vec<Request> {
    loop {
        match step {
            Step::Post(requests) if is_wanted(&requests) => return requests,
            Step::Post(requests) => step = attempt.on_outcomes(&execute(memory, &requests)),
            end => panic!("{end:?}"),
        }
    }
}

fn run(memory: &mut Memory, attempt: &mut Attempt, mut step: Step) -> Step {
    while let Step::Post(requests) = step {
        step = attempt.on_outcomes(&execute(memory, &requests));
    }
    step
}

fn attempt(life: Life, number: u32) -> Attempt {
    Attempt::new(LockWord::new(life, number), slot(usize::from(life.coordinator) - 1), COPIES)
}

/// Locks the record 0 for an attempt, which then writes this value.
fn lock(memory: &mut Memory, attempt: &mut Attempt, value: u8) {
    let step = attempt.fetch(&[(record(0), true)]);
    assert_eq!(run(memory, attempt, step), Step::Fetched);
    attempt.write(&record(0), Write { key: 0, value: Some(vec![value]) });
}

fn commit(memory: &mut Memory, life: Life, number: u32, value: u8) {
    let mut attempt = attempt(life, number);
    lock(memory, &mut attempt, value);
    let step = attempt.commit();
    assert_eq!(run(memory, &mut attempt, step), Step::Applied);
}

/// Returns an attempt before its last requests, and these requests: the WRITE of its value at the
/// primary, and the unlock behind it.
fn before_primary(memory: &mut Memory) -> (Attempt, Vec<Request>) {
    let mut first = attempt(FIRST, 1);
    lock(memory, &mut first, 1);
    let step = first.commit();
    let unlocks = |requests: &[Request]| matches!(requests, [_, unlock] if is_unlock(unlock));
    let apply = run_until(memory, &mut first, step, unlocks);
    (first, apply)
}

fn is_unlock(request: &Request) -> bool {
    matches!(request.op, Op::CompareSwap { swap: 0, .. })
}

/// Locks are freed by compare-and-swaps, which may be repeated. A repeated unlocking WRITE would
/// free the lock of another attempt, and a third attempt would lose its update.
#[test]
fn repeated_unlock_frees_no_lock_of_another_as_a_write_would() {
    let memory = &mut Memory::default();
    let (_, apply) = before_primary(memory);
    execute(memory, &apply);
    let mut second = attempt(SECOND, 1);
    lock(memory, &mut second, 2);
    execute(memory, &apply[1..]);
    let at = record(0).primary;
    assert_eq!(lock_at(memory, at), LockWord::new(SECOND, 1));
    let mut third = attempt(THIRD, 1);
    let step = third.fetch(&[(record(0), true)]);
    let locked = Step::Aborted(Conflict::Locked(record(0).place, LockWord::new(SECOND, 1)));
    assert_eq!(run(memory, &mut third, step), locked);

    let harmed = &mut memory.clone();
    harmed.execute(&Request { op: Op::Write(vec![0; 8]), ..apply[1].clone() });
    commit(harmed, THIRD, 2, 3);
    assert_eq!(content_at(harmed, at), (2, 3));
    let step = second.commit();
    assert_eq!(run(harmed, &mut second, step), Step::Applied);
    assert_eq!(content_at(harmed, at), (2, 2), "two commits have made the same version");
}

/// A WRITE of a value must not be repeated after the unlock, because it would undo the commit of
/// another attempt. The attempt reads the lock word instead. The lock word names the holder.
#[test]
fn write_in_doubt_is_decided_by_the_lock_word_and_not_repeated() {
    let at = record(0).primary;
    let memory = &mut Memory::default();
    let (mut first, apply) = before_primary(memory);
    execute(memory, &apply);
    commit(memory, SECOND, 1, 2);
    assert_eq!(content_at(memory, at), (2, 2));

    let harmed = &mut memory.clone();
    harmed.execute(&apply[0]);
    assert_eq!(content_at(harmed, at), (1, 1), "the commit of the second attempt is lost");

    let before = memory.bytes(at.node, at.at, 512);
    let Step::Post(look) = first.on_outcomes(&[Outcome::Unknown, Outcome::Unknown]) else { panic!() };
    assert!(matches!(look[..], [Request { op: Op::Read(_), .. }]), "{look:?}");
    assert_eq!(first.on_outcomes(&execute(memory, &look)), Step::Applied);
    assert_eq!(memory.bytes(at.node, at.at, 512), before);
}

/// For every outcome of the WRITE of the value and of the unlock behind it, the attempt ends and
/// undoes no commit of another attempt.
#[test]
fn every_outcome_at_the_primary_ends_with_the_latest_commit() {
    use Outcome::{Executed, NotExecuted, Unknown, ValueLost};
    let written = Executed(Vec::new());
    let freed = Executed(LockWord::new(FIRST, 1).bits().to_le_bytes().to_vec());
    // The number of requests that were executed, and what is known about them.
    let outcomes = [
        (0, [NotExecuted, NotExecuted]),
        (0, [Unknown, NotExecuted]),
        (0, [Unknown, Unknown]),
        (1, [Unknown, NotExecuted]),
        (1, [Unknown, Unknown]),
        (1, [ValueLost, NotExecuted]),
        (1, [written.clone(), NotExecuted]),
        (1, [written.clone(), Unknown]),
        (2, [Unknown, Unknown]),
        (2, [written.clone(), Unknown]),
        (2, [written.clone(), ValueLost]),
        (2, [written, freed]),
    ];
    for (executed, known) in outcomes {
        let memory = &mut Memory::default();
        let (mut first, apply) = before_primary(memory);
        execute(memory, &apply[..executed]);
        if executed == 2 {
            commit(memory, SECOND, 1, 2);
        }
        let step = first.on_outcomes(&known);
        assert_eq!(run(memory, &mut first, step), Step::Applied, "{known:?}");
        let latest = if executed == 2 { (2, 2) } else { (1, 1) };
        for at in [record(0).primary, record(0).backups[0]] {
            assert_eq!((lock_at(memory, at), content_at(memory, at)), (LockWord::FREE, latest), "{known:?}");
        }
    }
}

/// A WRITE of a backup that is in doubt is repeated while the primary is locked. After the unlock,
/// the WRITE would overwrite the commit of another attempt.
#[test]
fn backup_is_written_again_only_under_the_lock() {
    let (primary, backup) = (record(0).primary, record(0).backups[0]);
    let memory = &mut Memory::default();
    let mut first = attempt(FIRST, 1);
    lock(memory, &mut first, 1);
    let step = first.commit();
    let writes_backup = |requests: &[Request]| requests[0].node == backup.node && requests[0].at < 512;
    let writes = run_until(memory, &mut first, step, writes_backup);
    execute(memory, &writes);
    let step = first.on_outcomes(&vec![Outcome::Unknown; writes.len()]);
    assert_eq!(step, Step::Post(writes.clone()));
    let mut second = attempt(SECOND, 1);
    let refused = second.fetch(&[(record(0), true)]);
    let refused = run(memory, &mut second, refused);
    assert_eq!(refused, Step::Aborted(Conflict::Locked(record(0).place, LockWord::new(FIRST, 1))));
    assert_eq!(run(memory, &mut first, step), Step::Applied);
    commit(memory, SECOND, 2, 2);
    assert_eq!([primary, backup].map(|at| content_at(memory, at)), [(2, 2); 2]);

    execute(memory, &writes);
    assert_eq!(content_at(memory, primary), (2, 2));
    assert_eq!(content_at(memory, backup), (1, 1), "if the primary dies now, the commit is lost");
}

/// Schedule 11: the copies of a slot have entries of different attempts, in any order. The latest
/// entry takes effect. No older entry and no entry of another life replaces it.
#[test]
fn older_entry_is_not_copied_over_a_later_one() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for older in [LockWord::new(FIRST, 5), LockWord::new(Life { incarnation: 1, ..FIRST }, 9)] {
        for (later_on, order) in (1..8_usize).flat_map(|nodes| orders.map(|order| (nodes, order))) {
            let memory = &mut Memory::default();
            let log = slot(0);
            let has_later = |node: &Location| later_on & 1 << node.node.0 != 0;
            let is_log = |requests: &[Request]| requests[0].at == log[0].at;
            let mut entries = Vec::new();
            for (lock_word, value) in [(older, 1), (LockWord::new(FIRST, 6), 2)] {
                let mut attempt = Attempt::new(lock_word, log.clone(), COPIES);
                lock(memory, &mut attempt, value);
                let step = attempt.commit();
                let writes = run_until(memory, &mut attempt, step, is_log);
                let Op::Write(entry) = &writes[0].op else { panic!("{writes:?}") };
                entries.push(entry.clone());
                if value == 1 {
                    let step = attempt.on_outcomes(&execute(memory, &writes));
                    assert_eq!(run(memory, &mut attempt, step), Step::Applied);
                }
            }
            for at in &log {
                memory.put(at.node, at.at, &entries[usize::from(has_later(at))]);
            }
            let copies = order.map(|node| log[node]).to_vec();
            let mut recovery = Recovery::new(FIRST, vec![copies], SLOT_BYTES, COPIES);
            let mut step = recovery.start(resolve);
            while let RecoveryStep::Post(requests) = step {
                step = recovery.on_outcomes(&execute(memory, &requests), resolve);
            }
            assert_eq!(step, RecoveryStep::Recovered);
            let at = record(0).primary;
            let found = (lock_at(memory, at), content_at(memory, at));
            assert_eq!(found, (LockWord::FREE, (2, 2)), "{older:?}, {later_on:b}, {order:?}");
            let stays = |at: &Location| memory.bytes(at.node, at.at, entries[1].len() as u64) == entries[1];
            assert!(log.iter().filter(|at| has_later(at)).all(stays), "{older:?}, {later_on:b}, {order:?}");
            assert!(log.iter().filter(|at| stays(at)).count() >= COPIES);
        }
    }
}

/// Schedule 13: two attempts read each other's record and write their own. No header is validated
/// before all locks are known to be held, so that one attempt sees the other attempt's lock.
#[test]
fn validation_before_the_locks_would_let_both_attempts_commit() {
    let memory = &mut Memory::default();
    let mut attempts = [(FIRST, 0), (SECOND, 1)].map(|(life, own)| {
        let mut attempt = attempt(life, 1);
        let step = attempt.fetch(&[(record(0), false), (record(1), false)]);
        assert_eq!(run(memory, &mut attempt, step), Step::Fetched);
        attempt.write(&record(own), Write { key: 0, value: Some(vec![1]) });
        (attempt, own)
    });
    let mut steps = attempts.each_mut().map(|(attempt, _)| attempt.commit());
    for (step, (_, own)) in steps.iter().zip(&attempts) {
        let Step::Post(requests) = step else { panic!("{step:?}") };
        let of_own = |request: &Request| request.node == record(*own).primary.node;
        assert!(matches!(requests[0].op, Op::CompareSwap { .. }) && requests.iter().all(of_own));
    }
    while steps.iter().any(|step| matches!(step, Step::Post(_))) {
        for (step, (attempt, _)) in steps.iter_mut().zip(&mut attempts) {
            if let Step::Post(requests) = step {
                *step = attempt.on_outcomes(&execute(memory, requests));
            }
        }
    }
    assert!(steps.iter().any(|step| matches!(step, Step::Aborted(_))), "{steps:?}");
}

const KEY: RecordKey = RecordKey { table: TableId(0), key: 7 };
const OTHER: RecordKey = RecordKey { table: TableId(0), key: 8 };
const LIVES: [Life; 2] = [Life { coordinator: 1, incarnation: 1 }, SECOND];

fn layout() -> Rc<Layout> {
    let table = TableSchema { max_value_bytes: 64, partitions: 1, records: 12, group_bits: 0 };
    let schema =
        Schema { tables: vec![table], nodes: 2, backups: 1, coordinators: 2, slots: 1, slot_bytes: 4096 };
    Rc::new(Layout::new(schema, |_| 0).unwrap())
}

/// Runs a coordinator for one round trip, and executes at most `requests` requests. Returns whether
/// the coordinator continues.
fn round_trip(coordinator: &mut Coordinator, memory: &mut Memory, requests: &mut usize) -> bool {
    coordinator.poll(Duration::from_secs(coordinator.next_timer().map_or(0, |at| at.as_secs() + 1)));
    let lists = coordinator.take_requests();
    let goes_on = !lists.is_empty();
    for (ticket, list) in lists {
        let executed = list.len().min(*requests);
        *requests -= executed;
        let outcomes = execute(memory, &list[..executed]);
        if executed < list.len() {
            return false;
        }
        coordinator.on_outcomes(ticket, &outcomes);
    }
    goes_on || coordinator.next_timer().is_some()
}

/// Runs a coordinator until it needs nothing more.
fn drive(coordinator: &mut Coordinator, memory: &mut Memory) {
    for _ in 0..10_000 {
        if !round_trip(coordinator, memory, &mut { usize::MAX }) {
            return;
        }
    }
    panic!("no end");
}

type Told<T> = Rc<RefCell<Option<Result<T, NotCommitted>>>>;

/// Adds a task that runs one transaction. Returns the cell for the result.
fn spawn<T: 'static>(
    coordinator: &Coordinator,
    mut program: impl AsyncFnMut(&mut mitra_txn::RemoteTransaction) -> Result<T, Abort> + 'static,
) -> Told<T> {
    let (client, told) = (coordinator.client(), Told::<T>::default());
    let result = Rc::clone(&told);
    coordinator.spawn(async move {
        let committed = client.run(async |tx| program(tx).await).await;
        *result.borrow_mut() = Some(committed.map(|committed| committed.value));
    });
    told
}

/// The memory of a store without records.
fn loaded(layout: &Layout) -> Memory {
    let mut memory = Memory::default();
    let number = Loader::new(layout).finish(NonZeroU64::MIN).unwrap();
    execute(&mut memory, &number);
    memory
}

fn inspect(layout: &Rc<Layout>, memory: &mut Memory, recovered: Life) -> Inspection {
    let mut inspector = Inspector::new(Rc::clone(layout));
    inspector.set_recovered(recovered);
    while let Some(requests) = inspector.requests() {
        inspector.on_outcomes(&execute(memory, &requests), |_, _| {});
    }
    inspector.into_inspection()
}

/// Schedule 3: a coordinator dies after each request of a transaction that inserts one record and
/// deletes another record. The places and the buckets are locked and logged, so a recovery leaves
/// the whole transaction or nothing.
#[test]
fn insert_and_delete_are_recovered_after_every_request() {
    let layout = layout();
    let loaded = &mut loaded(&layout);
    let mut loader = Coordinator::new(Rc::clone(&layout), SECOND);
    let inserted = spawn(&loader, async |tx| {
        tx.insert(OTHER, vec![1]);
        Ok(())
    });
    drive(&mut loader, loaded);
    assert_eq!(*inserted.borrow(), Some(Ok(())));
    let (mut lost, mut recovered, mut moving) = (0, 0, 0);
    for requests in 1.. {
        let memory = &mut loaded.clone();
        let mut first = Coordinator::new(Rc::clone(&layout), LIVES[0]);
        let told = spawn(&first, async |tx| {
            tx.insert(KEY, vec![2]);
            tx.delete(OTHER);
            Ok(())
        });
        let mut left = requests;
        while round_trip(&mut first, memory, &mut left) {}
        let has_ended = first.is_idle();
        // Schedule 21: an inspection of a running store sees half of a transaction.
        moving += u32::from(!inspect(&layout, memory, LIVES[0]).is_clean());
        let mut recovery =
            Recovery::new(LIVES[0], layout.log_slots(1), layout.slot_bytes(), layout.log_copies());
        let resolve = |place| layout.copies_of(place);
        let mut step = recovery.start(resolve);
        while let RecoveryStep::Post(requests) = step {
            step = recovery.on_outcomes(&execute(memory, &requests), resolve);
        }
        assert_eq!(step, RecoveryStep::Recovered);

        let mut second = Coordinator::new(Rc::clone(&layout), Life { incarnation: 2, ..SECOND });
        second.set_recovered(LIVES[0]);
        let found =
            spawn(&second, async |tx| tx.get_all(&[(KEY, Access::Update), (OTHER, Access::Update)]).await);
        drive(&mut second, memory);
        let found = found.take().expect("the locks become free").expect("the index fits");
        let is_there = found == [Some(vec![2]), None];
        assert!(is_there || found == [None, Some(vec![1])], "{requests} requests: {found:?}");
        assert!(is_there || told.borrow().is_none(), "{requests} requests: a commit is lost");
        let inspection = inspect(&layout, memory, LIVES[0]);
        assert!(inspection.is_clean(), "{requests} requests: {inspection}");
        if has_ended {
            break;
        }
        *(if is_there { &mut recovered } else { &mut lost }) += 1;
    }
    assert!(lost > 4 && recovered > 4 && moving > 4, "{lost} lost, {recovered} recovered, {moving} moving");
}

/// Schedule 4: a coordinator knows the place of a record that another coordinator deletes. The
/// place is then used for another key. The first coordinator must not take the new record for the
/// deleted record.
#[test]
fn known_place_of_a_deleted_record_is_not_trusted() {
    for is_reading in [false, true] {
        let layout = layout();
        let memory = &mut loaded(&layout);
        let mut coordinators = LIVES.map(|life| Coordinator::new(Rc::clone(&layout), life));
        let [first, second] = &mut coordinators;
        let _inserted = spawn(first, async |tx| {
            tx.insert(KEY, vec![1]);
            Ok(())
        });
        drive(first, memory);
        let put = spawn(first, async |tx| {
            let found = tx.get(KEY, Access::Read).await?;
            tx.put(KEY, vec![2]);
            Ok(found)
        });
        // The place is known, so the record is one READ away.
        if is_reading {
            round_trip(first, memory, &mut 1);
        }
        for change in [false, true] {
            let done = spawn(second, async move |tx| {
                if change {
                    tx.insert(OTHER, vec![3])
                } else {
                    tx.delete(KEY)
                }
                Ok(())
            });
            drive(second, memory);
            assert_eq!(*done.borrow(), Some(Ok(())));
        }
        drive(first, memory);
        assert_eq!(*put.borrow(), Some(Err(NotCommitted::Aborted(Abort::Missing(KEY)))));
        let found = spawn(second, async |tx| tx.get_all(&[(KEY, Access::Read), (OTHER, Access::Read)]).await);
        drive(second, memory);
        assert_eq!(*found.borrow(), Some(Ok(vec![None, Some(vec![3])])));
        assert!(inspect(&layout, memory, Life { incarnation: 0, ..SECOND }).is_clean());
    }
}

/// Schedule 20: a READ returns a part of a bucket that is being written. The key is missing in this
/// part, but the record may exist.
#[test]
fn torn_bucket_does_not_show_that_a_record_is_missing() {
    let layout = layout();
    let memory = &mut loaded(&layout);
    let [mut first, mut second] = LIVES.map(|life| Coordinator::new(Rc::clone(&layout), life));
    let _inserted = spawn(&first, async |tx| {
        tx.insert(KEY, vec![1]);
        Ok(())
    });
    drive(&mut first, memory);
    let place = Place { table: TableId(0), partition: 0, kind: PlaceKind::Bucket, index: 0 };
    let bucket = layout.copies_of(place).expect("the table has a bucket").primary;
    // The key is the second word of the value.
    let key = bucket.at + 48;
    assert_eq!(memory.bytes(bucket.node, key, 8), KEY.key.to_le_bytes());
    memory.put(bucket.node, key, &[0xff; 8]);
    let found = spawn(&second, async |tx| tx.get(KEY, Access::Read).await);
    for _ in 0..50 {
        round_trip(&mut second, memory, &mut 100);
        assert_eq!(*found.borrow(), None);
    }
    memory.put(bucket.node, key, &KEY.key.to_le_bytes());
    drive(&mut second, memory);
    assert_eq!(*found.borrow(), Some(Ok(Some(vec![1]))));
}

/// Runs a session for a moment. Node 1 executes the session's requests only if `hears` is true.
/// Returns the life that is to be fenced, if the session asks for a fence.
fn turn(session: &mut Session, memory: &mut Memory, now: Duration, hears: bool) -> Option<Life> {
    let mut fence = None;
    for command in session.poll(now) {
        match command {
            Command::Post(ticket, requests) => {
                let is_heard = |request: &Request| hears || request.node == NodeId(0);
                let executed: Vec<_> = requests.iter().filter(|request| is_heard(request)).cloned().collect();
                let outcomes = execute(memory, &executed);
                if executed.len() == requests.len() {
                    session.on_outcomes(ticket, &outcomes);
                }
            }
            Command::Fence(life) => fence = Some(life),
        }
    }
    fence
}

/// Schedule 15: node 1 does not hear a coordinator, whose heartbeats reach node 0. The life holds a
/// lock, but no coordinator takes it over while its heartbeats continue. When the life has ended,
/// its commit takes effect.
#[test]
fn life_that_one_node_cannot_hear_is_taken_over_when_it_ends() {
    let layout = layout();
    let memory = &mut loaded(&layout);
    let timing = Timing { interval: Duration::from_millis(1), timeout: Duration::from_millis(10) };
    let [mut first, mut second] = LIVES.map(|life| Session::new(Rc::clone(&layout), life, timing, &[]));
    let mut clock = (0..).map(Duration::from_millis);
    let inserted = spawn(first.coordinator(), async |tx| {
        tx.insert(KEY, vec![1]);
        Ok(())
    });
    while inserted.borrow().is_none() || !first.coordinator().is_settled() || !second.is_live() {
        let now = clock.next().unwrap();
        assert_eq!(turn(&mut first, memory, now, true), None);
        assert_eq!(turn(&mut second, memory, now, true), None);
    }
    let put = spawn(first.coordinator(), async |tx| {
        tx.put(KEY, vec![2]);
        Ok(())
    });
    let at = layout.copies_of(Place { table: TableId(0), partition: 0, kind: PlaceKind::Record, index: 0 });
    let lock = at.expect("the record has a place").primary;
    let is_locked = |memory: &Memory| lock_at(memory, lock).life() == Some(LIVES[0]);
    while !is_locked(memory) {
        turn(&mut first, memory, clock.next().unwrap(), false);
    }
    let updated = spawn(second.coordinator(), async |tx| {
        let found = tx.get(KEY, Access::Update).await?;
        tx.put(KEY, vec![3]);
        Ok(found)
    });
    for now in clock.by_ref().take(200) {
        assert_eq!(turn(&mut first, memory, now, false), None);
        assert_eq!(turn(&mut second, memory, now, true), None, "a met lock is no evidence");
    }
    assert!(is_locked(memory) && first.is_live() && updated.borrow().is_none());
    assert!(second.coordinator().aborts()["locked"] > 0);

    // The driver has lost the node.
    first.end(mitra_txn::Ending::Disconnected);
    turn(&mut first, memory, clock.next().unwrap(), false);
    assert_eq!(*put.borrow(), Some(Err(NotCommitted::Unknown)));
    let silent_since = clock.next().unwrap();
    let mut fenced = None;
    for now in clock {
        if let Some(life) = turn(&mut second, memory, now, true) {
            assert_eq!((life, fenced), (LIVES[0], None));
            fenced = Some(now);
            second.on_fenced(life);
        }
        if updated.borrow().is_some() {
            break;
        }
        assert!(now < silent_since + Duration::from_secs(1), "the lock stays");
    }
    assert!(fenced.expect("the life is fenced") >= silent_since + timing.timeout / 2);
    assert_eq!(second.take_recovered(), [LIVES[0]]);
    assert_eq!(*updated.borrow(), Some(Ok(Some(vec![2]))));
    while !second.coordinator().is_settled() {
        turn(&mut second, memory, silent_since + Duration::from_secs(2), true);
    }
    let inspection = inspect(&layout, memory, LIVES[0]);
    assert!(inspection.is_clean(), "{inspection}");
}
