//! Tests with several devices in one process. The devices have no progress threads. The tests
//! execute the threads' work themselves, and so decide when a peer answers.

mod completion_events;
mod first_contact;
mod idle;
mod refusals;
mod reset_in_turn;
mod shared_receives;
mod states;
mod terms;
mod xrc;

use std::collections::VecDeque;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use mitra_control::Settings;
use mitra_failover::{Domain, VirtualMr};
use mitra_nics::NicKind;
use mitra_verbs::{
    Access, Buffer, CqId, Data, Key, Nic, PdId, Provider, QpCap, QpType, RemoteAddr, SendFlags, SendOp,
    SgeList, SrqId,
};

use super::*;
use crate::rails::device::{CompletionQueue, SharedReceives};
use crate::rails::rail_address::Endpoint;
use crate::rails::rendezvous::{Query, Rendezvous, Subject};
use crate::rails::virtual_qps::MultiRail;

/// The time after which a query without an answer fails, in these tests.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
const DEPTH: u32 = 8;

fn device() -> Arc<MultiRail> {
    device_over((0..2).map(|_| nic()))
}

fn nic() -> Arc<dyn Nic> {
    NicKind::Soft.open_free().expect("loopback NICs can be opened")
}

fn device_over(nics: impl Iterator<Item = Arc<dyn Nic>>) -> Arc<MultiRail> {
    device_with(nics, &Settings::default())
}

fn device_with(nics: impl Iterator<Item = Arc<dyn Nic>>, settings: &Settings) -> Arc<MultiRail> {
    let providers = nics.map(|nic| nic as Arc<dyn Provider>).collect();
    let failover = Domain::with_completion_channels(providers).expect("two NICs form a domain");
    let rendezvous = Rendezvous::new(failover.nics(), QUERY_TIMEOUT).expect("queue pair 1 is free");
    MultiRail::with_domain(MultiRailDomain::new(failover, rendezvous, settings))
}

fn gids(device: &MultiRail) -> Vec<Gid> {
    device
        .domain()
        .failover
        .nics()
        .iter()
        .map(|nic| nic.provider.query_port().expect("the NIC is alive").gid)
        .collect()
}

fn alloc_pd(device: &MultiRail) -> Arc<MultiRailPd> {
    device.domain().alloc_pd().expect("the NICs have room")
}

fn virtual_cq(device: &MultiRail, depth: u32) -> Arc<VirtualCq> {
    VirtualCq::new(device.domain(), CqId(0), depth, None, || {})
}

fn create_qp(device: &MultiRail, cq: &Arc<VirtualCq>) -> Arc<MultiRailQp> {
    create_qp_with(device, QpType::Rc, alloc_pd(device), cq, DEPTH, true)
}

fn create_qp_with(
    device: &MultiRail,
    qp_type: QpType,
    pd: Arc<MultiRailPd>,
    cq: &Arc<VirtualCq>,
    depth: u32,
    sq_sig_all: bool,
) -> Arc<MultiRailQp> {
    let init = QpInitAttr {
        qp_type,
        pd: PdId(0),
        send_cq: CqId(0),
        recv_cq: CqId(0),
        srq: None,
        cap: QpCap { send_wrs: depth, recv_wrs: DEPTH, ..QpCap::default() },
        sq_sig_all,
    };
    let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
    device
        .create_qp(CreateParams {
            init,
            pd: Some(pd),
            send_cq,
            recv_cq,
            srq: None,
            xrc: None,
            on_event: Box::new(|_| {}),
        })
        .expect("the capacities are within the limits")
}

/// One end of a connection, with a registered buffer of 64 bytes.
struct End {
    device: Arc<MultiRail>,
    pd: Arc<MultiRailPd>,
    cq: Arc<VirtualCq>,
    qp: Arc<MultiRailQp>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
}

impl End {
    fn new() -> End {
        End::with(DEPTH, true)
    }

    fn with(depth: u32, sq_sig_all: bool) -> End {
        End::of_type(QpType::Rc, depth, sq_sig_all)
    }

    fn of_type(qp_type: QpType, depth: u32, sq_sig_all: bool) -> End {
        End::on(device(), qp_type, depth, sq_sig_all)
    }

