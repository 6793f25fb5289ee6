//! Stores that a loader has filled: coordinators run on them, and an inspector checks them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use mitra_prng::Prng;
use mitra_txn::{
    Abort, Access, Client, Coordinator, HeldLock, IndexError, Inspection, Inspector, Layout, Life, LoadError,
    Loader, Location, LockWord, Model, NodeId, NotCommitted, Op, Outcome, Place, PlaceCopy, PlaceKind,
    RecordKey, RemoteTransaction, Request, Schema, StoreError, TableId, TableSchema, Transaction, Verdict,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::{Cluster, DOUBT_PPM};

const LIFE: Life = Life { coordinator: 1, incarnation: 1 };
const NUMBER: NonZeroU64 = NonZeroU64::new(77).unwrap();
const NODES: u16 = 3;
const PARTITIONS: u32 = 4;
const MAX_VALUE_BYTES: u32 = 30;
const HEADER_BYTES: usize = 40;
/// The number of keys of a bucket of table 0.
const BUCKET_RECORDS: u32 = 16;
const PASSED: u64 = 1 << 63;

type Loaded = Vec<(RecordKey, Vec<u8>)>;

fn at(table: u16, key: u64) -> RecordKey {
    RecordKey { table: TableId(table), key }
}

fn partition_of(at: RecordKey) -> u32 {
    (at.key >> 4) as u32
}

/// Table 1 has buckets for groups of 16 keys.
fn schema(records: u32) -> Schema {
    let table = |group_bits| TableSchema {
        max_value_bytes: MAX_VALUE_BYTES,
        partitions: PARTITIONS,
        records,
        group_bits,
    };
    Schema {
        tables: vec![table(0), table(4)],
        nodes: NODES,
        backups: 1,
        coordinators: 2,
        slots: 2,
        slot_bytes: 4096,
    }
}

fn partitions() -> impl Iterator<Item = (TableId, u32)> {
    (0..2).flat_map(|table| (0..PARTITIONS).map(move |partition| (TableId(table), partition)))
}

fn draw_value(prng: &mut Prng) -> Vec<u8> {
    (0..prng.below(1 + u64::from(MAX_VALUE_BYTES))).map(|_| prng.bits() as u8).collect()
}

fn draw_records(prng: &mut Prng, count: usize) -> Loaded {
    let mut records = BTreeMap::new();
    while records.len() < count {
        let table = prng.below(2) as u16;
        let groups = if table == 0 { 1 << 50 } else { 1 << 8 };
        records.insert(at(table, prng.below(groups) << 4 | prng.below(16)), draw_value(prng));
    }
    let mut records: Loaded = records.into_iter().collect();
    prng.shuffle(&mut records);
    records
}

/// The content behind the lock of a place, encoded independently of the crate.
fn content(version: u64, key: u64, value: &[u8]) -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let check = xxh3_64(&[&words(&[version, key, value.len() as u64]), value].concat());
    [&words(&[version, check, key, value.len() as u64]), value].concat()
}

struct Store {
    layout: Rc<Layout>,
    cluster: Cluster,
}

impl Store {
    fn new(records: u32, seed: u64, doubt_ppm: u32) -> Store {
        let layout = Layout::new(schema(records), partition_of).unwrap();
        let prng = Prng::stream(seed, "cluster");
        let mut cluster = Cluster::new(usize::from(NODES), layout.bytes() as usize, prng, doubt_ppm);
        cluster.load(Loader::new(&layout).finish(NUMBER).unwrap());
        Store { layout: Rc::new(layout), cluster }
    }

    fn execute(&mut self, requests: Vec<Request>) -> Vec<Outcome> {
        self.cluster.post(0, requests);
        loop {
            if let Some((_, outcomes)) = self.cluster.step() {
                return outcomes;
            }
        }
    }

    fn write(&mut self, request: &Request) {
        while self.execute(vec![request.clone()])[0].needs_repetition() {}
    }

