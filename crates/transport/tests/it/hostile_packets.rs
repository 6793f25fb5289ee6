//! Random and hostile packets: no panic, no access to memory that is not granted, no unbounded
//! growth.

use crate::common::*;
use mitra_transport::TxBatch;
use mitra_verbs::*;
use mitra_wire::{Aeth, AtomicEth, Deth, Message, NakCode, Packet, Reth, Syndrome, Transport};
use proptest::prelude::*;

/// A packet of a hostile peer. Most fields are close to valid values.
#[derive(Clone, Debug)]
struct HostilePacket {
    to: usize,
    kind: u8,
    /// The difference between the packet's PSN and the expected PSN.
    psn: i32,
    va: i64,
    len: u32,
    right_key: bool,
    payload: usize,
    byte: u8,
    ack_req: bool,
    transport: u8,
    syndrome: u8,
    /// Selects what happens after the packet: steps of the simulation, or a reset of a failed queue
    /// pair.
    then: u8,
}

fn hostile_packet() -> impl Strategy<Value = HostilePacket> {
    let psn = prop_oneof![8 => Just(0), 4 => -6..6i32, 1 => any::<i32>()];
    let va = prop_oneof![8 => 0..256i64, 4 => -20..5000i64, 1 => any::<i64>()];
    let len = prop_oneof![Just(0u32), Just(8), Just(256), Just(512), Just(700), Just(4096), any::<u32>()];
    let payload = prop_oneof![Just(0usize), Just(8), Just(255), Just(256), Just(257), 0..300usize];
    let fates = (any::<bool>(), prop_oneof![6 => Just(0u8), 1 => 1..4u8], any::<u8>(), 0..12u8);
    (0..2usize, 0..23u8, psn, va, len, prop::bool::weighted(0.9), payload, any::<u8>(), fates).prop_map(
        |(to, kind, psn, va, len, right_key, payload, byte, (ack_req, transport, syndrome, then))| {
            HostilePacket {
                to,
                kind,
                psn,
                va,
                len,
                right_key,
                payload,
                byte,
                ack_req,
                transport,
                syndrome,
                then,
            }
        },
    )
}

impl HostilePacket {
    fn message(&self, rkey: u32) -> Message {
        use Message::*;
        let va = (BASE as i64).wrapping_add(self.va) as u64;
        let rkey = if self.right_key { rkey } else { rkey ^ 1 << (self.byte % 32) };
        let reth = Reth { va, rkey, len: self.len };
        let atomic = AtomicEth { va, rkey, swap_add: 7, compare: 0 };
        let aeth = Aeth { syndrome: Syndrome::from_raw(self.syndrome), msn: 3 };
        let good = Aeth { syndrome: Syndrome::ACK, msn: 3 };
        match self.kind {
            0 => SendFirst,
            1 => SendMiddle,
            2 => SendLast,
            3 => SendLastImm(9),
            4 => SendLastInv(rkey),
            5 => SendOnly,
            6 => SendOnlyImm(9),
            7 => SendOnlyInv(rkey),
            8 => WriteFirst(reth),
            9 => WriteMiddle,
            10 => WriteLast,
            11 => WriteLastImm(9),
            12 => WriteOnly(reth),
            13 => WriteOnlyImm(reth, 9),
            14 => ReadRequest(reth),
            15 => ReadFirst(good),
            16 => ReadMiddle,
            17 => ReadLast(aeth),
            18 => ReadOnly(good),
            19 => Ack(aeth),
            20 => AtomicAck(good, 5),
            21 => CompareSwap(atomic),
            _ => FetchAdd(atomic),
        }
    }
}

/// The peer may access this many bytes at the start of region 1.
const GRANTED: usize = 4096;
/// Receives and fetched data may fill this many bytes at the start of region 2.
const LOCAL: usize = 8192;