    fn on(device: Arc<MultiRail>, qp_type: QpType, depth: u32, sq_sig_all: bool) -> End {
        let cq = virtual_cq(&device, 1 << 10);
        End::with_cq(device, cq, qp_type, depth, sq_sig_all)
    }

    fn in_cq(device: &Arc<MultiRail>, cq: &Arc<VirtualCq>) -> End {
        End::with_cq(Arc::clone(device), Arc::clone(cq), QpType::Rc, DEPTH, true)
    }

    fn with_cq(
        device: Arc<MultiRail>,
        cq: Arc<VirtualCq>,
        qp_type: QpType,
        depth: u32,
        sq_sig_all: bool,
    ) -> End {
        let pd = alloc_pd(&device);
        let qp = create_qp_with(&device, qp_type, Arc::clone(&pd), &cq, depth, sq_sig_all);
        let memory = Arc::new(Buffer::new(64));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&memory, access).expect("memory can be registered");
        End { device, pd, cq, qp, memory, mr }
    }

    fn remote(&self) -> RemoteAddr {
        self.mr.remote().at(0)
    }

    fn write(&self, wr_id: u64, remote: RemoteAddr) -> SendWr {
        SendWr::new(wr_id, SendOp::Write(remote), Data::sge(self.mr.sge(0, 8)))
    }

    fn send(&self, wr_id: u64) -> SendWr {
        SendWr::new(wr_id, SendOp::Send, Data::sge(self.mr.sge(0, 8)))
    }

    fn post_recv(&self, wr_id: u64) {
        self.qp.post_recv(&[RecvWr::new(wr_id, self.mr.sge(32, 8))]).expect("the queue has room");
    }

    /// Answers the queries of peers, as the progress thread does.
    fn answer_peers(&self) {
        self.device.answer_queries();
    }

    fn poll(&self) -> Vec<(u64, WcStatus)> {
        let mut wcs = Vec::new();
        self.cq.poll(16, &mut wcs).expect("no NIC is polled");
        wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

/// Creates two ends in RTS that are connected to each other.
fn connected() -> (End, End) {
    connect(End::new(), End::new())
}

fn connect(a: End, b: End) -> (End, End) {
    for (end, peer) in [(&a, &b), (&b, &a)] {
        let info = peer.qp.local_info();
        let mut locked = end.qp.lock();
        locked.set_access(Some(Access::REMOTE)).expect("the NICs are alive");
        locked.vqp.connect(&info).expect("the configurations agree");
        locked.attr.dest_qpn = Some(peer.qp.qpn());
        locked.state = QpState::Rts;
        *lock(&end.qp.peer) = Peer::Connected(info.gids().collect());
    }
    (a, b)
}

/// Polls `a` until it has reported `n` completions, and drives `b` in each iteration. Calls `each`
/// in each iteration.
fn completions(a: &End, b: &End, n: usize, mut each: impl FnMut()) -> Vec<(u64, WcStatus)> {
    let started = Instant::now();
    let mut found = Vec::new();
    while found.len() < n {
        found.extend(a.poll());
        b.device.domain().drive(|_| true);
        each();
        assert!(started.elapsed() < Duration::from_secs(20), "only {found:?} completed");
    }
    found
}

#[test]
fn destroyed_queue_pair_completes_nothing() {
    let (a, b) = connected();
    a.qp.post_recv(&[RecvWr { wr_id: 1, sges: SgeList::new() }]).expect("the queue has room");
    a.device.destroy_qp(Arc::clone(&a.qp));
    // Another thread may drive the queue pair while the program destroys it.
    a.qp.drive();
    a.qp.try_drive();
    assert_eq!(a.poll(), []);
    drop(b);
}

/// libfabric destroys its queue pair as soon as it learns that the peer disconnects, and polls the
/// completion of its last message afterwards.
#[test]
fn destroyed_queue_pair_leaves_completions_of_executed_requests() {
    for is_polled_before in [false, true] {
        let (a, b) = connected();
        b.post_recv(10);
        a.post_recv(9);
        a.qp.post_send(&[a.send(1)]).expect("the request is valid");
        let started = Instant::now();
        let mut received = Vec::new();
        while received.is_empty() {
            received = b.poll();
            assert!(started.elapsed() < Duration::from_secs(20), "no message");
        }
        assert_eq!(received, [(10, WcStatus::Success)]);
        if is_polled_before {
            a.qp.drive();
        }
        a.device.destroy_qp(Arc::clone(&a.qp));
        assert_eq!(a.poll(), [(1, WcStatus::Success)]);
    }
}

#[test]
fn connected_queue_pair_answers_its_peer_only() {
    let (local, peer, stranger) = (device(), device(), device());
    let qp = create_qp(&local, &virtual_cq(&local, 1 << 10));
    let query = |from: &MultiRail| {
        thread::scope(|scope| {
            let answer = scope.spawn(|| {
                from.domain().rendezvous.query_connection(
                    [rand_id(), rand_id()],
                    gids(&local)[0],
                    qp.qpn(),
                    qp.terms(),
                )
            });
            while !answer.is_finished() {
                local.answer_queries();
                thread::yield_now();
            }
            answer.join().expect("a query does not panic").is_ok()
        })
    };
    assert!(query(&peer) && query(&stranger), "an unconnected queue pair answers everybody");
    *lock(&qp.peer) = Peer::Connecting(gids(&peer)[0]);
    assert!(query(&peer));
    assert!(!query(&stranger));
    *lock(&qp.peer) = Peer::Connected(gids(&peer));
    assert!(query(&peer));
    assert!(!query(&stranger));
}

#[test]
fn strangers_learn_no_keys_of_a_connected_queue_pair() {
    let (local, peer, stranger) = (End::new(), device(), device());
    *lock(&local.qp.peer) = Peer::Connected(gids(&peer));
    let subject = Subject::Region { qpn: local.qp.qpn(), key: local.remote().rkey };
    for (from, is_told) in [(&peer, true), (&stranger, false)] {
        let mut query = Query::new(
            &from.domain().rendezvous,
            rand_id(),
            (gids(&local.device), Endpoint::Any),
            subject,
            None,
        );
        let answer = loop {
            local.answer_peers();
            from.domain().rendezvous.poll();
            if let Poll::Ready(answer) = query.poll() {
                break answer.expect("every query is answered");
            }
        };
        assert_eq!(answer.is_some(), is_told);
    }
}

fn rand_id() -> u64 {
    crate::common::random::random().expect("the system has a random source")
}

#[test]
fn slow_peer_does_not_block_post() {
    let (a, b) = connected();
    a.memory.write_at(0, b"pioneer!");
    let started = Instant::now();
    a.qp.post_send(&[a.write(1, b.remote())]).expect("the request is valid");
    assert!(started.elapsed() < QUERY_TIMEOUT / 2, "the post waited for the peer");
    // The peer does not answer yet.
    for _ in 0..100 {
        assert_eq!(a.poll(), []);
    }
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), [(1, WcStatus::Success)]);
    let mut bytes = [0; 8];
    b.memory.read_at(0, &mut bytes);
    assert_eq!(&bytes, b"pioneer!");
    // The keys are known from now on.
    a.qp.post_send(&[a.write(2, b.remote())]).expect("the request is valid");
    assert_eq!(completions(&a, &b, 1, || {}), [(2, WcStatus::Success)]);
}

