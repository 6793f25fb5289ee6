//! Reports of a peer's host that the peer's process has ended (ICMP "port unreachable").

use std::net::IpAddr;
use std::sync::Arc;

use mitra_softnic::{Config, Links, SoftNic};
use mitra_transport::fault::Failure;
use mitra_verbs::*;

use crate::common::{Endpoint, LinkAttr, connect, connected_pair, loopback, open, poll_until};

/// A UD queue pair with a completion queue.
struct Datagrams {
    nic: Arc<SoftNic>,
    pd: PdId,
    cq: CqId,
    qp: Qpn,
}

impl Datagrams {
    fn new(nic: &Arc<SoftNic>) -> Datagrams {
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None).unwrap());
        let qp = QpBuilder::ud(pd, cq).signal_all().build(&**nic).unwrap();
        let init = QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(1), ..QpAttr::to(QpState::Init) };
        nic.modify_qp(qp, &init).unwrap();
        nic.modify_qp(qp, &QpAttr::to(QpState::Rtr)).unwrap();
        nic.modify_qp(qp, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) }).unwrap();
        Datagrams { nic: Arc::clone(nic), pd, cq, qp }
    }

    /// Sends an empty datagram to a queue pair that nobody has, and waits for its completion.
    fn send_to(&self, ah: AhId) {
        let to = UdDestination { ah, qpn: Qpn::new(77), qkey: 1 };
        self.nic.post_send(self.qp, &[SendWr::new(0, SendOp::Send, Data::empty()).to(to)]).unwrap();
        let mut wcs = Vec::new();
        poll_until("a completion", || self.nic.poll_cq(self.cq, 1, &mut wcs).unwrap() == 1);
    }

    fn handle(&self, to: IpAddr) -> AhId {
        self.nic.create_ah(self.pd, to.into()).unwrap()
    }
}

fn counter(nic: &SoftNic, name: &str) -> u64 {
    nic.counters().iter().find(|counter| counter.name == name).unwrap().value
}

#[test]
fn each_packet_to_a_port_that_nobody_has_open_is_reported() {
    let config = || Config { links: Links::Udp, ..loopback() };
    let (nic, peer) = (open(config()), open(config()));
    let (gone, sender) = (peer.address(), Datagrams::new(&nic));
    let ah = sender.handle(gone);
    sender.send_to(ah);
    assert_eq!(nic.port_refusals(gone.into()), 0, "the port is open");
    drop(peer);
    let mut before = 0;
    for _ in 0..20 {
        sender.send_to(ah);
        poll_until("a refusal", || {
            let _ = nic.poll_cq(sender.cq, 0, &mut Vec::new());
            nic.port_refusals(gone.into()) != before
        });
        before = nic.port_refusals(gone.into());
    }
    assert_eq!(counter(&nic, "rx_refusals"), 20);
    assert_eq!((counter(&nic, "tx_errors"), counter(&nic, "rx_errors")), (0, 0));
}

/// The kernel reports a refusal by the failure of the next call on the socket. That call may send a
/// datagram to another peer.
#[test]
fn refusals_cost_other_peers_no_datagram() {
    let (a, b) = connected_pair();
    let peer = open(loopback());
    let gone = peer.address();
    drop(peer);
    let sender = Datagrams::new(&a.nic);
    let ah = sender.handle(gone);
    for i in 0..200 {
        b.post_recv(i, 0, 8);
    }
    for i in 0..200 {
        sender.send_to(ah);
        a.post(i, SendOp::Send, 0, 8);
    }
    for _ in 0..200 {
        a.wait_success();
        b.wait_success();
    }
    assert_eq!(a.counter("tx_errors"), 0);
    assert!(a.counter("rx_refusals") >= 200);
    assert_eq!(a.counter("retransmitted_packets"), 0, "no datagram was lost");
}

/// The ports of a NIC that died by fault injection stay open and silent, as with a hardware NIC.
#[test]
fn dead_nic_refuses_nothing() {
    for failure in [Failure::NicDead, Failure::LinkDown] {
        let (nic, peer) = (open(loopback()), open(loopback()));
        let sender = Datagrams::new(&nic);
        let ah = sender.handle(peer.address());
        peer.faults().fail(failure);
        for _ in 0..50 {
            sender.send_to(ah);
        }
        assert_eq!(nic.port_refusals(peer.address().into()), 0, "{failure:?}");
    }
}

/// Without UDP, what is sent to the peer is dropped, and refuses nothing. The NIC asks four times
/// when the link closes, and goes on while something would be sent.
#[test]
fn nic_with_links_only_goes_on_asking_a_peer_that_is_gone() {
    let config = || Config { links: Links::SharedMemory, ..loopback() };
    let (nic, peer) = (open(config()), open(config()));
    let (gone, sender) = (peer.address(), Datagrams::new(&nic));
    let ah = sender.handle(gone);
    sender.send_to(ah);
    poll_until("the datagram", || counter(&peer, "rx_shared_memory") == 1);
    assert_eq!(nic.port_refusals(gone.into()), 0);
    drop(peer);
    poll_until("refusals", || {
        sender.send_to(ah);
        counter(&nic, "rx_refusals") > 8
    });
    assert_eq!(counter(&nic, "tx_datagrams"), counter(&nic, "tx_shared_memory"));
}

/// The requester retransmits, and nobody polls.
#[test]
fn progress_thread_learns_of_refusals() {
    let (a, b) = (Endpoint::new(open(loopback())), Endpoint::new(open(loopback())));
    connect(&a, &b, LinkAttr::default());
    let gone = b.ip();
    drop(b);
    a.post(1, SendOp::Send, 0, 8);
    crate::common::sleep_until("a refusal", || a.nic.port_refusals(gone.into()) != 0);
}

/// A reset ends the NIC and not the process. Its address can be opened again at once.
#[test]
fn reset_nic_refuses_nothing_until_it_is_dropped() {
    let (nic, peer) = (open(loopback()), open(loopback()));
    let sender = Datagrams::new(&nic);
    let address = peer.address();
    let ah = sender.handle(address);
    peer.reset().unwrap();
    for _ in 0..50 {
        sender.send_to(ah);
    }
    assert_eq!(nic.port_refusals(address.into()), 0);
    let again = open(Config { address: Some(address), ..loopback() });
    drop(peer); // releases nothing that belongs to the new NIC
    for _ in 0..50 {
        sender.send_to(ah);
    }
    assert_eq!(nic.port_refusals(address.into()), 0);
    again.reset().unwrap();
    drop(again);
    sender.send_to(ah);
    poll_until("a refusal", || {
        let _ = nic.poll_cq(sender.cq, 0, &mut Vec::new());
        nic.port_refusals(address.into()) != 0
    });
}
