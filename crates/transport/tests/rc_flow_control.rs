//! Flow control of a reliable connection: acknowledgements, windows, fences, outstanding READs and atomics, batches,
//! events.

mod common;

use common::*;
use core::time::Duration;
use mitra_transport::TxBatch;
use mitra_verbs::*;
use mitra_wire::{Message, Packet, Syndrome};

fn write(p: &NicPair, wr_id: u64, at: u64, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Write(p.remote(at)), Data::sge(p.sge(0, at, len)))
}

fn read(p: &NicPair, wr_id: u64, at: u64, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Read(p.remote(at)), Data::sge(p.sge(0, at, len)))
}

/// Delivers to node `to` all packets that its peer can send now, without idle polls.
fn deliver(p: &mut NicPair, to: usize) -> usize {
    let mut batch = TxBatch::new();
    let mut n = 0;
    loop {
        let from = &mut p.nodes[1 - to];
        if !from.nic.poll_transmit(p.now, &mut from.memory, &mut batch) {
            return n;
        }
        for datagram in batch.datagrams() {
            n += 1;
            p.inject(to, &Packet::parse(&datagram[..datagram.len() - 4]).unwrap());
        }
    }
}

#[test]
fn ack_waits_for_idle_poll() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 8));
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 0);
    p.nodes[1].nic.handle_idle(p.now);
    assert_eq!(deliver(&mut p, 0), 1);
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
}

#[test]
fn ack_leaves_when_timer_expires() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 8));
    deliver(&mut p, 1);
    let due = p.nodes[1].nic.poll_timeout().unwrap();
    assert_eq!(due - p.now, Duration::from_micros(50));
    p.nodes[1].nic.handle_timeout(due);
    assert_eq!(deliver(&mut p, 0), 1);
}

#[test]
fn one_ack_covers_sixteen_requests() {
    let mut p = pair();
    for i in 0..40 {
        p.post(write(&p, i, 8 * i, 8));
    }
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 1, "one acknowledgement covers all 40 requests");
    for i in 0..15 {
        p.post(write(&p, i, 8 * i, 8));
    }
    p.send_completions(0);
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 0);
    p.post(write(&p, 15, 0, 8));
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 1);
    assert_eq!(p.send_completions(0).len(), 16);
}

#[test]
fn read_response_replaces_pending_ack() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 8));
    p.post(read(&p, 2, 0, 8));
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 1);
    assert_eq!(p.send_completions(0).len(), 2);
    p.nodes[1].nic.handle_idle(p.now);
    assert_eq!(deliver(&mut p, 0), 0, "no acknowledgement is pending");
}