#[test]
fn sends_after_unknown_rkey_stay_in_order() {
    let (a, b) = connected();
    let second = Arc::new(Buffer::new(64));
    let second_mr = b.pd.register(&second, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let second_mr = second_mr.expect("memory can be registered");
    (10..12).for_each(|wr_id| b.post_recv(wr_id));
    a.qp.post_send(&[a.send(1), a.write(2, b.remote())]).expect("the requests are valid");
    a.qp.post_send(&[a.send(3), a.write(4, second_mr.remote().at(0))]).expect("the requests are valid");
    a.qp.post_send(&[a.write(5, b.remote())]).expect("the request is valid");
    let found = completions(&a, &b, 5, || b.answer_peers());
    assert_eq!(found, (1..=5).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    let received: VecDeque<_> = completions(&b, &a, 2, || {}).into();
    assert_eq!(received, [(10, WcStatus::Success), (11, WcStatus::Success)]);
}

#[test]
fn request_before_unknown_rkey_is_not_delayed() {
    let (a, b) = connected();
    b.post_recv(10);
    a.qp.post_send(&[a.send(1), a.write(2, b.remote())]).expect("the requests are valid");
    // The query for the second request stays unanswered.
    assert_eq!(completions(&a, &b, 1, || {}), [(1, WcStatus::Success)]);
}

#[test]
fn nonexistent_rkey_completes_with_remote_access_error() {
    let (a, b) = connected();
    let nonexistent = RemoteAddr { addr: 0x1000, rkey: Key(0x1234_5678) };
    a.qp.post_send(&[a.write(1, nonexistent), a.send(2)]).expect("the peer refuses, not the post");
    let found = completions(&a, &b, 2, || b.answer_peers());
    assert_eq!(found, [(1, WcStatus::RemoteAccess), (2, WcStatus::Flushed)]);
    assert_eq!(a.qp.status().state, QpState::Err);
}

#[test]
fn unanswered_query_completes_with_retry_exceeded() {
    let (a, b) = connected();
    a.qp.post_send(&[a.write(1, b.remote()), a.write(2, b.remote())]).expect("the requests are valid");
    let found = completions(&a, &b, 2, || {});
    assert_eq!(found, [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)]);
    a.qp.post_send(&[a.send(3)]).expect("a post in ERR is flushed");
    assert_eq!(a.poll(), [(3, WcStatus::Flushed)]);
}

#[test]
fn peer_that_closes_flushes_deferred_sends() {
    let (a, b) = connected();
    a.qp.post_send(&[a.write(1, b.remote()), a.send(2)]).expect("the requests are valid");
    b.device.destroy_qp(Arc::clone(&b.qp));
    let found = completions(&a, &b, 2, || b.device.domain().drive(|_| true));
    // A NIC whose peer no longer exists reports the same: the oldest request exhausts its retries.
    assert_eq!(found, [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)]);
}

