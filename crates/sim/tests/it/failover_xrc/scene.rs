//! A connection to an XRC domain, whose messages are checked.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use mitra_failover::{
    Completion, Config, Domain, Outcome, Secret, Service, SharedReceiveQueue, UnresolvedError, VirtualMr,
    VirtualQp, XrcDomain,
};
use mitra_sim::workload::check_liveness;
use mitra_sim::{Prng, Testbed, reproduce_command};
use mitra_verbs::{
    Access, Buffer, Data, Provider, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Srqn, WcOpcode, WcStatus,
};

/// The length of a receive in bytes.
pub const RECEIVE: usize = 64;
pub const DEPTH: u32 = 16;
pub const SENDS: u32 = 32;
pub const NUMBERS: [u32; 3] = [0xFF_FFFF, 7, 0x12_3456];

/// The parts of the memory at the receiving end: receives, the words that WRITEs with immediate
/// change, and a counter.
pub const WORDS: usize = 1 << 16;
pub const COUNTER: usize = 1 << 17;
pub const MEMORY: usize = COUNTER + 64;
/// The number of receives that fit.
pub const SLOTS: u64 = (WORDS / RECEIVE) as u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Send,
    SendWithImm,
    WriteWithImm,
    FetchAdd,
    Read,
}

impl Kind {
    pub fn takes_receive(self) -> bool {
        matches!(self, Kind::Send | Kind::SendWithImm | Kind::WriteWithImm)
    }
}

pub const KINDS: [Kind; 5] = [Kind::Send, Kind::SendWithImm, Kind::WriteWithImm, Kind::FetchAdd, Kind::Read];

/// A request. Request `n` has index `n`.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    pub kind: Kind,
    pub queue: usize,
    pub signaled: bool,
    pub outcome: Option<Outcome>,
    pub received: bool,
}

pub struct Queue {
    pub number: Srqn,
    pub receives: Arc<SharedReceiveQueue>,
    /// The `wr_id`s of the receives in the queue, oldest first.
    pub posted: VecDeque<u64>,
}

/// A connection to an XRC domain with three queues.
pub struct Scene {
    pub testbed: Testbed,
    pub sender: VirtualQp,
    pub receiver: VirtualQp,
    pub xrc: Arc<XrcDomain>,
    pub queues: Vec<Queue>,
    pub memory: Arc<Buffer>,
    pub mr: VirtualMr,
    pub local: (Arc<Buffer>, VirtualMr),
    pub posted: Vec<Posted>,
    pub receives: u64,
    /// The number of requests up to the last one that was received.
    pub after_last: usize,
    pub rng: Prng,
    pub seed: u64,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let checked = check_liveness(&self.testbed.world, self.testbed.hosts, [&self.sender, &self.receiver]);
        if let (Err(dead), false) = (checked, std::thread::panicking()) {
            panic!("{dead}\n{}", reproduce_command(self.seed));
        }
    }
}

pub fn config() -> Config {
    let mut config = Config { send_wrs: SENDS, ..Config::default() };
    config.detector.local_ack_timeout = mitra_verbs::LocalAckTimeout::from_code(9);
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 8;
    config.peer_timeout = Duration::from_millis(300);
    config
}

pub fn domains(testbed: &Testbed) -> [Arc<Domain>; 2] {
    [0, 1].map(|h| {
        let nics = testbed.nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        Domain::new(nics).expect("the NICs have the resources of a domain")
    })
}

impl Scene {
    pub fn new(seed: u64, rails: u8, world: mitra_sim::Config, config: Config) -> Scene {
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
        let infos = (sender.local_info(), receiver.local_info());
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

    pub fn fault_free(rails: u8, config: Config) -> Scene {
        Scene::new(1, rails, mitra_sim::Config::fault_free(), config)
    }

    pub fn remote(&self, offset: usize) -> RemoteAddr {
        let at = self.mr.remote().at(0);
        RemoteAddr { addr: at.addr + offset as u64, ..at }
    }

    pub fn request(&self, n: usize, kind: Kind, queue: usize) -> SendWr {
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

    pub fn post(&mut self, kind: Kind, queue: usize, signaled: bool) {
        let n = self.posted.len();
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        self.sender.post_send(self.request(n, kind, queue).with_flags(flags)).expect("the queue has room");
        self.posted.push(Posted { kind, queue, signaled, outcome: None, received: false });
    }

    /// Posts receives to a queue until it is full.
    pub fn post_receives(&mut self, queue: usize, at_most: usize) {
        let queue = &mut self.queues[queue];
        for _ in 0..at_most.min(DEPTH as usize - queue.receives.len()) {
            let sge = self.mr.sge(self.receives % SLOTS * RECEIVE as u64, RECEIVE as u32);
            queue.receives.post_recv(&[RecvWr::new(self.receives, sge)]).expect("the queue has room");
            queue.posted.push_back(self.receives);
            self.receives += 1;
        }
    }

    pub fn poll(&mut self, times: usize) {
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

    /// Checks that the message arrives for the first time, in order, in the oldest receive of its
    /// queue, with its content.
    pub fn on_receive(&mut self, c: &Completion) {
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

    /// Checks that every request has ended as `may_end` allows, and that every successful request
    /// was executed once.
    pub fn check(&self, may_end: impl Fn(Kind, Outcome) -> bool) {
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

    /// Continues after an error, when the completions up to the error were taken.
    pub fn resume(&mut self) {
        if self.sender.is_halted() && !self.sender.has_completions() {
            self.sender.resume();
        }
    }

    pub fn all_succeed(&self) {
        self.check(|_, outcome| outcome == Outcome::Success);
    }

    pub fn all_sent(&self, n: usize) {
        assert_eq!(self.posted.len(), n);
        assert!(self.posted.iter().all(|posted| posted.outcome == Some(Outcome::Success)));
    }
}
