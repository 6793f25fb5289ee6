//! What bounds the requests in flight on a reliable connection: the send window, `max_rd_atomic`
//! and fences.

use crate::common::*;
use core::time::Duration;
use mitra_verbs::*;
use mitra_wire::{Message, Packet, Syndrome};

#[test]
fn write_may_overtake_read_unless_fenced() {
    for fenced in [false, true] {
        let mut p = pair();
        p.bytes(0)[..8].fill(7);
        p.post(read(&p, 1, 0x8000, 2000));
        let fence = if fenced { SendFlags::FENCE } else { SendFlags::empty() };
        let to = SendOp::Write(p.remote(0x8000));
        let wr = SendWr::new(2, to, Data::sge(p.sge(0, 0, 8))).with_flags(SendFlags::SIGNALED | fence);
        p.post(wr);
        // Without a fence, the WRITE arrives before the responder reads the memory for the READ.
        assert_eq!(deliver(&mut p, 1), if fenced { 1 } else { 2 });
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
        assert_eq!(p.bytes(0)[0x8000], if fenced { 0 } else { 7 });
        assert_eq!(p.bytes(1)[0x8000], 7);
    }
}

#[test]
fn fence_waits_for_atomics_and_retransmitted_reads() {
    let mut p = pair();
    let mut n = 0;
    p.set_link(move |dir, _| {
        n += u32::from(dir == 1);
        if dir == 1 && n <= 2 { LinkAction::Drop } else { LinkAction::Pass }
    });
    let remote = p.remote(0);
    p.post(SendWr::new(1, SendOp::FetchAdd { remote, add: 1 }, Data::sge(p.sge(0, 0, 8))));
    p.post(read(&p, 2, 0x8000, 8));
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    p.post(write(&p, 3, 0x9000, 8).with_flags(fenced));
    p.run();
    assert_eq!(p.send_completions(0).len(), 3);
    let names = p.sent_opcodes(0);
    assert_eq!(names.iter().filter(|n| n.contains("WRITE")).count(), 1);
    assert_eq!(names.last(), Some(&"RC_RDMA_WRITE_ONLY"));
}

#[test]
fn max_rd_atomic_bounds_outstanding_reads_and_atomics() {
    for max in 1..=5 {
        let mut p = Setup { rd_atomic: max, dest_rd_atomic: max, ..Setup::default() }.pair();
        let remote = p.remote(0);
        for i in 0..12 {
            p.post(read(&p, 2 * i, 0x8000, 8));
            let faa = SendOp::FetchAdd { remote, add: 1 };
            p.post(SendWr::new(2 * i + 1, faa, Data::sge(p.sge(0, 8 * i, 8))));
        }
        p.transmit_all();
        assert_eq!(p.sent_opcodes(0).len(), usize::from(max));
        p.run();
        let (mut out, mut peak) = (0, 0);
        for seen in &p.sent {
            out = if seen.from == 0 { out + 1 } else { out - 1 };
            peak = peak.max(out);
        }
        assert_eq!(peak, i32::from(max));
        assert_eq!(p.send_completions(0).len(), 24);
        for i in 0..12 {
            assert_eq!(p.word(0, 8 * i), i as u64);
        }
    }
}

/// Returns the largest number of payload bytes from node `from` that were in flight at the same
/// time.
fn peak_bytes_in_flight(p: &NicPair, from: usize) -> usize {
    let (mut in_flight, mut peak) = (Vec::new(), 0);
    for seen in &p.sent {
        if seen.from == from {
            in_flight.push((seen.psn, seen.payload));
        } else if let Message::Ack(aeth) = Packet::parse(&seen.bytes).unwrap().message
            && matches!(aeth.syndrome, Syndrome::Ack { .. })
        {
            in_flight.retain(|(psn, _)| psn.is_after(seen.psn));
        }
        peak = peak.max(in_flight.iter().map(|(_, n)| n).sum());
    }
    peak
}

#[test]
fn send_window_bounds_bytes_in_flight() {
    for send_window in [1024, 4096, 16384, 100_000] {
        let mut p = Setup { send_window, ..Setup::default() }.pair();
        let len = 300_000;
        let data = pattern(len, 1);
        p.bytes(0)[..len].copy_from_slice(&data);
        for i in 0..3 {
            p.post(write(&p, i, 0, len as u32));
        }
        p.run();
        assert_eq!(p.send_completions(0).len(), 3);
        assert!(p.bytes(1)[..len] == data);
        let peak = peak_bytes_in_flight(&p, 0);
        assert!(peak <= send_window as usize, "{peak} of {send_window}");
        assert!(peak >= send_window as usize / 2, "{peak} of {send_window}");
        assert_eq!(
            p.counter(0, "timeouts"),
            0,
            "the requester asks for acknowledgements before its window is full"
        );
    }
}

#[test]
fn read_longer_than_window_is_requested_in_chunks() {
    for (rd_atomic, send_window) in [(1, 8192), (4, 8192), (4, 16384), (16, 100_000)] {
        let mut p = Setup { rd_atomic, dest_rd_atomic: rd_atomic, send_window, ..Setup::default() }.pair();
        let len = 300_001;
        let data = pattern(len, 5);
        p.bytes(1)[7..7 + len].copy_from_slice(&data);
        p.post(read(&p, 1, 7, len as u32));
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
        assert!(p.bytes(0)[7..7 + len] == data);
        let (mut requested, mut received, mut next_psn) = (0, 0, None);
        for seen in &p.sent {
            match Packet::parse(&seen.bytes).unwrap().message {
                Message::ReadRequest(reth) => {
                    requested += reth.len;
                    // Each request packet begins at the PSN after the previous chunk.
                    assert_eq!(next_psn.unwrap_or(seen.psn), seen.psn);
                    next_psn = Some(seen.psn.add(reth.len.div_ceil(1024)));
                }
                _ => received += seen.payload as u32,
            }
            assert!(requested - received <= send_window);
        }
        assert_eq!((requested, received), (len as u32, len as u32));
        assert_eq!(p.status(1).rq_psn, Psn::new(100 + len.div_ceil(1024) as u32));
        assert_eq!(p.counter(0, "timeouts"), 0);
    }
}

#[test]
fn responses_to_read_beyond_window_are_paced() {
    let window = 64 * 1024;
    let mut p = Setup { send_window: window, ..Setup::default() }.pair();
    let reth = mitra_wire::Reth { va: BASE, rkey: p.nodes[1].mr.rkey.0, len: SIZE as u32 };
    let message = Message::ReadRequest(reth);
    let request = Packet::new(mitra_wire::Transport::Rc, p.nodes[1].qp, Psn::new(100), message, b"");
    p.inject(1, &request);
    let mut last = None;
    for burst in 0..16 {
        let before = p.sent.len();
        p.transmit_all();
        assert_eq!(p.sent[before..].iter().map(|s| s.payload).sum::<usize>(), window as usize);
        let due = p.nodes[1].nic.poll_timeout().filter(|_| burst < 15);
        if let Some(due) = due {
            assert_eq!(due - p.now, Duration::from_micros(50));
            p.now = due;
            p.nodes[1].nic.handle_timeout(due);
        }
        last = due;
    }
    assert_eq!(last, None);
    assert!(!p.transmit_all());
    assert_eq!(p.sent_opcodes(1).last(), Some(&"RC_RDMA_READ_RESPONSE_LAST"));
}