#[test]
fn error_state_flushes_deferred_sends() {
    let (a, b) = connected();
    a.post_recv(9);
    a.qp.post_send(&[a.write(1, b.remote()), a.send(2)]).expect("the requests are valid");
    a.qp.modify(&mitra_verbs::QpAttr::to(QpState::Err)).expect("every state leads to ERR");
    let mut found = a.poll();
    found.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(found, [1, 2, 9].map(|wr_id| (wr_id, WcStatus::Flushed)));
}

#[test]
fn destroyed_queue_pair_drops_deferred_sends() {
    let (a, b) = connected();
    a.qp.post_send(&[a.write(1, b.remote())]).expect("the request is valid");
    a.device.destroy_qp(Arc::clone(&a.qp));
    b.answer_peers();
    a.device.domain().drive(|_| true);
    assert_eq!(a.poll(), []);
}

#[test]
fn refused_request_leaves_those_before_it_posted() {
    let (a, b) = connected();
    let bad = SendWr::new(3, SendOp::Write(b.remote()), Data::inline(&[0; 4096]));
    // In the first iteration the keys of the peer's region are unknown, in the second they are
    // known.
    for _ in 0..2 {
        let wrs = [a.write(1, b.remote()), a.write(2, b.remote()), bad.clone(), a.write(4, b.remote())];
        let refused = a.qp.post_send(&wrs).expect_err("the third request has too much inline data");
        assert_eq!(refused.index, 2);
        let all_or_none = a.qp.post_send_all(&wrs[1..]).expect_err("the second request is bad");
        assert_eq!(all_or_none.index, 1);
        let found = completions(&a, &b, 2, || b.answer_peers());
        assert_eq!(found, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    }
}

#[test]
fn deferred_sends_count_against_queue_depth() {
    let (a, b) = connected();
    let wrs: Vec<_> = (0..u64::from(DEPTH) + 1).map(|wr_id| a.write(wr_id, b.remote())).collect();
    let refused = a.qp.post_send(&wrs).expect_err("the queue has eight entries");
    assert_eq!(refused.index, DEPTH as usize);
    let found = completions(&a, &b, DEPTH as usize, || b.answer_peers());
    assert!(found.iter().all(|(_, status)| *status == WcStatus::Success));
}

#[test]
fn deferred_sends_are_signalled_as_the_queue_pair_says() {
    let (a, b) = connected();
    let unsignalled = a.write(1, b.remote()).with_flags(SendFlags::empty());
    a.qp.post_send(&[unsignalled]).expect("the request is valid");
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), [(1, WcStatus::Success)]);
}

