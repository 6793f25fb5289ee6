//! Lives on memory that a node has lost, or that is damaged. A life does not begin on a node that
//! comes back with zero memory, or with the memory of another store.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use mitra_prng::Prng;
use mitra_txn::{
    Command, Ending, Layout, Life, LifeState, LifeWord, Loader, Location, LockWord, NodeId, Op, Place,
    PlaceKind, RecordKey, Request, Schema, Session, StoreError, TableId, TableSchema, Timing,
    Transaction as _, logged_attempt,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::Cluster;

const NODES: u16 = 3;
const TIMING: Timing = Timing { interval: Duration::from_millis(1), timeout: Duration::from_secs(1) };

fn layout() -> Rc<Layout> {
    let table = TableSchema { max_value_bytes: 8, partitions: 3, records: 8, group_bits: 0 };
    let schema =
        Schema { tables: vec![table], nodes: NODES, backups: 1, coordinators: 2, slots: 1, slot_bytes: 4096 };
    Rc::new(Layout::new(schema, |at| at.key as u32).unwrap())
}

fn store(layout: &Layout, number: u64) -> Cluster {
    let mut cluster = Cluster::new(NODES.into(), layout.bytes() as usize, Prng::new(number), 0);
    cluster.load(Loader::new(layout).finish(NonZeroU64::new(number).unwrap()).unwrap());
    cluster
}

/// Begins a life of coordinator 1, which inserts a record and ends silently. Returns the reason if
/// the life ended by itself, and the posted requests.
fn run(
    cluster: &mut Cluster,
    layout: &Rc<Layout>,
    incarnation: u16,
    dead: &[NodeId],
) -> (Option<Ending>, Vec<Request>) {
    dead.iter().for_each(|&node| cluster.kill(node));
    let life = Life { coordinator: 1, incarnation };
    let mut posted = Vec::new();
    let session = drive(cluster, layout, life, dead, &mut posted, |_| true);
    (session.ending(), posted)
}

/// Begins a life that inserts a record. Drives the life until it ends, or until it is idle and
/// `is_over` returns true.
fn drive(
    cluster: &mut Cluster,
    layout: &Rc<Layout>,
    life: Life,
    dead: &[NodeId],
    posted: &mut Vec<Request>,
    mut is_over: impl FnMut(&mut Session) -> bool,
) -> Session {
    let mut session = Session::new(Rc::clone(layout), life, TIMING, dead);
    let client = session.coordinator().client();
    session.coordinator().spawn(async move {
        let at = RecordKey { table: TableId(0), key: u64::from(life.incarnation) * 3 };
        let inserted = client.run(async |tx| {
            tx.insert(at, vec![1]);
            Ok(())
        });
        let _ = inserted.await; // the life may end before the commit
    });
    for now in 0..3000 {
        for command in session.poll(Duration::from_millis(now)) {
            match command {
                Command::Post(ticket, requests) => {
                    posted.extend(requests.clone());
                    cluster.post(0, requests);
                    let outcomes = std::iter::repeat_with(|| cluster.step()).flatten().next();
                    session.on_outcomes(ticket, &outcomes.unwrap().1);
                }
                Command::Fence(life) => {
                    let coordinators = 1..=layout.schema().coordinators;
                    assert!(coordinators.contains(&life.coordinator), "a node refuses to fence {life:?}");
                    session.on_fenced(life);
                }
            }
        }
        let is_idle = session.is_live() && session.coordinator().is_idle();
        if session.ending().is_some() || is_idle && is_over(&mut session) {
            return session;
        }
    }
    panic!("the life neither ends nor runs");
}

/// Sets the life word of coordinator 2 on all nodes.
fn set_word(cluster: &mut Cluster, layout: &Layout, word: LifeWord) {
    let write =
        |node| Request { node, at: layout.life_line(2), op: Op::Write(word.bits().to_le_bytes().to_vec()) };
    cluster.load(layout.nodes().map(write).collect());
}

fn word(cluster: &Cluster, layout: &Layout) -> LifeWord {
    let line = &cluster.memory(NodeId(0))[layout.life_line(2) as usize..];
    LifeWord::from_bits(u64::from_le_bytes(line[..8].try_into().unwrap()))
}

#[track_caller]
fn is_refused(cluster: &mut Cluster, layout: &Rc<Layout>, incarnation: u16, why: StoreError) {
    let before: Vec<_> = layout.nodes().map(|node| cluster.memory(node).to_vec()).collect();
    let (ending, posted) = run(cluster, layout, incarnation, &[]);
    assert_eq!(ending, Some(Ending::Store(why)));
    let reads_number = |request: &Request| (request.at, &request.op) == (layout.store_line(), &Op::Read(8));
    assert!(posted.iter().all(reads_number), "no claim, no heartbeat, no log: {posted:?}");
    assert!(layout.nodes().zip(before).all(|(node, before)| cluster.memory(node) == before));
}

/// Schedule 7: a node comes back with zero memory. If it were not refused, the records whose
/// primaries are on this node would seem not to exist.
#[test]
fn node_that_comes_back_with_zero_memory_is_refused() {
    let layout = layout();
    let mut cluster = store(&layout, 5);
    assert_eq!(run(&mut cluster, &layout, 1, &[]).0, None);
    let zero = Op::Write(vec![0; layout.bytes() as usize]);
    cluster.load(vec![Request { node: NodeId(1), at: 0, op: zero }]);
    is_refused(&mut cluster, &layout, 2, StoreError::Missing(NodeId(1)));
    assert_eq!(run(&mut cluster, &layout, 3, &[NodeId(1)]).0, None, "declared dead, it stops nobody");
}

/// Schedule 7: the memory of a node does not outlive the node's process. So an old log is the log
/// of another store. Both stores may have the same lives and the same layout.
#[test]
fn node_that_comes_back_with_an_old_log_is_refused() {
    let layout = layout();
    let [mut old, mut cluster] = [5, 6].map(|number| store(&layout, number));
    for store in [&mut old, &mut cluster] {
        assert_eq!(run(store, &layout, 1, &[]).0, None);
    }
    let slot = layout.log_slot(1, 0)[0];
    let memory = old.memory(slot.node);
    let entry = logged_attempt(&memory[slot.at as usize..]);
    assert_eq!(
        entry.unwrap().life(),
        Some(Life { coordinator: 1, incarnation: 1 }),
        "a recovery would apply it"
    );
    cluster.load(vec![Request { node: slot.node, at: 0, op: Op::Write(memory.to_vec()) }]);
    is_refused(&mut cluster, &layout, 2, StoreError::Different(NodeId(0), NodeId(1)));
}

/// The loader writes the store's number last, and ends when only the first node has the number.
#[test]
fn store_whose_load_has_not_ended_is_refused() {
    let layout = layout();
    let mut cluster = Cluster::new(NODES.into(), layout.bytes() as usize, Prng::new(1), 0);
    is_refused(&mut cluster, &layout, 1, StoreError::Missing(NodeId(0)));
    let number = Loader::new(&layout).finish(NonZeroU64::MIN).unwrap();
    assert_eq!(number.len(), NODES.into());
    cluster.load(number[..1].to_vec());
    is_refused(&mut cluster, &layout, 2, StoreError::Missing(NodeId(1)));
    cluster.load(number[1..].to_vec());
    assert_eq!(run(&mut cluster, &layout, 3, &[]).0, None);
}

const OTHER: Life = Life { coordinator: 2, incarnation: 1 };
const LIFE: Life = Life { coordinator: 1, incarnation: 1 };

/// Nobody can fence a coordinator that does not exist.
#[test]
fn claim_of_a_coordinator_that_does_not_exist_is_replaced() {
    let layout = layout();
    for recoverer in [0, 3, u16::MAX] {
        let mut cluster = store(&layout, 1);
        let claimed = LifeState::Claimed(Life { coordinator: recoverer, incarnation: 9 });
        set_word(&mut cluster, &layout, LifeWord::new(OTHER, claimed));
        let mut recovered = Vec::new();
        let session = drive(&mut cluster, &layout, LIFE, &[], &mut Vec::new(), |session| {
            recovered.extend(session.take_recovered());
            !recovered.is_empty()
        });
        assert_eq!((session.ending(), recovered), (None, vec![OTHER]));
        assert_eq!(word(&cluster, &layout), LifeWord::new(OTHER, LifeState::Recovered));
    }
}

/// An entry with a right checksum that writes a place of table 9.
fn entry_of_no_place(life: Life) -> (Vec<u8>, Place) {
    let place = Place { table: TableId(9), partition: 0, kind: PlaceKind::Record, index: 0 };
    let record = [&9_u16.to_le_bytes()[..], &[1], &[0; 12]].concat();
    let words = [LockWord::new(life, 1).bits(), record.len() as u64];
    let body = [words.iter().flat_map(|word| word.to_le_bytes()).collect(), record].concat();
    ([xxh3_64(&body).to_le_bytes().to_vec(), body].concat(), place)
}

/// The log of one coordinator is damaged. The life of the other coordinator continues. The next
/// life of the first coordinator ends.
#[test]
fn damaged_log_ends_its_own_coordinator_only() {
    let layout = layout();
    let (entry, place) = entry_of_no_place(OTHER);
    let damaged = || {
        let mut cluster = store(&layout, 1);
        set_word(&mut cluster, &layout, LifeWord::new(OTHER, LifeState::Live));
        let Location { node, at } = layout.log_slot(OTHER.coordinator, 0)[0];
        cluster.load(vec![Request { node, at, op: Op::Write(entry.clone()) }]);
        cluster
    };
    let mut cluster = damaged();
    let (mut posted, mut beats) = (Vec::new(), 0);
    let session = drive(&mut cluster, &layout, LIFE, &[], &mut posted, |session| {
        beats += u32::from(!session.unrecoverable().is_empty());
        beats > 20
    });
    assert_eq!(session.ending(), None);
    assert_eq!(session.unrecoverable().iter().collect::<Vec<_>>(), [(&OTHER, &place)]);
    assert_eq!(word(&cluster, &layout), LifeWord::new(OTHER, LifeState::Claimed(LIFE)));
    let reads_log = |request: &&Request| request.op == Op::Read(layout.slot_bytes());
    assert_eq!(posted.iter().filter(reads_log).count(), usize::from(NODES), "once");

    let next = Life { incarnation: 2, ..OTHER };
    let session = drive(&mut damaged(), &layout, next, &[], &mut Vec::new(), |_| true);
    assert_eq!(session.ending(), Some(Ending::UnknownPlace(place)));
}
