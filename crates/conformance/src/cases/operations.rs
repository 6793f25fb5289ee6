//! The operations of reliable connections.

use std::sync::Arc;

use mitra_verbs::{
    Data, Mtu, Provider, QpCap, RecvWr, SendFlags, SendOp, SendWr, SgeList, WcOpcode, WcStatus,
};

use crate::endpoint::{Endpoint, Link, Options, connect, pattern, rc_pair, rc_pair_with};
use crate::{CaseResult, Fabric, Stop};

/// Connects a queue pair of one NIC with a queue pair of another one, or of the same, and runs all
/// operations with lengths around multiples of the MTU. If a port has a smaller MTU, that MTU is
/// used.
///
/// # Errors
/// [`Stop::Refused`] if a NIC has no RC or no atomics, and [`Stop::Failed`] if a verb fails.
///
/// # Panics
/// If an operation does not do what it should.
pub fn rc_operations(fabric: &dyn Fabric, nics: [Arc<dyn Provider>; 2], mtu: Mtu) -> CaseResult {
    let [a, b] = nics;
    let ends = [Endpoint::new(fabric, a, Options::default())?, Endpoint::new(fabric, b, Options::default())?];
    connect(&ends, Link { mtu, ..Link::default() })?;
    let [a, b] = ends;
    let m = mtu.min(a.max_mtu()?).min(b.max_mtu()?).bytes();
    for (i, len) in [0, 1, 8, m - 1, m, m + 1, 3 * m, 20 * m + 5].into_iter().enumerate() {
        all_data_operations(&a, &b, i as u8, len)?;
    }
    all_atomics(&a, &b)
}

fn all_data_operations(a: &Endpoint<'_>, b: &Endpoint<'_>, seed: u8, len: usize) -> CaseResult {
    let wr_id = u64::from(seed);
    a.fill(0, len, seed);
    a.post(wr_id, SendOp::Write(b.mr.remote(64)), 0, len as u32)?;
    let wc = a.wait_success();
    assert_eq!((wc.wr_id, wc.opcode, wc.qpn), (wr_id, WcOpcode::Write, a.qp));
    b.wait_bytes(64, &pattern(len, seed), &format!("WRITE of {len}"));

    b.fill(200_000, len, seed ^ 0xff);
    a.post(wr_id, SendOp::Read(b.mr.remote(200_000)), 300_000, len as u32)?;
    let wc = a.wait_success();
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Read, len as u32));
    assert_eq!(a.bytes(300_000, len), pattern(len, seed ^ 0xff), "READ of {len}");

    b.post_recv(wr_id + 100, 400_000, len as u32)?;
    a.post(wr_id, SendOp::Send, 0, len as u32)?;
    let wc = b.wait_success();
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (wr_id + 100, WcOpcode::Recv, len as u32));
    assert_eq!((wc.qpn, wc.imm, wc.invalidated), (b.qp, None, None));
    assert_eq!(a.wait_success().opcode, WcOpcode::Send);
    assert_eq!(b.bytes(400_000, len), pattern(len, seed), "SEND of {len}");

    b.post_recv(wr_id, 0, 0)?;
    a.post(wr_id, SendOp::WriteWithImm(b.mr.remote(500_000), 0x1234_5678), 0, len as u32)?;
    let wc = b.wait_success();
    assert_eq!((wc.opcode, wc.imm), (WcOpcode::RecvWithImm, Some(0x1234_5678)));
    assert_eq!(b.bytes(500_000, len), pattern(len, seed), "WRITE with immediate of {len}");
    assert_eq!(a.wait_success().opcode, WcOpcode::Write);
    Ok(())
}

fn all_atomics(a: &Endpoint<'_>, b: &Endpoint<'_>) -> CaseResult {
    a.needs_atomics()?;
    let remote = b.mr.remote(8);
    b.memory.store(8, 41);
    a.post(1, SendOp::FetchAdd { remote, add: 2 }, 16, 8)?;
    let wc = a.wait_success();
    assert_eq!((wc.opcode, wc.byte_len, a.memory.load(16)), (WcOpcode::FetchAdd, 8, 41));
    b.wait_word(8, 43);
    a.post(2, SendOp::CompareSwap { remote, compare: 43, swap: 7 }, 16, 8)?;
    assert_eq!((a.wait_success().opcode, a.memory.load(16)), (WcOpcode::CompareSwap, 43));
    b.wait_word(8, 7);
    // The word does not have the value, so it stays.
    a.post(3, SendOp::CompareSwap { remote, compare: 43, swap: 8 }, 16, 8)?;
    a.wait_success();
    assert_eq!((a.memory.load(16), b.memory.load(8)), (7, 7));
    // The addition wraps around.
    a.post(4, SendOp::FetchAdd { remote, add: u64::MAX }, 16, 8)?;
    a.wait_success();
    b.wait_word(8, 6);
    assert_eq!(a.memory.load(16), 7);
    Ok(())
}