    fn load(&mut self, records: &Loaded) {
        let layout = Rc::clone(&self.layout);
        let mut loader = Loader::new(&layout);
        for (at, value) in records {
            loader.insert(*at, value.clone()).unwrap();
        }
        for request in loader.take_requests() {
            assert!(matches!(&request.op, Op::Write(bytes) if bytes.len() <= 256 << 10));
            self.write(&request);
        }
    }

    /// Inspects the store after the recovery of a life. Returns the records, too.
    fn inspect_after(&mut self, recovered: Option<Life>) -> (Inspection, BTreeMap<RecordKey, Vec<u8>>) {
        self.inspect_with(|inspector| recovered.into_iter().for_each(|life| inspector.set_recovered(life)))
    }

    fn inspect_with(
        &mut self,
        prepare: impl FnOnce(&mut Inspector),
    ) -> (Inspection, BTreeMap<RecordKey, Vec<u8>>) {
        let mut inspector = Inspector::new(Rc::clone(&self.layout));
        prepare(&mut inspector);
        let mut records = BTreeMap::new();
        while let Some(requests) = inspector.requests() {
            assert!(
                requests.iter().all(|request| matches!(request.op, Op::Read(bytes) if bytes <= 256 << 10))
            );
            let outcomes = self.execute(requests);
            inspector.on_outcomes(&outcomes, |at, value| _ = records.insert(at, value.to_vec()));
        }
        (inspector.into_inspection(), records)
    }

    fn inspect(&mut self) -> Inspection {
        self.inspect_after(None).0
    }

    /// Runs a coordinator until it is idle. Returns the number of lists of requests that it has
    /// posted.
    fn run(&mut self, coordinator: &mut Coordinator) -> usize {
        let (mut now, mut lists) = (Duration::ZERO, 0);
        while !coordinator.is_idle() {
            coordinator.poll(now);
            now = now.max(coordinator.next_timer().unwrap_or_default());
            for (ticket, requests) in coordinator.take_requests() {
                lists += 1;
                let outcomes = self.execute(requests);
                coordinator.on_outcomes(ticket, &outcomes);
            }
        }
        lists
    }

    /// Runs a task on a coordinator, as [`Store::run`].
    fn run_task(&mut self, coordinator: &mut Coordinator, task: impl AsyncFnOnce(Client) + 'static) -> usize {
        let client = coordinator.client();
        coordinator.spawn(async move { task(client).await });
        self.run(coordinator)
    }

    fn coordinator(&self) -> Coordinator {
        Coordinator::new(Rc::clone(&self.layout), LIFE)
    }

    fn places(&self, kind: PlaceKind) -> Vec<Place> {
        let places = partitions().flat_map(|(table, partition)| {
            let places = (0..).map(move |index| Place { table, partition, kind, index });
            places.take_while(|place| self.layout.copies_of(*place).is_some())
        });
        places.collect()
    }

    /// The copies of a place, the primary first.
    fn copies(&self, place: Place) -> Vec<Location> {
        let copies = self.layout.copies_of(place).unwrap();
        [copies.primary].into_iter().chain(copies.backups).collect()
    }

    fn copy(&self, place: Place, copy: usize) -> PlaceCopy {
        PlaceCopy { place, node: self.copies(place)[copy].node }
    }

    fn memory(&self, at: Location) -> &[u8] {
        &self.cluster.memory(at.node)[at.at as usize..]
    }

    /// The value at a place, with the length that the memory states.
    fn value(&self, place: Place) -> Vec<u8> {
        let bytes = self.memory(self.copies(place)[0]);
        let len = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
        bytes[HEADER_BYTES..HEADER_BYTES + len].to_vec()
    }

    fn place_of(&self, at: RecordKey) -> Place {
        let has_key = |place: &Place| {
            let bytes = self.memory(self.copies(*place)[0]);
            place.table == at.table && bytes[8..16] != [0; 8] && bytes[24..32] == at.key.to_le_bytes()
        };
        self.places(PlaceKind::Record).into_iter().find(has_key).unwrap()
    }

