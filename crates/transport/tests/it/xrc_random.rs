//! An extended reliable connection over a link that drops, duplicates and delays: each message is
//! delivered once, in order, to the shared receive queue that it names. Random packets of a hostile
//! peer access nothing that is not granted.

use core::time::Duration;

use crate::common::*;
use mitra_verbs::*;
use mitra_wire::{AtomicEth, Message, Packet, Reth, Transport};
use proptest::prelude::*;

const QUEUES: usize = 3;
/// The offset of a word that fetch-and-adds count in.
const COUNTER: u64 = 512;

struct World {
    p: NicPair,
    srqs: Vec<(SrqId, Srqn, CqId)>,
}

/// Connects an XRC send queue pair with an XRC receive queue pair. Each queue has receives of 2048
/// bytes.
fn world(receives: u64) -> World {
    let setup = Setup { mtu: Mtu::M256, retry_cnt: 7, ..Setup::default() };
    let mut p = setup.pair();
    let now = p.now;
    let init = |node: &Node, qp_type| QpInitAttr {
        qp_type,
        pd: node.pd,
        send_cq: node.send_cq,
        recv_cq: node.recv_cq,
        srq: None,
        cap: QpCap { send_wrs: 512, ..setup.cap },
        sq_sig_all: true,
    };
    let node = &mut p.nodes[1];
    let domain = node.nic.alloc_xrcd().unwrap();
    let srqs: Vec<_> = (0..QUEUES)
        .map(|_| {
            let cq = node.nic.create_cq(4096).unwrap();
            let srq = node.nic.create_xrc_srq(node.pd, domain, cq, 512).unwrap();
            for wr_id in 0..receives {
                let wr = RecvWr::new(wr_id, node.mr.sge(65_536 + 2048 * (wr_id % 64), 2048));
                node.nic.post_srq_recv(srq, &[wr]).unwrap();
            }
            (srq, node.nic.srq_number(srq).unwrap(), cq)
        })
        .collect();
    node.qp = node.nic.create_qp(now, &init(node, QpType::XrcRecv(domain))).unwrap();
    let node = &mut p.nodes[0];
    node.qp = node.nic.create_qp(now, &init(node, QpType::XrcSend)).unwrap();
    let reliable = Setup { qp_type: QpType::Rc, ..setup.clone() };
    let rtr = reliable.to_rtr(&p.nodes[0], setup.psn[0]);
    p.modify(1, &setup.to_init());
    p.modify(1, &rtr);
    let rtr = Setup { qp_type: QpType::Uc, ..setup.clone() }.to_rtr(&p.nodes[1], setup.psn[1]);
    p.modify(0, &setup.to_init());
    p.modify(0, &rtr);
    p.modify(0, &reliable.to_rts(setup.psn[0]));
    World { p, srqs }
}

