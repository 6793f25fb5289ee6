//! Admission, incarnations and fences.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mitra_failover::Domain;
use mitra_softnic::fault::Failure;
use mitra_softnic::{Config, SoftNic};
use mitra_txn::{Life, NodeId};
use mitra_txn_rdma::{
    CallError, ConnectError, Fenced, Links, LinksConfig, MemoryNode, QpKind, Refusal, StartError,
};

use crate::common::{
    ServedNode, TIMEOUT, connect, execute, executed, links_config, nics, node_config, read, start_nodes,
    swap, try_connect, write,
};

fn refusal(config: &LinksConfig) -> Refusal {
    match try_connect(config, 1) {
        Err(ConnectError::Node { error: CallError::Refused(refusal), .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

fn fence(links: &mut Links, life: Life) -> Fenced {
    links.fence(life);
    let end = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < end, "the fence did not end");
        links.wait(&mut Vec::new(), Duration::from_millis(1)).expect("the nodes are connected");
        if let Some(fenced) = links.take_fenced() {
            assert_eq!(fenced.life, life);
            return fenced;
        }
    }
}

#[test]
fn each_connection_is_a_new_life() {
    let nodes = start_nodes(2, 1, QpKind::Virtual);
    let config = links_config(2, &nodes, QpKind::Virtual);
    let (first, _nics) = connect(&config, 1);
    let (second, _nics) = connect(&config, 1);
    assert_eq!(first.life(), Life { coordinator: 2, incarnation: 1 });
    assert_eq!(second.life(), Life { coordinator: 2, incarnation: 2 });
    // The third life connects to node 0 only. The fourth life must still be later, although node 1
    // does not know of the third.
    let mut other = config.clone();
    other.nodes = vec![config.nodes[0]];
    let (third, _nics) = connect(&other, 1);
    assert_eq!(third.life().incarnation, 3);
    drop((first, second, third));
    let (fourth, _nics) = connect(&config, 1);
    assert_eq!(fourth.life().incarnation, 4);
}

#[test]
fn mistaken_coordinators_are_refused_by_name() {
    let nodes = start_nodes(2, 1, QpKind::Virtual);
    let config = links_config(1, &nodes, QpKind::Virtual);
    assert_eq!(refusal(&LinksConfig { token: [9; 16], ..config.clone() }), Refusal::Token(1));
    assert_eq!(refusal(&LinksConfig { coordinator: 0, ..config.clone() }), Refusal::Token(0));
    assert_eq!(refusal(&LinksConfig { coordinator: 77, ..config.clone() }), Refusal::Token(77));
    assert_eq!(refusal(&LinksConfig { fingerprint: 1, ..config.clone() }), Refusal::Layout);
    let swapped = config.nodes.iter().rev().copied().collect();
    assert!(matches!(refusal(&LinksConfig { nodes: swapped, ..config.clone() }), Refusal::Node(_)));
    assert_eq!(refusal(&LinksConfig { kind: QpKind::Rc, ..config }), Refusal::Kind);
}

/// RC queue pairs do not report the end of a life. A coordinator whose lives end without a fence
/// takes a bounded number of places.
#[test]
fn lives_that_are_not_fenced_are_bounded() {
    let nodes = start_nodes(1, 1, QpKind::Rc);
    let config = links_config(1, &nodes, QpKind::Rc);
    for _ in 0..4 {
        drop(connect(&config, 1));
    }
    assert_eq!(refusal(&config), Refusal::Lives(4));
    let (mut other, _nics) = connect(&links_config(2, &nodes, QpKind::Rc), 1);
    assert!(fence(&mut other, Life { coordinator: 1, incarnation: 4 }).refused.is_none());
    let (links, _nics) = connect(&config, 1);
    assert_eq!(links.life().incarnation, 5);
}

#[test]
fn nic_that_lacks_what_transactions_need_is_refused_by_name() {
    let config = Config { ack_after_placement: false, ..Config::loopback() };
    let nic = SoftNic::open(config).expect("a loopback NIC opens");
    let domain = Domain::with_completion_channels(vec![nic]).expect("the NIC has the resources of a domain");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let refused = MemoryNode::new(domain, listener, node_config(0, QpKind::Virtual));
    let text = refused.err().map(|error| (matches!(error, StartError::Capability { .. }), error.to_string()));
    assert!(text.is_some_and(|(is_named, text)| is_named && text.contains("ack_after_placement")));
}

#[test]
fn life_of_a_silent_coordinator_ends() {
    let (domain, _node_nics) = nics(1);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut config = node_config(0, QpKind::Virtual);
    config.failover.peer_timeout = Duration::from_millis(200);
    let mut node = MemoryNode::new(domain, listener, config.clone()).expect("the node starts");
    let mut links_config = links_config(1, &[], QpKind::Virtual);
    (links_config.nodes, links_config.failover) = (vec![node.address()], config.failover);
    let connecting = std::thread::spawn(move || connect(&links_config, 1));
    while !connecting.is_finished() {
        node.serve_for(Duration::from_millis(1));
    }
    let silent = connecting.join().expect("the node admits the coordinator");
    assert_eq!(node.lives().collect::<Vec<_>>(), [silent.0.life()]);
    let end = Instant::now() + TIMEOUT;
    while node.lives().next().is_some() {
        assert!(Instant::now() < end, "the life has not ended");
        node.serve_for(Duration::from_millis(1));
    }
}

/// A life posts WRITEs and swaps without pause while another life fences it. After the fence, the
/// memory does not change.
fn fence_under_load(kind: QpKind, rails: usize, failure: Option<Failure>) {
    let nodes = start_nodes(2, rails, kind);
    let (mut victim, _nics) = connect(&links_config(1, &nodes, kind), rails);
    let life = victim.life();
    let (mut recoverer, _nics) = connect(&links_config(2, &nodes, kind), rails);
    let is_running = Arc::new(AtomicBool::new(false));
    let running = Arc::clone(&is_running);
    let load = std::thread::spawn(move || {
        let (mut done, mut number, mut under_way) = (Vec::new(), 0u64, 0);
        loop {
            while under_way < 16 {
                number += 1;
                let requests = (0..2).flat_map(|node| {
                    [write(node, 512, number.to_le_bytes().repeat(64)), swap(node, 0, number - 1, number)]
                });
                victim.post(number, requests.collect()).expect("the requests are valid");
                under_way += 1;
            }
            if let Err(lost) = victim.poll(&mut done) {
                assert_eq!(victim.lost(), Some(&lost));
                return lost;
            }
            under_way -= done.len();
            if !done.is_empty() {
                running.store(true, Ordering::Release);
            }
            done.clear();
        }
    });
    while !is_running.load(Ordering::Acquire) {
        recoverer.wait(&mut Vec::new(), Duration::from_millis(1)).expect("the nodes are connected");
    }
    if let Some(failure) = failure {
        nodes[0].nics[0].faults().fail(failure);
    }
    let result = fence(&mut recoverer, life);
    assert!(result.refused.is_none(), "{result:?}");
    let content = |node: &ServedNode| {
        let mut bytes = vec![0; 2048];
        node.memory.read_at(0, &mut bytes);
        bytes
    };
    let before: Vec<_> = nodes.iter().map(content).collect();
    // Polls on, so that the nodes do not consider the recoverer silent.
    while !load.is_finished() {
        recoverer.wait(&mut Vec::new(), Duration::from_millis(1)).expect("the nodes are connected");
    }
    let lost = load.join().expect("the life ends with an error");
    assert!(lost.to_string().contains("connect again as a new life"), "{lost}");
    let after: Vec<_> = nodes.iter().map(content).collect();
    assert!(before == after, "{kind:?}: the memory has changed after the fence");
    assert_ne!(nodes[0].memory.load(0), 0, "the life has written before");
    // The recoverer reads what the life has left.
    let word = nodes[1].memory.load(0);
    assert_eq!(execute(&mut recoverer, vec![read(1, 0, 8)]), [executed(word)]);
    // The fence can be repeated, and only higher incarnations are admitted.
    assert!(fence(&mut recoverer, life).refused.is_none());
    let (next, _nics) = connect(&links_config(1, &nodes, kind), rails);
    assert_eq!(next.life().incarnation, life.incarnation + 1);
}

#[test]
fn nothing_of_a_fenced_life_is_executed() {
    fence_under_load(QpKind::Virtual, 2, None);
}

/// A hung NIC executes requests although its host cannot reach the NIC. The fence resets the NIC.
#[test]
fn nothing_of_a_fenced_life_is_executed_by_a_hung_nic() {
    fence_under_load(QpKind::Virtual, 2, Some(Failure::NicHung));
}

#[test]
fn nothing_of_a_fenced_life_is_executed_over_rc() {
    fence_under_load(QpKind::Rc, 1, None);
}

/// A fence names incarnations that have never connected.
#[test]
fn fenced_incarnations_are_skipped() {
    let nodes = start_nodes(2, 1, QpKind::Virtual);
    let (mut links, _nics) = connect(&links_config(1, &nodes, QpKind::Virtual), 1);
    assert!(fence(&mut links, Life { coordinator: 3, incarnation: 9 }).refused.is_none());
    let (third, _nics) = connect(&links_config(3, &nodes, QpKind::Virtual), 1);
    assert_eq!(third.life().incarnation, 10);
    let unknown = fence(&mut links, Life { coordinator: 40, incarnation: 1 });
    assert!(matches!(unknown.refused, Some((_, CallError::Refused(Refusal::Coordinator(40))))));
}

/// A node that is declared dead has nothing to confirm. A node that does not answer is named.
#[test]
fn fence_asks_the_nodes_that_are_not_declared_dead() {
    let mut nodes = start_nodes(2, 1, QpKind::Virtual);
    let mut config = links_config(1, &nodes, QpKind::Virtual);
    config.timeout = Duration::from_millis(200);
    config.dead = vec![NodeId(1)];
    let (mut links, _nics) = connect(&config, 1);
    nodes.truncate(1);
    let life = Life { coordinator: 2, incarnation: 1 };
    assert!(fence(&mut links, life).refused.is_none());
    config.dead = Vec::new();
    let missing = try_connect(&config, 1).err();
    let is_named = matches!(
        &missing,
        Some(ConnectError::Node { node: NodeId(1), error: CallError::Unreachable { .. } })
    );
    assert!(is_named, "{missing:?}");
}
