//! A receiver that reads nothing for a while, because another thread holds its lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_transport::fault::Noise;
use mitra_verbs::*;

use crate::{Config, Links, SoftNic};

/// The bytes of each request. The requests of [`FLOWS`] queue pairs fill a ring.
const LEN: usize = 1 << 20;
const FLOWS: usize = 4;
const QKEY: u32 = 7;

struct End {
    nic: Arc<SoftNic>,
    pd: PdId,
    cq: CqId,
    memory: Arc<Buffer>,
    mr: Mr,
}

impl End {
    fn open() -> End {
        let nic = SoftNic::open(Config { links: Links::SharedMemory, ..Config::loopback() }).unwrap();
        let memory = Arc::new(Buffer::new(LEN * FLOWS));
        let pd = nic.alloc_pd().unwrap();
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let cq = nic.create_cq(1024, None).unwrap();
        End { nic, pd, cq, memory, mr }
    }

    fn gid(&self) -> Gid {
        self.nic.address().into()
    }

    /// Returns the number of a queue pair that is connected to a peer. Its requests wait for
    /// `timeout`, a code, or for ever if that is 0.
    fn connect(&self, peer: &End, timeout: u8) -> Qpn {
        let qp = |end: &End| QpBuilder::rc(end.pd, end.cq).build(&*end.nic).unwrap();
        let (own, other) = (qp(self), qp(peer));
        for (end, qp, gid, to) in [(self, own, peer.gid(), other), (peer, other, self.gid(), own)] {
            let connection = RcConnection {
                path_mtu: Mtu::M4096,
                local_ack_timeout: LocalAckTimeout::from_code(timeout),
                ..RcConnection::to(gid, to)
            };
            connection.connect(&*end.nic, qp).unwrap();
        }
        own
    }

    /// Returns a UD queue pair that sends and receives.
    fn datagrams(&self) -> Qpn {
        let qp = QpBuilder::ud(self.pd, self.cq).send_wrs(64).recv_wrs(16).build(&*self.nic).unwrap();
        let init =
            QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..QpAttr::to(QpState::Init) };
        let to_rts = QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) };
        for attr in [init, QpAttr::to(QpState::Rtr), to_rts] {
            self.nic.modify_qp(qp, &attr).unwrap();
        }
        qp
    }

    fn write(&self, qp: Qpn, peer: &End, at: usize, len: usize) {
        let op = SendOp::Write(peer.mr.remote(at as u64));
        let wr = SendWr::new(at as u64, op, Data::sge(self.mr.sge(at as u64, len as u32)));
        self.nic.post_send(qp, &[wr]).unwrap();
    }

    fn wait_success(&self, count: usize) {
        let mut wcs = Vec::new();
        wait("completions", || {
            self.nic.poll_cq(self.cq, 16, &mut wcs).unwrap();
            wcs.len() >= count
        });
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?}");
    }

    fn counter(&self, name: &str) -> u64 {
        self.nic.counters().iter().find(|counter| counter.name == name).unwrap().value
    }

    fn is_stalled(&self) -> bool {
        self.nic.shared().lock().unwrap().tx_queue.is_stalled()
    }
}

fn wait(description: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "{description}");
    }
}

