//! Queue pairs with a shared backup between two devices in one process.

use std::thread;

use mitra_verbs::{Data, SendOp, SgeList};

use super::*;
use crate::rails::connection::registry::tests::{End, connected};

const TIMEOUT: Duration = Duration::from_millis(300);

fn unconnected(end: &End) -> BackedConnection {
    let mut config = Config { send_wrs: 4, recv_wrs: 2, recv_sges: 1, ..Config::default() };
    config.detector.first_contact_timeout = TIMEOUT;
    BackedConnection::new(&end.pd, config, None)
}

fn connect(qp: &mut BackedConnection, backup: &Arc<Backup>, peer: &BackedQpInfo) {
    qp.connect(backup, peer, RnrTimer::from_code(1)).expect("the ends match");
    qp.modify_to_rts(7).expect("the queue pair is connected");
}

fn post_send(qp: &mut BackedConnection) {
    let wr = SendWr::new(1, SendOp::Send, Data::inline(&[1]));
    qp.post_send_all([wr]).expect("the queue has room");
}

fn receive(wr_id: u64, sges: usize) -> RecvWr {
    let sge = mitra_verbs::Sge { addr: 0, len: 8, key: mitra_verbs::Key(0) };
    RecvWr { wr_id, sges: std::iter::repeat_n(sge, sges).collect::<SgeList>() }
}

/// Polls both ends until `is_done`, or for longer than the timeout. Returns the completions of the first.
fn poll_until(
    qps: &mut [BackedConnection; 2],
    is_done: impl Fn(&[BackedConnection; 2], &[Completion]) -> bool,
) -> Vec<Completion> {
    let (started, mut out) = (Instant::now(), Vec::new());
    while !is_done(qps, &out) && started.elapsed() < 4 * TIMEOUT {
        qps[0].poll(&mut out);
        qps[1].poll(&mut Vec::new());
        thread::yield_now();
    }
    out
}

/// The peer has told its parameters, and its program never connects it. Without requests, nothing ends.
#[test]
fn requests_to_a_peer_that_is_not_connected_fail_in_time() {
    for posts in [false, true] {
        let (a, b) = (End::new(), End::new());
        let [ours, theirs] = connected(&a, &b);
        let mut qps = [unconnected(&a), unconnected(&b)];
        let info = qps[1].join(&theirs).expect("the backup is open");
        connect(&mut qps[0], &ours, &info);
        if posts {
            post_send(&mut qps[0]);
        }
        let found = poll_until(&mut qps, |_, out| !out.is_empty());
        let outcomes: Vec<_> = found.iter().map(|completion| completion.outcome).collect();
        let never_sent = Outcome::Failed(WcStatus::Flushed);
        assert_eq!(outcomes, if posts { vec![never_sent] } else { vec![] });
        assert_eq!(qps[0].close_reason(), posts.then_some(CloseReason::PeerUnreachable));
    }
}

/// The timeout concerns the first contact only: a request that waits for a receive of the peer ends when there is one.
#[test]
fn request_on_a_connected_queue_pair_outlasts_the_timeout() {
    let (a, b) = (End::new(), End::new());
    let [ours, theirs] = connected(&a, &b);
    let mut qps = [unconnected(&a), unconnected(&b)];
    let infos = [qps[0].join(&ours), qps[1].join(&theirs)].map(|info| info.expect("the backup is open"));
    let [first, second] = &mut qps;
    connect(first, &ours, &infos[1]);
    connect(second, &theirs, &infos[0]);
    post_send(first);
    assert!(poll_until(&mut qps, |_, out| !out.is_empty()).is_empty());
    assert_eq!(qps[0].close_reason(), None);
}

/// Until a queue pair is connected, its receives are kept here.
#[test]
fn receives_before_the_connection_are_limited_and_flushed() {
    let end = End::new();
    let mut qp = unconnected(&end);
    assert!(matches!(qp.post_recv(receive(1, 2)), Err(Error::Limit { .. })));
    (1..3).for_each(|wr_id| qp.post_recv(receive(wr_id, 1)).expect("the queue has room"));
    assert!(matches!(qp.post_recv(receive(3, 1)), Err(Error::QueueFull { depth: 2, .. })));
    qp.shutdown();
    let mut out = Vec::new();
    assert_eq!(qp.poll(&mut out), 2);
    let flushed = [1, 2].map(|wr_id| Completion::failed_receive(wr_id, 0, WcStatus::Flushed));
    assert_eq!(out, flushed);
    assert_eq!(qp.close_reason(), Some(CloseReason::Closed));
}

/// A queue pair that is reset permits its peer nothing until the program sets its access flags again.
#[test]
fn replacement_permits_nothing() {
    let end = End::new();
    let mut qp = unconnected(&end);
    qp.set_access(Access::REMOTE).expect("the NICs are alive");
    assert_eq!((qp.config().access, qp.replacement().config().access), (Access::REMOTE, Access::empty()));
}

/// The backup that the program connects with is the one that counts, not one that another device has offered.
#[test]
fn queue_pair_joins_one_backup_at_a_time_and_keeps_the_connected_one() {
    let (a, b, stranger) = (End::new(), End::new(), End::new());
    let [ours, theirs] = connected(&a, &b);
    let [_, strange] = connected(&stranger, &b);
    let mut qps = [unconnected(&a), unconnected(&b)];
    let first = qps[1].join(&theirs).expect("the backup is open");
    assert_eq!(qps[1].join(&theirs), Ok(first.clone()), "the peer asks again");
    qps[1].join(&strange).expect("the queue pair is not connected");
    let info = qps[0].join(&ours).expect("the backup is open");
    connect(&mut qps[1], &theirs, &info);
    assert!(qps[1].join(&strange).is_err());
    let connected = qps[1].join(&theirs).expect("the peer asks again");
    assert_ne!(connected, first, "the first one was replaced");
    connect(&mut qps[0], &ours, &connected);
    assert!(qps[1].connect(&theirs, &info, RnrTimer::from_code(1)).is_err(), "it is connected");
    qps[1].post_recv(receive(1, 0)).expect("the queue has room");
    qps[0].post_send_all([SendWr::new(1, SendOp::Send, Data::empty())]).expect("the queue has room");
    let found = poll_until(&mut qps, |_, out| !out.is_empty());
    assert!(found.len() == 1 && found[0].is_success(), "{found:?}");
    qps[1].shutdown();
    assert!(qps[1].join(&strange).is_err(), "it has closed");
}
