//! TPC-C by several coordinators over memory nodes, which are arrays here: each list of requests is
//! executed at once, in a random order of the lists.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use mitra_prng::Prng;
use mitra_txn::{
    Abort, Access, Coordinator, Event, Layout, Life, NotCommitted, Op, Outcome, RecordKey, Request, Schema,
    Ticket, Transaction, serial_order,
};
use mitra_txn_workloads::tpcc::{self, Constants, Input, Kind, Load, Output, Scale, Sizes, Terminal, check};
use mitra_txn_workloads::{Program, replay};

use crate::{SEED, loaded, scale};

const SIZES: Sizes = Sizes { items: 300, districts: 3, customers: 40, new_orders: 12 };
const NODES: u16 = 3;

struct Memories(Vec<Vec<u8>>);

impl Memories {
    fn execute(&mut self, request: &Request) -> Outcome {
        let memory = &mut self.0[usize::from(request.node.0)];
        let at = request.at as usize;
        Outcome::Executed(match &request.op {
            Op::Read(bytes) => memory[at..at + *bytes as usize].to_vec(),
            Op::Write(bytes) => {
                memory[at..at + bytes.len()].copy_from_slice(bytes);
                Vec::new()
            }
            Op::CompareSwap { compare, swap } => {
                let found = memory[at..at + 8].to_vec();
                if found == compare.to_le_bytes() {
                    memory[at..at + 8].copy_from_slice(&swap.to_le_bytes());
                }
                found
            }
        })
    }

    /// Runs all tasks to their end. Returns the number of lists of requests.
    fn run(&mut self, coordinators: &mut [Coordinator], prng: &mut Prng, now: &RefCell<u64>) -> usize {
        let mut lists = 0;
        let mut under_way: Vec<(usize, Ticket, Vec<Request>)> = Vec::new();
        while !coordinators.iter().all(Coordinator::is_idle) {
            *now.borrow_mut() += 1;
            for (number, coordinator) in coordinators.iter_mut().enumerate() {
                coordinator.poll(Duration::from_micros(*now.borrow()));
                let posted = coordinator.take_requests();
                under_way.extend(posted.into_iter().map(|(ticket, requests)| (number, ticket, requests)));
            }
            if !under_way.is_empty() {
                let (number, ticket, requests) = under_way.swap_remove(prng.index(under_way.len()));
                let outcomes: Vec<_> = requests.iter().map(|request| self.execute(request)).collect();
                coordinators[number].on_outcomes(ticket, &outcomes);
                lists += 1;
            }
        }
        lists
    }
}

fn store(scale: &Scale) -> (Rc<Layout>, Memories) {
    let tables = tpcc::schema(scale, 2000, 2000);
    let schema = Schema { tables, nodes: NODES, backups: 1, coordinators: 3, slots: 8, slot_bytes: 32 << 10 };
    let layout = Rc::new(Layout::new(schema, tpcc::partition).unwrap());
    let mut memories = Memories(vec![vec![0; layout.bytes() as usize]; NODES.into()]);
    let mut loader = [Coordinator::new(Rc::clone(&layout), Life { coordinator: 3, incarnation: 1 })];
    let client = loader[0].client();
    let records: Vec<_> = Load::new(*scale, SEED, 1_000).records().collect();
    loader[0].spawn(async move {
        for some in records.chunks(30) {
            let result = client
                .run(async |tx| {
                    some.iter().for_each(|(at, value)| tx.insert(*at, value.clone()));
                    Ok(())
                })
                .await;
            assert!(result.is_ok(), "{:?}", result.err());
        }
    });
    memories.run(&mut loader, &mut Prng::stream(SEED, "load"), &RefCell::new(0));
    (layout, memories)
}

fn read(layout: &Rc<Layout>, memories: &mut Memories, keys: Vec<RecordKey>) -> BTreeMap<RecordKey, Vec<u8>> {
    let mut reader = [Coordinator::new(Rc::clone(layout), Life { coordinator: 3, incarnation: 2 })];
    let client = reader[0].client();
    let found = Rc::new(RefCell::new(BTreeMap::new()));
    let into = Rc::clone(&found);
    reader[0].spawn(async move {
        for at in keys {
            let value = client.run(async |tx| tx.get(at, Access::Read).await).await.unwrap().value;
            into.borrow_mut().extend(value.map(|value| (at, value)));
        }
    });
    memories.run(&mut reader, &mut Prng::stream(SEED, "read"), &RefCell::new(0));
    found.take()
}

#[test]
fn coordinators_keep_all_conditions_and_a_serial_order_returns_the_same() {
    let scale = scale(2, SIZES);
    let (layout, mut memories) = store(&scale);
    let now = Rc::new(RefCell::new(0));
    type History = (Vec<(Input, Output)>, Vec<Event>, usize);
    let history: Rc<RefCell<History>> = Rc::default();
    let mut coordinators: Vec<_> = (1..=2)
        .map(|coordinator| Coordinator::new(Rc::clone(&layout), Life { coordinator, incarnation: 1 }))
        .collect();
    for (warehouse, coordinator) in (1..).zip(&coordinators) {
        for district in 1..=4 {
            let (client, history, now) = (coordinator.client(), Rc::clone(&history), Rc::clone(&now));
            let prng = Prng::stream(SEED, &format!("terminal {warehouse} {district}"));
            let mut terminal = Terminal::new(scale, Constants::new(SEED), warehouse, 1 + district % 3, prng);
            coordinator.spawn(async move {
                for date in 0..100 {
                    for input in terminal.next(date) {
                        let begun = *now.borrow();
                        let result = client.run(async |tx| input.execute(tx).await).await;
                        let (histories, events, rolled_back) = &mut *history.borrow_mut();
                        match result {
                            Ok(committed) => {
                                let output = committed.value.expect("the store is not corrupt");
                                histories.push((input, output));
                                let (footprint, told) = (committed.footprint, *now.borrow());
                                events.push(Event { footprint, begun, told });
                            }
                            Err(NotCommitted::Aborted(Abort::RolledBack)) => *rolled_back += 1,
                            Err(why) => panic!("{why}"),
                        }
                    }
                }
            });
        }
    }
    memories.run(&mut coordinators, &mut Prng::stream(SEED, "run"), &now);
    let aborts: Vec<_> = coordinators.iter().map(Coordinator::aborts).collect();
    drop(coordinators);
    let (history, events, rolled_back) = Rc::into_inner(history).unwrap().into_inner();
    assert!((1..20).contains(&rolled_back), "{rolled_back}");
    assert!(aborts.iter().any(|aborts| aborts.contains_key("changed")), "no conflicts: {aborts:?}");

    let order = serial_order(&events).unwrap();
    let mut model = loaded(scale);
    replay(&mut model, order.iter().map(|&at| (&history[at].0, &history[at].1))).unwrap();
    let records = read(&layout, &mut memories, model.records().keys().copied().collect());
    assert_eq!(records.len(), model.records().len());
    assert!(records == *model.records(), "the records of the store are not those of the serial execution");
    assert_eq!(check(&records, &scale).violations, []);
    let kinds: BTreeMap<Kind, usize> = history.iter().fold(BTreeMap::new(), |mut kinds, (input, _)| {
        *kinds.entry(input.kind()).or_default() += 1;
        kinds
    });
    assert_eq!(kinds.len(), 5, "{kinds:?}");
}
