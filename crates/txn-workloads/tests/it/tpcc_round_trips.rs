//! The demands of the transactions on a store: round trips and announced accesses.

use std::collections::{BTreeMap, BTreeSet};

use mitra_prng::Prng;
use mitra_txn::{Abort, Access, RecordKey, Transaction};
use mitra_txn_workloads::Program;
use mitra_txn_workloads::tpcc::{Constants, CustomerBy, Input, Kind, Terminal};

use crate::{SEED, TENTH, loaded, scale};

/// Counts the reads of a transaction, and checks that it announces its writes.
struct Observed<'a, T> {
    tx: &'a mut T,
    round_trips: usize,
    read: BTreeSet<RecordKey>,
    locked: BTreeSet<RecordKey>,
    has_written: bool,
}

impl<T: Transaction> Transaction for Observed<'_, T> {
    async fn get_all(&mut self, items: &[(RecordKey, Access)]) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        self.round_trips += 1;
        assert!(!self.has_written, "a program that finds a corrupt record must not have written");
        for &(at, access) in items {
            assert!(self.read.insert(at), "{at:?} is read twice");
            if access == Access::Update {
                self.locked.insert(at);
            }
        }
        self.tx.get_all(items).await
    }

    fn put(&mut self, at: RecordKey, value: Vec<u8>) {
        self.has_written = true;
        assert!(self.locked.contains(&at), "{at:?} is written, and was not read for it");
        self.tx.put(at, value);
    }

    fn insert(&mut self, at: RecordKey, value: Vec<u8>) {
        self.has_written = true;
        self.tx.insert(at, value);
    }

    fn delete(&mut self, at: RecordKey) {
        self.has_written = true;
        assert!(self.locked.contains(&at), "{at:?} is deleted, and was not read for it");
        self.tx.delete(at);
    }
}

/// The round trips that the documentation of `tpcc` states. A district that a Delivery skips needs
/// no third round trip.
fn stated(input: &Input) -> usize {
    let by_name = |customer| usize::from(matches!(customer, CustomerBy::Name(_)));
    match input {
        Input::NewOrder(_) => 1,
        Input::Payment(input) => 1 + by_name(input.customer),
        Input::OrderStatus(input) => 2 + by_name(input.customer),
        Input::Delivery(_) => 3,
        Input::StockLevel(_) => 4,
    }
}

#[test]
fn transactions_read_in_the_stated_round_trips_and_announce_their_writes() {
    let scale = scale(2, TENTH);
    let mut store = loaded(scale);
    let prng = Prng::stream(SEED, "terminal");
    let mut terminal = Terminal::new(scale, Constants::new(SEED), 1, 1, prng);
    let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
    for input in (0..500).flat_map(|now| terminal.next(now)) {
        let mut round_trips = 0;
        let result = store.run(async |tx| {
            let (read, locked) = (BTreeSet::new(), BTreeSet::new());
            let mut observed = Observed { tx, round_trips: 0, read, locked, has_written: false };
            let result = input.execute(&mut observed).await;
            round_trips = observed.round_trips;
            result
        });
        assert!(matches!(result, Ok(Ok(_)) | Err(Abort::RolledBack)), "{result:?}");
        assert_eq!(round_trips, stated(&input), "{input:?}");
        *kinds.entry(input.kind()).or_default() += 1;
    }
    assert_eq!(kinds.len(), 5);
}
