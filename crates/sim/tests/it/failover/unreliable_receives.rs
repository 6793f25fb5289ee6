//! Unreliable connections that take their receives from one shared receive queue, across failovers:
//! messages may be lost when a rail fails. They arrive in order, and none arrives twice or takes
//! two receives.

use core::time::Duration;
use std::sync::Arc;

use crate::vqp_pair::assert_liveness;
use mitra_failover::{
    CloseReason, Completion, Config, Domain, Outcome, Secret, Service, SharedReceiveQueue, VirtualMr,
    VirtualQp,
};
use mitra_sim::{Failure, Prng, Testbed, seeds};
use mitra_verbs::{Access, Buffer, Data, Provider, RecvWr, RemoteAddr, SendOp, SendWr, WcOpcode, WcStatus};

/// The length of a receive in bytes.
const RECEIVE: usize = 64;
const DEPTH: u32 = 16;
const SENDERS: usize = 3;

struct Scene {
    testbed: Testbed,
    senders: Vec<VirtualQp>,
    receivers: Vec<VirtualQp>,
    queue: Arc<SharedReceiveQueue>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    /// A word for each sender, to which only that sender writes.
    words: Arc<Buffer>,
    words_mr: VirtualMr,
    posted: u64,
    /// The number of the last message of each sender that was sent, and received.
    sent: [u64; SENDERS],
    last: [u64; SENDERS],
    received: u64,
    /// The shared receives that have completed.
    taken: Vec<u64>,
    completed: [u64; SENDERS],
}

impl Drop for Scene {
    fn drop(&mut self) {
        for (sender, receiver) in self.senders.iter().zip(&self.receivers) {
            assert_liveness(&self.testbed, [sender, receiver]);
        }
    }
}

