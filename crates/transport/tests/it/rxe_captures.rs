//! Comparison with captures of Linux's soft-RoCE (rxe). The responder answers captured requests as
//! rxe's responder did. The requester sends the same packets as rxe's requester and completes on
//! the captured responses.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::common::*;
use mitra_verbs::*;
use mitra_wire::frame::{Frame, LinkType};
use mitra_wire::{AtomicEth, ICRC_LEN, Message, Packet, Reth, Syndrome, pcap};

struct Record {
    from: SocketAddr,
    /// The datagram without its ICRC.
    bytes: Vec<u8>,
}

impl Record {
    fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).unwrap()
    }
}

fn capture(name: &str) -> Vec<Record> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/captures");
    let file = std::fs::read(dir.join(name)).unwrap();
    let records = pcap::records(&file).map(|record| {
        let record = record.unwrap();
        let frame = Frame::parse(LinkType::from_number(record.link).unwrap(), record.bytes).unwrap();
        let bytes = frame.datagram[..frame.datagram.len() - ICRC_LEN].to_vec();
        Record { from: frame.src, bytes }
    });
    records.collect()
}

const CAPTURES: [(&str, Mtu); 13] = [
    ("write.pcap", Mtu::M1024),
    ("write_only.pcap", Mtu::M1024),
    ("write_imm.pcap", Mtu::M1024),
    ("read.pcap", Mtu::M1024),
    ("send.pcap", Mtu::M1024),
    ("send_imm.pcap", Mtu::M1024),
    ("cas.pcap", Mtu::M1024),
    ("fadd.pcap", Mtu::M1024),
    ("mixed.pcap", Mtu::M1024),
    ("mixed_mtu4096.pcap", Mtu::M4096),
    ("nak_access_write.pcap", Mtu::M1024),
    ("rnr_nak.pcap", Mtu::M1024),
    ("perftest_write_lat.pcap", Mtu::M1024),
];

/// Returns the address and the key in a message.
fn remote_address(message: Message) -> Option<(u64, u32)> {
    match message {
        Message::WriteFirst(reth)
        | Message::WriteOnly(reth)
        | Message::WriteOnlyImm(reth, _)
        | Message::ReadRequest(reth) => Some((reth.va, reth.rkey)),
        Message::CompareSwap(eth) | Message::FetchAdd(eth) => Some((eth.va, eth.rkey)),
        _ => None,
    }
}

/// The captured keys and the keys that replace them.
type Keys = Vec<(u32, Key)>;

/// Creates a pair that is connected with the captured PSN. Node 1 has memory at the captured
/// addresses. The second key in nak_access_write.pcap is invalid and gets no memory.
fn replay_pair(name: &str, requests: &[&Record], mtu: Mtu) -> (NicPair, Keys) {
    let psn = requests[0].packet().psn.value();
    let (rd_atomic, cap) = (16, QpCap { recv_wrs: 512, send_wrs: 512, ..QpCap::default() });
    let (dest_rd_atomic, min_rnr_timer) = (16, 12);
    let setup =
        Setup { mtu, psn: [psn, 0], rd_atomic, dest_rd_atomic, cap, min_rnr_timer, ..Setup::default() };
    let mut p = setup.pair();
    let mut keys = Keys::new();
    let all = || requests.iter().filter_map(|r| remote_address(r.packet().message));
    for (_, rkey) in all() {
        if keys.iter().any(|k| k.0 == rkey) || name == "nak_access_write.pcap" && keys.len() == 1 {
            continue;
        }
        let now = p.now;
        let node = &mut p.nodes[1];
        let region = RegionId(node.memory.regions.0.len() as u32);
        let lowest = all().filter(|n| n.1 == rkey).map(|n| n.0).min().unwrap();
        node.memory.regions.0.push(vec![0; SIZE]);
        keys.push((
            rkey,
            node.nic.reg_mr(now, node.pd, region, lowest, SIZE as u64, ALL_ACCESS).unwrap().rkey,
        ));
    }
    (p, keys)
}

