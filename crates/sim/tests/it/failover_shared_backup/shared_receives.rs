//! Members of one end take receives from one shared receive queue, across failovers.

use std::sync::Arc;

use mitra_failover::{CloseReason, Outcome, SharedReceiveQueue, VirtualMr};
use mitra_sim::{Failure, Prng, Testbed, seeds};
use mitra_verbs::{Access, Buffer, Data, RecvWr, SendOp, SendWr, WcStatus};

use super::pair::BackedPair;
use super::run::config;

const MEMBERS: usize = 3;
const RECEIVE: usize = 16;
const DEPTH: usize = 16;

struct Scene {
    pair: BackedPair,
    queue: Arc<SharedReceiveQueue>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    /// The number of posted receives. Receive `i` has the `wr_id` `i` and the `i`-th part of the
    /// memory.
    posted: u64,
}

impl Scene {
    fn new(rails: u8) -> Scene {
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), rails);
        let mut made = None;
        let pair = BackedPair::with(testbed, config(), MEMBERS, |backup, host| {
            if host == 0 {
                return backup.queue_pair(config());
            }
            let (_, queue) = made.get_or_insert_with(|| {
                let probe = backup.queue_pair(config()).expect("the NICs have the resources of a queue pair");
                // The receives may be in another protection domain than the queue pairs.
                let domain = probe.domain().with_own_pds().expect("the NICs have the resources of a domain");
                let queue = SharedReceiveQueue::new(&domain, DEPTH as u32);
                (domain, queue)
            });
            backup.queue_pair_with_shared_receives(config(), queue)
        });
        let (domain, queue) = made.expect("host 1 has queue pairs");
        let memory = Arc::new(Buffer::new(4096 * RECEIVE));
        let mr = domain.register(&memory, Access::LOCAL_WRITE).expect("the NICs have a free region");
        Scene { pair, queue, memory, mr, posted: 0 }
    }

    fn post_receives(&mut self, at_most: usize) {
        for _ in 0..at_most.min(DEPTH - self.queue.len()) {
            let sge = self.mr.sge(self.posted * RECEIVE as u64, RECEIVE as u32);
            self.queue.post_recv(&[RecvWr::new(self.posted, sge)]).expect("the queue has room");
            self.posted += 1;
        }
    }

    fn send(&mut self, member: usize, value: u64, len: usize) {
        let mut bytes = vec![0; len];
        bytes[..8].copy_from_slice(&value.to_ne_bytes());
        let wr = SendWr::new(value, SendOp::Send, Data::inline(&bytes));
        self.pair.qps[0][member].post_send(wr).expect("the send queue has room");
    }

    fn received(&self, member: usize) -> Vec<u64> {
        let completions = &self.pair.completions[1][member];
        completions
            .iter()
            .map(|c| {
                assert_eq!((c.outcome, c.byte_len), (Outcome::Success, RECEIVE as u32 / 2));
                self.memory.load(c.wr_id as usize * RECEIVE)
            })
            .collect()
    }
}

#[test]
fn every_message_takes_one_receive_across_failovers() {
    const MESSAGES: u64 = 150; // more than a member has slots
    let mut epochs = 0;
    for seed in seeds(60) {
        let mut scene = Scene::new(3);
        let mut rng = Prng::new(seed);
        let mut sent = [0_u64; MEMBERS];
        let per_step = 1 + rng.index(4);
        for step in 0..1500 {
            let nic = scene.pair.testbed.rail(rng.index(2))[rng.index(2)];
            let world = &mut scene.pair.testbed.world;
            match rng.below(200) {
                0 => world.set_link(nic, false),
                1 | 2 => world.set_link(nic, true),
                3 if step > 700 && seed % 2 == 0 => world.fail(nic, Failure::NicDead),
                _ => {}
            }
            let member = rng.index(MEMBERS);
            if sent[member] < MESSAGES && scene.pair.qps[0][member].outstanding() < 40 {
                scene.send(member, sent[member], RECEIVE / 2);
                sent[member] += 1;
            }
            if rng.below(4) > 0 {
                scene.post_receives(per_step);
            }
            scene.pair.poll(&[0, 1], 1);
        }
        for rail in 0..2 {
            let nics = scene.pair.testbed.rail(rail);
            nics.into_iter().for_each(|nic| scene.pair.testbed.world.set_link(nic, true));
        }
        for _ in 0..4000 {
            scene.post_receives(DEPTH);
            scene.pair.poll(&[0, 1], 1);
        }
        let mut taken = Vec::new();
        for (member, &sent) in sent.iter().enumerate() {
            let wanted: Vec<_> = (0..sent).map(|id| (id, Outcome::Success)).collect();
            assert_eq!(scene.pair.outcomes(0, member), wanted, "seed {seed}, member {member}");
            assert_eq!(scene.received(member), (0..sent).collect::<Vec<_>>(), "seed {seed}, member {member}");
            taken.extend(scene.pair.completions[1][member].iter().map(|c| c.wr_id));
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..sent.iter().sum()).collect::<Vec<_>>(), "seed {seed}");
        epochs += scene.pair.backups[0].last_failover().map_or(0, |report| report.epoch);
    }
    assert!(u64::from(epochs) > seeds(60).count() as u64, "{epochs}");
}