/// Creates two queue pairs with requests in flight in both directions. No key refers to region 0.
fn pair_with_requests_in_flight(qp_type: QpType) -> (NicPair, [Key; 2]) {
    let setup = Setup { qp_type, mtu: Mtu::M256, rnr_retry: 2, retry_cnt: 3, ..Setup::default() };
    let mut p = setup.pair();
    let mut keys = [Key(0); 2];
    let mut locals = [Key(0); 2];
    for (i, node) in p.nodes.iter_mut().enumerate() {
        node.memory.regions.0[0].fill(0x55);
        node.memory.regions.0.push(vec![0x66; GRANTED + 64]);
        node.memory.regions.0.push(vec![0x77; LOCAL + 64]);
        let now = p.now;
        let granted = node.nic.reg_mr(now, node.pd, RegionId(1), BASE, GRANTED as u64, ALL_ACCESS).unwrap();
        let access = Access::LOCAL_WRITE;
        let local = node.nic.reg_mr(now, node.pd, RegionId(2), BASE, LOCAL as u64, access).unwrap();
        (keys[i], locals[i]) = (granted.rkey, local.lkey);
        for wr_id in 0..6 {
            node.nic.post_recv(node.qp, &[RecvWr::new(wr_id, local.sge(1024, 700))]).unwrap();
        }
    }
    for i in 0..2 {
        let remote = RemoteAddr { addr: BASE, rkey: keys[1 - i] };
        let local = |len| Data::sge(Sge { addr: BASE, len, key: locals[i] });
        let gid = p.nodes[1 - i].gid;
        let to = UdDestination {
            ah: p.nodes[i].nic.create_ah(p.nodes[i].pd, gid).unwrap(),
            qpn: p.nodes[1 - i].qp,
            qkey: qkey(qp_type),
        };
        let wrs = match qp_type {
            QpType::Rc => vec![
                SendWr::new(1, SendOp::Read(remote), local(1000)),
                SendWr::new(2, SendOp::Send, local(600)),
                SendWr::new(3, SendOp::FetchAdd { remote, add: 1 }, local(8)),
                SendWr::new(4, SendOp::WriteWithImm(remote, 3), local(600)),
                SendWr::new(5, SendOp::Read(remote), local(10)),
            ],
            QpType::Uc => vec![SendWr::new(1, SendOp::Send, local(600))],
            QpType::Ud | QpType::Gsi => vec![SendWr::new(1, SendOp::Send, local(600)).to(to)],
            QpType::XrcSend | QpType::XrcRecv(_) => unreachable!("tests/it/xrc_random.rs has XRC"),
        };
        p.post_on(i, &wrs).unwrap();
    }
    (p, keys)
}

fn send_hostile_packets(qp_type: QpType, packets: Vec<HostilePacket>) {
    let (mut p, keys) = pair_with_requests_in_flight(qp_type);
    let payload = [0xab; 300];
    for h in packets {
        let status = p.status(h.to);
        let message = h.message(keys[h.to].0);
        let base = if message.is_request() { status.rq_psn } else { p.status(h.to).sq_psn.sub(4) };
        let own = match qp_type {
            QpType::Rc => 0,
            QpType::Uc => 1,
            QpType::Ud | QpType::Gsi => 2,
            QpType::XrcSend | QpType::XrcRecv(_) => unreachable!("tests/it/xrc_random.rs has XRC"),
        };
        let transport = match (own + h.transport) % 3 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            _ => Transport::Ud(Deth { qkey: qkey(qp_type), src_qp: p.nodes[1 - h.to].qp }),
        };
        let packet = Packet {
            solicited: h.byte & 1 == 0,
            ack_req: h.ack_req,
            ..Packet::new(
                transport,
                p.nodes[h.to].qp,
                base.add(h.psn as u32),
                message,
                if message.has_payload() { &payload[..h.payload] } else { &[] },
            )
        };
        // Emitting and parsing removes values that the wire format cannot carry.
        let mut bytes = Vec::new();
        packet.emit_to(&mut bytes);
        if let Ok(packet) = Packet::parse(&bytes) {
            p.inject(h.to, &packet);
        }
        match h.then {
            0..=3 => {
                p.step();
            }
            4 => {
                p.transmit_all();
            }
            5 if status.state == QpState::Err => {
                // The keys stay valid after the reset.
                p.modify(h.to, &QpAttr::to(QpState::Reset));
                let setup = Setup { qp_type, mtu: Mtu::M256, ..Setup::default() };
                let rtr = setup.to_rtr(&p.nodes[1 - h.to], 0xff_ffff);
                for attr in [setup.to_init(), rtr, setup.to_rts(0xff_fffe)] {
                    p.modify(h.to, &attr);
                }
            }
            _ => {}
        }
    }
    p.run();
    for node in &p.nodes {
        let [foreign, granted, local] = &node.memory.regions.0[..] else { panic!() };
        assert!(foreign.iter().all(|&b| b == 0x55), "a region without a grant was accessed");
        assert!(granted[GRANTED..].iter().all(|&b| b == 0x66), "bytes beyond the grant were accessed");
        assert!(local[LOCAL..].iter().all(|&b| b == 0x77));
        // READs and receives fill at most the first 1724 bytes.
        assert!(local[1724..].iter().all(|&b| b == 0x77), "bytes beyond a receive were accessed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn rc_survives_hostile_packets(packets in prop::collection::vec(hostile_packet(), 1..80)) {
        send_hostile_packets(QpType::Rc, packets);
    }

    #[test]
    fn uc_survives_hostile_packets(packets in prop::collection::vec(hostile_packet(), 1..80)) {
        send_hostile_packets(QpType::Uc, packets);
    }

    #[test]
    fn ud_survives_hostile_packets(packets in prop::collection::vec(hostile_packet(), 1..80)) {
        send_hostile_packets(QpType::Ud, packets);
    }

    #[test]
    fn gsi_survives_hostile_packets(packets in prop::collection::vec(hostile_packet(), 1..80)) {
        send_hostile_packets(QpType::Gsi, packets);
    }
}