pub(super) fn rc_operations_on_every_mtu(fabric: &dyn Fabric) -> CaseResult {
    let nics = fabric.nics();
    let mut limit = Mtu::M4096;
    for nic in &nics {
        limit = limit.min(nic.query_port()?.max_mtu);
    }
    Mtu::ALL
        .into_iter()
        .filter(|mtu| *mtu <= limit)
        .try_for_each(|mtu| rc_operations(fabric, nics.clone(), mtu))
}

pub(super) fn rc_operations_of_a_nic_with_itself(fabric: &dyn Fabric) -> CaseResult {
    let [nic, _] = fabric.nics();
    rc_operations(fabric, [Arc::clone(&nic), nic], Mtu::M4096)
}

pub(super) fn send_with_immediate_delivers_it(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    for (i, len) in [0, 8, 10_000].into_iter().enumerate() {
        let imm = 0x0102_0304 << i;
        a.fill(0, len, i as u8);
        b.post_recv(7, 0, 10_000)?;
        a.post(1, SendOp::SendWithImm(imm), 0, len as u32)?;
        let wc = b.wait_for(7, WcStatus::Success);
        assert_eq!((wc.opcode, wc.imm, wc.byte_len), (WcOpcode::Recv, Some(imm), len as u32));
        assert_eq!(b.bytes(0, len), pattern(len, i as u8));
        a.wait_for(1, WcStatus::Success);
    }
    Ok(())
}

pub(super) fn concurrent_requests_complete_in_order(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    for i in 0..200 {
        a.memory.store(i * 8, i as u64 + 1);
        a.post(i as u64, SendOp::Write(b.mr.remote(i as u64 * 8)), i as u64 * 8, 8)?;
    }
    for i in 0..200 {
        assert_eq!(a.wait_success().wr_id, i);
    }
    (0..200).for_each(|i| b.wait_word(i * 8, i as u64 + 1));
    // The same with operations that a NIC may execute in different ways.
    a.needs_atomics()?;
    for i in 0..60 {
        let remote = b.mr.remote(4096);
        b.post_recv(1000 + i, 8192, 8)?;
        let op = match i % 4 {
            0 => SendOp::Write(remote),
            1 => SendOp::Read(remote),
            2 => SendOp::FetchAdd { remote, add: 1 },
            _ => SendOp::Send,
        };
        a.post(i, op, 16_384, 8)?;
    }
    for i in 0..60 {
        assert_eq!(a.wait_success().wr_id, i);
    }
    (0..15).for_each(|i| assert_eq!(b.wait_success().wr_id, 1000 + i));
    Ok(())
}

pub(super) fn operations_on_passive_peer_complete(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    a.needs_atomics()?;
    // Nothing polls b.
    b.memory.store(64, 77);
    for i in 0..100 {
        a.memory.store(0, i);
        a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8)?;
        a.post(2, SendOp::FetchAdd { remote: b.mr.remote(8), add: 3 }, 8, 8)?;
        a.post(3, SendOp::Read(b.mr.remote(64)), 16, 8)?;
        for wr_id in 1..=3 {
            a.wait_for(wr_id, WcStatus::Success);
        }
        assert_eq!((a.memory.load(8), a.memory.load(16)), (i * 3, 77));
        b.wait_word(0, i);
    }
    Ok(())
}

pub(super) fn unsignalled_writes_arrive_without_polling(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    // After a post, nothing polls a or b.
    for i in 1..=50 {
        a.memory.store(0, i);
        let wr = SendWr::new(i, SendOp::Write(b.mr.remote(0)), a.data(0, 8));
        a.post_wr(wr.with_flags(SendFlags::empty()))?;
        b.wait_word(0, i);
    }
    Ok(())
}

/// A NIC in software may be driven by the polls of its user.
pub(super) fn peer_that_stops_polling_still_executes(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    for i in 1..=20 {
        let mut wcs = Vec::new();
        for _ in 0..2000 {
            assert_eq!(b.nic.poll_cq(b.cq, 1, &mut wcs)?, 0);
        }
        a.memory.store(0, i);
        a.post(i, SendOp::Write(b.mr.remote(0)), 0, 8)?;
        a.wait_success();
        b.wait_word(0, i);
    }
    Ok(())
}

