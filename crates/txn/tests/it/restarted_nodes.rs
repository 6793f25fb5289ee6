//! Memory nodes that come back without their memory, or with an old one: a life does not begin on them.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use mitra_prng::Prng;
use mitra_txn::{
    Command, Ending, Layout, Life, Loader, NodeId, Op, RecordKey, Request, Schema, Session, StoreError,
    TableId, TableSchema, Timing, Transaction as _, logged_attempt,
};

use crate::cluster::Cluster;

const NODES: u16 = 3;
const TIMING: Timing = Timing { interval: Duration::from_millis(1), timeout: Duration::from_secs(1) };

fn layout() -> Rc<Layout> {
    let table = TableSchema { max_value_bytes: 8, partitions: 3, records: 8, group_bits: 0 };
    let schema = Schema {
        tables: vec![table],
        nodes: NODES,
        backups: 1,
        coordinators: 2,
        slots: 1,
        slot_bytes: 4096,
    };
    Rc::new(Layout::new(schema, |at| at.key as u32).unwrap())
}

fn store(layout: &Layout, number: u64) -> Cluster {
    let mut cluster = Cluster::new(NODES.into(), layout.bytes() as usize, Prng::new(number), 0);
    cluster.load(Loader::new(layout).finish(NonZeroU64::new(number).unwrap()).unwrap());
    cluster
}

/// Begins a life, which inserts a record and ends without a word. Returns why the life has ended before, and what it has posted.
fn run(cluster: &mut Cluster, layout: &Rc<Layout>, incarnation: u16, dead: &[NodeId]) -> (Option<Ending>, Vec<Request>) {
    dead.iter().for_each(|&node| cluster.kill(node));
    let life = Life { coordinator: 1, incarnation };
    let mut session = Session::new(Rc::clone(layout), life, TIMING, dead);
    let client = session.coordinator().client();
    session.coordinator().spawn(async move {
        let at = RecordKey { table: TableId(0), key: u64::from(incarnation) * 3 };
        let inserted = client.run(async |tx| {
            tx.insert(at, vec![1]);
            Ok(())
        });
        let _ = inserted.await; // the life may end before
    });
    let mut posted = Vec::new();
    for now in 0..1000 {
        for command in session.poll(Duration::from_millis(now)) {
            match command {
                Command::Post(ticket, requests) => {
                    posted.extend(requests.clone());
                    cluster.post(0, requests);
                    let outcomes = std::iter::repeat_with(|| cluster.step()).flatten().next();
                    session.on_outcomes(ticket, &outcomes.unwrap().1);
                }
                Command::Fence(life) => session.on_fenced(life),
            }
        }
        if session.ending().is_some() || session.is_live() && session.coordinator().is_idle() {
            return (session.ending(), posted);
        }
    }
    panic!("the life neither ends nor runs");
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

/// Schedule 7: a primary would be read as absent.
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

/// Schedule 7: memory that outlives its process does not exist here, so an old log is one of another store, whose lives and layout may be the same.
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
    assert_eq!(entry.unwrap().life(), Some(Life { coordinator: 1, incarnation: 1 }), "a recovery would apply it");
    cluster.load(vec![Request { node: slot.node, at: 0, op: Op::Write(memory.to_vec()) }]);
    is_refused(&mut cluster, &layout, 2, StoreError::Different(NodeId(0), NodeId(1)));
}

/// The loader writes the number last, and ends after the first node has it.
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