/// Returns the number of packets that node 1 can send now.
fn count_sent_by_responder(p: &mut NicPair) -> usize {
    let mut batch = TxBatch::new();
    let mut n = 0;
    let node = &mut p.nodes[1];
    while node.nic.poll_transmit(p.now, &mut node.memory, &mut batch) {
        n += batch.ends.len();
    }
    n
}

#[test]
fn flood_of_duplicates_gets_at_most_rd_atomic_responses() {
    let mut p = pair();
    let remote = p.remote(0);
    for i in 0..8 {
        p.post(SendWr::new(i, SendOp::Read(remote), Data::sge(p.sge(0, 0, 8))));
        p.post(SendWr::new(i, SendOp::FetchAdd { remote, add: 1 }, Data::sge(p.sge(0, 0, 8))));
        p.post(SendWr::new(i, SendOp::Write(remote), Data::sge(p.sge(0, 0, 8))));
    }
    p.run();
    let requests: Vec<_> = p.sent.iter().filter(|s| s.from == 0).map(|s| s.bytes.clone()).collect();
    let word = p.word(1, 0);
    for _ in 0..1000 {
        for bytes in &requests {
            p.inject(1, &Packet::parse(bytes).unwrap());
        }
    }
    let sent = count_sent_by_responder(&mut p);
    assert!(sent <= 4 + 1, "{sent} packets for READs, atomics and one acknowledgement");
    assert_eq!(p.word(1, 0), word);
    assert!(p.events(1).len() <= 1);
}

#[test]
fn flood_of_gaps_gets_one_nak() {
    let mut p = pair();
    for i in 1..5000 {
        let psn = p.status(1).rq_psn.add(i);
        let packet = Packet::new(Transport::Rc, p.nodes[1].qp, psn, Message::SendOnly, b"");
        p.inject(1, &packet);
    }
    assert_eq!(count_sent_by_responder(&mut p), 1);
    assert_eq!(p.counter(1, "sequence_naks_sent"), 1);
}

#[test]
fn nak_for_unsent_psn_is_ignored() {
    let mut p = pair();
    p.set_link(|_, _| LinkAction::Drop);
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")));
    p.transmit_all();
    for code in [NakCode::PsnSequence, NakCode::InvalidRequest, NakCode::RemoteAccess] {
        for psn in [99, 101, 100 + (1 << 23), 0] {
            let aeth = Aeth { syndrome: Syndrome::Nak(code), msn: 0 };
            let packet = Packet::new(Transport::Rc, p.nodes[0].qp, Psn::new(psn), Message::Ack(aeth), b"");
            p.inject(0, &packet);
        }
    }
    assert_eq!(p.state(0), QpState::Rts);
    assert_eq!(p.counter(0, "drop_stale_response"), 12);
}

#[test]
fn ack_of_unsent_psn_is_ignored() {
    let mut p = pair();
    p.set_link(|_, _| LinkAction::Drop);
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")));
    p.transmit_all();
    for psn in [99, 101, 5000, 100 + (1 << 23)] {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: 1 };
        let packet = Packet::new(Transport::Rc, p.nodes[0].qp, Psn::new(psn), Message::Ack(aeth), b"");
        p.inject(0, &packet);
    }
    assert!(p.send_completions(0).is_empty());
}