    /// Replaces all copies of a place, except their locks.
    fn replace(&mut self, place: Place, version: u64, key: u64, value: &[u8]) {
        for at in self.copies(place) {
            self.damage(at, 8, content(version, key, value));
        }
    }

    fn damage(&mut self, Location { node, at }: Location, offset: u64, bytes: Vec<u8>) {
        self.write(&Request { node, at: at + offset, op: Op::Write(bytes) });
    }

    /// Changes the words of a bucket of table 0.
    fn change_bucket(&mut self, bucket: Place, change: impl FnOnce(&mut Vec<u64>)) {
        let value = self.value(bucket);
        let mut words: Vec<u64> =
            value.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        words.resize(1 + BUCKET_RECORDS as usize, 0);
        change(&mut words);
        let value: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        self.replace(bucket, 9, bucket.index.into(), &value);
    }
}

fn bucket_of(place: Place) -> Place {
    Place { kind: PlaceKind::Bucket, index: place.index / BUCKET_RECORDS, ..place }
}

fn slot_of(place: Place) -> u64 {
    u64::from(place.index % BUCKET_RECORDS)
}

#[test]
fn loaded_store_is_as_if_transactions_had_inserted_the_records() {
    for seed in 0..3 {
        let (mut loaded, mut inserted) = (Store::new(40, seed, 0), Store::new(40, seed, 0));
        let places = loaded.places(PlaceKind::Record).len();
        let layout = Rc::clone(&loaded.layout);
        let mut loader = Loader::new(&layout);
        let mut records = Loaded::new();
        let mut refused = Vec::new();
        // There are more records than places.
        for (at, value) in draw_records(&mut Prng::new(seed), 4000) {
            match loader.insert(at, value.clone()) {
                Ok(()) => records.push((at, value)),
                Err(LoadError::Full { table, partition }) => {
                    assert_eq!((table, partition), (at.table, partition_of(at) % PARTITIONS));
                    refused.push(at);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(records.len(), places);
        for (at, value) in &records {
            assert_eq!(loader.insert(*at, value.clone()), Err(LoadError::Twice(*at)));
        }
        loader.take_requests().for_each(|request| loaded.write(&request));

        let mut coordinator = inserted.coordinator();
        let (all, full) = (records.clone(), refused[0]);
        inserted.run_task(&mut coordinator, async move |client| {
            for (at, value) in all {
                let insert = async |tx: &mut RemoteTransaction| {
                    tx.insert(at, value.clone());
                    Ok(())
                };
                client.run(insert).await.unwrap();
            }
            let insert = async |tx: &mut RemoteTransaction| {
                tx.insert(full, Vec::new());
                Ok(())
            };
            assert_eq!(client.run(insert).await.unwrap_err(), NotCommitted::Aborted(Abort::Full(full.table)));
        });

        // The version of a bucket counts its inserts, and a loaded bucket has no inserts. So
        // buckets are compared only behind version and checksum.
        for (kind, begin) in [(PlaceKind::Bucket, 24), (PlaceKind::Record, 8)] {
            for place in loaded.places(kind) {
                let bytes = layout.copies_of(place).unwrap().bytes as usize;
                for at in loaded.copies(place) {
                    assert_eq!(loaded.memory(at)[begin..bytes], inserted.memory(at)[begin..bytes], "{place}");
                }
            }
        }
        let records: BTreeMap<_, _> = records.into_iter().collect();
        for store in [&mut loaded, &mut inserted] {
            let (inspection, found) = store.inspect_after(None);
            assert!(inspection.is_clean(), "{inspection}");
            assert_eq!(inspection.records.iter().sum::<u64>(), places as u64);
            assert_eq!(found, records);
        }
    }
}

/// Changes records in one transaction. Returns the earlier values.
async fn change(
    tx: &mut impl Transaction,
    changes: &Loaded,
    deletes: bool,
) -> Result<Vec<Option<Vec<u8>>>, Abort> {
    let wanted: Vec<_> = changes.iter().map(|(at, _)| (*at, Access::Update)).collect();
    let found = tx.get_all(&wanted).await?;
    for ((at, value), found) in changes.iter().zip(&found) {
        match (found, deletes) {
            (None, _) => tx.insert(*at, value.clone()),
            (Some(_), false) => tx.put(*at, value.clone()),
            (Some(_), true) => tx.delete(*at),
        }
    }
    Ok(found)
}

#[test]
fn transactions_run_on_a_loaded_store() {
    for seed in 0..10 {
        let mut store = Store::new(60, seed, DOUBT_PPM);
        let prng = &mut Prng::new(seed);
        let records = draw_records(prng, 300);
        store.load(&records);
        let mut model = Model::new();
        records.iter().for_each(|(at, value)| model.load(*at, value.clone()));
        let mut coordinator = store.coordinator();
        if seed % 2 == 0 {
            coordinator.warm_up(partitions());
        }
        let model = Rc::new(RefCell::new(model));
        let shared = Rc::clone(&model);
        let mut prng = prng.clone();
        store.run_task(&mut coordinator, async move |client| {
            for _ in 0..200 {
                let mut changes = draw_records(&mut prng, 1);
                for _ in 0..prng.index(3) {
                    let known = prng.pick(&records).0;
                    if changes.iter().all(|(at, _)| *at != known) {
                        changes.push((known, draw_value(&mut prng)));
                    }
                }
                let deletes = prng.chance(500_000);
                let expected = shared.borrow_mut().run(async |tx| change(tx, &changes, deletes).await);
                let committed = client.run(async |tx| change(tx, &changes, deletes).await).await.unwrap();
                assert_eq!(Ok(committed.value), expected);
            }
        });
        let (inspection, found) = store.inspect_after(None);
        assert!(inspection.is_clean(), "seed {seed}: {inspection}");
        assert_eq!(found, *model.borrow().records());
    }
}

#[test]
fn warm_coordinator_finds_records_in_one_round_trip() {
    let (mut store, [(_, locked), (_, torn)]) = small_store();
    let left_out = [locked, torn].map(bucket_of);
    assert_ne!(left_out[0], left_out[1]);
    let records = store.inspect_after(None).1;
    for warms_up in [false, true] {
        let mut coordinator = store.coordinator();
        if warms_up {
            let lock = store.copies(left_out[0])[0];
            let check = Location { at: store.copies(left_out[1])[0].at + 16, ..store.copies(left_out[1])[0] };
            let intact = store.memory(check)[..8].to_vec();
            store.damage(lock, 0, LockWord::new(LIFE, 1).bits().to_le_bytes().to_vec());
            store.damage(check, 0, vec![0; 8]);
            // Partitions that do not exist have no index.
            let missing = [(TableId(0), PARTITIONS), (TableId(2), 0)];
            coordinator.warm_up(partitions().chain(missing));
            assert!(!coordinator.is_idle());
            store.run(&mut coordinator);
            store.damage(lock, 0, vec![0; 8]);
            store.damage(check, 0, intact);
        }
        for (at, value) in records.clone() {
            let is_left_out = at.table == TableId(0) && left_out.contains(&bucket_of(store.place_of(at)));
            let lists = store.run_task(&mut coordinator, async move |client| {
                let found = client.run(async |tx| tx.get(at, Access::Read).await).await.unwrap();
                assert_eq!(found.value, Some(value));
            });
            assert_eq!(lists == 1, warms_up && !is_left_out, "{lists}");
        }
    }
}

#[test]
fn records_that_do_not_fit_are_refused() {
    let layout = Layout::new(schema(40), partition_of).unwrap();
    let mut loader = Loader::new(&layout);
    assert_eq!(loader.insert(at(2, 0), Vec::new()), Err(LoadError::UnknownTable(TableId(2))));
    let long = LoadError::TooLong { at: at(0, 1), bytes: 31, max: 30 };
    assert_eq!(loader.insert(at(0, 1), vec![0; 31]), Err(long));
    assert_eq!(loader.take_requests().count(), 0);
    loader.insert(at(0, 1), vec![0; 30]).unwrap();
    assert_eq!(loader.take_requests().count(), 2, "bucket and record in one piece for each copy");
    loader.insert(at(1, 1), Vec::new()).unwrap();
    assert_eq!(loader.clone().finish(NUMBER), Err(LoadError::Untaken));
    loader.insert(at(0, 16), Vec::new()).unwrap();
    let late = LoadError::Late { at: at(0, 2), partition: 0 };
    assert_eq!(loader.insert(at(0, 2), Vec::new()), Err(late));
}

#[test]
fn large_partitions_are_written_and_read_in_pieces() {
    let written = |store: &Store, records: &Loaded| {
        let mut loader = Loader::new(&store.layout);
        records.iter().for_each(|(at, value)| loader.insert(*at, value.clone()).unwrap());
        let length = |request: Request| match request.op {
            Op::Write(bytes) => bytes.len(),
            _ => panic!("{request:?}"),
        };
        let lengths: Vec<_> = loader.take_requests().map(length).collect();
        (lengths.len(), lengths.into_iter().sum::<usize>())
    };
    let mut store = Store::new(6000, 1, 0);
    let few = draw_records(&mut Prng::new(1), 10);
    let (requests, bytes) = written(&store, &few);
    assert!(requests <= 4 * 10 && bytes < 4 * 10 * 5000, "{requests} requests of {bytes} bytes");
    let many: Loaded = (0..20_000).map(|key| (at(0, key), vec![1; 20])).collect();
    let (requests, bytes) = written(&store, &many);
    assert!(requests < 2 * 4 * 6 && bytes > 2 * 20_000 * 60, "{requests} requests of {bytes} bytes");
    store.load(&many);
    let (inspection, records) = store.inspect_after(None);
    assert!(inspection.is_clean(), "{inspection}");
    assert_eq!(inspection.records, [20_000, 0]);
    assert!(records.into_iter().eq(many));
}

/// Returns a store with records, and the first two records of table 0 with their places.
fn small_store() -> (Store, [(RecordKey, Place); 2]) {
    let mut store = Store::new(60, 1, 0);
    let records = draw_records(&mut Prng::new(1), 100);
    store.load(&records);
    let mut keys = records.iter().map(|(at, _)| *at).filter(|at| at.table == TableId(0));
    let known = [(); 2].map(|()| keys.next().unwrap()).map(|at| (at, store.place_of(at)));
    (store, known)
}

#[test]
fn held_locks_are_found() {
    let (mut store, [(at, place), _]) = small_store();
    let bucket = bucket_of(place);
    let lock = LockWord::new(Life { coordinator: 2, incarnation: 3 }, 4);
    for (place, copy) in [(place, 0), (place, 1), (bucket, 0)] {
        store.damage(store.copies(place)[copy], 0, lock.bits().to_le_bytes().to_vec());
    }
    let expected = [(bucket, 0, None), (place, 0, Some(at.key)), (place, 1, Some(at.key))]
        .map(|(place, copy, key)| HeldLock { at: store.copy(place, copy), key, lock });
    let inspection = store.inspect();
    assert_eq!(inspection.held_locks.first, expected);
    assert!(!inspection.is_clean());
    let line = format!(
        "  record {} in partition {} of table 0 on node {}, key {}: attempt 4 of coordinator 2, incarnation 3\n",
        place.index,
        place.partition,
        store.copy(place, 0).node.0,
        at.key
    );
    assert!(inspection.to_string().contains(&line), "{inspection}");
    let before = store.inspect_after(Some(Life { coordinator: 2, incarnation: 2 })).0;
    assert_eq!((before.held_locks.count, before.recovered_locks), (3, 0));
    let after = store.inspect_after(Some(Life { coordinator: 2, incarnation: 3 })).0;
    assert_eq!((after.held_locks.count, after.recovered_locks), (0, 3));
    assert!(after.is_clean());
}

/// A life has ended while it wrote a record: the primary has its lock, and the backup the new
/// value.
#[test]
fn txn_crash_leaves_locks_that_are_no_damage() {
    let (mut store, [(at, place), (_, other)]) = small_store();
    let life = Life { coordinator: 2, incarnation: 3 };
    let lock = LockWord::new(life, 4);
    let word = lock.bits().to_le_bytes().to_vec();
    let [primary, backup] = store.copies(place)[..] else { panic!("a record has two copies") };
    store.damage(primary, 0, word.clone());
    store.damage(backup, 8, content(9, at.key, b"new"));
    assert_eq!(store.inspect().verdict(), Verdict::Damaged, "the life is unknown");

    let (inspection, _) = store.inspect_with(|inspector| inspector.set_unrecovered(life));
    assert_eq!(inspection.verdict(), Verdict::Unrecovered, "{inspection}");
    let held = HeldLock { at: store.copy(place, 0), key: Some(at.key), lock };
    assert_eq!((inspection.unrecovered_locks.first, inspection.held_locks.count), (vec![held], 0));

    // No life locks a backup.
    store.damage(store.copies(other)[1], 0, word);
    let (inspection, _) = store.inspect_with(|inspector| inspector.set_unrecovered(life));
    assert_eq!((inspection.verdict(), inspection.held_locks.count), (Verdict::Damaged, 1), "{inspection}");
}

#[test]
fn torn_and_differing_copies_are_found() {
    let (mut store, [(at, place), (other, other_place)]) = small_store();
    let bucket = bucket_of(place);
    for (place, copy) in [(place, 0), (bucket, 1)] {
        let location = store.copies(place)[copy];
        let flipped = !store.memory(location)[24];
        store.damage(location, 24, vec![flipped]);
    }
    let backup = store.copies(other_place)[1];
    store.damage(backup, 8, content(2, other.key, b"other"));
    let inspection = store.inspect();
    assert_eq!(inspection.torn.first, [store.copy(bucket, 1), store.copy(place, 0)]);
    assert_eq!(inspection.differing.first, [store.copy(other_place, 1)]);
    assert_eq!(inspection.index_errors.count, 0, "{at:?} is torn at its primary");
    assert!(!inspection.is_clean());
    // A torn bucket says nothing about its records.
    let primary = store.copies(bucket)[0];
    store.damage(primary, 24, vec![0xff]);
    let inspection = store.inspect();
    assert_eq!(inspection.torn.first[..2], [store.copy(bucket, 0), store.copy(bucket, 1)]);
    assert_eq!(inspection.index_errors.count, 0, "{inspection}");
}

/// Inspects the store, checks that only the index has errors, and returns these errors.
fn index_errors(store: &mut Store) -> Vec<IndexError> {
    let inspection = store.inspect();
    let errors = inspection.index_errors.first.clone();
    assert!(!inspection.is_clean());
    assert!(Inspection { index_errors: Default::default(), ..inspection }.is_clean());
    errors
}

#[test]
fn index_errors_are_found() {
    let (mut store, [(at, place), _]) = small_store();
    let key = at.key;
    store.replace(place, 2 | 1 << 63, key, &[]);
    assert_eq!(index_errors(&mut store), [IndexError::NoRecord { key, place }]);
    store.replace(place, 3, key + 1, b"other");
    let errors = [IndexError::NoRecord { key, place }, IndexError::NoKey { key: key + 1, place }];
    assert_eq!(index_errors(&mut store), errors);

    let (mut store, _) = small_store();
    store.change_bucket(bucket_of(place), |words| words[0] &= !(1 << slot_of(place)));
    assert_eq!(index_errors(&mut store), [IndexError::NoKey { key, place }]);

    let (mut store, _) = small_store();
    let bucket = bucket_of(place);
    store.replace(bucket, 2, bucket.index.into(), &[1; 8]);
    assert_eq!(index_errors(&mut store), [IndexError::NotABucket(bucket)]);
    let value = store.value(Place { index: bucket.index ^ 1, ..bucket });
    store.replace(bucket, 3, (bucket.index ^ 1).into(), &value);
    assert_eq!(index_errors(&mut store), [IndexError::NotABucket(bucket)]);

    // The last place of the bucket, which is not used.
    let second = Place { index: (bucket.index + 1) * BUCKET_RECORDS - 1, ..place };
    let put = |key: u64, place: Place| {
        let (mut store, _) = small_store();
        store.change_bucket(bucket_of(place), |words| {
            let slot = slot_of(place);
            words[0] |= 1 << slot;
            words[1 + slot as usize] = key;
        });
        store.replace(place, 1, key, b"second");
        index_errors(&mut store)
    };
    assert_eq!(put(key, second), [IndexError::Twice { key, first: place, second }]);
    let elsewhere = key + 16;
    assert_eq!(put(elsewhere, second), [IndexError::Unreachable { key: elsewhere, place: second }]);
    let buckets = store.places(PlaceKind::Bucket).into_iter().filter(|other| {
        (other.table, other.partition) == (bucket.table, bucket.partition) && other.index != bucket.index
    });
    for other in buckets {
        let second = Place { index: (other.index + 1) * BUCKET_RECORDS - 1, ..place };
        let (first, second) = (place.min(second), place.max(second));
        let unreachable = if first == place { second } else { first };
        let errors =
            [IndexError::Unreachable { key, place: unreachable }, IndexError::Twice { key, first, second }];
        assert_eq!(put(key, unreachable), errors);
    }
}

#[test]
fn lost_marks_of_passed_buckets_are_found() {
    let mut store = Store::new(40, 1, 0);
    let layout = Rc::clone(&store.layout);
    let mut loader = Loader::new(&layout);
    for (at, value) in draw_records(&mut Prng::new(1), 4000) {
        match loader.insert(at, value) {
            Ok(()) | Err(LoadError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    loader.take_requests().for_each(|request| store.write(&request));
    assert!(store.inspect().is_clean());
    for bucket in store.places(PlaceKind::Bucket) {
        let is_passed = store.value(bucket)[7] & 0x80 != 0;
        if bucket.table == TableId(0) && is_passed {
            store.change_bucket(bucket, |words| words[0] &= !PASSED);
            let errors = index_errors(&mut store);
            assert!(!errors.is_empty() && errors.len() <= 20);
            let partition = |error: &IndexError| match error {
                IndexError::Unreachable { place, .. } => (place.table, place.partition),
                error => panic!("{error}"),
            };
            assert!(errors.iter().all(|error| partition(error) == (bucket.table, bucket.partition)));
            store.change_bucket(bucket, |words| words[0] |= PASSED);
        }
    }
}

#[test]
fn stores_with_dead_nodes_are_read_from_backups() {
    let (mut store, _) = small_store();
    let records = store.inspect_after(None).1;
    store.cluster.kill(NodeId(1));
    let (inspection, found) = store.inspect_after(None);
    assert_eq!(inspection.dead_nodes.iter().copied().collect::<Vec<_>>(), [NodeId(1)]);
    assert!(inspection.is_clean(), "{inspection}");
    assert_eq!(found, records);
    // The copies of partition p are on nodes p mod 3 and p + 1 mod 3.
    store.cluster.kill(NodeId(2));
    let inspection = store.inspect();
    assert_eq!(inspection.lost.first, [(TableId(0), 1), (TableId(1), 1)]);
    assert!(!inspection.is_clean());
}

/// The inspection names a node that was started again, and a node of another store.
#[test]
fn nodes_without_the_store_are_found() {
    let (mut store, _) = small_store();
    let line = |node| Location { node: NodeId(node), at: store.layout.store_line() };
    let (first, last) = (line(0), line(2));
    store.damage(last, 0, vec![0; 8]);
    let inspection = store.inspect();
    assert_eq!(inspection.store_errors.first, [StoreError::Missing(NodeId(2))]);
    assert!(!inspection.is_clean());
    assert!(inspection.to_string().contains("  memory node 2 has no store: it was started again"));
    store.damage(last, 0, vec![1; 8]);
    assert_eq!(store.inspect().store_errors.first, [StoreError::Different(NodeId(0), NodeId(2))]);
    store.damage(first, 0, vec![0; 8]);
    let expected = [StoreError::Missing(NodeId(0)), StoreError::Different(NodeId(1), NodeId(2))];
    assert_eq!(store.inspect().store_errors.first, expected);
    store.cluster.kill(NodeId(0));
    store.cluster.kill(NodeId(2));
    assert_eq!(store.inspect().store_errors.count, 0, "nobody asks a dead node");
}

/// The checksums of a record and of a bucket are wrong, although no write is in progress.
/// Transactions that read them abort and free their locks.
#[test]
fn damaged_records_end_transactions() {
    for access in [Access::Read, Access::Update] {
        let (mut store, [(damaged, place), (other, other_place)]) = small_store();
        assert_ne!(bucket_of(place), bucket_of(other_place));
        let damaged_places = [(place, damaged), (bucket_of(other_place), other)];
        for (place, _) in damaged_places {
            let primary = store.copies(place)[0];
            let flipped = !store.memory(primary)[24];
            store.damage(primary, 24, vec![flipped]);
        }
        let mut coordinator = store.coordinator();
        for ((_, key), why) in damaged_places
            .into_iter()
            .zip([Abort::DamagedRecord(damaged.table), Abort::DamagedIndex(other.table)])
        {
            let posted = store.run_task(&mut coordinator, async move |client| {
                let read = client.run(async |tx| tx.get(key, access).await).await;
                assert_eq!(read.unwrap_err(), NotCommitted::Aborted(why));
            });
            assert!(posted > 8, "a torn record is read again, {posted} times");
        }
        assert_eq!(store.inspect().held_locks.count, 0);
    }
}

/// The only bucket of a partition is full. A transaction deletes a record and inserts another
/// record, whose key is smaller or larger.
#[test]
fn what_is_deleted_makes_place_for_what_is_inserted() {
    let table = TableSchema { max_value_bytes: 8, partitions: 1, records: 1, group_bits: 0 };
    let schema = Schema { tables: vec![table], ..schema(1) };
    let layout = Rc::new(Layout::new(schema, partition_of).unwrap());
    let cluster = Cluster::new(usize::from(NODES), layout.bytes() as usize, Prng::new(1), 0);
    let mut store = Store { layout, cluster };
    store.load(&(1..=16).map(|key| (at(0, key), vec![1])).collect());
    for warms_up in [false, true] {
        let mut coordinator = store.coordinator();
        if warms_up {
            coordinator.warm_up([(TableId(0), 0)]);
            store.run(&mut coordinator);
        }
        for (old, new) in [(16, 0), (0, 17), (17, 16)] {
            store.run_task(&mut coordinator, async move |client| {
                let replace = async |tx: &mut RemoteTransaction| {
                    tx.insert(at(0, new), vec![2]);
                    tx.delete(at(0, old));
                    Ok(())
                };
                client.run(replace).await.unwrap();
                let full = async |tx: &mut RemoteTransaction| {
                    tx.insert(at(0, 99), vec![2]);
                    Ok(())
                };
                let full = client.run(full).await.unwrap_err();
                assert_eq!(full, NotCommitted::Aborted(Abort::Full(TableId(0))));
            });
        }
    }
}

#[test]
fn findings_are_counted_and_the_first_are_kept() {
    let mut store = Store::new(60, 1, 0);
    let lock = LockWord::new(LIFE, 1);
    let places = store.places(PlaceKind::Record);
    for place in &places {
        store.damage(store.copies(*place)[0], 0, lock.bits().to_le_bytes().to_vec());
    }
    let inspection = store.inspect();
    assert_eq!(inspection.held_locks.count, places.len() as u64);
    let kept: Vec<_> = inspection.held_locks.first.iter().map(|held| held.at.place).collect();
    assert_eq!(kept, places[..20]);
    let more = format!("  and {} more\n", places.len() - 20);
    assert!(inspection.to_string().contains(&more), "{inspection}");
}
