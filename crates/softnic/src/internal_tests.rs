//! Tests that need to look, or to reach, inside: whom an atomic is atomic against, what a panic leaves behind, what
//! happens on a kernel that segments nothing.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use mitra_verbs::*;

use crate::engine::{Driver, Engine};
use crate::{Config, SoftNic, clock};

/// A NIC with the shared word registered, a queue pair, and its completions.
struct Rail {
    nic: Arc<SoftNic>,
    mr: Mr,
    channel: Arc<dyn CompletionChannel>,
    cq: CqId,
    qp: Qpn,
}

impl Rail {
    fn new(memory: &Arc<Buffer>, atomics: AtomicScope) -> Rail {
        let nic = SoftNic::open(Config { atomic_scope: atomics, ..Config::loopback() }).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let mr = nic.reg_mr(pd, Arc::clone(memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let channel = nic.create_completion_channel().unwrap();
        let cq = nic.create_cq(16, Some(&channel)).unwrap();
        let (qp_type, cap) = (QpType::Rc, QpCap::default());
        let init = QpInitAttr { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
        let qp = nic.create_qp(&init).unwrap();
        // Each rail's requester is its own responder.
        let connection = RcConnection {
            rd_atomic: 4,
            local_ack_timeout: LocalAckTimeout::from_code(18),
            ..RcConnection::to(nic.query_port().unwrap().gid, qp)
        };
        connection.connect(&*nic, qp).unwrap();
        Rail { nic, mr, channel, cq, qp }
    }

    /// Adds 1 to the word; the old value goes to `result`.
    fn add(&self, result: u64) {
        self.request(SendOp::FetchAdd { remote: self.mr.remote(0), add: 1 }, self.mr.sge(result, 8));
    }

    /// Posts a request and waits until it has succeeded.
    fn request(&self, op: SendOp, local: Sge) {
        self.nic.post_send(self.qp, &[SendWr::new(1, op, Data::sge(local))]).unwrap();
        let (mut wcs, started) = (Vec::new(), Instant::now());
        while self.nic.poll_cq(self.cq, 1, &mut wcs).unwrap() == 0 {
            assert!(started.elapsed() < Duration::from_secs(30), "no completion");
        }
        assert_eq!(wcs[0].status, WcStatus::Success);
    }
}

/// Adds once through each of two rails at the same time.
fn add_through_both(rails: &[Rail; 2]) {
    std::thread::scope(|scope| {
        for (rail, result) in rails.iter().zip([8, 16]) {
            scope.spawn(move || rail.add(result));
        }
    });
}

#[test]
fn two_rails_lose_an_increment() {
    let memory = Arc::new(Buffer::new(64));
    let rails = [Rail::new(&memory, AtomicScope::Nic), Rail::new(&memory, AtomicScope::Nic)];
    let both_loaded = Arc::new(Barrier::new(2));
    for rail in &rails {
        rail.nic.meet_in_atomics(Some(Arc::clone(&both_loaded)));
    }
    add_through_both(&rails);
    assert_eq!(memory.load(0), 1, "two increments, both acknowledged, one lost");
    assert_eq!((memory.load(8), memory.load(16)), (0, 0));

    // One rail's own atomics do not interleave: its lock is around load and store.
    for rail in &rails {
        rail.nic.meet_in_atomics(None);
    }
    for _ in 0..10 {
        rails[0].add(8);
    }
    assert_eq!(memory.load(0), 11);
}

#[test]
fn globally_atomic_rails_lose_none() {
    let memory = Arc::new(Buffer::new(64));
    let rails = [Rail::new(&memory, AtomicScope::Global), Rail::new(&memory, AtomicScope::Global)];
    assert_eq!(rails[0].nic.attr().capabilities.atomic_scope, AtomicScope::Global);
    for _ in 0..500 {
        add_through_both(&rails);
    }
    assert_eq!(memory.load(0), 1000);
}

#[test]
fn a_panic_under_the_lock_is_the_end_of_the_nic() {
    let memory = Arc::new(Buffer::new(64));
    let rail = Rail::new(&memory, AtomicScope::Nic);
    let shared = rail.nic.shared();
    std::thread::spawn(move || {
        let _engine = shared.lock().unwrap();
        panic!("on purpose");
    })
    .join()
    .unwrap_err();
    assert_eq!(rail.nic.alloc_pd(), Err(Error::DeviceFatal));
    assert_eq!(rail.nic.poll_cq(rail.cq, 1, &mut Vec::new()), Err(Error::DeviceFatal));
    let started = Instant::now();
    while rail.nic.poll_async_event() != Some(AsyncEvent::DeviceFatal) {
        assert!(started.elapsed() < Duration::from_secs(30), "no event");
        std::thread::yield_now();
    }
    assert_eq!(rail.nic.reset(), Ok(()));
}

mod no_check {
    use nix::libc;
    use nix::sys::socket::sockopt::SetStruct;

    /// Has a socket send without UDP checksums. The kernel segments only with them.
    #[derive(Clone, Copy)]
    pub(super) struct NoCheck;
    nix::setsockopt_impl!(NoCheck, libc::SOL_SOCKET, libc::SO_NO_CHECK, libc::c_int, SetStruct<libc::c_int>);
}

#[test]
fn where_the_kernel_does_not_segment_datagrams_go_one_by_one() {
    const LEN: u32 = 300_000;
    let memory = Arc::new(Buffer::new(2 * LEN as usize));
    let rail = Rail::new(&memory, AtomicScope::Nic);
    let socket = rail.nic.shared().lock().unwrap().socket.clone().unwrap();
    nix::sys::socket::setsockopt(&socket, no_check::NoCheck, &1).unwrap();
    let data: Vec<u8> = (0..LEN).map(|i| (i / 7) as u8).collect();
    memory.write_at(0, &data);
    rail.request(SendOp::Write(rail.mr.remote(u64::from(LEN))), rail.mr.sge(0, LEN));
    let mut arrived = vec![0; LEN as usize];
    memory.read_at(LEN as usize, &mut arrived);
    assert!(arrived == data);
    let counters = rail.nic.counters();
    let count = |name| counters.iter().find(|c| c.name == name).unwrap().value;
    assert_eq!((count("tx_runs"), count("tx_errors"), count("rx_icrc_bad")), (0, 0, 0));
    assert!(count("tx_datagrams") > u64::from(LEN) / 1024);
}

#[test]
fn a_poller_that_only_takes_completions_does_not_stop_the_nic() {
    let memory = Arc::new(Buffer::new(64));
    let rail = Rail::new(&memory, AtomicScope::Nic);
    let shared = rail.nic.shared();
    let mut engine = shared.lock().unwrap();
    let now = clock::now();
    while !engine.lease.drove(now) {}
    let address = engine.socket.as_ref().unwrap().address();
    let before = engine.counts.rx_datagrams;
    let stranger = std::net::UdpSocket::bind((address.ip(), 0)).unwrap();
    stranger.send_to(&[0; 8], address).unwrap();
    // It drove a moment ago, and will do so again.
    engine.driven = Some((rail.cq, now + Duration::from_secs(1)));
    let _ = shared.round(&mut engine);
    assert_eq!((engine.lease.taken(), engine.counts.rx_datagrams), (true, before));
    // It has not driven for long, and goes on finding completions.
    engine.driven = Some((rail.cq, Time::ZERO));
    (0..100).for_each(|_| engine.lease.polled());
    let _ = shared.round(&mut engine);
    assert_eq!((engine.lease.taken(), engine.counts.rx_datagrams), (true, before + 1));
}

#[test]
fn who_sleeps_is_woken_after_the_acknowledgement_has_left() {
    let memory = Arc::new(Buffer::new(64));
    let rail = Rail::new(&memory, AtomicScope::Nic);
    rail.nic.post_recv(rail.qp, &[RecvWr::new(1, rail.mr.sge(0, 8))]).unwrap();
    rail.nic.req_notify_cq(rail.cq, false).unwrap();
    // Under the lock, so that nobody else drives.
    let shared = rail.nic.shared();
    let mut engine = shared.lock().unwrap();
    let acks = |engine: &Engine| engine.counters().iter().find(|c| c.name == "acks_sent").unwrap().value;
    let wr = SendWr::new(2, SendOp::Send, Data::sge(rail.mr.sge(8, 8)));
    engine.nic.post_send(clock::now(), rail.qp, &[wr]).unwrap();
    engine.settle(clock::now());
    assert_eq!(acks(&engine), 0);
    let started = Instant::now();
    while rail.channel.next_event().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(30), "no event");
        engine.drive(clock::now(), Driver::Poller);
    }
    assert_eq!(acks(&engine), 1);
}

#[test]
fn where_a_program_waits_in_memory_the_thread_leaves_the_acknowledgement_to_its_next_post() {
    for waits_in_memory in [false, true] {
        let memory = Arc::new(Buffer::new(64));
        let rail = Rail::new(&memory, AtomicScope::Nic);
        // Under the lock, so that nobody else drives, and at one point of time, so that nothing is late.
        let shared = rail.nic.shared();
        let mut engine = shared.lock().unwrap();
        let acks = |engine: &Engine| engine.counters().iter().find(|c| c.name == "acks_sent").unwrap().value;
        let mut now = clock::now();
        if waits_in_memory {
            for look in 0..10 {
                now += Duration::from_millis(1);
                engine.lease.absent(now, Some(Duration::from_millis(look)));
            }
        }
        memory.store(8, 7);
        let wr = SendWr::new(1, SendOp::Write(rail.mr.remote(0)), Data::sge(rail.mr.sge(8, 8)));
        engine.nic.post_send(now, rail.qp, &[wr]).unwrap();
        engine.settle(now);
        let started = Instant::now();
        while memory.load(0) != 7 {
            assert!(started.elapsed() < Duration::from_secs(30), "no WRITE");
            engine.drive(now, Driver::Thread);
        }
        // What is left of the round trip: a drive that finds nothing.
        while engine.drive(now, Driver::Thread) > 0 {}
        assert_eq!(acks(&engine), u64::from(!waits_in_memory));
    }
}
