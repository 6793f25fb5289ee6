//! Rare cases of a coordinator, as programs and their callers see them.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use mitra_txn::{
    Abort, Access, Coordinator, Layout, Life, NodeId, Outcome, RecordKey, Request, Schema, TableId,
    TableSchema, Transaction,
};

use crate::memory::Memory;

fn layout(slots: u16, nodes: u16) -> Rc<Layout> {
    let table = TableSchema { max_value_bytes: 64, partitions: 1, records: 12, group_bits: 0 };
    let schema = Schema { tables: vec![table], nodes, backups: 1, coordinators: 2, slots, slot_bytes: 4096 };
    Rc::new(Layout::new(schema, |_| 0).unwrap())
}

const KEY: RecordKey = RecordKey { table: TableId(0), key: 7 };

/// Runs a coordinator for some rounds; `dead` tells which requests end as on a dead node.
fn drive(coordinator: &mut Coordinator, memory: &mut Memory, rounds: u64, dead: impl Fn(&Request) -> bool) {
    for round in 0..rounds {
        coordinator.poll(Duration::from_millis(round));
        for (ticket, requests) in coordinator.take_requests() {
            let outcomes: Vec<_> = requests
                .iter()
                .map(|request| if dead(request) { Outcome::NodeDead } else { memory.execute(request) })
                .collect();
            coordinator.on_outcomes(ticket, &outcomes);
        }
    }
}

/// The entry is in one log, and the other node is dead, so the outcome is unknown.
#[test]
fn undecided_is_unknown() {
    let layout = layout(1, 2);
    let mut coordinator = Coordinator::new(Rc::clone(&layout), Life { coordinator: 1, incarnation: 1 });
    let client = coordinator.client();
    let result = Rc::new(RefCell::new(None));
    let told = Rc::clone(&result);
    coordinator.spawn(async move {
        let run = client.run(async |tx| {
            tx.insert(KEY, vec![1]);
            Ok(())
        });
        *told.borrow_mut() = Some(run.await.map(|_| ()));
    });
    let log = layout.log(1).start;
    let mut memory = Memory::default();
    drive(&mut coordinator, &mut memory, 50, |request| {
        request.node == NodeId(1) && request.at >= log && request.at < log + 4096
    });
    coordinator.poll(Duration::from_secs(1));
    assert_eq!(*result.borrow(), Some(Err(mitra_txn::NotCommitted::Unknown)));
    assert_ne!(memory.bytes(NodeId(0), log, 8), vec![0; 8]);
}

/// A program drops a read that has not ended. Then the read aborts.
#[test]
fn dropped_read_does_not_hang() {
    let layout = layout(1, 2);
    let mut coordinator = Coordinator::new(Rc::clone(&layout), Life { coordinator: 1, incarnation: 1 });
    let client = coordinator.client();
    let done = Rc::new(Cell::new(false));
    let is_done = Rc::clone(&done);
    let passed = Rc::new(Cell::new(false));
    let passes = Rc::clone(&passed);
    coordinator.spawn(async move {
        let _ = client
            .run(async |tx| {
                {
                    let mut get = pin!(tx.get(KEY, Access::Read));
                    poll_fn(|context| {
                        let _ = get.as_mut().poll(context);
                        Poll::Ready(())
                    })
                    .await;
                }
                // The program waits for an event that is no outcome.
                poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if passes.get() { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                tx.get(KEY, Access::Read).await?;
                Ok(())
            })
            .await;
        is_done.set(true);
    });
    let mut memory = Memory::default();
    // The node is dead: the read ends as unavailable.
    drive(&mut coordinator, &mut memory, 5, |_| true);
    passed.set(true);
    drive(&mut coordinator, &mut memory, 20, |_| true);
    assert!(done.get());
}

/// A waiter that has polled twice must not take the wake of another waiter.
#[test]
fn free_slot_is_not_lost() {
    let layout = layout(1, 2);
    let mut coordinator = Coordinator::new(Rc::clone(&layout), Life { coordinator: 1, incarnation: 1 });
    let done = Rc::new(Cell::new(0));
    let memory = &mut Memory::default();
    // Takes the slot.
    let (client, count) = (coordinator.client(), Rc::clone(&done));
    coordinator.spawn(async move {
        client.run(async |tx| tx.get(KEY, Access::Read).await).await.unwrap();
        count.set(count.get() + 1);
    });
    coordinator.poll(Duration::ZERO);
    // Waits, and gives up.
    let client = coordinator.client();
    coordinator.spawn(async move {
        let mut run = pin!(client.run(async |tx| tx.get(KEY, Access::Read).await));
        poll_fn(|context| {
            let _ = run.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    });
    coordinator.poll(Duration::ZERO);
    // Waits.
    let (client, count) = (coordinator.client(), Rc::clone(&done));
    coordinator.spawn(async move {
        client.run(async |tx| tx.get(KEY, Access::Read).await).await.unwrap();
        count.set(count.get() + 1);
    });
    drive(&mut coordinator, memory, 50, |_| false);
    assert_eq!(done.get(), 2);
}

/// A program refuses to commit because of values that no serial order contains: A + B is always 2.
#[test]
fn refusals_are_validated() {
    let layout = layout(1, 2);
    let memory = &mut Memory::default();
    let (a, b) = (KEY, RecordKey { key: 8, ..KEY });
    let mut first = Coordinator::new(Rc::clone(&layout), Life { coordinator: 1, incarnation: 1 });
    let client = first.client();
    first.spawn(async move {
        client
            .run(async |tx| {
                tx.insert(a, vec![1]);
                tx.insert(b, vec![1]);
                Ok(())
            })
            .await
            .unwrap();
    });
    drive(&mut first, memory, 50, |_| false);
    assert!(first.is_idle());
    let client = first.client();
    let result = Rc::new(RefCell::new(None));
    let told = Rc::clone(&result);
    first.spawn(async move {
        let run = client.run(async |tx| {
            let a = tx.get(a, Access::Read).await?.unwrap()[0];
            let b = tx.get(b, Access::Read).await?.unwrap()[0];
            if a + b == 2 { Ok(()) } else { Err(Abort::RolledBack) }
        });
        *told.borrow_mut() = Some(run.await.map(|_| ()));
    });
    // Reads A.
    drive(&mut first, memory, 1, |_| false);
    let mut second = Coordinator::new(layout, Life { coordinator: 2, incarnation: 1 });
    let client = second.client();
    second.spawn(async move {
        client
            .run(async |tx| {
                tx.put(a, vec![0]);
                tx.put(b, vec![2]);
                Ok(())
            })
            .await
            .unwrap();
    });
    drive(&mut second, memory, 50, |_| false);
    assert!(second.is_idle());
    drive(&mut first, memory, 50, |_| false);
    assert_eq!(*result.borrow(), Some(Ok(())));
}

/// A task that ignores the errors of its transactions must not block its process for ever.
#[test]
fn tasks_of_an_ended_life_let_others_run() {
    let layout = layout(1, 2);
    let mut coordinator = Coordinator::new(layout, Life { coordinator: 1, incarnation: 1 });
    let (client, runs) = (coordinator.client(), Rc::new(Cell::new(0)));
    let count = Rc::clone(&runs);
    coordinator.spawn(async move {
        loop {
            let _ = client.run(async |tx| tx.get(KEY, Access::Read).await).await;
            count.set(count.get() + 1);
        }
    });
    coordinator.poll(Duration::ZERO);
    coordinator.end_life();
    for round in 1..10 {
        coordinator.poll(Duration::from_millis(round));
    }
    assert!((1..100).contains(&runs.get()), "{}", runs.get());
}