/// A request: its kind, the queue that it names and the length of its data.
fn request() -> impl Strategy<Value = (u8, usize, u32)> {
    (0..6u8, 0..QUEUES, 0..2000u32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_message_is_delivered_once_and_in_order(
        requests in prop::collection::vec(request(), 1..60),
        faults in prop::collection::vec(0..16u8, 64),
    ) {
        let mut w = world(128);
        let mut index = 0;
        // The faults end before the retries do.
        w.p.set_link(move |_, _| {
            index += 1;
            match faults.get(index) {
                Some(0 | 1) => LinkAction::Drop,
                Some(2) => LinkAction::Duplicate,
                Some(3) => LinkAction::Delay(Duration::from_micros(7)),
                _ => LinkAction::Pass,
            }
        });
        let (mut expected, mut adds) = (vec![Vec::new(); QUEUES], 0);
        for (n, &(kind, queue, len)) in requests.iter().enumerate() {
            let (wr_id, imm) = (n as u64, n as u32);
            let data = Data::sge(w.p.sge(0, 0, len));
            let remote = w.p.remote(4096);
            let op = match kind {
                0 | 1 => SendOp::SendWithImm(imm),
                2 => SendOp::WriteWithImm(remote, imm),
                3 => SendOp::Write(remote),
                4 => SendOp::Read(remote),
                _ => SendOp::FetchAdd { remote: w.p.remote(COUNTER), add: 1 },
            };
            if kind < 3 {
                expected[queue].push((Some(imm), len));
            }
            let data = if kind == 5 {
                adds += 1;
                Data::sge(w.p.sge(0, 4096, 8))
            } else {
                data
            };
            w.p.post(SendWr::new(wr_id, op, data).to_srq(w.srqs[queue].1));
        }
        w.p.run();
        let sent = w.p.send_completions(0);
        let all: Vec<_> = (0..requests.len() as u64).map(|wr_id| (wr_id, WcStatus::Success)).collect();
        prop_assert_eq!(statuses(&sent), all);
        for (queue, expected) in expected.into_iter().enumerate() {
            let mut received = Vec::new();
            w.p.nodes[1].nic.poll_cq(w.srqs[queue].2, usize::MAX, &mut received).unwrap();
            prop_assert!(received.iter().enumerate().all(|(n, wc)| wc.wr_id == n as u64));
            let received: Vec<_> = received.iter().map(|wc| (wc.imm, wc.byte_len)).collect();
            prop_assert_eq!(received, expected);
        }
        prop_assert_eq!(w.p.word(1, COUNTER as usize), adds);
    }

    #[test]
    fn hostile_requests_access_only_what_is_granted(
        packets in prop::collection::vec((0..14u8, 0..QUEUES + 1, -2..3i32, any::<bool>(), 0..300usize), 1..40),
    ) {
        let mut w = world(4);
        w.p.nodes[1].memory.regions.0.push(vec![0x55; 4096]);
        let payload = [0xab; 300];
        let number = |queue: usize| w.srqs.get(queue).map_or(Srqn::new(3), |srq| srq.1);
        let numbers: Vec<_> = (0..=QUEUES).map(number).collect();
        for (kind, queue, psn, right_key, len) in packets {
            let status = w.p.status(1);
            let rkey = w.p.nodes[1].mr.rkey.0 ^ u32::from(!right_key) << 9;
            let reth = Reth { va: BASE + 4096, rkey, len: len as u32 };
            let atomic = AtomicEth { va: BASE, rkey, swap_add: 1, compare: 0 };
            let message = match kind {
                0 => Message::SendFirst,
                1 => Message::SendMiddle,
                2 => Message::SendLast,
                3 => Message::SendLastInv(rkey),
                4 => Message::SendOnly,
                5 => Message::SendOnlyInv(rkey),
                6 => Message::WriteFirst(reth),
                7 => Message::WriteMiddle,
                8 => Message::WriteLastImm(1),
                9 => Message::WriteOnly(reth),
                10 => Message::WriteOnlyImm(reth, 1),
                11 => Message::ReadRequest(reth),
                12 => Message::CompareSwap(atomic),
                _ => Message::FetchAdd(atomic),
            };
            let bytes = if message.has_payload() { &payload[..if kind < 2 { 256 } else { len }] } else { &[] };
            let psn = status.rq_psn.add(psn as u32);
            let packet = Packet::new(Transport::Xrc(numbers[queue]), w.p.nodes[1].qp, psn, message, bytes);
            w.p.inject(1, &packet);
            w.p.step();
        }
        w.p.run();
        prop_assert!(w.p.nodes[1].memory.regions.0[1].iter().all(|&byte| byte == 0x55));
        // Every receive is either still posted or completed once.
        for &(_, _, cq) in &w.srqs {
            let mut received = Vec::new();
            w.p.nodes[1].nic.poll_cq(cq, usize::MAX, &mut received).unwrap();
            prop_assert!(received.iter().enumerate().all(|(n, wc)| wc.wr_id == n as u64));
            prop_assert!(received.len() <= 4);
        }
    }
}
