//! XRC connections: messages of all kinds take receives of the shared receive queues that they name, in order and once, across failovers.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use mitra_failover::{
    BuildError, CloseReason, Completion, Config, Domain, Outcome, Policy, Secret, Service,
    SharedReceiveQueue, UnresolvedError, VirtualMr, VirtualQp, WritePolicy, XrcDomain,
};
use mitra_sim::{Failure, Prng, Testbed, check_liveness, reproduce_command, seeds};
use mitra_verbs::{
    Access, AsyncEvent, Buffer, Data, Error, Provider, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Srqn,
    WcOpcode, WcStatus,
};

/// The length of a receive in bytes.
const RECEIVE: usize = 64;
const DEPTH: u32 = 16;
const SENDS: u32 = 32;
const NUMBERS: [u32; 3] = [0xFF_FFFF, 7, 0x12_3456];

/// The parts of the memory at the receiving end: receives, the words that WRITEs with immediate change, and a counter.
const WORDS: usize = 1 << 16;
const COUNTER: usize = 1 << 17;
const MEMORY: usize = COUNTER + 64;
/// The number of receives that fit.
const SLOTS: u64 = (WORDS / RECEIVE) as u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    SendWithImm,
    WriteWithImm,
    FetchAdd,
    Read,
}

const KINDS: [Kind; 5] = [Kind::Send, Kind::SendWithImm, Kind::WriteWithImm, Kind::FetchAdd, Kind::Read];

/// A request, which is number `n` at index n.
#[derive(Clone, Copy, Debug)]
struct Posted {
    kind: Kind,
    queue: usize,
    signaled: bool,
    outcome: Option<Outcome>,
    received: bool,
}

struct Queue {
    number: Srqn,
    receives: Arc<SharedReceiveQueue>,
    /// The `wr_id`s of the receives in the queue, oldest first.
    posted: VecDeque<u64>,
}

/// A connection to an XRC domain with three queues.
struct Scene {
    testbed: Testbed,
    sender: VirtualQp,
    receiver: VirtualQp,
    xrc: Arc<XrcDomain>,
    queues: Vec<Queue>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    local: (Arc<Buffer>, VirtualMr),
    posted: Vec<Posted>,
    receives: u64,
    /// The number of requests up to the last one that was received.
    after_last: usize,
    rng: Prng,
    seed: u64,
}

impl Drop for Scene {
    /// Asserts the liveness rule, unless the test fails anyway.
    fn drop(&mut self) {
        let checked = check_liveness(&self.testbed.world, self.testbed.hosts, [&self.sender, &self.receiver]);
        if let (Err(dead), false) = (checked, std::thread::panicking()) {
            panic!("{dead}\n{}", reproduce_command(self.seed));
        }
    }
}

fn config() -> Config {
    let mut config = Config { send_wrs: SENDS, ..Config::default() };
    config.detector.local_ack_timeout = mitra_verbs::LocalAckTimeout::from_code(9);
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 8;
    config.peer_timeout = Duration::from_millis(300);
    config
}

fn domains(testbed: &Testbed) -> [Arc<Domain>; 2] {
    [0, 1].map(|h| {
        let nics = testbed.nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        Domain::new(nics).expect("the NICs have the resources of a domain")
    })
}

impl Scene {
    fn new(seed: u64, rails: u8, world: mitra_sim::Config, config: Config) -> Scene {
        let testbed = Testbed::with_config(seed, world, rails);
        let [a, b] = domains(&testbed);
        let xrc = XrcDomain::new();
        let queues: Vec<_> = NUMBERS
            .map(|number| {
                let (number, receives) = (Srqn::new(number), SharedReceiveQueue::new(&b, DEPTH));
                xrc.insert(number, &receives).expect("the number is unused");
                Queue { number, receives, posted: VecDeque::new() }
            })
            .into();
        let build = |domain, secret| {
            VirtualQp::builder(domain).config(config).secret(Secret::fixed([secret, secret + 100]))
        };
        let built = "the NICs have the resources of a vQP";
        let mut sender = build(&a, 1).service(Service::XrcSend).build().expect(built);
        let mut receiver = build(&b, 2).xrc_domain(&xrc).build().expect(built);
        let infos = (sender.local_info().expect("not closed"), receiver.local_info().expect("not closed"));
        sender.connect(&infos.1).expect("the ends match");
        receiver.connect(&infos.0).expect("the ends match");
        let memory = Arc::new(Buffer::new(MEMORY));
        let mr = b.register(&memory, Access::LOCAL_WRITE | Access::REMOTE).expect("a free region");
        sender.import(&mr.remote()).expect("the numbers of rails match");
        let local = Arc::new(Buffer::new(8 * SLOTS as usize));
        let local_mr = a.register(&local, Access::LOCAL_WRITE).expect("a free region");
        Scene {
            testbed,
            sender,
            receiver,
            xrc,
            queues,
            memory,
            mr,
            local: (local, local_mr),
            posted: Vec::new(),
            receives: 0,
            after_last: 0,
            rng: Prng::stream(seed, "xrc"),
            seed,
        }
    }

