//! Random programs over the records of a store. The steps of a program depend on the records that
//! it reads, and each program writes values of its own.

use mitra_txn::{Abort, Access, Layout, RecordKey, Schema, TableId, TableSchema, Transaction};

use mitra_sim::Prng;

/// The number of keys of each table. The buckets of the last table overflow. The buckets of the
/// other tables are contended.
const KEYS: [u64; 3] = [24, 24, 40];
/// The maximum length of a list.
const LIST_LEN: usize = 24;
/// The first number that a program writes. Loaded records have smaller numbers.
pub(super) const FIRST_NUMBER: u64 = 1 << 16;

pub(super) fn layout(nodes: u16, coordinators: u16, slots: u16) -> Layout {
    let lists =
        TableSchema { max_value_bytes: 8 * LIST_LEN as u32, partitions: 2, records: 12, group_bits: 0 };
    let grouped = TableSchema { max_value_bytes: 24, partitions: 1, records: 20, group_bits: 2 };
    let large = TableSchema { max_value_bytes: 24, partitions: 1, records: 20, group_bits: 0 };
    let tables = vec![lists, grouped, large];
    let schema = Schema { tables, nodes, backups: 1, coordinators, slots, slot_bytes: 2560 };
    Layout::new(schema, |at| at.key as u32).expect("the tables are small")
}

pub(super) fn draw_records(rng: &mut Prng) -> Vec<(RecordKey, Vec<u8>)> {
    let ppm = *rng.pick(&[100_000, 500_000, 800_000]);
    let mut records = Vec::new();
    for (table, keys) in (0..).map(TableId).zip(KEYS) {
        for key in (0..keys).filter(|_| rng.chance(ppm)) {
            // The last table has fewer places than keys.
            if table.0 < 2 || key % 2 == 0 {
                records.push((RecordKey { table, key }, value(table, records.len() as u64)));
            }
        }
    }
    records
}

fn value(table: TableId, number: u64) -> Vec<u8> {
    let words = if table.0 == 0 { 1 } else { 3 };
    number.to_le_bytes().repeat(words)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Get(RecordKey, Access),
    Put(RecordKey, u64),
    Insert(RecordKey, u64),
    Delete(RecordKey),
    /// Deletes, inserts or writes the record, depending on what is there.
    Toggle(RecordKey, u64),
    Append(RecordKey, u64),
}

#[derive(Clone, Debug)]
pub(super) struct Program {
    first: Vec<(RecordKey, Access)>,
    steps: Vec<Step>,
    rolls_back: bool,
}

/// All values that a program has read.
pub(super) type Output = Vec<Option<Vec<u8>>>;

/// The distribution of the steps of all programs in a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    /// The number of keys of each table that are used. Few keys make contention.
    keys: u64,
    update_ppm: u32,
    /// How many of ten steps append to a list, on average.
    appends: u64,
}

impl Mix {
    pub(super) fn draw(rng: &mut Prng) -> Mix {
        Mix {
            keys: *rng.pick(&[3, 8, 40]),
            update_ppm: *rng.pick(&[100_000, 400_000, 900_000]),
            appends: rng.below(6),
        }
    }

    pub(super) fn program(self, rng: &mut Prng, number: u64) -> Program {
        let key = |rng: &mut Prng, tables: usize| {
            let table = rng.index(tables);
            RecordKey { table: TableId(table as u16), key: rng.below(KEYS[table].min(self.keys)) }
        };
        let access = |rng: &mut Prng| if rng.chance(self.update_ppm) { Access::Update } else { Access::Read };
        let first = (0..rng.below(4)).map(|_| (key(rng, 3), access(rng))).collect();
        let steps = (0..rng.between(0, 4)).map(|at| {
            let number = FIRST_NUMBER + number * 8 + at;
            if rng.below(10) < self.appends {
                return Step::Append(key(rng, 1), number);
            }
            let key = key(rng, 3);
            match rng.below(10) {
                0 | 1 => Step::Get(key, access(rng)),
                2 => Step::Put(key, number),
                3 => Step::Insert(key, number),
                4 => Step::Delete(key),
                _ => Step::Toggle(key, number),
            }
        });
        Program { first, steps: steps.collect(), rolls_back: rng.chance(50_000) }
    }
}

impl Program {
    pub(super) async fn execute(&self, tx: &mut impl Transaction) -> Result<Output, Abort> {
        let mut output = tx.get_all(&self.first).await?;
        for step in &self.steps {
            match *step {
                Step::Get(key, access) => output.push(tx.get(key, access).await?),
                Step::Put(key, number) => tx.put(key, value(key.table, number)),
                Step::Insert(key, number) => tx.insert(key, value(key.table, number)),
                Step::Delete(key) => tx.delete(key),
                Step::Toggle(key, number) => {
                    let found = tx.get(key, Access::Update).await?;
                    match &found {
                        None => tx.insert(key, value(key.table, number)),
                        // The last table is nearly full most of the time.
                        Some(_) if number % if key.table.0 == 2 { 8 } else { 2 } == 0 => tx.delete(key),
                        Some(_) => tx.put(key, value(key.table, number)),
                    }
                    output.push(found);
                }
                Step::Append(key, number) => {
                    let found = tx.get(key, Access::Update).await?;
                    let mut list = found.clone().unwrap_or_default();
                    let excess = (list.len() + 8).saturating_sub(8 * LIST_LEN);
                    list.drain(..excess);
                    list.extend_from_slice(&number.to_le_bytes());
                    match found {
                        None => tx.insert(key, list),
                        Some(_) => tx.put(key, list),
                    }
                    output.push(found);
                }
            }
        }
        if self.rolls_back { Err(Abort::RolledBack) } else { Ok(output) }
    }
}
