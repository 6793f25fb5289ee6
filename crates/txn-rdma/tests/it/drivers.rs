//! Lives of coordinators over memory nodes that end, and are started again.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use mitra_failover::Domain;
use mitra_txn::{
    Ending, Layout, Life, LifeState, LifeWord, NodeId, RecordKey, Schema, StoreError, StoreState, TableId,
    TableSchema, Timing,
};
use mitra_txn_rdma::{ConnectError, Driver, LinksConfig, LoadError, QpKind, StateError, store_state};

use crate::common::{BYTES, COORDINATORS, ServedNode, TIMEOUT, connect, links_config, nics, start_nodes};

const TIMING: Timing = Timing { interval: Duration::from_millis(5), timeout: Duration::from_secs(1) };

fn layout(slot_bytes: u32, coordinators: u16) -> Rc<Layout> {
    let table = TableSchema { max_value_bytes: 8, partitions: 3, records: 8, group_bits: 0 };
    let schema = Schema { tables: vec![table], nodes: 3, backups: 1, coordinators, slots: 1, slot_bytes };
    let layout = Layout::new(schema, |at| at.key as u32).expect("the tables are small");
    assert!(layout.bytes() <= BYTES as u64);
    Rc::new(layout)
}

fn drive(domain: &Arc<Domain>, layout: &Rc<Layout>, config: &LinksConfig) -> Result<Driver, ConnectError> {
    Driver::connect(domain, layout, config.clone(), TIMING)
}

/// Loads a store without records.
fn load(layout: &Layout, config: &LinksConfig) {
    let (mut links, _nics) = connect(config, 1);
    mitra_txn_rdma::load(&mut links, layout, NonZeroU64::MIN, None::<Vec<_>>, |_, _| ())
        .expect("the nodes are connected");
}

/// Drives until the life has begun or ended.
fn begin(driver: &mut Driver) -> Option<Ending> {
    let end = Instant::now() + TIMEOUT;
    while !driver.session().is_live() {
        assert!(Instant::now() < end, "the life neither begins nor ends");
        if let Some(ending) = driver.poll() {
            return Some(ending);
        }
    }
    None
}

/// Schedule 7: the process of a memory node ends, and the operator starts it again with the same
/// number. The memory of the node is then zero, including the log.
#[test]
fn node_that_was_started_again_is_refused_by_name() {
    let layout = layout(1024, u16::from(COORDINATORS));
    let mut nodes = start_nodes(3, 1, QpKind::Virtual);
    let mut config = links_config(1, &nodes, QpKind::Virtual);
    load(&layout, &config);
    let (domain, _nics) = nics(1);
    let mut driver = drive(&domain, &layout, &config).expect("the nodes admit the coordinator");
    assert_eq!(begin(&mut driver), None);
    nodes[1].memory.store(layout.log(1).start as usize, 7);
    nodes[1] = ServedNode::start(1, 1, QpKind::Virtual);
    let mut memory = vec![0; BYTES];
    nodes[1].memory.read_at(0, &mut memory);
    assert!(memory.iter().all(|&byte| byte == 0), "a memory node keeps no log");
    let end = Instant::now() + TIMEOUT;
    while driver.poll().is_none() {
        assert!(Instant::now() < end, "a life does not outlive the queue pair to a node");
    }
    assert_eq!(driver.session().ending(), Some(Ending::Disconnected));
    config.nodes[1] = nodes[1].address;
    let mut driver = drive(&domain, &layout, &config).expect("the nodes admit the coordinator");
    let ending = begin(&mut driver);
    assert_eq!(ending, Some(Ending::Store(StoreError::Missing(NodeId(1)))));
    config.dead = vec![NodeId(1)];
    let mut driver = drive(&domain, &layout, &config).expect("the nodes admit the coordinator");
    assert_eq!(begin(&mut driver), None);
}

/// The store has a coordinator of which the nodes know nothing, so they refuse to fence it.
#[test]
fn refused_fence_ends_the_life_with_its_reason() {
    let nodes = start_nodes(3, 1, QpKind::Virtual);
    let layout = layout(1024, u16::from(COORDINATORS) + 1);
    let config = links_config(1, &nodes, QpKind::Virtual);
    load(&layout, &config);
    let life = Life { coordinator: u16::from(COORDINATORS) + 1, incarnation: 1 };
    for node in &nodes {
        let word = LifeWord::new(life, LifeState::Live).bits();
        node.memory.store(layout.life_line(life.coordinator) as usize, word);
    }
    let (domain, _nics) = nics(1);
    let mut driver = drive(&domain, &layout, &config).expect("the nodes admit the coordinator");
    let end = Instant::now() + TIMEOUT;
    let ending = loop {
        assert!(Instant::now() < end, "the refused fence is repeated");
        if let Some(ending) = driver.poll() {
            break ending;
        }
    };
    assert!(matches!(ending, Ending::FenceRefused { life: of, .. } if of == life), "{ending}");
    assert!(ending.to_string().contains("there is no coordinator 4"), "{ending}");
}