#[test]
fn deferred_send_fails_after_unsignalled_sends() {
    let (a, b) = connect(End::with(DEPTH, false), End::new());
    b.post_recv(10);
    let unsignalled = a.send(1).with_flags(SendFlags::empty());
    a.qp.post_send(&[unsignalled, a.write(2, b.remote())]).expect("the requests are valid");
    // The query stays unanswered. No signalled request follows the first request, so the queue pair
    // flushes the first request.
    let found = completions(&a, &b, 2, || {});
    assert_eq!(found, [(1, WcStatus::Flushed), (2, WcStatus::RetryExceeded)]);
}

#[test]
fn answer_about_another_region_completes_with_bad_response() {
    let (a, b) = connected();
    let other = b.pd.register(&Arc::new(Buffer::new(64)), Access::LOCAL_WRITE);
    let other = other.expect("memory can be registered").remote().encode();
    a.qp.post_send(&[a.write(1, b.remote())]).expect("the request is valid");
    let rendezvous = &b.device.domain().rendezvous;
    let found = completions(&a, &b, 1, || {
        rendezvous.take_received().iter().for_each(|query| rendezvous.answer(query, Some(other.clone())));
    });
    assert_eq!(found, [(1, WcStatus::BadResponse)]);
}

#[test]
fn peer_answers_only_for_regions_of_the_queue_pairs_protection_domain() {
    let (a, b) = connected();
    let foreign = alloc_pd(&b.device).register(&b.memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let foreign = foreign.expect("memory can be registered").remote().at(0).rkey;
    let mut answers = Vec::new();
    for key in [b.remote().rkey, foreign] {
        let subject = Subject::Region { qpn: b.qp.qpn(), key };
        let mut query = Query::new(
            &a.device.domain().rendezvous,
            rand_id(),
            (gids(&b.device), Endpoint::Any),
            subject,
            None,
        );
        answers.push(loop {
            b.answer_peers();
            a.device.domain().rendezvous.poll();
            if let Poll::Ready(answer) = query.poll() {
                break answer.expect("the peer answers").is_some();
            }
        });
    }
    assert_eq!(answers, [true, false]);
}

#[test]
fn many_unknown_rkeys_are_all_resolved() {
    const REGIONS: u32 = 300;
    let (a, b) = connect(End::with(REGIONS, true), End::new());
    let memory = Arc::new(Buffer::new(64));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = |_| b.pd.register(&memory, access).expect("memory can be registered");
    let regions: Vec<_> = (0..REGIONS).map(region).collect();
    let wrs: Vec<_> = (0..).zip(&regions).map(|(wr_id, mr)| a.write(wr_id, mr.remote().at(0))).collect();
    // The requests of the second half are posted one by one, while keys for the first half are
    // still unknown.
    let (first, second) = wrs.split_at(wrs.len() / 2);
    a.qp.post_send_all(first).expect("the requests are valid");
    second.iter().for_each(|wr| a.qp.post_send(std::slice::from_ref(wr)).expect("the request is valid"));
    let found = completions(&a, &b, REGIONS as usize, || b.answer_peers());
    assert_eq!(found, (0..REGIONS.into()).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
}

#[test]
fn burst_of_queries_does_not_disable_rendezvous() {
    let (local, peer) = (device(), device());
    let qp = create_qp(&peer, &virtual_cq(&peer, 1 << 10));
    let rendezvous = &local.domain().rendezvous;
    let burst: Vec<_> = (0..300)
        .map(|key| {
            let subject = Subject::Region { qpn: qp.qpn(), key: Key(key) };
            Query::new(rendezvous, rand_id(), (gids(&peer), Endpoint::Any), subject, None)
        })
        .collect();
    drop(burst);
    let info = thread::scope(|scope| {
        let answer = scope.spawn(|| {
            rendezvous.query_connection([rand_id(), rand_id()], gids(&peer)[0], qp.qpn(), qp.terms())
        });
        while !answer.is_finished() {
            peer.answer_queries();
            thread::yield_now();
        }
        answer.join().expect("a query does not panic")
    });
    assert!(info.is_ok(), "{:?}", info.err());
}