    fn fault_free(rails: u8, config: Config) -> Scene {
        Scene::new(1, rails, mitra_sim::Config::fault_free(), config)
    }

    fn remote(&self, offset: usize) -> RemoteAddr {
        let at = self.mr.remote().at(0);
        RemoteAddr { addr: at.addr + offset as u64, ..at }
    }

    /// The request number `n`.
    fn request(&self, n: usize, kind: Kind, queue: usize) -> SendWr {
        let word = (n as u64).to_ne_bytes();
        let result = || Data::sge(self.local.1.sge(n as u64 % SLOTS * 8, 8));
        let (op, data) = match kind {
            Kind::Send => (SendOp::Send, Data::inline(&word)),
            Kind::SendWithImm => (SendOp::SendWithImm(n as u32), Data::inline(&word)),
            Kind::WriteWithImm => {
                let to = self.remote(WORDS + n * 8 % WORDS);
                (SendOp::WriteWithImm(to, n as u32), Data::inline(&word))
            }
            Kind::FetchAdd => (SendOp::FetchAdd { remote: self.remote(COUNTER), add: 1 }, result()),
            Kind::Read => (SendOp::Read(self.remote(COUNTER)), result()),
        };
        SendWr::new(n as u64, op, data).to_srq(self.queues[queue].number)
    }

    fn post(&mut self, kind: Kind, queue: usize, signaled: bool) {
        let n = self.posted.len();
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        self.sender.post_send(self.request(n, kind, queue).with_flags(flags)).expect("the queue has room");
        self.posted.push(Posted { kind, queue, signaled, outcome: None, received: false });
    }

    /// Posts receives to a queue until it is full.
    fn post_receives(&mut self, queue: usize, at_most: usize) {
        let queue = &mut self.queues[queue];
        for _ in 0..at_most.min(DEPTH as usize - queue.receives.len()) {
            let sge = self.mr.sge(self.receives % SLOTS * RECEIVE as u64, RECEIVE as u32);
            queue.receives.post_recv(&[RecvWr::new(self.receives, sge)]).expect("the queue has room");
            queue.posted.push_back(self.receives);
            self.receives += 1;
        }
    }

    fn poll(&mut self, times: usize) {
        for _ in 0..times {
            let mut out = Vec::new();
            self.sender.poll(&mut out);
            for completion in out.drain(..) {
                let posted = &mut self.posted[completion.wr_id as usize];
                assert_eq!(posted.outcome, None, "seed {}: one completion for a request", self.seed);
                assert!(posted.signaled || !completion.is_success(), "seed {}", self.seed);
                posted.outcome = Some(completion.outcome);
            }
            self.receiver.poll(&mut out);
            for completion in &out {
                self.on_receive(completion);
            }
            self.testbed.world.run_for(Duration::from_micros(25));
        }
    }

    /// Checks a receive: the message arrives for the first time, behind those before it, in the oldest receive of its queue, as it was
    /// posted.
    fn on_receive(&mut self, c: &Completion) {
        let seed = self.seed;
        let queue = self.queues.iter_mut().find(|queue| Some(queue.number) == c.srq).expect("names a queue");
        assert_eq!(queue.posted.pop_front(), Some(c.wr_id), "seed {seed}: the oldest receive");
        assert_eq!(c.outcome, Outcome::Success, "seed {seed}");
        let word = || self.memory.load((c.wr_id % SLOTS) as usize * RECEIVE) as usize;
        let (n, kind) = match (c.opcode, c.imm) {
            (WcOpcode::Recv, None) => (word(), Kind::Send),
            (WcOpcode::Recv, Some(imm)) => {
                assert_eq!(word(), imm as usize, "seed {seed}");
                (imm as usize, Kind::SendWithImm)
            }
            (_, imm) => (imm.expect("a WRITE that takes a receive has one") as usize, Kind::WriteWithImm),
        };
        let posted = &mut self.posted[n];
        assert_eq!((posted.kind, NUMBERS[posted.queue]), (kind, queue.number.value()), "seed {seed}: {n}");
        assert_eq!(c.byte_len, 8, "seed {seed}");
        assert!(n >= self.after_last, "seed {seed}: {n} after {}", self.after_last);
        if kind == Kind::WriteWithImm {
            assert_eq!(
                self.memory.load(WORDS + n * 8 % WORDS),
                n as u64,
                "seed {seed}: WRITE before receive"
            );
        }
        self.after_last = n + 1;
        posted.received = true;
    }