#[test]
fn ack_does_not_overtake_earlier_read_response() {
    let mut p = pair();
    p.post(read(&p, 1, 0, 5000));
    p.post(write(&p, 2, 0x8000, 8));
    p.run();
    assert_eq!(p.sent_opcodes(1).last(), Some(&"RC_ACKNOWLEDGE"));
    assert_eq!(p.counter(0, "implied_naks"), 0);
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn ack_waits_for_read_response_that_does_not_fit_batch() {
    let mut p = Setup { mtu: Mtu::M4096, ..Setup::default() }.pair();
    p.post(read(&p, 1, 0, 200_000));
    p.post(write(&p, 2, 0x80000, 8));
    deliver(&mut p, 1);
    p.nodes[1].nic.handle_idle(p.now);
    p.run();
    assert_eq!(p.sent_opcodes(1).last(), Some(&"RC_ACKNOWLEDGE"));
    assert_eq!(p.counter(1, "acks_sent"), 1);
    assert_eq!(p.send_completions(0).len(), 2);
}

#[test]
fn requester_with_full_window_is_acknowledged_at_once() {
    // One long message, then many messages of half the window each. One acknowledgement per sixteen requests would be
    // too few for both.
    for (count, len) in [(1, 0x80000), (40, 0x4000)] {
        let mut p = Setup { send_window: 0x8000, ..Setup::default() }.pair();
        for i in 0..count {
            p.post(write(&p, i, 0, len));
        }
        // No idle poll occurs and no timer expires.
        while deliver(&mut p, 1) + deliver(&mut p, 0) > 0 {}
        assert_eq!(p.status(1).rq_psn, Psn::new(100 + (count as u32 * len).div_ceil(1024)));
    }
}

#[test]
fn retransmitted_window_asks_for_ack_again() {
    let mut p = Setup { send_window: 16384, ..Setup::default() }.pair();
    let mut n = 0;
    p.set_link(move |dir, _| {
        n += u32::from(dir == 0);
        if dir == 0 && n <= 12 { LinkAction::Drop } else { LinkAction::Pass }
    });
    p.post(write(&p, 1, 0, 100_000));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!(p.counter(0, "timeouts"), 1);
}

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

/// Returns the largest number of payload bytes from node `from` that were in flight at the same time.
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

#[test]
fn large_write_batch_has_equal_datagrams_after_the_first() {
    let mut p = Setup { mtu: Mtu::M4096, ..Setup::default() }.pair();
    p.post(write(&p, 1, 0, 0x20000));
    let mut batch = TxBatch::new();
    let node = &mut p.nodes[0];
    assert!(node.nic.poll_transmit(p.now, &mut node.memory, &mut batch));
    let sizes: Vec<usize> = batch.datagrams().map(<[u8]>::len).collect();
    assert_eq!(sizes.len(), 32);
    assert_eq!(sizes[0], 12 + 16 + 4096 + 4);
    assert!(sizes[1..].iter().all(|&n| n == 12 + 4096 + 4));
}

#[test]
fn queue_pairs_take_turns_in_sending() {
    let mut p = pair();
    let init = p.status(0).init;
    let mut qps = vec![p.nodes[0].qp];
    let setup = Setup::default();
    for i in 1..4 {
        let rtr = setup.to_rtr(&p.nodes[1], 0);
        let node = &mut p.nodes[0];
        let qp = node.nic.create_qp(p.now, &init).unwrap();
        for attr in [setup.to_init(), rtr, setup.to_rts(10_000 * i)] {
            node.nic.modify_qp(p.now, qp, &attr).unwrap();
        }
        qps.push(qp);
    }
    let wr = write(&p, 1, 0, 500_000);
    for &qp in &qps {
        p.nodes[0].nic.post_send(p.now, qp, std::slice::from_ref(&wr)).unwrap();
    }
    let mut batch = TxBatch::new();
    // Each queue pair has PSNs from its index times 10 000 on, so that the first PSN of a batch identifies the queue
    // pair.
    let turns: Vec<u32> = (0..12)
        .map(|_| {
            let node = &mut p.nodes[0];
            assert!(node.nic.poll_transmit(p.now, &mut node.memory, &mut batch));
            Packet::parse(batch.datagrams().next().unwrap()).unwrap().psn.value() / 10_000
        })
        .collect();
    assert_eq!(turns, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn responses_and_requests_take_turns_in_sending() {
    let mut p = Setup { cap: QpCap { send_wrs: 512, ..QpCap::default() }, ..Setup::default() }.pair();
    // Node 1 answers a long READ while it sends WRITEs of its own.
    p.post(read(&p, 1, 0, 200_000));
    deliver(&mut p, 1);
    let remote = p.nodes[0].mr.remote(0x80000);
    let wrs: Vec<SendWr> =
        (0..40).map(|i| SendWr::new(i, SendOp::Write(remote), Data::sge(p.sge(1, 0, 1024)))).collect();
    p.post_on(1, &wrs).unwrap();
    p.transmit_all();
    let names = p.sent_opcodes(1);
    let first_write = names.iter().position(|n| n.contains("WRITE")).unwrap();
    let last_read = names.iter().rposition(|n| n.contains("READ")).unwrap();
    assert!(first_write <= 16 && last_read > 32, "{first_write} {last_read}");
    p.run();
    assert_eq!((p.send_completions(0).len(), p.send_completions(1).len()), (1, 40));
}

#[test]
fn both_ends_write_concurrently_without_retransmission() {
    let mut p = pair();
    let remote = p.nodes[0].mr.remote(0x40000);
    for i in 0..50 {
        p.post(write(&p, i, 3000 * i, 3000));
        let wr = SendWr::new(i, SendOp::Write(remote), Data::sge(p.sge(1, 0x40000, 3000)));
        p.post_on(1, &[wr]).unwrap();
    }
    p.run();
    for i in 0..2 {
        let completed = p.send_completions(i);
        assert_eq!(statuses(&completed), (0..50).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
        assert_eq!(p.counter(i, "retransmitted_packets"), 0);
    }
}

#[test]
fn unsignalled_sends_free_slots_without_completion() {
    let mut p = Setup { cap: QpCap { send_wrs: 4, ..QpCap::default() }, ..Setup::default() }.pair();
    for round in 0..5 {
        let wrs: Vec<SendWr> = (0..5)
            .map(|i| {
                let flags = if i == 2 { SendFlags::SIGNALED } else { SendFlags::empty() };
                write(&p, 10 * round + i, 0, 8).with_flags(flags)
            })
            .collect();
        let refused = p.post_on(0, &wrs).unwrap_err();
        assert_eq!(refused.index, 4);
        assert!(matches!(refused.error, Error::QueueFull { depth: 4, .. }));
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(10 * round + 2, WcStatus::Success)]);
    }
}

#[test]
fn post_send_all_posts_all_or_none() {
    let mut p = Setup { cap: QpCap { send_wrs: 4, ..QpCap::default() }, ..Setup::default() }.pair();
    let wrs: Vec<SendWr> = (1..=4).map(|i| write(&p, i, 0, 8)).collect();
    p.post(write(&p, 0, 0, 8));
    let refused = p.post_all_on(0, &wrs).unwrap_err();
    assert_eq!(refused.index, 3);
    assert!(matches!(refused.error, Error::QueueFull { depth: 4, .. }));
    let mut bad = wrs[..3].to_vec();
    bad[1].data = Data::inline(&[0; 1 << 10]);
    let refused = p.post_all_on(0, &bad).unwrap_err();
    assert_eq!(refused.index, 1);
    assert!(matches!(refused.error, Error::Limit { .. }));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(0, WcStatus::Success)]);
    p.post_all_on(0, &wrs).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), (1..=4).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
}

