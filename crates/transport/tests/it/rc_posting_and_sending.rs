//! Posting to a reliable connection (queue depth, signalling, gather lists), and the order in which
//! queue pairs send.

use crate::common::*;
use mitra_transport::TxBatch;
use mitra_verbs::*;
use mitra_wire::Packet;

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
    // The PSNs of a queue pair begin at 10,000 times its index, so that the first PSN of a batch
    // identifies the queue pair.
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
