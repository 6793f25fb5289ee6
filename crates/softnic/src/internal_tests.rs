//! Tests with access to the engine: the scope of atomics, a panic under the lock, a kernel without
//! segmentation offload, and the timing of ACKs.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use mitra_verbs::*;

use crate::engine::Engine;
use crate::progress::Driver;
use crate::{Config, SoftNic, clock};

/// A NIC with registered memory and a queue pair that is connected to itself.
struct LoopbackNic {
    nic: Arc<SoftNic>,
    mr: Mr,
    channel: Arc<dyn CompletionChannel>,
    cq: CqId,
    qp: Qpn,
}

impl LoopbackNic {
    fn new(memory: &Arc<Buffer>, atomic_scope: AtomicScope) -> LoopbackNic {
        let nic =
            SoftNic::open(Config { atomic_scope, links: crate::Links::Udp, ..Config::loopback() }).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let mr = nic.reg_mr(pd, Arc::clone(memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let channel = nic.create_completion_channel().unwrap();
        let cq = nic.create_cq(16, Some(&channel)).unwrap();
        let (qp_type, cap) = (QpType::Rc, QpCap::default());
        let init = QpInitAttr { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
        let qp = nic.create_qp(&init).unwrap();
        let connection = RcConnection {
            rd_atomic: 4,
            local_ack_timeout: LocalAckTimeout::from_code(18),
            ..RcConnection::to(nic.query_port().unwrap().gid, qp)
        };
        connection.connect(&*nic, qp).unwrap();
        LoopbackNic { nic, mr, channel, cq, qp }
    }

    /// Adds 1 to the word at offset 0 and stores the old value at offset `result`.
    fn add(&self, result: u64) {
        self.request(SendOp::FetchAdd { remote: self.mr.remote(0), add: 1 }, self.mr.sge(result, 8));
    }

    fn request(&self, op: SendOp, local: Sge) {
        self.nic.post_send(self.qp, &[SendWr::new(1, op, Data::sge(local))]).unwrap();
        let (mut wcs, started) = (Vec::new(), Instant::now());
        while self.nic.poll_cq(self.cq, 1, &mut wcs).unwrap() == 0 {
            assert!(started.elapsed() < Duration::from_secs(30), "no completion");
        }
        assert_eq!(wcs[0].status, WcStatus::Success);
    }
}

fn add_through_both(nics: &[LoopbackNic; 2]) {
    std::thread::scope(|scope| {
        for (loopback, result) in nics.iter().zip([8, 16]) {
            scope.spawn(move || loopback.add(result));
        }
    });
}

#[test]
fn two_nics_with_nic_scope_lose_increment() {
    let memory = Arc::new(Buffer::new(64));
    let nics = [LoopbackNic::new(&memory, AtomicScope::Nic), LoopbackNic::new(&memory, AtomicScope::Nic)];
    let both_loaded = Arc::new(Barrier::new(2));
    for loopback in &nics {
        loopback.nic.set_atomic_barrier(Some(Arc::clone(&both_loaded)));
    }
    add_through_both(&nics);
    assert_eq!(memory.load(0), 1, "one of the two acknowledged increments is lost");
    assert_eq!((memory.load(8), memory.load(16)), (0, 0));

    // Atomics of one NIC do not interleave, because the NIC holds its lock from the load to the
    // store.
    for loopback in &nics {
        loopback.nic.set_atomic_barrier(None);
    }
    for _ in 0..10 {
        nics[0].add(8);
    }
    assert_eq!(memory.load(0), 11);
}

#[test]
fn two_nics_with_global_scope_lose_no_increment() {
    let memory = Arc::new(Buffer::new(64));
    let nics =
        [LoopbackNic::new(&memory, AtomicScope::Global), LoopbackNic::new(&memory, AtomicScope::Global)];
    assert_eq!(nics[0].nic.attr().capabilities.atomic_scope, AtomicScope::Global);
    for _ in 0..500 {
        add_through_both(&nics);
    }
    assert_eq!(memory.load(0), 1000);
}

#[test]
fn panic_under_lock_kills_nic() {
    let memory = Arc::new(Buffer::new(64));
    let loopback = LoopbackNic::new(&memory, AtomicScope::Nic);
    let shared = loopback.nic.shared();
    std::thread::spawn(move || {
        let _engine = shared.lock().unwrap();
        panic!("on purpose");
    })
    .join()
    .unwrap_err();
    assert_eq!(loopback.nic.alloc_pd(), Err(Error::DeviceFatal));
    assert_eq!(loopback.nic.poll_cq(loopback.cq, 1, &mut Vec::new()), Err(Error::DeviceFatal));
    let started = Instant::now();
    while loopback.nic.poll_async_event() != Some(AsyncEvent::DeviceFatal) {
        assert!(started.elapsed() < Duration::from_secs(30), "no event");
        std::thread::yield_now();
    }
    assert_eq!(loopback.nic.reset(), Ok(()));
}

mod no_check {
    use nix::libc;
    use nix::sys::socket::sockopt::SetStruct;

    /// Makes a socket send without UDP checksums. The kernel rejects `UDP_SEGMENT` without them.
    #[derive(Clone, Copy)]
    pub(super) struct NoCheck;
    nix::setsockopt_impl!(NoCheck, libc::SOL_SOCKET, libc::SO_NO_CHECK, libc::c_int, SetStruct<libc::c_int>);
}

#[test]
fn nic_sends_single_datagrams_if_kernel_rejects_gso() {
    const LEN: u32 = 300_000;
    let memory = Arc::new(Buffer::new(2 * LEN as usize));
    let loopback = LoopbackNic::new(&memory, AtomicScope::Nic);
    let socket = loopback.nic.shared().lock().unwrap().socket.clone().unwrap();
    nix::sys::socket::setsockopt(&socket, no_check::NoCheck, &1).unwrap();
    let data: Vec<u8> = (0..LEN).map(|i| (i / 7) as u8).collect();
    memory.write_at(0, &data);
    loopback.request(SendOp::Write(loopback.mr.remote(u64::from(LEN))), loopback.mr.sge(0, LEN));
    let mut written = vec![0; LEN as usize];
    memory.read_at(LEN as usize, &mut written);
    assert!(written == data);
    let counters = loopback.nic.counters();
    let count = |name| counters.iter().find(|c| c.name == name).unwrap().value;
    assert_eq!((count("tx_runs"), count("tx_errors"), count("rx_icrc_bad")), (0, 0, 0));
    assert!(count("tx_datagrams") > u64::from(LEN) / 1024);
}

#[test]
fn thread_drives_nic_for_lease_holder_that_does_not() {
    let memory = Arc::new(Buffer::new(64));
    let loopback = LoopbackNic::new(&memory, AtomicScope::Nic);
    let shared = loopback.nic.shared();
    let mut engine = shared.lock().unwrap();
    let now = clock::now();
    while !engine.progress.end_poll(now) {}
    let address = engine.socket.as_ref().unwrap().address();
    let before = engine.driver_counters.rx_datagrams;
    let sender = std::net::UdpSocket::bind((address.ip(), 0)).unwrap();
    sender.send_to(&[0; 8], address).unwrap();
    // The holder drove the NIC recently, so the thread does not receive the datagram.
    engine.progress.set_last_poll_drive(loopback.cq, now + Duration::from_secs(1));
    let _ = shared.run_round(&mut engine);
    assert_eq!((engine.progress.is_lease_held(), engine.driver_counters.rx_datagrams), (true, before));
    // The holder has not driven the NIC for long, and keeps the lease by polls that find
    // completions.
    engine.progress.set_last_poll_drive(loopback.cq, Time::ZERO);
    (0..100).for_each(|_| engine.progress.record_poll());
    let _ = shared.run_round(&mut engine);
    assert_eq!((engine.progress.is_lease_held(), engine.driver_counters.rx_datagrams), (true, before + 1));
}

/// UCX leaves the queue of its UD queue pairs armed. The poller raises the event of that queue.
#[test]
fn idle_armed_queues_do_not_keep_a_poller_from_the_lease() {
    const MAX_POLLS: u32 = 10_000_000;
    let memory = Arc::new(Buffer::new(64));
    let loopback = LoopbackNic::new(&memory, AtomicScope::Nic);
    let idle = loopback.nic.create_cq(16, Some(&loopback.channel)).unwrap();
    let polled = loopback.nic.create_cq(16, None).unwrap();
    let poll = || loopback.nic.poll_cq(polled, 1, &mut Vec::new()).unwrap();
    let is_held = || loopback.nic.shared().lock().unwrap().progress.is_lease_held();
    for _ in 0..2 {
        for cq in [idle, loopback.cq] {
            loopback.nic.req_notify_cq(cq, false).unwrap();
        }
        assert!(!is_held(), "a consumer that arms a queue is about to sleep");
        let mut polls = 0;
        while !is_held() {
            polls += 1;
            assert!(polls < MAX_POLLS, "the poller does not acquire the lease");
            assert_eq!(poll(), 0);
        }
        let wr = SendWr::new(1, SendOp::Write(loopback.mr.remote(0)), Data::sge(loopback.mr.sge(8, 8)));
        loopback.nic.post_send(loopback.qp, &[wr]).unwrap();
        let mut polls = 0;
        while loopback.channel.next_event().unwrap().is_none() {
            polls += 1;
            assert!(polls < MAX_POLLS, "the poller does not raise the event");
            poll();
        }
        let mut wcs = Vec::new();
        assert_eq!(loopback.nic.poll_cq(loopback.cq, 2, &mut wcs), Ok(1));
    }
}

/// A progress thread that waits for the lock or the processor does not delay the requests of peers.
#[test]
fn verbs_calls_drive_nic_if_thread_does_not() {
    const MAX_CALLS: u32 = 10_000_000;
    let memory = Arc::new(Buffer::new(64));
    let loopback = LoopbackNic::new(&memory, AtomicScope::Nic);
    let shared = loopback.nic.shared();
    shared.stop();
    let started = Instant::now();
    // The thread has a reference until it ends.
    while Arc::strong_count(&shared) > 2 {
        assert!(started.elapsed() < Duration::from_secs(30), "the thread does not end");
        std::thread::yield_now();
    }
    memory.store(8, 7);
    let wr = SendWr::new(1, SendOp::Write(loopback.mr.remote(0)), Data::sge(loopback.mr.sge(8, 8)));
    loopback.nic.post_send(loopback.qp, &[wr]).unwrap();
    let mut calls = 0;
    while memory.load(0) != 7 {
        assert!(calls < MAX_CALLS, "{calls} calls did not drive the NIC");
        loopback.nic.query_qp(loopback.qp).unwrap();
        calls += 1;
    }
}

#[test]
fn ack_is_sent_before_sleeping_consumer_wakes() {
    let memory = Arc::new(Buffer::new(64));
    let loopback = LoopbackNic::new(&memory, AtomicScope::Nic);
    loopback.nic.post_recv(loopback.qp, &[RecvWr::new(1, loopback.mr.sge(0, 8))]).unwrap();
    loopback.nic.req_notify_cq(loopback.cq, false).unwrap();
    // The test holds the lock, so no other thread drives the NIC.
    let shared = loopback.nic.shared();
    let mut engine = shared.lock().unwrap();
    let acks = |engine: &Engine| engine.counters().iter().find(|c| c.name == "acks_sent").unwrap().value;
    let wr = SendWr::new(2, SendOp::Send, Data::sge(loopback.mr.sge(8, 8)));
    engine.nic.post_send(clock::now(), loopback.qp, &[wr]).unwrap();
    engine.flush(clock::now());
    assert_eq!(acks(&engine), 0);
    let started = Instant::now();
    while loopback.channel.next_event().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(30), "no event");
        engine.drive(clock::now(), Driver::Poller);
    }
    assert_eq!(acks(&engine), 1);
}

fn acks_sent(engine: &Engine) -> u64 {
    engine.counters().iter().find(|counter| counter.name == "acks_sent").unwrap().value
}

/// Sends a message, and drives the NIC until its receive has completed. Returns the number of ACKs
/// that were sent in between. The ACK of an earlier message leaves with the message.
fn acks_until_delivery(loopback: &LoopbackNic, engine: &mut Engine, now: Time) -> u64 {
    engine.nic.post_recv(loopback.qp, &[RecvWr::new(1, loopback.mr.sge(0, 8))]).unwrap();
    let wr = SendWr::new(2, SendOp::Send, Data::sge(loopback.mr.sge(8, 8)));
    engine.nic.post_send(now, loopback.qp, &[wr]).unwrap();
    engine.flush(now);
    let acks = acks_sent(engine);
    let (mut wcs, started) = (Vec::new(), Instant::now());
    while engine.poll_cq(loopback.cq, 16, &mut wcs).unwrap() == 0 {
        assert!(started.elapsed() < Duration::from_secs(30), "no completion");
        engine.drive(now, Driver::Poller);
    }
    acks_sent(engine) - acks
}

/// Delivers messages until the program has answered so many of them that the ACK of the last one
/// waits for the program's next answer.
fn defer_ack(loopback: &LoopbackNic, engine: &mut Engine, now: Time) {
    let acks: Vec<u64> = (0..100).map(|_| acks_until_delivery(loopback, engine, now)).collect();
    assert_eq!((acks[0], acks[99]), (1, 0));
}

#[test]
fn ack_of_message_waits_for_no_answer_of_event_driven_program() {
    let memory = Arc::new(Buffer::new(64));
    let loopback = LoopbackNic::new(&memory, AtomicScope::Nic);
    let other = loopback.nic.create_cq(16, Some(&loopback.channel)).unwrap();
    // The test holds the lock, so no other thread drives the NIC, and it passes a constant time, so
    // no timer expires.
    let shared = loopback.nic.shared();
    let mut engine = shared.lock().unwrap();
    let now = clock::now();
    defer_ack(&loopback, &mut engine, now);
    // The program sleeps until another queue has an event, as gloo does, whose queue pairs have a
    // queue each and share one channel.
    engine.nic.req_notify_cq(other, false).unwrap();
    assert!(engine.completion_queues.arm(other, now));
    assert_eq!(acks_until_delivery(&loopback, &mut engine, now), 1);
}

#[test]
fn thread_delays_ack_for_program_that_waits_in_memory() {
    for waits_in_memory in [false, true] {
        let memory = Arc::new(Buffer::new(64));
        let loopback = LoopbackNic::new(&memory, AtomicScope::Nic);
        // The test holds the lock, so no other thread drives the NIC, and it passes a constant
        // time, so no timer is late.
        let shared = loopback.nic.shared();
        let mut engine = shared.lock().unwrap();
        let acks = |engine: &Engine| engine.counters().iter().find(|c| c.name == "acks_sent").unwrap().value;
        let mut now = clock::now();
        if waits_in_memory {
            for check in 0..10 {
                now += Duration::from_millis(1);
                engine.progress.record_absence(now, Some(Duration::from_millis(check)));
            }
        }
        memory.store(8, 7);
        let wr = SendWr::new(1, SendOp::Write(loopback.mr.remote(0)), Data::sge(loopback.mr.sge(8, 8)));
        engine.nic.post_send(now, loopback.qp, &[wr]).unwrap();
        engine.flush(now);
        let started = Instant::now();
        while memory.load(0) != 7 {
            assert!(started.elapsed() < Duration::from_secs(30), "no WRITE");
            engine.drive(now, Driver::Thread);
        }
        // Processes the remaining packets of the round trip, and then one round without a packet.
        while engine.drive(now, Driver::Thread) > 0 {}
        assert_eq!(acks(&engine), u64::from(!waits_in_memory));
    }
}
