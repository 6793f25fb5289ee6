//! Two vQPs of one end take receives from one shared receive queue, across failovers.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Arc;

use crate::vqp_pair::assert_liveness;
use mitra_failover::{
    CloseReason, Completion, Config, Domain, Outcome, Secret, SharedReceiveQueue, VirtualMr, VirtualQp,
};
use mitra_sim::{Failure, Testbed};
use mitra_verbs::{Access, Buffer, Data, Provider, RecvWr, SendOp, SendWr, WcStatus};

/// The length of a receive in bytes.
const RECEIVE: usize = 64;
const DEPTH: u32 = 16;

struct Scene {
    testbed: Testbed,
    senders: [VirtualQp; 2],
    receivers: [VirtualQp; 2],
    queue: Arc<SharedReceiveQueue>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    /// The number of posted receives. Receive `i` has the `wr_id` `i` and the `i`-th part of the
    /// memory.
    posted: u64,
    sent: [Vec<Completion>; 2],
    received: [Vec<Completion>; 2],
    limit_events: Arc<AtomicUsize>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        for (sender, receiver) in self.senders.iter().zip(&self.receivers) {
            assert_liveness(&self.testbed, [sender, receiver]);
        }
    }
}

impl Scene {
    fn new() -> Scene {
        let mut config = Config { send_wrs: 128, ..Config::default() };
        config.detector.local_ack_timeout = mitra_verbs::LocalAckTimeout::from_code(9);
        config.detector.max_missed_heartbeats = 0;
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
        let [a, b] = [0, 1].map(|h| {
            let nics = testbed.nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
            Domain::new(nics).expect("the NICs have the resources of a domain")
        });
        // The receives may be in another protection domain than the vQPs.
        let of_receives = b.with_own_pds().expect("the NICs have the resources of a domain");
        let limit_events = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&limit_events);
        let queue = SharedReceiveQueue::with_limit_event(&of_receives, DEPTH, move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let build = |domain, secret| {
            VirtualQp::builder(domain).config(config).secret(Secret::fixed([secret, secret + 100]))
        };
        let built = "the NICs have the resources of a vQP";
        let mut senders = [1, 2].map(|secret| build(&a, secret).build().expect(built));
        let mut receivers =
            [3, 4].map(|secret| build(&b, secret).shared_receive_queue(&queue).build().expect(built));
        for (sender, receiver) in senders.iter_mut().zip(&mut receivers) {
            let infos = (sender.local_info(), receiver.local_info());
            sender.connect(&infos.1).expect("the ends match");
            receiver.connect(&infos.0).expect("the ends match");
        }
        let memory = Arc::new(Buffer::new(256 * RECEIVE));
        let mr = of_receives.register(&memory, Access::LOCAL_WRITE).expect("the NICs have a free region");
        let (sent, received) = Default::default();
        Scene { testbed, senders, receivers, queue, memory, mr, posted: 0, sent, received, limit_events }
    }

    fn poll(&mut self, n: usize) {
        for _ in 0..n {
            for i in 0..2 {
                self.senders[i].poll(&mut self.sent[i]);
                self.receivers[i].poll(&mut self.received[i]);
            }
            self.testbed.world.run_for(Duration::from_micros(25));
        }
    }

    /// Posts receives until the queue is full.
    fn post_receives(&mut self, at_most: usize) {
        for _ in 0..at_most.min(DEPTH as usize - self.queue.len()) {
            let sge = self.mr.sge(self.posted * RECEIVE as u64, RECEIVE as u32);
            self.queue.post_recv(&[RecvWr::new(self.posted, sge)]).expect("the queue has room");
            self.posted += 1;
        }
    }

    fn send(&mut self, i: usize, value: u64, len: usize) {
        let mut bytes = vec![0; len];
        bytes[..8].copy_from_slice(&value.to_ne_bytes());
        let wr = SendWr::new(value, SendOp::Send, Data::inline(&bytes));
        self.senders[i].post_send(wr).expect("the send queue has room");
    }

