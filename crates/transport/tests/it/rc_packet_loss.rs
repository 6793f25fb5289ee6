//! A reliable connection over a link that loses, duplicates and reorders packets: each operation is
//! executed exactly once.

use std::collections::HashSet;

use crate::common::*;
use core::time::Duration;
use mitra_prng::Prng;
use mitra_verbs::*;
use mitra_wire::{Aeth, Message, Packet, Syndrome};

const MTU: usize = 1024;
const LEN: usize = 5 * MTU + 3;
const WORD: usize = 0x70000;

/// Posts each kind of operation on node 0, runs the pair, and checks that each operation was
/// executed exactly once.
fn run_all_operations(p: &mut NicPair) {
    let (a, b) = (pattern(LEN, 1), pattern(LEN, 2));
    p.bytes(0)[..LEN].copy_from_slice(&a);
    p.bytes(1)[0x8000..0x8000 + LEN].copy_from_slice(&b);
    p.set_word(1, WORD, 5);
    for wr_id in 10..13 {
        p.post_recv(RecvWr::new(wr_id, p.sge(1, 0x10000 * (wr_id - 8), LEN as u32)));
    }
    let data = || Data::sge(Sge { addr: BASE, len: LEN as u32, key: p.nodes[0].mr.lkey });
    let faa = SendOp::FetchAdd { remote: p.remote(WORD as u64), add: 1 };
    let wrs = [
        SendWr::new(1, SendOp::Send, data()),
        SendWr::new(2, SendOp::Write(p.remote(0)), data()),
        SendWr::new(3, SendOp::Read(p.remote(0x8000)), Data::sge(p.sge(0, 0x8000, LEN as u32))),
        SendWr::new(4, faa, Data::sge(p.sge(0, 0x7000, 8))),
        SendWr::new(5, SendOp::WriteWithImm(p.remote(0x4000), 55), data()),
        SendWr::new(6, faa, Data::sge(p.sge(0, 0x7008, 8))),
        SendWr::new(7, SendOp::SendWithImm(77), data()),
        SendWr::new(8, SendOp::Read(p.remote(0x8000)), Data::sge(p.sge(0, 0xc000, LEN as u32))),
    ];
    p.post_on(0, &wrs).unwrap();
    p.run();
    let completed = p.send_completions(0);
    assert_eq!(statuses(&completed), (1..=8).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
    let received = p.recv_completions(1);
    assert_eq!(
        received.iter().map(|wc| (wc.wr_id, wc.imm)).collect::<Vec<_>>(),
        [(10, None), (11, Some(55)), (12, Some(77))]
    );
    assert!(received.iter().all(|wc| wc.status == WcStatus::Success && wc.byte_len == LEN as u32));
    assert_eq!(p.bytes(1)[..LEN], a);
    assert_eq!(p.bytes(1)[0x4000..0x4000 + LEN], a);
    assert_eq!(p.bytes(1)[0x20000..0x20000 + LEN], a);
    assert_eq!((p.word(0, 0x7000), p.word(0, 0x7008), p.word(1, WORD)), (5, 6, 7));
    assert_eq!(p.bytes(1)[0x40000..0x40000 + LEN], a);
    assert_eq!(p.bytes(0)[0x8000..0x8000 + LEN], b);
    assert_eq!(p.bytes(0)[0xc000..0xc000 + LEN], b);
    assert_eq!(p.status(0).sq_psn, p.status(1).rq_psn);
    assert_acks_only_sends_and_writes(p);
}

/// Checks that no ACK packet has the PSN of a READ or an atomic. Linux's rxe would take the ACK
/// packet for the response.
fn assert_acks_only_sends_and_writes(p: &NicPair) {
    let parsed =
        |from| p.sent.iter().filter(move |s| s.from == from).map(|s| Packet::parse(&s.bytes).unwrap());
    let mut fetched = HashSet::new();
    for packet in parsed(0) {
        let packets = match packet.message {
            Message::ReadRequest(reth) => reth.len.div_ceil(MTU as u32).max(1),
            Message::FetchAdd(_) => 1,
            _ => 0,
        };
        fetched.extend((0..packets).map(|i| packet.psn.add(i)));
    }
    for packet in parsed(1) {
        if let Message::Ack(Aeth { syndrome: Syndrome::Ack { .. }, .. }) = packet.message {
            assert!(!fetched.contains(&packet.psn), "{packet}");
        }
    }
}

/// Sets a link that applies `action` to each packet whose number satisfies `selects`. The numbers
/// count the packets of both directions from 0.
fn set_link_action(p: &mut NicPair, action: LinkAction, mut selects: impl FnMut(u32) -> bool + 'static) {
    let mut n = 0;
    p.set_link(move |_, _| {
        n += 1;
        if selects(n - 1) { action } else { LinkAction::Pass }
    });
}

fn packet_count_without_loss() -> u32 {
    let mut p = pair();
    run_all_operations(&mut p);
    p.sent.len() as u32
}

#[test]
fn operations_survive_loss_of_any_one_packet() {
    let n = packet_count_without_loss();
    assert!(n > 35, "{n}");
    for lost in 0..n {
        let mut p = pair();
        set_link_action(&mut p, LinkAction::Drop, move |i| i == lost);
        run_all_operations(&mut p);
    }
}

#[test]
fn operations_survive_loss_of_any_two_packets() {
    let n = packet_count_without_loss();
    for first in 0..n {
        for second in first + 1..n + 8 {
            let mut p = pair();
            set_link_action(&mut p, LinkAction::Drop, move |i| i == first || i == second);
            run_all_operations(&mut p);
        }
    }
}

#[test]
fn operations_survive_burst_loss_at_any_packet() {
    for lost in 0..packet_count_without_loss() {
        let mut p = pair();
        set_link_action(&mut p, LinkAction::Drop, move |i| (lost..lost + 7).contains(&i));
        run_all_operations(&mut p);
    }
}

#[test]
fn operations_survive_duplication_of_any_one_packet() {
    for doubled in 0..packet_count_without_loss() {
        let mut p = pair();
        set_link_action(&mut p, LinkAction::Duplicate, move |i| i == doubled);
        run_all_operations(&mut p);
    }
}

#[test]
fn operations_survive_duplication_of_every_packet() {
    let mut p = pair();
    p.set_link(|_, _| LinkAction::Duplicate);
    run_all_operations(&mut p);
    assert!(p.counter(1, "duplicate_requests") > 0);
}

#[test]
fn operations_survive_delay_of_any_one_packet() {
    for late in 0..packet_count_without_loss() {
        for micros in [1, 5, 30, 3000] {
            let mut p = pair();
            set_link_action(&mut p, LinkAction::Delay(Duration::from_micros(micros)), move |i| i == late);
            run_all_operations(&mut p);
        }
    }
}

#[test]
fn operations_survive_random_loss_duplication_and_reordering() {
    for seed in 0..2000 {
        let mut setup = Setup { psn: [0xff_fffa, 0xff_fffa], ..Setup::default() };
        setup.rd_atomic = 1 + (seed % 4) as u8;
        setup.send_window = [2048, 8192, 256 * 1024][seed as usize % 3];
        let mut p = setup.pair();
        let mut random = Prng::new(seed);
        p.set_link(move |_, _| match random.below(100) {
            0..=7 => LinkAction::Drop,
            8..=14 => LinkAction::Duplicate,
            15..=24 => LinkAction::Delay(Duration::from_micros(random.below(20))),
            25 => LinkAction::Delay(Duration::from_micros(1500)),
            _ => LinkAction::Pass,
        });
        run_all_operations(&mut p);
    }
}

#[test]
fn max_rd_atomic_change_does_not_disturb_read_in_flight() {
    for lost in 0..80 {
        let mut p = Setup { send_window: 8192, ..Setup::default() }.pair();
        set_link_action(&mut p, LinkAction::Drop, move |i| i == lost);
        let data = pattern(60_000, 3);
        p.bytes(1)[..60_000].copy_from_slice(&data);
        p.post(SendWr::new(1, SendOp::Read(p.remote(0)), Data::sge(p.sge(0, 0, 60_000))));
        p.run_for(Duration::from_micros(9));
        p.modify(0, &QpAttr::to(QpState::Sqd));
        p.modify(0, &QpAttr { max_rd_atomic: Some(1), ..QpAttr::to(QpState::Sqd) });
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)], "{lost}");
        assert!(p.bytes(0)[..60_000] == data);
    }
}