    /// Checks that every request has ended as `may_end` allows, and that what ended in success was executed once.
    fn check(&self, may_end: impl Fn(Kind, Outcome) -> bool) {
        let seed = self.seed;
        let mut added = 0;
        for (n, posted) in self.posted.iter().enumerate() {
            let Posted { kind, outcome, received, .. } = *posted;
            let outcome = outcome.unwrap_or(Outcome::Success); // unsignalled
            assert!(may_end(kind, outcome), "seed {seed}: {n}: {posted:?}\n{}", reproduce_command(seed));
            let executed = match outcome {
                Outcome::Success => Some(true),
                Outcome::Unresolved(UnresolvedError::ValueLost | UnresolvedError::ExecutedBehindError) => {
                    Some(true)
                }
                Outcome::Failed(WcStatus::Flushed) => Some(false),
                _ => None,
            };
            match kind {
                Kind::FetchAdd => {
                    added += u64::from(executed != Some(false));
                    if outcome == Outcome::Success && n + SLOTS as usize > self.posted.len() {
                        assert!(self.local.0.load(n % SLOTS as usize * 8) < added, "seed {seed}: {n}");
                    }
                }
                Kind::Read => {}
                _ if executed.is_some() => {
                    assert_eq!(Some(received), executed, "seed {seed}: {n}: {posted:?}")
                }
                _ => {}
            }
        }
        let unknown = (self.posted.iter())
            .filter(|p| {
                p.kind == Kind::FetchAdd
                    && p.outcome == Some(Outcome::Unresolved(UnresolvedError::Indeterminate))
            })
            .count() as u64;
        let counter = self.memory.load(COUNTER);
        assert!((added - unknown..=added).contains(&counter), "seed {seed}: {counter} of {added}");
    }

    /// Goes on after an error, when its completions were taken.
    fn resume(&mut self) {
        if self.sender.is_halted() && !self.sender.has_completions() {
            self.sender.resume();
        }
    }

    fn all_succeed(&self) {
        self.check(|_, outcome| outcome == Outcome::Success);
    }
}

/// Each message takes one receive of its queue, whatever fails and whenever it fails, and however few receives there are.
#[test]
fn every_message_takes_one_receive_of_its_queue_across_failovers() {
    const MESSAGES: usize = 100; // more than the receiver has slots
    let failures = [
        (0, None),                   // the link of the sender's NIC
        (1, None),                   // the link of the receiver's NIC
        (0, Some(Failure::NicDead)), // the sender's NIC
        (1, Some(Failure::NicDead)), // the receiver's NIC
    ];
    for (host, failure) in failures {
        for at in [0, 1, 2, 3, 5, 8, 13, 21] {
            for per_poll in [1, 5] {
                let mut scene =
                    Scene::fault_free(2, Config { write_policy: WritePolicy::Repeatable, ..config() });
                scene.poll(10);
                for round in 0..600 {
                    while scene.posted.len() < MESSAGES && scene.sender.outstanding() < SENDS as usize {
                        let n = scene.posted.len();
                        scene.post(KINDS[n % 3], n * 7 / 3 % 3, n % 4 != 1);
                    }
                    if round == at {
                        let nic = scene.testbed.nics[host][0].id();
                        match failure {
                            None => scene.testbed.world.set_link(nic, false),
                            Some(failure) => scene.testbed.world.fail(nic, failure),
                        }
                    }
                    scene.post_receives(round % 3, per_poll);
                    scene.poll(1);
                }
                scene.poll(200);
                assert_eq!([scene.sender.active_rail(), scene.receiver.active_rail()], [1, 1]);
                assert_eq!((scene.posted.len(), scene.sender.outstanding()), (MESSAGES, 0));
                scene.all_succeed();
                assert_eq!(scene.after_last, MESSAGES);
            }
        }
    }
}

