//! A reliable connection over a link that loses, repeats and reorders: every operation exactly once.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::*;
use core::time::Duration;
use mitra_verbs::*;
use mitra_wire::{Message, Packet};

const MTU: usize = 1024;
const LEN: usize = 5 * MTU + 3;

/// Posts one of each on node 0, and checks at the end that each happened exactly once.
fn one_of_each(p: &mut Pair) {
    let (a, b) = (pattern(LEN, 1), pattern(LEN, 2));
    p.bytes(0)[..LEN].copy_from_slice(&a);
    p.bytes(1)[0x8000..0x8000 + LEN].copy_from_slice(&b);
    p.set_word(1, 0x20000, 5);
    for wr_id in 10..13 {
        p.post_recv(RecvWr::new(wr_id, p.sge(1, 0x10000 * (wr_id - 8), LEN as u32)));
    }
    let data = || Data::sge(Sge { addr: BASE, len: LEN as u32, key: p.nodes[0].mr.lkey });
    let faa = SendOp::FetchAdd { remote: p.remote(0x20000), add: 1 };
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
    let done = p.sends(0);
    assert_eq!(statuses(&done), (1..=8).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
    let got = p.receives(1);
    assert_eq!(got.iter().map(|wc| (wc.wr_id, wc.imm)).collect::<Vec<_>>(), [
        (10, None),
        (11, Some(55)),
        (12, Some(77))
    ]);
    assert!(got.iter().all(|wc| wc.status == WcStatus::Success && wc.byte_len == LEN as u32));
    assert_eq!(p.bytes(1)[..LEN], a);
    assert_eq!(p.bytes(1)[0x4000..0x4000 + LEN], a);
    assert_eq!(p.bytes(1)[0x20010..0x20000 + LEN], a[0x10..]);
    assert_eq!(p.bytes(1)[0x40000..0x40000 + LEN], a);
    assert_eq!(p.bytes(0)[0x8000..0x8000 + LEN], b);
    assert_eq!(p.bytes(0)[0xc000..0xc000 + LEN], b);
    assert_eq!(p.status(0).sq_psn, p.status(1).rq_psn);
}
