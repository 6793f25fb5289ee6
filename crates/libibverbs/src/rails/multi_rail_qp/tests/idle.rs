//! Queue pairs that share a completion queue. Only those that have something to do are driven, and
//! nothing that happens to an idle one is missed.

use std::cell::Cell;
use std::os::fd::AsFd;

use mitra_verbs::fault::Failure;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::common::event_queue::EventQueue;

const PAIRS: usize = 20;

/// Two devices with one completion queue each, and connected pairs of queue pairs.
struct Group {
    ends: [Vec<End>; 2],
    /// The NIC of the first device's rail 0.
    nic: Arc<dyn Nic>,
}

impl Group {
    fn new() -> Group {
        let nic = nic();
        let first = Arc::clone(&nic);
        let devices = [device_over([first, super::nic()].into_iter()), device()];
        let cqs = devices.each_ref().map(|device| virtual_cq(device, 1 << 10));
        let mut ends = [Vec::new(), Vec::new()];
        for _ in 0..PAIRS {
            let [a, b] = [0, 1].map(|h: usize| End::in_cq(&devices[h], &cqs[h]));
            let (a, b) = connect(a, b);
            ends[0].push(a);
            ends[1].push(b);
        }
        Group { ends, nic }
    }

    fn domain(&self, h: usize) -> &MultiRailDomain {
        self.ends[h][0].device.domain()
    }

    /// Drives what has something to do, as polls and the progress threads do, until `done`.
    fn run_until(&self, mut done: impl FnMut() -> bool) {
        let started = Instant::now();
        while !done() {
            [0, 1].into_iter().for_each(|h| self.domain(h).drive_in_background());
            assert!(started.elapsed() < Duration::from_secs(60), "not within a minute");
        }
    }

    fn exchange(&self, pair: usize, wr_id: u64) {
        let (a, b) = (&self.ends[0][pair], &self.ends[1][pair]);
        b.post_recv(wr_id);
        a.qp.post_send(&[a.send(wr_id)]).expect("the queue has room");
        let mut found = Vec::new();
        self.run_until(|| {
            found.extend(a.poll());
            found.extend(b.poll());
            found.len() == 2
        });
        assert_eq!(found, [(wr_id, WcStatus::Success); 2]);
    }
}

/// `poll_many_queue_pairs`: each poll of a completion queue drove all of its queue pairs.
#[test]
fn empty_poll_of_many_queue_pairs_drives_none() {
    const POLLS: usize = 2000;
    let group = Group::new();
    (0..PAIRS).for_each(|pair| group.exchange(pair, 1));
    let (started, drives) = (Instant::now(), Cell::new(0));
    for _ in 0..POLLS {
        let now = group.domain(0).failover.poll();
        group.domain(0).drive_queue.drive(now, |_| {
            drives.set(drives.get() + 1);
            true
        });
    }
    // Each queue pair is driven for its heartbeats, ten times per second.
    let heartbeats = PAIRS * (started.elapsed().as_millis() as usize / 50 + 4);
    assert!(drives.get() < heartbeats.min(POLLS * PAIRS / 2), "{} drives", drives.get());
}

#[test]
fn destroyed_queue_pairs_are_not_driven_at_each_poll() {
    const POLLS: usize = 2000;
    let mut group = Group::new();
    (0..PAIRS).for_each(|pair| group.exchange(pair, 1));
    let keep = group.ends[0].pop().expect("there are several pairs");
    let device = Arc::clone(&keep.device);
    for end in group.ends[0].drain(..) {
        device.destroy_qp(Arc::clone(&end.qp));
    }
    let drives = Cell::new(0);
    for _ in 0..POLLS {
        device.domain().drive_queue.drive(device.domain().failover.poll(), |_| {
            drives.set(drives.get() + 1);
            true
        });
    }
    // Each destroyed queue pair answers its peer's messages.
    assert!(drives.get() < POLLS * PAIRS / 10, "{} drives", drives.get());
}

/// The queue pairs of both completion queues share the queues of the NICs, which one request arms.
#[test]
fn completion_in_one_queue_raises_no_event_of_another() {
    const IDS: [CqId; 2] = [CqId(1), CqId(2)];
    let [device, peer] = [device(), device()];
    let events = [0, 1].map(|_| Arc::new(EventQueue::new(8).expect("a descriptor is free")));
    let cqs = [0, 1]
        .map(|at: usize| VirtualCq::new(device.domain(), IDS[at], 64, Some(Arc::clone(&events[at])), || {}));
    let pairs = [0, 1]
        .map(|at: usize| connect(End::in_cq(&peer, &virtual_cq(&peer, 64)), End::in_cq(&device, &cqs[at])));
    cqs.iter().for_each(|cq| cq.arm(false).expect("the NICs are alive"));
    let (a, b) = &pairs[0];
    b.post_recv(7);
    a.qp.post_send(&[a.send(1)]).expect("the queue has room");
    let started = Instant::now();
    while events[0].pop() != Some(IDS[0]) {
        device.domain().drive_in_background();
        device.domain().rearm();
        assert!(started.elapsed() < Duration::from_secs(60), "no event");
    }
    assert_eq!(events[1].pop(), None);
    assert!(cqs[1].is_armed());
}