/// A key without a replacement becomes an invalid key.
fn replace_key(message: Message, keys: &Keys) -> Message {
    let key = |rkey| keys.iter().find(|k| k.0 == rkey).map_or(1, |k| k.1.0);
    let reth = |reth: Reth| Reth { rkey: key(reth.rkey), ..reth };
    let atomic = |eth: AtomicEth| AtomicEth { rkey: key(eth.rkey), ..eth };
    match message {
        Message::WriteFirst(r) => Message::WriteFirst(reth(r)),
        Message::WriteOnly(r) => Message::WriteOnly(reth(r)),
        Message::WriteOnlyImm(r, imm) => Message::WriteOnlyImm(reth(r), imm),
        Message::ReadRequest(r) => Message::ReadRequest(reth(r)),
        Message::CompareSwap(a) => Message::CompareSwap(atomic(a)),
        Message::FetchAdd(a) => Message::FetchAdd(atomic(a)),
        other => other,
    }
}

/// Splits a capture by direction: the requests of one side and the responses of the other side, in
/// the order of the capture.
fn requests_and_responses(records: &[Record]) -> impl Iterator<Item = (Vec<&Record>, Vec<&Record>)> {
    let first = records[0].from.ip();
    [true, false].into_iter().filter_map(move |of_first| {
        let of_side = |r: &&Record| (r.from.ip() == first) == of_first;
        let requests: Vec<_> =
            records.iter().filter(of_side).filter(|r| r.packet().message.is_request()).collect();
        let responses: Vec<_> =
            records.iter().filter(|r| !of_side(r) && r.packet().message.is_response()).collect();
        (!requests.is_empty()).then_some((requests, responses))
    })
}

#[test]
fn responder_matches_rxe_captures() {
    for (name, mtu) in CAPTURES {
        let records = capture(name);
        for (requests, responses) in requests_and_responses(&records) {
            let (mut p, keys) = replay_pair(name, &requests, mtu);
            if name != "rnr_nak.pcap" {
                for i in 0..300 {
                    p.post_recv(RecvWr::new(i, p.sge(1, 0, 0x8000)));
                }
            }
            if name == "read.pcap" {
                // The content of the memory is the data of the first READ response, which has three
                // packets.
                let found: Vec<u8> =
                    responses[..3].iter().flat_map(|r| r.packet().payload.to_vec()).collect();
                p.nodes[1].memory.regions.0[1][..found.len()].copy_from_slice(&found);
            }
            for request in &requests {
                let packet = request.packet();
                let message = replace_key(packet.message, &keys);
                let dest_qp = p.nodes[1].qp;
                p.inject(1, &Packet { dest_qp, message, ..packet });
                p.nodes[1].nic.handle_idle(p.now);
                p.transmit_all();
            }
            // The capture may end before the last response.
            let ours = p.sent.iter().filter(|s| s.from == 1);
            let mut n = 0;
            for (ours, captured) in ours.zip(&responses) {
                let (ours, captured) = (Packet::parse(&ours.bytes).unwrap(), captured.packet());
                let (dest_qp, mig_req) = (captured.dest_qp, captured.mig_req);
                assert_eq!(Packet { dest_qp, mig_req, ..ours }, captured, "{name}, response {n}");
                n += 1;
            }
            assert!(n > 0 && n + 1 >= responses.len(), "{name}: {n} of {} responses", responses.len());
        }
    }
}

