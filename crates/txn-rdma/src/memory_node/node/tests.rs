//! Answers to coordinators that do not keep to the protocol.

use mitra_failover::VirtualQp;
use mitra_softnic::{Config, SoftNic};

use super::*;

fn domain() -> Arc<Domain> {
    let nic = SoftNic::open(Config::loopback()).expect("a loopback NIC opens");
    Domain::with_completion_channels(vec![nic]).expect("the NIC has the resources of a domain")
}

fn node(kind: QpKind) -> Node {
    let config = NodeConfig {
        node: NodeId(0),
        bytes: 64,
        fingerprint: 1,
        tokens: vec![[1; 16], [2; 16]],
        kind,
        failover: mitra_failover::Config::default(),
    };
    Node::new(domain(), config).expect("the node starts")
}

fn hello(ask: Ask) -> Hello {
    Hello { version: VERSION, token: [1; 16], fingerprint: 1, node: 0, coordinator: 1, ask }
}

fn refusal(node: &mut Node, hello: Hello) -> Refusal {
    node.answer(&hello).expect_err("the node refuses")
}

#[test]
fn second_connection_of_a_life_is_refused() {
    let mut node = node(QpKind::Virtual);
    let vqp = VirtualQp::builder(&domain()).build().expect("a free queue pair");
    let info = QpInfo::Virtual(vqp.local_info().encode());
    let connect = |incarnation| hello(Ask::Connect { incarnation, info: info.clone() });
    assert_eq!(refusal(&mut node, connect(0)), Refusal::Incarnation(0));
    assert!(matches!(node.answer(&connect(5)), Ok(Answer::Connected { .. })));
    assert_eq!(refusal(&mut node, connect(5)), Refusal::Incarnation(5));
    assert_eq!(refusal(&mut node, connect(4)), Refusal::Incarnation(5));
    assert_eq!(node.lives().count(), 1);
    // Only a connected life may fence another life, and only with the token of its own coordinator.
    let fence = |incarnation| Ask::Fence { incarnation, fenced_coordinator: 1, fenced_incarnation: 5 };
    assert_eq!(refusal(&mut node, hello(fence(4))), Refusal::NotConnected);
    let other = Hello { coordinator: 2, ..hello(fence(5)) };
    assert_eq!(refusal(&mut node, other.clone()), Refusal::Token(2));
    assert_eq!(refusal(&mut node, Hello { token: [2; 16], ..other }), Refusal::NotConnected);
    assert_eq!(node.lives().count(), 1);
    assert!(matches!(node.answer(&hello(fence(5))), Ok(Answer::Fenced)));
    assert_eq!(node.lives().count(), 0);
    assert_eq!(refusal(&mut node, connect(5)), Refusal::Incarnation(5));
}

/// For any connection data of a peer, the node keeps nothing of a connection that it refuses.
#[test]
fn malformed_connection_parameters_are_refused() {
    for kind in [QpKind::Virtual, QpKind::Rc] {
        let mut node = node(kind);
        for (incarnation, bytes) in (1..).zip([vec![], vec![0xff; 64], vec![0xff; 4096]]) {
            let info = QpInfo::Virtual(bytes);
            let expected = if kind == QpKind::Rc { "kind" } else { "NIC" };
            let refused = refusal(&mut node, hello(Ask::Connect { incarnation, info })).to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        assert_eq!(node.lives().count(), 0);
        assert!(matches!(node.answer(&hello(Ask::Highest)), Ok(Answer::Highest(0))));
    }
}

#[test]
fn other_version_is_refused_by_name() {
    let other = Hello { version: VERSION + 1, ..hello(Ask::Highest) };
    assert_eq!(refusal(&mut node(QpKind::Virtual), other), Refusal::Version(VERSION));
}

/// Compare-and-swaps need a home rail. A node with a home rail refuses a queue pair without one.
#[test]
fn queue_pair_without_a_home_rail_is_refused_by_name() {
    let config = mitra_failover::Config { policy: Policy::Blanket, ..mitra_failover::Config::default() };
    let vqp = VirtualQp::builder(&domain()).config(config).build().expect("a free queue pair");
    let info = QpInfo::Virtual(vqp.local_info().encode());
    let mut node = node(QpKind::Virtual);
    let refused = refusal(&mut node, hello(Ask::Connect { incarnation: 1, info })).to_string();
    assert!(refused.contains("different policies"), "{refused}");
    assert_eq!(node.lives().count(), 0);
}