/// The sender has seen success, so the message is received although the queue pair has closed.
#[test]
fn messages_that_wait_for_receives_survive_the_end_of_the_queue_pair() {
    let mut scene = Scene::new(2);
    scene.post_receives(1);
    scene.pair.poll(&[0, 1], 400);
    (0..3).for_each(|value| scene.send(0, value, 8));
    scene.pair.poll(&[0, 1], 20);
    assert_eq!((scene.pair.outcomes(0, 0).len(), scene.received(0)), (3, vec![0]));
    assert_eq!(scene.pair.qps[1][0].waiting_messages(), 2);
    scene.pair.qps[1][0].shutdown();
    scene.post_receives(4);
    scene.pair.poll(&[0, 1], 20);
    assert_eq!((scene.received(0), scene.pair.qps[1][0].waiting_messages()), (vec![0, 1, 2], 0));
    // The shared receives stay for the other queue pairs.
    assert_eq!(scene.queue.len(), 2);
    (0..2).for_each(|value| scene.send(1, value, 8));
    scene.pair.poll(&[0, 1], 20);
    assert_eq!((scene.received(1), scene.pair.outcomes(0, 1).len()), (vec![0, 1], 2));
}

#[test]
fn message_longer_than_its_receive_ends_its_queue_pair_only() {
    let mut scene = Scene::new(2);
    scene.post_receives(4);
    scene.pair.poll(&[0, 1], 400);
    scene.send(0, 0, RECEIVE + 1);
    scene.send(1, 0, 8);
    scene.pair.poll(&[0, 1], 40);
    let outcomes: Vec<_> = scene.pair.completions[1][0].iter().map(|c| c.outcome).collect();
    assert_eq!(outcomes, [Outcome::Failed(WcStatus::LocalLength)]);
    let reasons = |h: usize| scene.pair.qps[h].iter().map(|qp| qp.close_reason()).collect::<Vec<_>>();
    assert_eq!(reasons(1), [Some(CloseReason::RequestError), None, None]);
    assert_eq!(reasons(0), [Some(CloseReason::PeerClosed), None, None]);
    assert_eq!((scene.received(1), scene.pair.outcomes(0, 1)), (vec![0], vec![(0, Outcome::Success)]));
}

#[test]
fn member_with_shared_receive_queue_refuses_receives_of_its_own() {
    let mut scene = Scene::new(2);
    let wr = RecvWr::new(0, scene.pair.mr[1].sge(0, 8));
    let refused = scene.pair.qps[1][0].post_recv(wr).expect_err("the member has a shared queue");
    assert!(refused.to_string().contains("post receives there"), "{refused}");
    // Without a receive in the shared queue, the message waits.
    scene.send(0, 7, 8);
    scene.pair.poll(&[0, 1], 400);
    assert_eq!((scene.pair.outcomes(0, 0), scene.pair.qps[1][0].waiting_messages()), (vec![], 0));
    scene.post_receives(1);
    scene.pair.poll(&[0, 1], 400);
    assert_eq!((scene.pair.outcomes(0, 0), scene.received(0)), (vec![(7, Outcome::Success)], vec![7]));
}