/// Returns the work requests that produce the captured packets. Their data is in the memory of node
/// 0 from offset 0 on.
fn work_requests(p: &mut NicPair, requests: &[&Record], keys: &Keys) -> Vec<SendWr> {
    let mut wrs = Vec::new();
    let (mut from, mut offset) = (0, 0);
    let mut message = None;
    for (wr_id, request) in (0..).zip(requests) {
        let packet = request.packet();
        p.bytes(0)[offset..offset + packet.payload.len()].copy_from_slice(packet.payload);
        offset += packet.payload.len();
        let remote = |r: Reth| RemoteAddr { addr: r.va, rkey: Key(r.rkey) };
        let atomic = |a: AtomicEth| RemoteAddr { addr: a.va, rkey: Key(a.rkey) };
        let mut local = (offset - from) as u32;
        message = match replace_key(packet.message, keys) {
            Message::WriteFirst(r) => {
                message = Some(SendOp::Write(remote(r)));
                continue;
            }
            Message::SendFirst => {
                message = Some(SendOp::Send);
                continue;
            }
            Message::SendMiddle | Message::WriteMiddle => continue,
            Message::SendLast | Message::WriteLast => message,
            Message::SendLastImm(imm) | Message::SendOnlyImm(imm) => Some(SendOp::SendWithImm(imm)),
            Message::WriteLastImm(imm) => match message {
                Some(SendOp::Write(remote)) => Some(SendOp::WriteWithImm(remote, imm)),
                other => panic!("{other:?}"),
            },
            Message::SendOnly => Some(SendOp::Send),
            Message::WriteOnly(r) => Some(SendOp::Write(remote(r))),
            Message::WriteOnlyImm(r, imm) => Some(SendOp::WriteWithImm(remote(r), imm)),
            Message::ReadRequest(r) => {
                local = r.len;
                Some(SendOp::Read(remote(r)))
            }
            Message::CompareSwap(a) => {
                local = 8;
                Some(SendOp::CompareSwap { remote: atomic(a), compare: a.compare, swap: a.swap_add })
            }
            Message::FetchAdd(a) => {
                local = 8;
                Some(SendOp::FetchAdd { remote: atomic(a), add: a.swap_add })
            }
            other => panic!("{other:?}"),
        };
        let op = message.unwrap();
        // Fetched data goes to another part of the memory.
        let at = if op.is_read_or_atomic() { SIZE - 0x10000 } else { from };
        let flags = if packet.solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
        let wr = SendWr::new(wr_id, op, Data::sge(p.sge(0, at as u64, local)));
        wrs.push(wr.with_flags(flags | SendFlags::SIGNALED));
        from = offset;
    }
    wrs
}

#[test]
fn requester_matches_rxe_captures() {
    // rnr_nak.pcap has one request, sent four times.
    for (name, mtu) in CAPTURES.into_iter().filter(|(name, _)| *name != "rnr_nak.pcap") {
        let records = capture(name);
        for (requests, responses) in requests_and_responses(&records) {
            let (mut p, keys) = replay_pair(name, &requests, mtu);
            p.set_link(|_, _| LinkAction::Drop);
            let wrs = work_requests(&mut p, &requests, &keys);
            let (mut left, mut answers) = (&wrs[..], responses.iter().peekable());
            let mut completed = Vec::new();
            while let Some((wr, rest)) = left.split_first() {
                left = rest;
                p.post_on(0, std::slice::from_ref(wr)).unwrap();
                p.transmit_all();
                // Deliver all captured responses to the packets that have been sent.
                let sent = p.status(0).sq_psn;
                while let Some(answer) = answers.next_if(|r| r.packet().psn.is_before(sent)) {
                    let dest_qp = p.nodes[0].qp;
                    p.inject(0, &Packet { dest_qp, ..answer.packet() });
                }
                completed.extend(p.send_completions(0));
            }
            let ours: Vec<_> = p.sent.iter().filter(|s| s.from == 0).collect();
            assert_eq!(ours.len(), requests.len(), "{name}");
            for (ours, captured) in ours.iter().zip(&requests) {
                let (ours, captured) = (Packet::parse(&ours.bytes).unwrap(), captured.packet());
                let message = replace_key(captured.message, &keys);
                let (dest_qp, mig_req) = (captured.dest_qp, captured.mig_req);
                assert_eq!(Packet { dest_qp, mig_req, ..ours }, Packet { message, ..captured }, "{name}");
            }
            // All sends complete with the captured status. The capture may lack the response to one
            // send.
            assert!(completed.len() + 1 >= wrs.len(), "{name}: {} of {}", completed.len(), wrs.len());
            let denied = responses.iter().any(|r| {
                matches!(r.packet().message, Message::Ack(aeth) if matches!(aeth.syndrome, Syndrome::Nak(_)))
            });
            let failed = completed.iter().filter(|wc| wc.status != WcStatus::Success).collect::<Vec<_>>();
            assert_eq!(failed.len(), usize::from(denied), "{name}: {failed:?}");
            assert!(failed.iter().all(|wc| wc.status == WcStatus::RemoteAccess));
            assert_eq!(p.counter(0, "drop_stale_response"), 0, "{name}");
        }
    }
}