/// Returns the longest inline data that these cases use.
fn inline_len(fabric: &dyn Fabric) -> CaseResult<u32> {
    match fabric.nics()[0].attr().limits.inline {
        0 => Err(Stop::refused("inline data")),
        limit => Ok(limit.min(256)),
    }
}

pub(super) fn inline_data_is_delivered(fabric: &dyn Fabric) -> CaseResult {
    let longest = inline_len(fabric)?;
    let options = || Options { cap: QpCap { inline: longest, ..QpCap::default() }, ..Options::default() };
    let [a, b] = rc_pair_with(fabric, options, Link::default())?;
    for len in [0, 1, 8, 28, longest as usize] {
        let bytes = pattern(len, 9);
        b.post_recv(5, 0, longest)?;
        a.post_wr(SendWr::new(1, SendOp::Send, Data::inline(&bytes)))?;
        assert_eq!(b.wait_for(5, WcStatus::Success).byte_len, len as u32);
        assert_eq!(b.bytes(0, len), bytes);
        a.wait_for(1, WcStatus::Success);
        a.post_wr(SendWr::new(2, SendOp::Write(b.mr.remote(4096)), Data::inline(&bytes)))?;
        a.wait_for(2, WcStatus::Success);
        b.wait_bytes(4096, &bytes, "the inline WRITE");
        b.memory.write_at(4096, &[0; 256]);
    }
    Ok(())
}

pub(super) fn inline_data_beyond_the_limit_is_refused(fabric: &dyn Fabric) -> CaseResult {
    let longest = inline_len(fabric)?;
    let options = || Options { cap: QpCap { inline: longest, ..QpCap::default() }, ..Options::default() };
    let [a, b] = rc_pair_with(fabric, options, Link::default())?;
    let too_long = vec![1; a.nic.attr().limits.inline as usize + 1];
    let write = |bytes: &[u8]| SendWr::new(1, SendOp::Write(b.mr.remote(0)), Data::inline(bytes));
    let refused = a.nic.post_send(a.qp, &[write(b"good"), write(&too_long), write(b"not posted")]);
    assert_eq!(refused.unwrap_err().index, 1);
    a.wait_for(1, WcStatus::Success);
    b.wait_bytes(0, b"good", "the request before");
    // The queue pair is still usable.
    a.post(2, SendOp::Write(b.mr.remote(64)), 64, 8)?;
    a.wait_for(2, WcStatus::Success);
    Ok(())
}

pub(super) fn data_is_gathered_and_scattered(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    let limits = &a.nic.attr().limits;
    if limits.sges < 3 {
        return Err(Stop::refused("three scatter/gather entries"));
    }
    let pieces = [(0, 5), (1000, 5000), (20_000, 3)];
    let parts = |end: &Endpoint<'_>| {
        let sges = pieces.map(|(offset, len)| end.mr.sge(offset as u64, len as u32));
        SgeList::from_slice(&sges)
    };
    let gathered = |end: &Endpoint<'_>| pieces.map(|(offset, len)| end.bytes(offset, len)).concat();
    let whole = pattern(5008, 3);
    let mut at = 0;
    for (offset, len) in pieces {
        a.memory.write_at(offset, &whole[at..at + len]);
        at += len;
    }

    b.nic.post_recv(b.qp, &[RecvWr { wr_id: 5, sges: parts(&b) }])?;
    a.post_wr(SendWr::new(1, SendOp::Send, Data::Sges(parts(&a))))?;
    assert_eq!(b.wait_for(5, WcStatus::Success).byte_len, 5008);
    assert_eq!(gathered(&b), whole);
    a.wait_for(1, WcStatus::Success);

    a.post_wr(SendWr::new(2, SendOp::Write(b.mr.remote(100_000)), Data::Sges(parts(&a))))?;
    a.wait_for(2, WcStatus::Success);
    b.wait_bytes(100_000, &whole, "the gathered WRITE");

    b.fill(200_000, 5008, 77);
    a.post_wr(SendWr::new(3, SendOp::Read(b.mr.remote(200_000)), Data::Sges(parts(&a))))?;
    a.wait_for(3, WcStatus::Success);
    assert_eq!(gathered(&a), pattern(5008, 77));
    Ok(())
}