    /// Checks that receiver `i` has received the messages 0 to `n` in order, each once.
    fn check_received(&self, i: usize, n: u64) {
        let values: Vec<_> = (self.received[i].iter())
            .map(|c| {
                assert_eq!(c.outcome, Outcome::Success);
                self.memory.load(c.wr_id as usize * RECEIVE)
            })
            .collect();
        assert_eq!(values, (0..n).collect::<Vec<_>>(), "receiver {i}");
        let outcomes: Vec<_> = self.sent[i].iter().map(|c| (c.wr_id, c.outcome)).collect();
        assert_eq!(outcomes, (0..n).map(|value| (value, Outcome::Success)).collect::<Vec<_>>());
    }
}

#[test]
fn every_message_takes_one_receive_across_failovers() {
    const MESSAGES: u64 = 100; // more than a vQP has slots
    let failures = [
        (0, None),                   // the link of the senders' NIC
        (1, None),                   // the link of the receivers' NIC
        (0, Some(Failure::NicDead)), // the senders' NIC
        (1, Some(Failure::NicDead)), // the receivers' NIC
    ];
    for (host, failure) in failures {
        for at in [0, 1, 2, 3, 5, 8, 13, 21] {
            for per_poll in [1, 5] {
                let mut scene = Scene::new();
                scene.poll(10);
                for value in 0..MESSAGES {
                    (0..2).for_each(|i| scene.send(i, value, 8 + value as usize % 56));
                }
                for round in 0..400 {
                    if round == at {
                        let nic = scene.testbed.nics[host][0].id();
                        match failure {
                            None => scene.testbed.world.set_link(nic, false),
                            Some(failure) => scene.testbed.world.fail(nic, failure),
                        }
                    }
                    if scene.posted < 2 * MESSAGES {
                        scene.post_receives(per_poll.min((2 * MESSAGES - scene.posted) as usize));
                    }
                    scene.poll(1);
                }
                scene.poll(400);
                let moved = |vqps: &[VirtualQp; 2]| vqps.each_ref().map(VirtualQp::active_rail);
                assert_eq!([moved(&scene.senders), moved(&scene.receivers)], [[1; 2]; 2]);
                (0..2).for_each(|i| scene.check_received(i, MESSAGES));
                let mut taken: Vec<_> = scene.received.iter().flatten().map(|c| c.wr_id).collect();
                taken.sort_unstable();
                assert_eq!(taken, (0..2 * MESSAGES).collect::<Vec<_>>());
            }
        }
    }
}

/// The sender has seen success, so the message is received although the vQP has closed.
#[test]
fn messages_that_wait_for_receives_survive_the_end_of_the_vqp() {
    for closes in [false, true] {
        let mut scene = Scene::new();
        scene.post_receives(1);
        scene.poll(10);
        (0..3).for_each(|value| scene.send(0, value, 8));
        scene.poll(10);
        assert_eq!((scene.sent[0].len(), scene.received[0].len()), (3, 1));
        assert_eq!((scene.receivers[0].waiting_messages(), scene.receivers[1].waiting_messages()), (2, 0));
        if closes {
            scene.receivers[0].close().expect("the NICs are alive");
        } else {
            scene.receivers[0].shutdown();
        }
        scene.poll(10);
        assert!(!scene.receivers[0].has_completions());
        scene.post_receives(4);
        assert!(scene.receivers[0].has_completions());
        scene.poll(10);
        scene.check_received(0, 3);
        // The shared receives stay for the other vQP.
        assert_eq!(scene.queue.len(), 2);
        (0..2).for_each(|value| scene.send(1, value, 8));
        scene.poll(10);
        scene.check_received(1, 2);
    }
}

