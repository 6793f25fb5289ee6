//! Peers that do not keep to the protocol.

use std::io::{Read, Write};
use std::net::TcpStream;

use mitra_txn_rdma::QpKind;

use crate::common::{connect, execute, executed, links_config, start_nodes, swap};

/// Peers send garbage, stall, announce long frames and go away. A coordinator connects and works
/// meanwhile.
#[test]
fn hostile_peers_harm_no_coordinator() {
    let nodes = start_nodes(1, 1, QpKind::Virtual);
    let dial = || TcpStream::connect(nodes[0].address).expect("the node listens");
    let (mut links, _nics) = connect(&links_config(1, &nodes, QpKind::Virtual), 1);
    let stalled: Vec<TcpStream> = (0..40).map(|_| dial()).collect();
    for garbage in [&[0xff; 64][..], &[4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], &[0; 4], &[0xff, 0xff, 0xf, 0]] {
        let mut peer = dial();
        let _ = peer.write_all(garbage);
        drop(peer);
    }
    // A frame that is no hello is dropped without an answer.
    let mut peer = dial();
    peer.write_all(&[3, 0, 0, 0, 0xff, 0xff, 0xff]).expect("the node reads");
    let mut answer = Vec::new();
    let _ = peer.read_to_end(&mut answer);
    assert_eq!(answer, []);
    assert_eq!(execute(&mut links, vec![swap(0, 0, 0, 1)]), [executed(0)]);
    let (mut other, _nics) = connect(&links_config(2, &nodes, QpKind::Virtual), 1);
    assert_eq!(execute(&mut other, vec![swap(0, 0, 1, 2)]), [executed(1)]);
    drop(stalled);
}