/// Links fail and heal in turn, also during a recovery, and a NIC may die. After an error, the sender goes on.
#[test]
fn messages_arrive_once_and_in_order_in_random_faults() {
    let (mut moves, mut unresolved) = (0, 0);
    for seed in seeds(200) {
        let rng = &mut Prng::stream(seed, "xrc faults");
        let mut world = mitra_sim::Config::swarm(seed);
        world.link.survivor_ppm = *rng.pick(&[0, 500_000, 1_000_000]);
        let config = Config {
            completion_log: rng.below(2) == 0,
            write_policy: *rng.pick(&[WritePolicy::Strict, WritePolicy::Repeatable]),
            ..config()
        };
        let kills = rng.below(2);
        let mut scene = Scene::new(seed, 3, world, config);
        scene.poll(10);
        let mut down = None;
        let mut is_dead = false;
        for round in 0..80 {
            for _ in 0..scene.rng.below(8) {
                if scene.sender.is_halted() {
                    break;
                }
                if scene.sender.outstanding() < SENDS as usize {
                    let (kind, queue) = (*scene.rng.pick(&KINDS), scene.rng.index(3));
                    let signaled = scene.rng.below(3) > 0;
                    scene.post(kind, queue, signaled);
                }
            }
            for queue in 0..3 {
                let n = scene.rng.index(6);
                scene.post_receives(queue, n);
            }
            if rng.below(6) == 0 {
                if let Some(nic) = down.take() {
                    scene.testbed.world.set_link(nic, true);
                } else {
                    let nic = scene.testbed.nics[rng.index(2)][scene.sender.active_rail()].id();
                    scene.testbed.world.set_link(nic, false);
                    down = Some(nic);
                }
            }
            if round > 20 && !is_dead && rng.below(10) < kills {
                let nic = scene.testbed.nics[rng.index(2)][scene.sender.active_rail()].id();
                scene.testbed.world.fail(nic, Failure::NicDead);
                is_dead = true;
            }
            scene.poll(1 + scene.seed as usize % 7 * 3);
            scene.resume();
        }
        if let Some(nic) = down {
            scene.testbed.world.set_link(nic, true);
        }
        for round in 0..1200 {
            if round == 1000 {
                scene.post(Kind::Send, 0, true); // its completion ends the unsignalled requests before it
            }
            (0..3).for_each(|queue| scene.post_receives(queue, 16));
            scene.poll(1);
            scene.resume();
        }
        moves += usize::from(scene.sender.last_failover().is_some());
        let is_open = scene.sender.close_reason().is_none() && scene.receiver.close_reason().is_none();
        assert!(is_open, "seed {seed}: {:?}\n{}", scene.sender.close_reason(), reproduce_command(seed));
        assert_eq!(scene.sender.outstanding(), 0, "seed {seed}\n{}", reproduce_command(seed));
        scene.check(|kind, outcome| match outcome {
            Outcome::Success => true,
            // The responder's NIC is lost: `docs/failover.md`, the table of promises. A SEND may be behind such an operation.
            Outcome::Unresolved(UnresolvedError::Indeterminate | UnresolvedError::ValueLost) => {
                is_dead && !matches!(kind, Kind::Send | Kind::SendWithImm)
            }
            _ => scene.posted.iter().any(|p| matches!(p.outcome, Some(Outcome::Unresolved(_)))),
        });
        unresolved +=
            usize::from(scene.posted.iter().any(|p| matches!(p.outcome, Some(Outcome::Unresolved(_)))));
    }
    assert!(
        moves > 100 && unresolved > 5,
        "{moves} failovers, {unresolved} seeds with unresolved operations"
    );
}

/// What was acknowledged before its queue was removed, or names a queue that never was there, closes the connection with the event of a NIC.
#[test]
fn message_without_a_queue_closes_the_connection() {
    for removes in [false, true] {
        let mut scene = Scene::fault_free(2, config());
        (0..3).for_each(|queue| scene.post_receives(queue, 2));
        scene.poll(10);
        scene.post(Kind::Send, 0, true);
        if removes {
            scene.xrc.remove(scene.queues[1].number);
        } else {
            scene.queues[1].number = Srqn::new(99);
        }
        scene.post(Kind::SendWithImm, 1, true);
        scene.post(Kind::Send, 2, true);
        scene.poll(100);
        assert_eq!(scene.receiver.close_reason(), Some(CloseReason::RequestError));
        let event = Some(AsyncEvent::QpAccessError(scene.receiver.qpn()));
        assert_eq!((scene.receiver.qp_error_event(), scene.receiver.waiting_messages()), (event, 0));
        assert_eq!(scene.sender.close_reason(), Some(CloseReason::PeerClosed));
        assert_eq!(scene.posted.iter().filter(|posted| posted.received).count(), 1);
    }
}