#[test]
fn staging_memory_that_is_too_short_is_refused_by_name() {
    let nodes = start_nodes(3, 1, QpKind::Virtual);
    let layout = layout(4096, u16::from(COORDINATORS));
    let mut config = links_config(1, &nodes, QpKind::Virtual);
    config.staging_bytes = 4095;
    let (domain, _nics) = nics(1);
    let refused = drive(&domain, &layout, &config).err();
    assert!(matches!(refused, Some(ConnectError::Staging { bytes: 4095, needed: 4096 })), "{refused:?}");
    config.staging_bytes = 4096;
    drive(&domain, &layout, &config).expect("the nodes admit the coordinator");
}

/// The claim of the loader tells new memory from a store whose loading was interrupted.
#[test]
fn txn_crash_of_a_loader_is_named() {
    let layout = layout(1024, u16::from(COORDINATORS));
    let mut nodes = start_nodes(3, 1, QpKind::Virtual);
    let connect =
        |coordinator, nodes: &[ServedNode]| connect(&links_config(coordinator, nodes, QpKind::Virtual), 1);
    let load = |coordinator, nodes: &[ServedNode], number, table| {
        let (mut links, _nics) = connect(coordinator, nodes);
        let at = RecordKey { table: TableId(table), key: 1 };
        let number = NonZeroU64::new(number).expect("a number of a store");
        let loaded = mitra_txn_rdma::load(&mut links, &layout, number, [vec![(at, vec![1])]], |_, _| ());
        (loaded, store_state(&mut links, &layout))
    };
    let (mut links, _nics) = connect(3, &nodes);
    assert_eq!(store_state(&mut links, &layout), Ok(StoreState::Empty));
    // The layout does not have the table of the record, so the load ends early.
    let unknown = mitra_txn::LoadError::UnknownTable(TableId(7)).into();
    let loading = Ok(StoreState::Loading(NodeId(0)));
    assert_eq!(load(1, &nodes, 5, 7), (Err(unknown), loading.clone()));
    assert_eq!(load(2, &nodes, 6, 0), (Err(LoadError::Claimed(NodeId(0))), loading));

    for (number, node) in (0..).zip(&mut nodes) {
        *node = ServedNode::start(number, 1, QpKind::Virtual);
    }
    assert_eq!(load(1, &nodes, 6, 0), (Ok(()), Ok(StoreState::Loaded)));
    let claimed = Err(LoadError::Claimed(NodeId(0)));
    assert_eq!(load(2, &nodes, 7, 0), (claimed, Ok(StoreState::Loaded)));
    nodes[1] = ServedNode::start(1, 1, QpKind::Virtual);
    let (mut links, _nics) = connect(3, &nodes);
    let missing = StateError::Store(StoreError::Missing(NodeId(1)));
    assert_eq!(store_state(&mut links, &layout), Err(missing));
}

/// A start beside a life that runs is refused. A life that has only paused is fenced and recovered,
/// and finds its rights gone when it goes on.
#[test]
fn txn_crash_takes_over_no_life_that_runs() {
    let nodes = start_nodes(3, 1, QpKind::Virtual);
    let config = links_config(1, &nodes, QpKind::Virtual);
    load(&layout(1024, u16::from(COORDINATORS)), &config);
    let (told, tells) = channel();
    let (pause, paused) = channel();
    let (resume, resumed) = channel();
    let first_config = config.clone();
    let first = thread::spawn(move || {
        let layout = layout(1024, u16::from(COORDINATORS));
        let (domain, _nics) = nics(1);
        let mut driver = drive(&domain, &layout, &first_config).expect("the nodes admit the coordinator");
        assert_eq!(begin(&mut driver), None);
        told.send(driver.links().life()).expect("the test waits");
        while paused.try_recv().is_err() {
            assert_eq!(driver.poll(), None);
        }
        told.send(driver.links().life()).expect("the test waits");
        resumed.recv().expect("the test goes on");
        let end = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < end, "the life does not end");
            if let Some(ending) = driver.poll() {
                return ending;
            }
        }
    });
    let life = tells.recv().expect("the life begins");
    let layout = layout(1024, u16::from(COORDINATORS));
    let (domain, _nics) = nics(1);
    let start = || Driver::connect_if_silent(&domain, &layout, config.clone(), TIMING);
    match start() {
        Err(ConnectError::Runs(runs)) => assert_eq!(runs, life),
        other => panic!("{other:?}"),
    }
    pause.send(()).expect("the thread runs");
    tells.recv().expect("the life pauses");
    let mut next = start().expect("the life is silent");
    assert_eq!(begin(&mut next), None);
    assert_eq!(next.session().take_recovered(), [life]);
    resume.send(()).expect("the thread waits");
    let ending = first.join().expect("the life ends with an error");
    assert!(matches!(ending, Ending::Disconnected | Ending::TakenOver), "{ending}");
}