/// A full ring delays its peer only, and loses nothing, with a fault armed or not.
#[test]
fn full_ring_loses_nothing_and_delays_no_other_peer() {
    let noises = [Noise::default(), Noise { duplicate_ppm: 200_000, ..Noise::default() }];
    let max_delay = Duration::from_millis(1);
    let delays = Noise { reorder_ppm: 100_000, max_delay, ..Noise::default() };
    for (noise, is_exact) in noises.into_iter().map(|noise| (noise, true)).chain([(delays, false)]) {
        let [a, b, c] = [(); 3].map(|()| End::open());
        // A datagram that is delayed twice is only repeated after a timeout.
        let timeout = if is_exact { 0 } else { 14 };
        let flows = [(); FLOWS].map(|()| a.connect(&b, timeout));
        let other = a.connect(&c, timeout);
        a.write(flows[0], &b, 0, 8);
        a.write(other, &c, 0, 8);
        a.wait_success(2);
        for flow in 0..FLOWS {
            a.memory.write_at(flow * LEN, &[flow as u8 + 1; LEN]);
        }
        a.nic.faults().set_noise(noise, Noise::default());
        let shared = b.nic.shared();
        let stopped = shared.lock().unwrap();
        for (flow, qp) in flows.iter().enumerate() {
            a.write(*qp, &b, flow * LEN, LEN);
        }
        wait("the ring is full", || {
            a.nic.poll_cq(a.cq, 0, &mut Vec::new()).unwrap();
            a.is_stalled()
        });
        for round in 1..=3 {
            a.write(other, &c, 64 * round, 8);
            a.wait_success(1);
        }
        assert!(a.is_stalled(), "the receiver has read nothing");
        drop(stopped);
        a.wait_success(FLOWS);
        for flow in 0..FLOWS {
            let mut bytes = vec![0; LEN];
            b.memory.read_at(flow * LEN, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == flow as u8 + 1));
        }
        assert_eq!(a.counter("tx_ring_full"), 0);
        if is_exact {
            assert_eq!(a.counter("retransmitted_packets"), 0, "{noise:?}");
        }
        wait("no datagram waits", || !a.is_stalled());
    }
}

/// The progress threads move the data while nobody polls: the receiver wakes the sender.
#[test]
fn sender_that_does_not_poll_continues_when_the_ring_has_room() {
    let [a, b] = [(); 2].map(|()| End::open());
    let flows = [(); FLOWS].map(|()| a.connect(&b, 0));
    a.memory.write_at(0, &vec![9; LEN * FLOWS]);
    for round in 0..4 {
        for (flow, qp) in flows.iter().enumerate() {
            a.write(*qp, &b, flow * LEN, LEN);
        }
        let sent = (round + 1) * (FLOWS * LEN) as u64;
        wait("the bytes", || {
            std::thread::sleep(Duration::from_millis(1));
            b.counter("rx_bytes") > sent
        });
        a.wait_success(FLOWS);
    }
    assert_eq!((a.counter("tx_ring_full"), a.counter("retransmitted_packets")), (0, 0));
}

/// A UD queue pair sends to a peer that has stopped, and to another.
#[test]
fn stopped_peer_does_not_stop_datagrams_to_others() {
    let [a, b, c] = [(); 3].map(|()| End::open());
    let [own, to_b, to_c] = [&a, &b, &c].map(End::datagrams);
    let send = |to: &End, qpn: Qpn, len: u32| {
        let to = UdDestination { ah: a.nic.create_ah(a.pd, to.gid()).unwrap(), qpn, qkey: QKEY };
        // A full send queue refuses it.
        let _ = a.nic.post_send(own, &[SendWr::new(1, SendOp::Send, Data::sge(a.mr.sge(0, len))).to(to)]);
        let _ = a.nic.destroy_ah(to.ah);
    };
    let mut wcs = Vec::new();
    for (end, qp) in [(&b, to_b), (&c, to_c), (&c, to_c)] {
        end.nic.post_recv(qp, &[RecvWr::new(5, end.mr.sge(0, 4096))]).unwrap();
    }
    for (end, qp) in [(&b, to_b), (&c, to_c)] {
        send(end, qp, 8);
        wait("the first datagram", || end.nic.poll_cq(end.cq, 1, &mut wcs).unwrap() == 1);
    }
    let shared = b.nic.shared();
    let _stopped = shared.lock().unwrap();
    wait("the ring is full", || {
        send(&b, to_b, 4096);
        a.nic.poll_cq(a.cq, 16, &mut wcs).unwrap();
        a.is_stalled()
    });
    send(&c, to_c, 8);
    wcs.clear();
    wait("the datagram to the other peer", || {
        a.nic.poll_cq(a.cq, 16, &mut Vec::new()).unwrap();
        c.nic.poll_cq(c.cq, 16, &mut wcs).unwrap() == 1
    });
    assert_eq!((wcs[0].wr_id, wcs[0].status), (5, WcStatus::Success));
}