#[test]
fn sq_sig_all_completes_unsignalled_sends() {
    let mut p = Setup { sq_sig_all: true, ..Setup::default() }.pair();
    p.post(write(&p, 1, 0, 8).with_flags(SendFlags::empty()));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
}

#[test]
fn sge_lists_are_gathered_and_scattered_and_inline_limit_holds() {
    let mut p = pair();
    p.bytes(0)[..100].copy_from_slice(&pattern(100, 1));
    let sges = SgeList::from_slice(&[p.sge(0, 10, 5), p.sge(0, 0, 0), p.sge(0, 50, 7), p.sge(0, 20, 3)]);
    p.post(SendWr::new(1, SendOp::Write(p.remote(0)), Data::Sges(sges)));
    p.run();
    let expected = [&pattern(100, 1)[10..15], &pattern(100, 1)[50..57], &pattern(100, 1)[20..23]].concat();
    assert_eq!(p.bytes(1)[..15], expected);
    // The read data is scattered to entries whose boundaries are not packet boundaries.
    let data = pattern(3000, 9);
    p.bytes(1)[0x1000..0x1000 + 3000].copy_from_slice(&data);
    let sges = SgeList::from_slice(&[p.sge(0, 0x2000, 1000), p.sge(0, 0x4000, 1500), p.sge(0, 0x6000, 500)]);
    p.post(SendWr::new(2, SendOp::Read(p.remote(0x1000)), Data::Sges(sges)));
    p.run();
    let b = p.bytes(0);
    assert_eq!(
        [&b[0x2000..0x2000 + 1000], &b[0x4000..0x4000 + 1500], &b[0x6000..0x6000 + 500]].concat(),
        data
    );
    let refused = p.post_on(0, &[SendWr::new(3, SendOp::Send, Data::inline(&[0; 65]))]).unwrap_err();
    assert!(matches!(refused.error, Error::Limit { requested: 65, limit: 64, .. }));
}