/// The queue of the first message has no receive, so the messages behind it wait, whatever their queues have.
#[test]
fn messages_wait_in_order_and_survive_the_end_of_the_connection() {
    for closes in [false, true] {
        let mut scene = Scene::fault_free(2, config());
        scene.post_receives(1, 4);
        scene.poll(10);
        for (kind, queue) in [(Kind::SendWithImm, 0), (Kind::Send, 1), (Kind::WriteWithImm, 1)] {
            scene.post(kind, queue, true);
        }
        scene.poll(20);
        scene.all_sent(3);
        assert_eq!((scene.after_last, scene.receiver.waiting_messages()), (0, 3));
        assert!(!scene.receiver.has_completions());
        if closes {
            scene.receiver.shutdown();
        }
        scene.post_receives(0, 1);
        assert!(scene.receiver.has_completions());
        scene.poll(1);
        assert_eq!((scene.after_last, scene.receiver.waiting_messages()), (3, 0));
        assert_eq!(scene.queues[1].receives.len(), 2);
    }
}

impl Scene {
    fn all_sent(&self, n: usize) {
        assert_eq!(self.posted.len(), n);
        assert!(self.posted.iter().all(|posted| posted.outcome == Some(Outcome::Success)));
    }
}

/// A request that needs a header takes one place of the configured depth. A list that does not fit is not posted.
#[test]
fn send_queue_has_the_configured_depth() {
    for kind in [Kind::Send, Kind::SendWithImm] {
        let mut scene = Scene::fault_free(2, config());
        scene.poll(10);
        let request = |scene: &Scene, n| scene.request(n, kind, 0);
        let too_many: Vec<_> = (0..=SENDS as usize).map(|n| request(&scene, n)).collect();
        let refused = scene.sender.post_send_all(too_many).expect_err("the list has one request too many");
        assert_eq!(refused.index, SENDS as usize);
        assert!(matches!(refused.error, Error::QueueFull { depth: SENDS, .. }), "{refused:?}");
        assert_eq!(scene.sender.outstanding(), 0);
        (0..SENDS).for_each(|n| scene.post(kind, n as usize % 3, n % 2 == 0));
        assert_eq!(scene.sender.outstanding(), SENDS as usize);
        let full = scene.sender.post_send(request(&scene, 99));
        assert!(matches!(full, Err(Error::QueueFull { depth: SENDS, .. })), "{full:?}");
        (0..3).for_each(|queue| scene.post_receives(queue, 16));
        scene.poll(100);
        scene.post(kind, 0, true); // a completion ends the unsignalled requests before it
        scene.poll(20);
        assert_eq!((scene.after_last, scene.sender.outstanding()), (SENDS as usize + 1, 0));
        scene.all_succeed();
    }
}

#[test]
fn ends_that_do_not_fit_are_refused() {
    let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let [a, b] = domains(&testbed);
    let xrc = XrcDomain::new();
    let build = |domain| VirtualQp::builder(domain).config(config());
    for policy in [Policy::Transparent, Policy::Blanket] {
        let refused = build(&a).service(Service::XrcSend).policy(policy).build().map(drop);
        assert_eq!(refused, Err(BuildError::Xrc));
    }
    let queue = SharedReceiveQueue::new(&b, 4);
    let refused = [
        build(&b).service(Service::XrcReceive),
        build(&b).xrc_domain(&xrc).service(Service::Reliable),
        build(&b).service(Service::XrcSend).shared_receive_queue(&queue),
    ];
    for builder in refused {
        assert_eq!(builder.build().map(drop), Err(BuildError::Xrc));
    }
    let built = "the NICs have the resources of a vQP";
    let mut sender = build(&a).service(Service::XrcSend).build().expect(built);
    let mut receiver = build(&b).xrc_domain(&xrc).build().expect(built);
    let reliable = build(&b).build().expect(built);
    for other in [&reliable, &build(&b).service(Service::XrcSend).build().expect(built)] {
        assert!(sender.connect(&other.local_info().expect("not closed")).is_err());
    }
    sender.connect(&receiver.local_info().expect("not closed")).expect("the ends match");
    receiver.connect(&sender.local_info().expect("not closed")).expect("the ends match");
    let empty = SendWr::new(0, SendOp::Send, Data::empty());
    assert!(sender.post_send(empty.clone()).is_err(), "names no queue");
    assert!(receiver.post_send(empty.to_srq(Srqn::new(1))).is_err(), "sends nothing");
    for vqp in [&mut sender, &mut receiver] {
        assert!(vqp.post_recv(RecvWr { wr_id: 0, sges: Default::default() }).is_err());
    }
    assert!(xrc.insert(Srqn::new(0), &queue).is_err());
    xrc.insert(Srqn::new(5), &queue).expect("the number is unused");
    assert!(xrc.insert(Srqn::new(5), &queue).is_err());
}
