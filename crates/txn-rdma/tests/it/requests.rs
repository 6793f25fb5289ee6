//! Requests, their order and their outcomes, without failures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mitra_txn::{NodeId, Outcome};
use mitra_txn_rdma::{PostError, QpKind};

use crate::common::{
    BYTES, TIMEOUT, WRITTEN, connect, execute, executed, links_config, read, start_nodes, swap, write,
};

const KINDS: [QpKind; 2] = [QpKind::Virtual, QpKind::Rc];

#[test]
fn requests_return_what_the_memory_holds() {
    for kind in KINDS {
        let nodes = start_nodes(2, 1, kind);
        let (mut links, _nics) = connect(&links_config(1, &nodes, kind), 1);
        let long: Vec<u8> = (0..5000).map(|i| i as u8).collect();
        let outcomes = execute(
            &mut links,
            vec![
                write(0, 64, vec![1; 24]),
                write(1, 128, long.clone()),
                read(0, 64, 32),
                read(1, 128, 5000),
                swap(0, 8, 0, 5),
                swap(0, 8, 0, 6),
                swap(0, 8, 5, 7),
                read(0, 8, 8),
            ],
        );
        let first = [vec![1; 24], vec![0; 8]].concat();
        let expected = [
            WRITTEN,
            WRITTEN,
            Outcome::Executed(first),
            Outcome::Executed(long),
            executed(0),
            executed(5),
            executed(5),
            executed(7),
        ];
        assert_eq!(outcomes, expected, "{kind:?}");
        assert_eq!(nodes[0].memory.load(8), 7);
        let counters = links.counters();
        assert_eq!((counters.requests, counters.bytes), (8, 24 + 5000 + 32 + 5000 + 4 * 8));
        assert_eq!(counters.doorbells, 2, "one list per node");
        assert_eq!(execute(&mut links, Vec::new()), []);
    }
}

/// Many tickets are under way at once, each with a chain of swaps that succeeds only in its order.
#[test]
fn requests_of_each_ticket_are_executed_in_their_order() {
    for kind in KINDS {
        let nodes = start_nodes(2, 1, kind);
        let (mut links, _nics) = connect(&links_config(1, &nodes, kind), 1);
        let (tickets, length) = (64u64, 20u64);
        for ticket in 0..tickets {
            let (node, at) = ((ticket % 2) as u16, 8 * ticket);
            let chain = (0..length).map(|i| swap(node, at, i, i + 1));
            links.post(ticket, chain.collect()).expect("the requests are valid");
        }
        let (mut done, end) = (Vec::new(), Instant::now() + TIMEOUT);
        while done.len() < tickets as usize {
            assert!(Instant::now() < end, "{} of {tickets} tickets have ended", done.len());
            links.wait(&mut done, Duration::from_millis(1)).expect("the nodes are connected");
        }
        let done: BTreeMap<u64, Vec<Outcome>> = done.into_iter().collect();
        for ticket in 0..tickets {
            let expected: Vec<_> = (0..length).map(executed).collect();
            assert_eq!(done[&ticket], expected, "{kind:?}, ticket {ticket}");
        }
    }
}

/// The list has 40 times the length of the staging memory, in requests whose length does not divide
/// the length of the memory.
#[test]
fn list_longer_than_the_staging_memory_is_posted_in_pieces() {
    for kind in KINDS {
        let nodes = start_nodes(1, 1, kind);
        let mut config = links_config(1, &nodes, kind);
        config.staging_bytes = 4096;
        let (mut links, _nics) = connect(&config, 1);
        let (count, bytes) = (100u64, 808u64);
        let content = |i: u64| vec![i as u8 + 1; bytes as usize];
        let writes = (0..count).map(|i| write(0, i * bytes, content(i)));
        let reads = (0..count).map(|i| read(0, i * bytes, bytes as u32));
        let outcomes = execute(&mut links, writes.chain(reads).chain([read(0, 0, 4096)]).collect());
        for i in 0..count {
            assert_eq!(outcomes[i as usize], WRITTEN);
            assert_eq!(outcomes[(count + i) as usize], Outcome::Executed(content(i)), "{kind:?}, {i}");
        }
        assert!(links.counters().doorbells > 40);
    }
}

#[test]
fn impossible_requests_are_refused_by_name() {
    let nodes = start_nodes(1, 1, QpKind::Virtual);
    let (mut links, _nics) = connect(&links_config(1, &nodes, QpKind::Virtual), 1);
    let staging = 1 << 16;
    let limit = BYTES as u64;
    assert_eq!(links.post(1, vec![read(1, 0, 8)]), Err(PostError::Node(NodeId(1))));
    let outside = links.post(1, vec![read(0, 0, 8), read(0, limit - 8, 16)]);
    assert_eq!(outside, Err(PostError::Bounds { at: limit - 8, bytes: 16, limit }));
    assert!(matches!(links.post(1, vec![read(0, u64::MAX, 8)]), Err(PostError::Bounds { .. })));
    let long = links.post(1, vec![read(0, 0, staging + 1)]);
    assert_eq!(long, Err(PostError::Length { bytes: u64::from(staging) + 1, limit: staging.into() }));
    assert_eq!(execute(&mut links, vec![read(0, 0, 8)]), [executed(0)], "nothing of them was posted");
}

#[test]
fn requests_to_dead_nodes_end_and_others_are_executed() {
    let nodes = start_nodes(2, 1, QpKind::Virtual);
    let mut config = links_config(1, &nodes, QpKind::Virtual);
    config.dead = vec![NodeId(1)];
    let (mut links, _nics) = connect(&config, 1);
    let outcomes = execute(&mut links, vec![swap(1, 0, 0, 1), swap(0, 0, 0, 1)]);
    assert_eq!(outcomes, [Outcome::NodeDead, executed(0)]);
    assert_eq!(nodes[1].memory.load(0), 0);
    assert_eq!(execute(&mut links, vec![read(1, 0, 8)]), [Outcome::NodeDead]);
}