#[test]
fn retransmission_reads_local_memory_again() {
    let mut p = pair();
    let mut n = 0;
    p.set_link(move |_, _| {
        n += 1;
        if n == 1 { LinkAction::Drop } else { LinkAction::Pass }
    });
    p.bytes(0)[..8].copy_from_slice(b"earlier.");
    p.post(write(&p, 1, 0, 8));
    p.transmit_all();
    p.bytes(0)[..8].copy_from_slice(b"later...");
    p.run();
    assert_eq!(&p.bytes(1)[..8], b"later...");
}

#[test]
fn solicited_send_raises_event_on_queue_armed_for_solicited() {
    let mut p = pair();
    let cq = p.nodes[1].recv_cq;
    for i in 0..4 {
        p.post_recv(RecvWr::new(i, p.sge(1, 0, 8)));
    }
    p.nodes[1].nic.req_notify_cq(cq, true).unwrap();
    let mut send = |flags| {
        p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")).with_flags(flags));
        p.run();
        std::iter::from_fn(|| p.nodes[1].nic.poll_cq_event()).collect::<Vec<_>>()
    };
    assert_eq!(send(SendFlags::SIGNALED), []);
    assert_eq!(send(SendFlags::SOLICITED), [cq]);
    assert_eq!(send(SendFlags::SOLICITED), [], "the queue is armed for one event");
    p.nodes[1].nic.poll_cq(cq, 8, &mut Vec::new()).unwrap();
    p.nodes[1].nic.req_notify_cq(cq, false).unwrap();
    p.nodes[1].nic.req_notify_cq(cq, true).unwrap();
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")));
    p.run();
    assert_eq!(
        p.nodes[1].nic.poll_cq_event(),
        Some(cq),
        "arming for solicited events does not replace arming for all"
    );
}

/// A completion that arrived on an unarmed queue raises an event when the queue is armed, once.
#[test]
fn arming_with_unreported_completions_raises_one_event() {
    let mut p = pair();
    let cq = p.nodes[1].recv_cq;
    p.post_recv(RecvWr::new(0, p.sge(1, 0, 8)));
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")));
    p.run();
    p.nodes[1].nic.req_notify_cq(cq, true).unwrap();
    assert_eq!(
        p.nodes[1].nic.poll_cq_event(),
        None,
        "arming for solicited events ignores earlier completions"
    );
    p.nodes[1].nic.req_notify_cq(cq, false).unwrap();
    assert_eq!(p.nodes[1].nic.poll_cq_event(), Some(cq));
    p.nodes[1].nic.req_notify_cq(cq, false).unwrap();
    assert_eq!(p.nodes[1].nic.poll_cq_event(), None, "the completion was reported already");
    p.nodes[1].nic.poll_cq(cq, 8, &mut Vec::new()).unwrap();
    p.nodes[1].nic.req_notify_cq(cq, false).unwrap();
    assert_eq!(p.nodes[1].nic.poll_cq_event(), None, "the queue is empty");
}

#[test]
fn error_completion_counts_as_solicited() {
    let mut p = pair();
    let cq = p.nodes[0].send_cq;
    p.nodes[0].nic.req_notify_cq(cq, true).unwrap();
    p.post(SendWr::new(1, SendOp::Send, Data::sge(Sge { key: Key(0), ..p.sge(0, 0, 8) })));
    p.run();
    assert_eq!(p.nodes[0].nic.poll_cq_event(), Some(cq));
}