#[test]
fn message_longer_than_its_receive_ends_its_vqp_only() {
    let mut scene = Scene::new();
    scene.post_receives(4);
    scene.poll(10);
    scene.send(0, 0, RECEIVE + 1);
    scene.send(1, 0, RECEIVE);
    scene.poll(20);
    let outcomes: Vec<_> = scene.received[0].iter().map(|c| c.outcome).collect();
    assert_eq!(outcomes, [Outcome::Failed(WcStatus::LocalLength)]);
    assert_eq!(scene.receivers[0].close_reason(), Some(CloseReason::RequestError));
    assert_eq!(scene.receivers[1].close_reason(), None);
    scene.check_received(1, 1);
}

#[test]
fn sender_waits_for_the_first_receive() {
    let mut scene = Scene::new();
    scene.poll(10);
    scene.send(0, 0, 8);
    scene.poll(100);
    assert_eq!((scene.sent[0].len(), scene.receivers[0].waiting_messages()), (0, 0));
    scene.post_receives(1);
    scene.poll(100);
    scene.check_received(0, 1);
}

#[test]
fn limit_event_is_reported_once() {
    let mut scene = Scene::new();
    scene.post_receives(4);
    scene.queue.arm(3).expect("the limit is within the depth");
    scene.poll(10);
    (0..1).for_each(|value| scene.send(0, value, 8));
    scene.poll(10);
    assert_eq!(scene.limit_events.load(Ordering::Relaxed), 0);
    (0..2).for_each(|value| scene.send(1, value, 8));
    scene.poll(10);
    assert_eq!(scene.limit_events.load(Ordering::Relaxed), 1);
    assert!(scene.queue.arm(DEPTH + 1).is_err());
    assert!(scene.queue.resize(0).is_err());
}

#[test]
fn receives_are_posted_to_the_shared_queue_only() {
    let mut scene = Scene::new();
    let wr = RecvWr::new(0, scene.mr.sge(0, 8));
    assert!(scene.receivers[0].post_recv(wr).is_err());
    scene.post_receives(DEPTH as usize);
    let too_many = scene.queue.post_recv(&[RecvWr::new(99, scene.mr.sge(0, 8))]);
    assert_eq!((too_many.map_err(|refused| refused.index), scene.queue.len()), (Err(0), DEPTH as usize));
}

/// Both vQPs have posted slots that are shorter than the receives. The slots become longer.
#[test]
fn longer_receives_get_their_messages() {
    const LONG: usize = 100_000;
    let mut scene = Scene::new();
    scene.post_receives(2);
    scene.poll(10);
    (0..2).for_each(|i| scene.send(i, 0, 8));
    scene.poll(40);
    let (memory, data) = (Arc::new(Buffer::new(2 * LONG)), Arc::new(Buffer::new(LONG)));
    let mr = scene.queue.domain().register(&memory, Access::LOCAL_WRITE).expect("a free region");
    for i in 0..2 {
        let receive = RecvWr::new(90 + i, mr.sge(i * LONG as u64, LONG as u32));
        scene.queue.post_recv(&[receive]).expect("the queue has room");
    }
    scene.poll(1);
    data.write_at(0, &(0..LONG).map(|i| (i / 3) as u8).collect::<Vec<_>>());
    let of_data = scene.senders[0].domain().register(&data, Access::LOCAL_WRITE).expect("a free region");
    for sender in &mut scene.senders {
        let wr = SendWr::new(1, SendOp::Send, Data::sge(of_data.sge(0, LONG as u32)));
        sender.post_send(wr).expect("the send queue has room");
    }
    scene.poll(2000);
    for (i, received) in scene.received.iter().enumerate() {
        let last = received.last().expect("two messages");
        assert_eq!((received.len(), last.outcome, last.byte_len), (2, Outcome::Success, LONG as u32), "{i}");
        let (mut got, mut sent) = (vec![0; LONG], vec![0; LONG]);
        memory.read_at((last.wr_id - 90) as usize * LONG, &mut got);
        data.read_at(0, &mut sent);
        assert!(got == sent, "receiver {i}");
        assert_eq!(scene.receivers[i].close_reason(), None);
    }
}
