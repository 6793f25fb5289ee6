//! Coordinators that read, write, insert and delete records by their keys. The committed
//! transactions, executed again one after the other on a [`Model`], must return the same results.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use mitra_prng::Prng;
use mitra_txn::{
    Abort, Access, Coordinator, Event, Layout, Life, Model, NotCommitted, RecordKey, Schema, TableId,
    TableSchema, Ticket, Transaction, serial_order,
};

use crate::cluster::{Cluster, DOUBT_PPM};

const COORDINATORS: u16 = 3;
const TASKS: u64 = 3;
const SLOTS: u16 = 4;
/// The number of keys of each table. The buckets of the last table overflow, and the buckets of the
/// other tables are contended.
const KEYS: [u64; 3] = [24, 24, 40];

fn layout() -> Layout {
    let table = TableSchema { max_value_bytes: 200, partitions: 2, records: 12, group_bits: 0 };
    let grouped = TableSchema { max_value_bytes: 24, partitions: 1, records: 20, group_bits: 2 };
    let large = TableSchema { max_value_bytes: 24, partitions: 1, records: 20, group_bits: 0 };
    let tables = vec![table, grouped, large];
    let schema =
        Schema { tables, nodes: 3, backups: 1, coordinators: COORDINATORS, slots: SLOTS, slot_bytes: 4096 };
    Layout::new(schema, |at| at.key as u32).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Get(RecordKey, Access),
    Put(RecordKey, u64),
    Insert(RecordKey, u64),
    Delete(RecordKey),
    /// Deletes, inserts or writes the record, depending on its state.
    Toggle(RecordKey, u64),
}

/// A random program whose actions depend on its reads.
#[derive(Clone, Debug)]
struct Program {
    first: Vec<(RecordKey, Access)>,
    steps: Vec<Step>,
    rolls_back: bool,
}

type Output = Vec<Option<Vec<u8>>>;

impl Program {
    fn draw(prng: &mut Prng, number: u64) -> Program {
        let key = |prng: &mut Prng| {
            let table = prng.index(KEYS.len());
            RecordKey { table: TableId(table as u16), key: prng.below(KEYS[table]) }
        };
        let access = |prng: &mut Prng| if prng.chance(400_000) { Access::Update } else { Access::Read };
        let first = (0..prng.below(4)).map(|_| (key(prng), access(prng))).collect();
        let steps = (0..prng.between(0, 4)).map(|at| {
            let (key, value) = (key(prng), number * 8 + at);
            match prng.below(10) {
                0 | 1 => Step::Get(key, access(prng)),
                2 => Step::Put(key, value),
                3 => Step::Insert(key, value),
                4 => Step::Delete(key),
                _ => Step::Toggle(key, value),
            }
        });
        Program { first, steps: steps.collect(), rolls_back: prng.chance(50_000) }
    }

    async fn execute(&self, tx: &mut impl Transaction) -> Result<Output, Abort> {
        let value = |number: u64| [number.to_le_bytes(); 3].concat();
        let mut output = tx.get_all(&self.first).await?;
        for step in &self.steps {
            match *step {
                Step::Get(key, access) => output.push(tx.get(key, access).await?),
                Step::Put(key, number) => tx.put(key, value(number)),
                Step::Insert(key, number) => tx.insert(key, value(number)),
                Step::Delete(key) => tx.delete(key),
                Step::Toggle(key, number) => {
                    let found = tx.get(key, Access::Update).await?;
                    match &found {
                        None => tx.insert(key, value(number)),
                        // The last table is nearly full most of the time.
                        Some(_) if number % if key.table.0 == 2 { 8 } else { 2 } == 0 => tx.delete(key),
                        Some(_) => tx.put(key, value(number)),
                    }
                    output.push(found);
                }
            }
        }
        if self.rolls_back { Err(Abort::RolledBack) } else { Ok(output) }
    }
}

#[derive(Default)]
struct History {
    now: u64,
    programs: Vec<(Program, Output)>,
    events: Vec<Event>,
    /// Why programs did not commit: the store refused them, or they rolled back.
    refused: Vec<Abort>,
}

fn run(seed: u64) -> (usize, usize) {
    let layout = Rc::new(layout());
    let cluster_prng = Prng::stream(seed, "cluster");
    let doubt_ppm = if seed.is_multiple_of(2) { DOUBT_PPM } else { 0 };
    let mut cluster = Cluster::new(3, layout.bytes() as usize, cluster_prng, doubt_ppm);
    let history = Rc::new(RefCell::new(History::default()));
    let mut coordinators: Vec<Coordinator> = (1..=COORDINATORS)
        .map(|coordinator| Coordinator::new(Rc::clone(&layout), Life { coordinator, incarnation: 1 }))
        .collect();
    for (number, coordinator) in coordinators.iter().enumerate() {
        for task in 0..TASKS {
            let (client, history) = (coordinator.client(), Rc::clone(&history));
            let mut prng = Prng::stream(seed, &format!("task {number} {task}"));
            coordinator.spawn(async move {
                for at in 0..20 {
                    let program = Program::draw(&mut prng, (number as u64 * TASKS + task) * 20 + at);
                    let begun = history.borrow().now;
                    let result = client.run(async |tx| program.execute(tx).await).await;
                    let mut history = history.borrow_mut();
                    match result {
                        Ok(committed) => {
                            let told = history.now;
                            history.programs.push((program, committed.value));
                            history.events.push(Event { footprint: committed.footprint, begun, told });
                        }
                        Err(NotCommitted::Aborted(why)) => history.refused.push(why),
                        Err(NotCommitted::Unknown) => panic!("no life has ended"),
                    }
                }
            });
        }
    }
    loop {
        let now = {
            let history = &mut *history.borrow_mut();
            history.now += 1;
            assert!(history.now < 3_000_000, "no end");
            history.now
        };
        let mut is_posted = false;
        for (number, coordinator) in coordinators.iter_mut().enumerate() {
            coordinator.poll(Duration::from_micros(now));
            for (Ticket(ticket), requests) in coordinator.take_requests() {
                is_posted = true;
                cluster.post(number << 32 | ticket as usize, requests);
            }
        }
        if coordinators.iter().all(Coordinator::is_idle) {
            break;
        }
        if (!cluster.is_idle() || is_posted)
            && let Some((client, outcomes)) = cluster.step()
        {
            coordinators[client >> 32].on_outcomes(Ticket(client as u64 & 0xffff_ffff), &outcomes);
        }
    }
    let history = Rc::into_inner(history).expect("all tasks have ended").into_inner();
    let order = serial_order(&history.events).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    let mut model = Model::new();
    for event in order {
        let (program, output) = &history.programs[event];
        let replayed = model.run(async |tx| program.execute(tx).await);
        assert_eq!(replayed.as_ref(), Ok(output), "seed {seed}, {program:?}");
    }
    assert!(!history.refused.iter().any(Abort::is_retryable));
    (history.events.len(), history.refused.len())
}

#[test]
fn committed_transactions_return_what_a_serial_execution_returns() {
    let (mut committed, mut refused) = (0, 0);
    for seed in 0..100 {
        let (some, others) = run(seed);
        (committed, refused) = (committed + some, refused + others);
    }
    assert!(committed > 100 * 80, "{committed} committed, {refused} refused");
}
