//! Transactions that read lists and append to them, for clients that run them by [`Attempt`]s.

use std::collections::BTreeMap;

use mitra_prng::Prng;
use mitra_txn::{
    Attempt, Conflict, Copies, Life, Location, LockWord, NodeId, Outcome, Place, PlaceKind, Request, Step,
    TableId, Write, free_stale_lock,
};

use crate::cluster::Cluster;
use crate::history::Transaction;

pub const NODES: u16 = 3;
pub const COPIES: usize = 2;
const RECORDS: u32 = 6;
const RECORD_BYTES: u32 = 512;
pub const SLOT_BYTES: u32 = 4096;

pub fn location(node: u16, at: u64) -> Location {
    Location { node: NodeId(node % NODES), at }
}

/// The records come first, then the slots of the logs, one for each client.
fn copies(index: u32) -> Copies {
    let place = Place { table: TableId(0), partition: 0, kind: PlaceKind::Record, index };
    let at = u64::from(index * RECORD_BYTES);
    let primary = index as u16 % NODES;
    Copies {
        place,
        primary: location(primary, at),
        backups: vec![location(primary + 1, at)],
        bytes: RECORD_BYTES,
    }
}

pub fn resolve(place: Place) -> Option<Copies> {
    (place.index < RECORDS).then(|| copies(place.index))
}

pub fn slot(client: usize) -> Vec<Location> {
    let at = bytes(client) as u64;
    (0..NODES).map(|node| location(node, at)).collect()
}

/// The length of the memory of a node, in bytes: the records, and the slots of `clients` clients.
pub fn bytes(clients: usize) -> usize {
    (RECORDS * RECORD_BYTES) as usize + clients * SLOT_BYTES as usize
}

/// A value has the latest entry first, so that two values have different bytes at most places.
fn list_of(value: &[u8]) -> Vec<u32> {
    value.rchunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn value_of(list: &[u32]) -> Vec<u8> {
    list.iter().rev().flat_map(|number| number.to_le_bytes()).collect()
}

pub struct Running {
    attempt: Attempt,
    pub number: u32,
    pub transaction: Transaction,
    is_committing: bool,
}

pub enum Next {
    Post(Vec<Request>),
    /// The transaction has ended. `Some` is the lock that prevented its effect.
    Ended(Option<(Place, LockWord)>),
}

impl Running {
    /// Draws the transaction `number`, and begins its attempt with the lock word `lock`.
    pub fn begin(prng: &mut Prng, lock: LockWord, number: u32, now: u64) -> (Running, Step) {
        let mut attempt = Attempt::new(lock, slot(usize::from(lock.life().unwrap().coordinator) - 1), COPIES);
        let wanted: BTreeMap<u32, bool> = (0..prng.between(1, 3))
            .map(|_| (prng.below(u64::from(RECORDS)) as u32, prng.chance(300_000)))
            .collect();
        let copies: Vec<_> = wanted.iter().map(|(&index, &locks)| (copies(index), locks)).collect();
        let mut appends: Vec<u32> =
            wanted.iter().filter(|(_, locks)| **locks).map(|(&index, _)| index).collect();
        appends.extend(wanted.keys().filter(|_| prng.chance(300_000)));
        appends.sort_unstable();
        appends.dedup();
        let transaction = Transaction { reads: BTreeMap::new(), appends, begun: now, told: None };
        let step = attempt.fetch(&copies);
        (Running { attempt, number, transaction, is_committing: false }, step)
    }

    pub fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Step {
        self.attempt.on_outcomes(outcomes)
    }

    /// Takes a step. Adds a committed transaction to `committed`.
    pub fn go_on(&mut self, mut step: Step, now: u64, committed: &mut BTreeMap<u32, Transaction>) -> Next {
        loop {
            if self.attempt.is_committed() && self.transaction.told.is_none() {
                self.transaction.told = Some(now);
                committed.insert(self.number, self.transaction.clone());
            }
            match step {
                Step::Post(requests) => return Next::Post(requests),
                Step::Fetched if !self.is_committing => {
                    self.is_committing = true;
                    for index in 0..RECORDS {
                        let copies = copies(index);
                        let Some(record) = self.attempt.record(copies.place) else { continue };
                        let mut list = list_of(&record.value);
                        self.transaction.reads.insert(index, list.clone());
                        if self.transaction.appends.contains(&index) {
                            list.push(self.number);
                            let value = Some(value_of(&list));
                            self.attempt.write(&copies, Write { key: index.into(), value });
                        }
                    }
                    step = self.attempt.commit();
                }
                Step::Applied => {
                    assert!(self.attempt.is_committed());
                    return Next::Ended(None);
                }
                Step::Aborted(Conflict::Locked(place, lock)) => return Next::Ended(Some((place, lock))),
                Step::Aborted(_) => return Next::Ended(None),
                Step::Fetched | Step::Undecided => panic!("enough nodes live"),
            }
        }
    }
}

/// Frees a lock whose life is recovered.
pub fn free(place: Place, lock: LockWord) -> Vec<Request> {
    vec![free_stale_lock(copies(place.index).primary, lock)]
}

/// Returns the lists, unless copies differ or locks are held by lives that are not recovered.
pub fn lists(
    cluster: &Cluster,
    is_recovered: impl Fn(Life) -> bool,
) -> Result<BTreeMap<u32, Vec<u32>>, String> {
    let mut lists = BTreeMap::new();
    for index in 0..RECORDS {
        let copies = copies(index);
        let found = |at: Location| {
            let bytes = &cluster.memory(at.node)[at.at as usize..][..RECORD_BYTES as usize];
            let lock = LockWord::from_bits(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
            (lock, bytes[8..].to_vec())
        };
        let all = [copies.primary].into_iter().chain(copies.backups.iter().copied());
        let live: Vec<_> = all.filter(|at| !cluster.is_dead(at.node)).map(found).collect();
        let (lock, first) = &live[0];
        if lock.life().is_some_and(|life| !is_recovered(life)) {
            return Err(format!("record {index} is locked by {lock:?}"));
        }
        if live.iter().any(|(_, copy)| copy != first) {
            return Err(format!("the copies of record {index} differ"));
        }
        let len = u64::from_le_bytes(first[24..32].try_into().unwrap()) as usize;
        lists.insert(index, list_of(&first[32..32 + len]));
    }
    Ok(lists)
}