#[test]
fn message_for_one_of_many_idle_queue_pairs_is_found() {
    let group = Group::new();
    for pair in [0, PAIRS - 1, PAIRS / 2] {
        (0..3).for_each(|wr_id| group.exchange(pair, wr_id));
    }
}

#[test]
fn all_idle_queue_pairs_leave_a_failed_rail() {
    for failure in [Failure::LinkDown, Failure::NicDead] {
        let group = Group::new();
        (0..PAIRS).for_each(|pair| group.exchange(pair, 1));
        group.nic.fault_switch().expect("a software NIC fails on demand").fail(failure);
        let active = |end: &End| end.qp.lock().vqp.active_rail();
        group.run_until(|| group.ends.iter().flatten().all(|end| active(end) == 1));
        (0..PAIRS).for_each(|pair| group.exchange(pair, 2));
    }
}

/// The program sleeps on a completion channel. A message for one idle queue pair wakes the progress
/// thread, which reports the event.
#[test]
fn message_for_an_idle_queue_pair_wakes_a_sleeping_program() {
    const ID: CqId = CqId(4711);
    let [device, peer] = [device(), device()];
    let events = Arc::new(EventQueue::new(8).expect("a descriptor is free"));
    let cq = VirtualCq::new(device.domain(), ID, 64, Some(Arc::clone(&events)), || {});
    let idle: Vec<_> = (0..PAIRS).map(|_| End::in_cq(&device, &cq)).collect();
    let (a, b) = connect(End::in_cq(&peer, &virtual_cq(&peer, 64)), End::in_cq(&device, &cq));
    b.post_recv(7);
    // The control messages of the connection are handled before the program sleeps.
    (0..100).for_each(|_| [&a, &b].into_iter().for_each(|end| end.device.domain().drive_in_background()));
    cq.arm(false).expect("the NICs are alive");
    a.qp.post_send(&[a.send(1)]).expect("the queue has room");
    let channel =
        device.domain().failover.nics()[0].channel.as_ref().expect("the domain has completion channels");
    let started = Instant::now();
    while events.pop() != Some(ID) {
        let mut ready = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
        let found = poll(&mut ready, PollTimeout::from(20_000_u16)).expect("no signal handler is set");
        assert_eq!(found, 1, "no event after {:?}", started.elapsed());
        while let Ok(Some(_)) = channel.next_event() {}
        device.domain().drive_in_background();
        device.domain().rearm();
    }
    assert_eq!(b.poll(), [(7, WcStatus::Success)]);
    drop(idle);
}

/// UCX leaves a completion queue armed while it polls others. The NICs report events to the
/// progress thread only when the program has stopped to poll.
#[test]
fn queue_that_stays_armed_costs_a_program_that_polls_no_events_of_the_nics() {
    let [device, peer] = [device(), device()];
    let events = Arc::new(EventQueue::new(8).expect("a descriptor is free"));
    let armed = VirtualCq::new(device.domain(), CqId(0), 64, Some(events), || {});
    let (a, b) =
        connect(End::in_cq(&peer, &virtual_cq(&peer, 64)), End::in_cq(&device, &virtual_cq(&device, 64)));
    let channel =
        device.domain().failover.nics()[0].channel.as_ref().expect("the domain has completion channels");
    let has_event = || core::iter::from_fn(|| channel.next_event().ok().flatten()).count() > 0;
    let rearm = || device.domain().rearm();
    let exchange = |wr_id| {
        b.post_recv(wr_id);
        a.qp.post_send(&[a.send(wr_id)]).expect("the queue has room");
        assert_eq!(completions(&b, &a, 1, || {}), [(wr_id, WcStatus::Success)]);
        assert_eq!(completions(&a, &b, 1, || {}), [(wr_id, WcStatus::Success)]);
    };
    armed.arm(false).expect("the NICs are alive");
    exchange(1);
    assert!(has_event(), "a program that has armed a queue may sleep");
    // On a busy machine, the thread may not run for so long that the loop ends.
    let is_quiet = |attempt| {
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(2) {
            assert_eq!(b.poll(), []);
        }
        rearm();
        exchange(attempt);
        !has_event()
    };
    assert!((2..1000).any(is_quiet), "the NICs report events although the program polls");
    thread::sleep(Duration::from_millis(1));
    rearm();
    exchange(1000);
    assert!(has_event());
}
