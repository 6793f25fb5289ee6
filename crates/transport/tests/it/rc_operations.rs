//! Each operation of a reliable connection over a link without faults, at all MTUs and boundary
//! lengths.

use crate::common::*;
use mitra_verbs::*;

fn lengths(mtu: usize) -> [usize; 6] {
    [0, 1, mtu - 1, mtu, mtu + 1, 5 * mtu + 3]
}

/// Runs `check` at each MTU and length, with first PSNs that do and do not wrap within the message.
fn for_each_mtu_and_length(check: impl Fn(&mut NicPair, usize, &[u8])) {
    for mtu in Mtu::ALL {
        for len in lengths(mtu.bytes()) {
            for psn in [7, 0xff_fffe] {
                let mut pair = Setup { mtu, psn: [psn, 3], ..Setup::default() }.pair();
                let data = pattern(len, mtu.bytes() as u8 ^ 0x5a);
                check(&mut pair, len, &data);
                assert_eq!(pair.state(0), QpState::Rts);
                assert_eq!(pair.state(1), QpState::Rts);
                assert_eq!(pair.status(0).sq_psn, pair.status(1).rq_psn);
                assert_eq!(pair.counter(0, "retransmitted_packets"), 0);
            }
        }
    }
}

fn assert_success(wcs: &[Wc], wr_id: u64, opcode: WcOpcode) {
    assert_eq!(wcs.len(), 1, "{wcs:?}");
    assert_eq!((wcs[0].wr_id, wcs[0].status, wcs[0].opcode), (wr_id, WcStatus::Success, opcode));
}

#[test]
fn send_delivers_message() {
    for_each_mtu_and_length(|p, len, data| {
        p.bytes(0)[..len].copy_from_slice(data);
        p.post_recv(RecvWr::new(9, p.sge(1, 100, len as u32)));
        p.post(SendWr::new(1, SendOp::Send, Data::sge(p.sge(0, 0, len as u32))));
        p.run();
        assert_success(&p.send_completions(0), 1, WcOpcode::Send);
        let received = p.recv_completions(1);
        assert_success(&received, 9, WcOpcode::Recv);
        assert_eq!(
            (received[0].byte_len, received[0].imm, received[0].invalidated),
            (len as u32, None, None)
        );
        assert_eq!(&p.bytes(1)[100..100 + len], data);
        assert!(p.bytes(1)[100 + len..].iter().all(|&b| b == 0));
    });
}

#[test]
fn send_with_immediate_delivers_message_and_data() {
    for_each_mtu_and_length(|p, len, data| {
        p.bytes(0)[..len].copy_from_slice(data);
        p.post_recv(RecvWr::new(9, p.sge(1, 0, SIZE as u32)));
        p.post(SendWr::new(1, SendOp::SendWithImm(0xdead_beef), Data::sge(p.sge(0, 0, len as u32))));
        p.run();
        assert_success(&p.send_completions(0), 1, WcOpcode::Send);
        let received = p.recv_completions(1);
        assert_success(&received, 9, WcOpcode::Recv);
        assert_eq!((received[0].byte_len, received[0].imm), (len as u32, Some(0xdead_beef)));
        assert_eq!(&p.bytes(1)[..len], data);
    });
}

#[test]
fn write_places_data() {
    for_each_mtu_and_length(|p, len, data| {
        p.bytes(0)[..len].copy_from_slice(data);
        p.post(SendWr::new(1, SendOp::Write(p.remote(77)), Data::sge(p.sge(0, 0, len as u32))));
        p.run();
        assert_success(&p.send_completions(0), 1, WcOpcode::Write);
        assert!(p.recv_completions(1).is_empty());
        assert_eq!(&p.bytes(1)[77..77 + len], data);
        assert!(p.bytes(1)[..77].iter().all(|&b| b == 0));
        assert!(p.bytes(1)[77 + len..].iter().all(|&b| b == 0));
    });
}

#[test]
fn write_with_immediate_places_data_and_completes_receive() {
    for_each_mtu_and_length(|p, len, data| {
        p.bytes(0)[..len].copy_from_slice(data);
        p.post_recv(RecvWr { wr_id: 9, sges: SgeList::new() });
        p.post(SendWr::new(1, SendOp::WriteWithImm(p.remote(8), 5), Data::sge(p.sge(0, 0, len as u32))));
        p.run();
        assert_success(&p.send_completions(0), 1, WcOpcode::Write);
        let received = p.recv_completions(1);
        assert_success(&received, 9, WcOpcode::RecvWithImm);
        assert_eq!((received[0].byte_len, received[0].imm), (len as u32, Some(5)));
        assert_eq!(&p.bytes(1)[8..8 + len], data);
    });
}

#[test]
fn read_fetches_data() {
    for_each_mtu_and_length(|p, len, data| {
        p.bytes(1)[50..50 + len].copy_from_slice(data);
        p.post(SendWr::new(1, SendOp::Read(p.remote(50)), Data::sge(p.sge(0, 3, len as u32))));
        p.run();
        let received = p.send_completions(0);
        assert_success(&received, 1, WcOpcode::Read);
        assert_eq!(received[0].byte_len, len as u32);
        assert_eq!(&p.bytes(0)[3..3 + len], data);
        assert!(p.bytes(0)[3 + len..].iter().all(|&b| b == 0));
    });
}

#[test]
fn compare_and_swap_swaps_only_equal_value() {
    for (compare, after) in [(40, 41), (39, 40)] {
        let mut p = pair();
        p.set_word(1, 64, 40);
        let op = SendOp::CompareSwap { remote: p.remote(64), compare, swap: 41 };
        p.post(SendWr::new(1, op, Data::sge(p.sge(0, 8, 8))));
        p.run();
        assert_success(&p.send_completions(0), 1, WcOpcode::CompareSwap);
        assert_eq!((p.word(0, 8), p.word(1, 64)), (40, after));
    }
}

#[test]
fn fetch_and_add_wraps_and_saves_result() {
    let mut p = pair();
    p.set_word(1, 64, u64::MAX);
    p.post(SendWr::new(1, SendOp::FetchAdd { remote: p.remote(64), add: 3 }, Data::sge(p.sge(0, 8, 8))));
    p.run();
    assert_success(&p.send_completions(0), 1, WcOpcode::FetchAdd);
    assert_eq!((p.word(0, 8), p.word(1, 64)), (u64::MAX, 2));
    let node = &p.nodes[1];
    let saved = node.nic.saved_results(node.qp).unwrap();
    assert_eq!(saved, [SavedResult { psn: Psn::new(100), value: u64::MAX }]);
}