pub(super) fn only_signalled_requests_complete(fabric: &dyn Fabric) -> CaseResult {
    let options = || Options { cap: QpCap { send_wrs: 16, ..QpCap::default() }, ..Options::default() };
    let [a, b] = rc_pair_with(fabric, options, Link::default())?;
    for round in 0..20 {
        for i in 0..16 {
            a.memory.store(i * 8, round * 16 + i as u64);
            let write =
                SendWr::new(i as u64, SendOp::Write(b.mr.remote(i as u64 * 8)), a.data(i as u64 * 8, 8));
            a.post_wr(if i < 15 { write.with_flags(SendFlags::empty()) } else { write })?;
        }
        a.wait_for(15, WcStatus::Success);
        (0..16).for_each(|i| b.wait_word(i * 8, round * 16 + i as u64));
    }
    Ok(())
}

pub(super) fn queue_pair_that_signals_all_completes_all(fabric: &dyn Fabric) -> CaseResult {
    let options = || Options { signal_all: true, ..Options::default() };
    let [a, b] = rc_pair_with(fabric, options, Link::default())?;
    for i in 0..20 {
        let write = SendWr::new(i, SendOp::Write(b.mr.remote(0)), a.data(0, 8));
        a.post_wr(write.with_flags(SendFlags::empty()))?;
    }
    for i in 0..20 {
        a.wait_for(i, WcStatus::Success);
    }
    Ok(())
}

/// The data of the WRITE is the result of the READ before it. Without the fence, the NIC may send
/// the WRITE before the result arrives.
pub(super) fn fenced_request_waits_for_reads(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    for round in 1..=100 {
        b.memory.store(8192, round);
        a.post(1, SendOp::Read(b.mr.remote(8192)), 0, 8)?;
        let write = SendWr::new(2, SendOp::Write(b.mr.remote(0)), a.data(0, 8));
        a.post_wr(write.with_flags(SendFlags::FENCE | SendFlags::SIGNALED))?;
        a.wait_for(1, WcStatus::Success);
        a.wait_for(2, WcStatus::Success);
        // The WRITE is executed before the next READ, whose result is the written word.
        a.post(3, SendOp::Read(b.mr.remote(0)), 16, 8)?;
        a.wait_for(3, WcStatus::Success);
        assert_eq!(a.memory.load(16), round);
    }
    Ok(())
}

pub(super) fn fenced_request_waits_for_atomics(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    a.needs_atomics()?;
    for round in 0..100 {
        b.post_recv(5, 8, 8)?;
        a.post(1, SendOp::FetchAdd { remote: b.mr.remote(0), add: 1 }, 0, 8)?;
        let send = SendWr::new(2, SendOp::Send, a.data(0, 8));
        a.post_wr(send.with_flags(SendFlags::FENCE | SendFlags::SIGNALED))?;
        b.wait_for(5, WcStatus::Success);
        assert_eq!(b.memory.load(8), round);
        a.wait_for(1, WcStatus::Success);
        a.wait_for(2, WcStatus::Success);
    }
    Ok(())
}

pub(super) fn reads_beyond_the_limit_wait(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    let count = 4 * u64::from(a.rd_atomic());
    for i in 0..count {
        b.memory.store(i as usize * 8, i + 1);
        a.post(i, SendOp::Read(b.mr.remote(i * 8)), i * 8, 8)?;
    }
    for i in 0..count {
        a.wait_for(i, WcStatus::Success);
        assert_eq!(a.memory.load(i as usize * 8), i + 1);
    }
    Ok(())
}

/// Both queue pairs add to one word of b. The atomics of one NIC are atomic among each other.
pub(super) fn atomics_of_both_ends_lose_no_increment(fabric: &dyn Fabric) -> CaseResult {
    let first = rc_pair(fabric)?;
    let [a, b] = &first;
    a.needs_atomics()?;
    let options = Options::default();
    let (near, far) = (a.another_qp(&options)?, b.another_qp(&options)?);
    let link = Link { mtu: a.max_mtu()?.min(b.max_mtu()?), ..Link::default() };
    a.connect_qp(near, b.gid()?, far, link)?;
    b.connect_qp(far, a.gid()?, near, link)?;
    for i in 0..50 {
        for (qp, result) in [(a.qp, 0), (near, 8)] {
            let add = SendOp::FetchAdd { remote: b.mr.remote(64), add: 1 };
            a.nic.post_send(qp, &[SendWr::new(i, add, a.data(result, 8))])?;
        }
    }
    for _ in 0..100 {
        a.wait_success();
    }
    b.wait_word(64, 100);
    a.nic.destroy_qp(near)?;
    b.nic.destroy_qp(far)?;
    Ok(())
}