impl Scene {
    fn new(rails: u8, world: mitra_sim::Config) -> Scene {
        let mut config = Config { send_wrs: 128, service: Service::Unreliable, ..Config::default() };
        config.detector.max_missed_heartbeats = 0;
        let testbed = Testbed::with_config(1, world, rails);
        let [a, b] = [0, 1].map(|h: usize| {
            let nics = testbed.nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
            Domain::new(nics).expect("the NICs have the resources of a domain")
        });
        // The receives may be in another protection domain than the vQPs.
        let of_receives = b.with_own_pds().expect("the NICs have the resources of a domain");
        let queue = SharedReceiveQueue::new(&of_receives, DEPTH);
        let build = |domain, secret| {
            VirtualQp::builder(domain).config(config).secret(Secret::fixed([secret, secret + 100]))
        };
        let built = "the NICs have the resources of a vQP";
        let mut senders: Vec<_> =
            (0..SENDERS as u64).map(|i| build(&a, 1 + i).build().expect(built)).collect();
        let mut receivers: Vec<_> = (0..SENDERS as u64)
            .map(|i| build(&b, 11 + i).shared_receive_queue(&queue).build().expect(built))
            .collect();
        let words = Arc::new(Buffer::new(8 * SENDERS));
        let words_mr = b.register(&words, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect(built);
        for (sender, receiver) in senders.iter_mut().zip(&mut receivers) {
            let infos = [sender.local_info(), receiver.local_info()];
            sender.connect(&infos[1]).expect("the ends match");
            receiver.connect(&infos[0]).expect("the ends match");
            sender.import(&words_mr.remote()).expect("the vQP is connected");
        }
        let memory = Arc::new(Buffer::new(256 * RECEIVE));
        let mr = of_receives.register(&memory, Access::LOCAL_WRITE).expect("the NICs have a free region");
        let (sent, last, completed) = Default::default();
        let (posted, received, taken) = (0, 0, Vec::new());
        Scene {
            testbed,
            senders,
            receivers,
            queue,
            memory,
            mr,
            words,
            words_mr,
            posted,
            sent,
            last,
            received,
            taken,
            completed,
        }
    }

    fn post_receives(&mut self, at_most: usize, len: usize) {
        for _ in 0..at_most.min(DEPTH as usize - self.queue.len()) {
            let sge = self.mr.sge(self.posted % 256 * RECEIVE as u64, len as u32);
            self.queue.post_recv(&[RecvWr::new(self.posted, sge)]).expect("the queue has room");
            self.posted += 1;
        }
    }

    fn word(&self, i: usize) -> RemoteAddr {
        self.words_mr.remote().at(8 * i as u64)
    }

    /// Sends a message of one of three kinds with `len` bytes, which begin with its number.
    fn send(&mut self, i: usize, kind: u64, len: usize) {
        if self.senders[i].outstanding() >= 120 {
            return;
        }
        self.sent[i] += 1;
        let number = self.sent[i];
        let mut bytes = vec![0; len];
        bytes[..8].copy_from_slice(&(number << 8 | i as u64).to_ne_bytes());
        let op = match kind {
            0 => SendOp::Send,
            1 => SendOp::SendWithImm(number as u32),
            _ => SendOp::WriteWithImm(self.word(i), number as u32),
        };
        self.senders[i].post_send(SendWr::new(number, op, Data::inline(&bytes))).expect("the queue has room");
    }

    /// Polls all ends, and checks the completions. Returns the numbers of the received messages, by
    /// sender.
    fn poll(&mut self, n: usize) -> [Vec<u64>; SENDERS] {
        let mut received: [Vec<u64>; SENDERS] = Default::default();
        let mut completions: Vec<Completion> = Vec::new();
        for _ in 0..n {
            for (i, numbers) in received.iter_mut().enumerate() {
                self.senders[i].poll(&mut completions);
                for completion in completions.drain(..) {
                    self.completed[i] += 1;
                    assert_eq!((completion.wr_id, completion.outcome), (self.completed[i], Outcome::Success));
                }
                self.receivers[i].poll(&mut completions);
                for completion in completions.drain(..) {
                    assert_eq!(completion.outcome, Outcome::Success);
                    assert!(!self.taken.contains(&completion.wr_id), "{}", completion.wr_id);
                    self.taken.push(completion.wr_id);
                    assert_eq!(completion.byte_len, 8);
                    let number = match completion.opcode {
                        WcOpcode::RecvWithImm => completion.imm.expect("it has immediate data").into(),
                        _ => {
                            let word = self.memory.load(completion.wr_id as usize % 256 * RECEIVE);
                            assert_eq!(word & 0xff, i as u64);
                            word >> 8
                        }
                    };
                    assert!(completion.imm.is_none_or(|imm| u64::from(imm) == number));
                    assert!(number > self.last[i], "{number} after {}", self.last[i]);
                    self.last[i] = number;
                    self.received += 1;
                    numbers.push(number);
                }
            }
            self.testbed.world.run_for(Duration::from_micros(25));
        }
        received
    }
}

/// All senders send messages of all kinds, and receives are posted in small numbers. When the links
/// are up, messages arrive at every receiver.
#[test]
fn shared_messages_stay_in_order_while_links_fail() {
    let (mut lost, mut waited) = (0, 0);
    for seed in seeds(60) {
        let rng = &mut Prng::stream(seed, "unreliable shared receives");
        let rails = *rng.pick(&[2, 3]);
        let mut scene = Scene::new(rails, mitra_sim::Config::fault_free());
        scene.post_receives(4, RECEIVE);
        scene.poll(10);
        let mut down: Option<(usize, u64)> = None;
        for _ in 0..40 {
            for _ in 0..rng.below(8) {
                scene.send(rng.below(SENDERS as u64) as usize, rng.below(3), 8);
            }
            scene.testbed.world.run_for(Duration::from_nanos(rng.below(3_000)));
            scene.post_receives(rng.below(10) as usize, RECEIVE);
            waited += usize::from(scene.receivers.iter().any(|vqp| vqp.waiting_messages() > 0));
            if rng.below(8) == 0 {
                if let Some((h, rail)) = down.take() {
                    let nic = scene.testbed.nics[h][rail as usize].id();
                    scene.testbed.world.set_link(nic, true);
                } else {
                    let (h, rail) = (rng.below(2) as usize, rng.below(u64::from(rails)));
                    let nic = scene.testbed.nics[h][rail as usize].id();
                    scene.testbed.world.set_link(nic, false);
                    down = Some((h, rail));
                    scene.poll(200);
                }
            }
            scene.poll(rng.below(30) as usize);
        }
        if let Some((h, rail)) = down {
            let nic = scene.testbed.nics[h][rail as usize].id();
            scene.testbed.world.set_link(nic, true);
        }
        for _ in 0..40 {
            scene.post_receives(DEPTH as usize, RECEIVE);
            scene.poll(100);
        }
        for i in 0..SENDERS {
            scene.send(i, 0, 8);
            scene.send(i, 2, 8);
        }
        scene.poll(200);
        assert_eq!(scene.last, scene.sent, "seed {seed}: messages after the failures arrive");
        assert_eq!(scene.completed, scene.sent, "seed {seed}: every send completes");
        let reasons: Vec<_> = scene.receivers.iter().map(VirtualQp::close_reason).collect();
        assert_eq!(reasons, [None; SENDERS], "seed {seed}");
        assert_eq!(
            scene.queue.len() as u64,
            scene.posted - scene.received,
            "seed {seed}: a receive is missing"
        );
        lost += u64::from(scene.received < scene.sent.iter().sum());
    }
    assert!(lost > 0, "no run has lost a message, so no message was in flight at a failure");
    assert!(waited > 0, "no message has waited for a receive");
}

/// A message waits in its slot for a receive, also across a move and after the queue pair has
/// closed.
#[test]
fn waiting_messages_survive_a_move_and_the_end_of_the_connection() {
    for failure in [Failure::LinkDown, Failure::NicDead] {
        for ends in [false, true] {
            let mut scene = Scene::new(2, mitra_sim::Config::fault_free());
            scene.post_receives(1, RECEIVE);
            (0..5).for_each(|_| scene.send(0, 0, 8));
            assert_eq!(scene.poll(20)[0], [1]);
            assert_eq!(scene.receivers[0].waiting_messages(), 4);
            let nic = scene.testbed.nics[1][0].id();
            scene.testbed.world.fail(nic, failure);
            scene.poll(400);
            if ends {
                scene.receivers[0].shutdown();
            }
            scene.post_receives(8, RECEIVE);
            assert_eq!(scene.poll(20)[0], [2, 3, 4, 5], "{failure:?}");
            assert_eq!(scene.queue.len(), 4);
        }
    }
}

/// As on a NIC, the message is lost, and the receive stays for the next message.
#[test]
fn message_longer_than_its_receive_is_dropped() {
    let mut scene = Scene::new(2, mitra_sim::Config::fault_free());
    scene.post_receives(1, 8);
    scene.poll(10);
    // More messages than slots.
    for _ in 0..100 {
        scene.send(0, 0, 16);
        scene.poll(2);
    }
    for moves in 0..3 {
        let before = scene.sent[0];
        scene.send(0, 0, 16);
        scene.send(0, 1, 9);
        scene.send(0, 0, 8);
        assert_eq!(scene.poll(20)[0], [before + 3], "after {moves} moves");
        // A WRITE with immediate puts no data into its receive, so an empty receive suffices.
        scene.post_receives(1, 0);
        scene.send(0, 2, 8);
        assert_eq!(scene.poll(20)[0], [before + 4]);
        assert_eq!(scene.words.load(0), (before + 4) << 8);
        scene.post_receives(1, 8);
        let rail = scene.senders[0].active_rail();
        let nic = scene.testbed.nics[0][rail].id();
        scene.testbed.world.set_link(nic, false);
        scene.poll(400);
        scene.testbed.world.set_link(nic, true);
        scene.poll(4000);
        assert_ne!(scene.senders[0].active_rail(), rail);
    }
    assert_eq!(scene.receivers[0].close_reason(), None);
}

/// As on a NIC, a receive whose memory is not registered fails, and so does its queue pair.
#[test]
fn receive_without_memory_ends_its_queue_pair_only() {
    let mut scene = Scene::new(2, mitra_sim::Config::fault_free());
    let wrong = mitra_verbs::Sge { key: mitra_verbs::Key(0xdead), ..scene.mr.sge(0, 64) };
    scene.queue.post_recv(&[RecvWr::new(500, wrong)]).expect("the queue has room");
    scene.poll(10);
    scene.send(0, 0, 8);
    let mut completions = Vec::new();
    for _ in 0..20 {
        scene.senders[0].poll(&mut completions);
        scene.testbed.world.run_for(Duration::from_micros(25));
    }
    completions.clear();
    scene.receivers[0].poll(&mut completions);
    let outcomes: Vec<_> = completions.iter().map(|c| (c.wr_id, c.outcome)).collect();
    assert_eq!(outcomes, [(500, Outcome::Failed(WcStatus::LocalProtection))]);
    assert_eq!(scene.receivers[0].close_reason(), Some(CloseReason::RequestError));
    scene.post_receives(2, RECEIVE);
    scene.send(1, 0, 8);
    scene.completed[0] += 1;
    assert_eq!(scene.poll(20)[1], [1]);
}