/// Creates a pair with one WRITE whose acknowledgement is held back at an idle poll. The preceding WRITEs have shown
/// that the requester continues without acknowledgements.
fn pair_with_held_ack() -> NicPair {
    let mut p = pair();
    for i in 0..1000 {
        p.post(write(&p, i, 0, 8));
        deliver(&mut p, 1);
        p.nodes[1].nic.handle_idle(p.now);
        if deliver(&mut p, 0) == 0 {
            p.send_completions(0);
            return p;
        }
    }
    panic!("the responder never holds back an acknowledgement");
}

#[test]
fn held_ack_leaves_when_driver_flushes() {
    let mut p = pair_with_held_ack();
    p.nodes[1].nic.handle_idle(p.now);
    assert_eq!(deliver(&mut p, 0), 0);
    p.nodes[1].nic.flush_acks();
    assert_eq!(deliver(&mut p, 0), 1);
    assert_eq!(p.send_completions(0).len(), 1);
    assert_eq!(p.nodes[1].nic.poll_timeout().filter(|&t| t <= p.now), None);
}

#[test]
fn packets_without_ack_request_do_not_delay_held_ack() {
    let mut p = pair_with_held_ack();
    let held_at = p.now;
    p.post(write(&p, 1, 4096, 60 * 1024));
    let mut batch = TxBatch::new();
    let mut packets = Vec::new();
    while p.nodes[0].nic.poll_transmit(p.now, &mut p.nodes[0].memory, &mut batch) {
        packets.extend(batch.datagrams().map(|d| d[..d.len() - 4].to_vec()));
    }
    for bytes in packets {
        let packet = Packet::parse(&bytes).unwrap();
        assert!(!packet.ack_req, "the acknowledgement must leave before the message ends");
        p.now += Duration::from_micros(40);
        p.inject(1, &packet);
        let now = p.now;
        p.nodes[1].nic.handle_timeout(now);
        p.nodes[1].nic.handle_idle(now);
        if deliver(&mut p, 0) > 0 {
            assert!(p.now - held_at <= Duration::from_micros(100), "{:?}", p.now - held_at);
            return;
        }
    }
    panic!("the acknowledgement has not left");
}

/// Takes the next batch of node 1 and returns for each datagram whether it is an acknowledgement.
fn batch_of_responder(p: &mut NicPair) -> Vec<bool> {
    let mut batch = TxBatch::new();
    let node = &mut p.nodes[1];
    node.nic.poll_transmit(p.now, &mut node.memory, &mut batch);
    let packets = batch.datagrams().map(|d| Packet::parse(&d[..d.len() - 4]).unwrap());
    packets.map(|packet| matches!(packet.message, Message::Ack(_))).collect()
}

#[test]
fn pending_ack_is_sent_behind_next_request() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 8));
    deliver(&mut p, 1);
    let answer = SendWr::new(2, SendOp::Write(p.nodes[0].mr.remote(0)), Data::sge(p.sge(1, 0, 8)));
    p.post_on(1, &[answer]).unwrap();
    assert_eq!(batch_of_responder(&mut p), [false, true]);
    p.nodes[1].nic.handle_idle(p.now);
    assert_eq!(batch_of_responder(&mut p), [], "the acknowledgement is sent once");
}

#[test]
fn held_ack_is_not_sent_behind_next_request() {
    let mut p = pair();
    let mut together = 0;
    for i in 0..1000 {
        p.post(write(&p, i, 0, 8));
        deliver(&mut p, 1);
        let answer = SendWr::new(i, SendOp::Write(p.nodes[0].mr.remote(0)), Data::sge(p.sge(1, 0, 8)));
        p.post_on(1, &[answer]).unwrap();
        together += deliver(&mut p, 0) - 1;
        deliver(&mut p, 1);
        p.send_completions(0);
        p.send_completions(1);
    }
    // After 64 acknowledgements without a hold, the responder holds back and sends one for sixteen requests.
    assert!((64..64 + 1000 / 16 + 2).contains(&together), "{together}");
    p.nodes[1].nic.flush_acks();
    assert_eq!(
        batch_of_responder(&mut p),
        [true],
        "no acknowledgement stays pending while the driver sleeps"
    );
}
