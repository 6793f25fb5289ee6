//! A word that many clients increment by atomics, each over its own vQP. No two increments may find
//! the same value.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{Completion, Config, Domain, Outcome, Secret, VirtualMr, VirtualQp};
use mitra_verbs::{
    Access, Buffer, Data, LocalAckTimeout, Provider, RemoteAddr, SendOp, SendWr, Time, WcStatus,
};

use super::virtual_qps;
use crate::{AppContext, Prng, SimNic};

/// The maximum number of atomics that a client has in flight.
const DEPTH: u64 = 8;
/// The `peer_timeout` of the clients' vQPs.
pub const PEER_TIMEOUT: Duration = Duration::from_millis(400);

/// The configuration of the clients' vQPs, unless a world changes it.
pub fn config() -> Config {
    let mut config = Config { send_wrs: 16, recv_wrs: 4, peer_timeout: PEER_TIMEOUT, ..Config::default() };
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(9);
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 8;
    config
}

/// How often a program polls.
#[derive(Clone, Copy, Default, Debug)]
pub struct Pace {
    /// The time between two polls. 0 for a program that polls in each turn.
    pub interval: Duration,
    next: Time,
}

impl Pace {
    /// A program that polls at this interval.
    pub fn every(interval: Duration) -> Pace {
        Pace { interval, next: Time::ZERO }
    }

    /// Returns whether the program polls in this turn.
    pub fn is_due(&mut self, ctx: &mut AppContext<'_>) -> bool {
        let now = ctx.now();
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval;
        } else {
            ctx.sleep(self.next.saturating_since(now));
        }
        is_due
    }
}

/// A client that increments the word by FAA or by CAS.
#[derive(Debug)]
pub struct Client {
    /// The index of its host.
    pub host: usize,
    /// The vQP of the client.
    pub vqp: VirtualQp,
    results: Arc<Buffer>,
    mr: VirtualMr,
    word: RemoteAddr,
    by_cas: bool,
    /// The pace of the client's polls.
    pub pace: Pace,
    /// The longest pause that the client makes after a completion.
    pub longest_pause: Duration,
    /// The number of increments that the client makes.
    pub target: u64,
    posted: u64,
    in_flight: u64,
    /// The value that the next CAS expects.
    pub expected: u64,
    /// The values that the successful increments found.
    pub found: Vec<u64>,
    /// The number of atomics with an unknown outcome, plus the number of executed atomics whose
    /// value is lost.
    pub undecided: u64,
}

impl Client {
    /// Creates a client on the host with this index, which increments `word` over `vqp` of
    /// `domain`.
    pub fn new(
        host: usize,
        vqp: VirtualQp,
        domain: &Domain,
        word: RemoteAddr,
        by_cas: bool,
        target: u64,
    ) -> Client {
        let results = Arc::new(Buffer::new(8 * DEPTH as usize));
        let mr = domain.register(&results, Access::LOCAL_WRITE).expect("the NICs have room");
        Client {
            host,
            vqp,
            results,
            mr,
            word,
            by_cas,
            pace: Pace::default(),
            longest_pause: Duration::from_micros(60),
            target,
            posted: 0,
            in_flight: 0,
            expected: 0,
            found: Vec::new(),
            undecided: 0,
        }
    }

    /// Returns whether the client has made its increments, or its vQP has closed.
    pub fn is_done(&self) -> bool {
        self.in_flight == 0
            && (self.found.len() as u64 + self.undecided >= self.target || self.vqp.close_reason().is_some())
    }

    /// Polls, and posts atomics while there is room.
    ///
    /// # Panics
    /// If an atomic fails in a way that no failover excuses.
    pub fn step(&mut self, ctx: &mut AppContext<'_>) {
        if !self.pace.is_due(ctx) {
            return;
        }
        let mut completions = Vec::new();
        self.vqp.poll(&mut completions);
        let had_completions = !completions.is_empty();
        for completion in completions {
            self.complete(&completion);
        }
        let limit = if self.by_cas { 1 } else { 1 + ctx.rng().below(DEPTH) };
        // A post that finds a failed NIC halts the vQP.
        while self.vqp.close_reason().is_none()
            && !self.vqp.is_halted()
            && self.in_flight < limit
            && self.found.len() as u64 + self.undecided + self.in_flight < self.target
        {
            self.post();
        }
        if had_completions && ctx.rng().below(4) == 0 {
            let pause = ctx.rng().below(self.longest_pause.as_nanos() as u64);
            ctx.sleep(Duration::from_nanos(pause));
        }
    }

    fn post(&mut self) {
        let remote = self.word;
        let op = match self.by_cas {
            true => SendOp::CompareSwap { remote, compare: self.expected, swap: self.expected + 1 },
            false => SendOp::FetchAdd { remote, add: 1 },
        };
        let slot = self.posted % DEPTH * 8;
        self.vqp
            .post_send(SendWr::new(self.posted, op, Data::sge(self.mr.sge(slot, 8))))
            .expect("the queue has room");
        self.posted += 1;
        self.in_flight += 1;
    }

    fn complete(&mut self, completion: &Completion) {
        self.in_flight -= 1;
        let old = self.results.load((completion.wr_id % DEPTH * 8) as usize);
        match completion.outcome {
            Outcome::Success if self.by_cas && old != self.expected => self.expected = old,
            Outcome::Success => {
                self.found.push(old);
                self.expected = old + 1;
            }
            Outcome::Unresolved(_) => {
                self.undecided += 1;
                self.vqp.resume();
            }
            // The peer did not execute this atomic, because it was posted behind an undecided
            // atomic.
            Outcome::Failed(WcStatus::Flushed) => self.vqp.resume(),
            Outcome::Failed(status) => panic!("an atomic failed: {status}"),
        }
    }
}

/// Opens the domain of a host.
///
/// # Panics
/// If a NIC has no room.
pub fn domain(nics: &[Arc<SimNic>]) -> Arc<Domain> {
    Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())
        .expect("the NICs have room")
}

/// Creates a vQP.
///
/// # Panics
/// If a NIC has no room.
pub fn vqp(config: Config, domain: &Arc<Domain>, secret: u64) -> VirtualQp {
    let builder = VirtualQp::builder(domain).config(config).secret(Secret::fixed([secret, secret]));
    builder.build().expect("the NICs have room")
}

/// Connects two domains by a vQP. Its ends have the secrets `secret` and `secret + 1`.
///
/// # Panics
/// If a NIC has no room.
pub fn connect(config: Config, domains: [&Arc<Domain>; 2], secret: u64) -> [VirtualQp; 2] {
    let secrets = [secret, secret + 1].map(|secret| Secret::fixed([secret, secret]));
    virtual_qps(domains.map(Arc::clone), config, secrets).expect("the NICs have room, and the ends match")
}

/// Draws a duration in nanoseconds. Its upper bound is a random power of two, with an exponent in
/// `from..=to`.
pub fn time_below(rng: &mut Prng, from: u64, to: u64) -> Duration {
    let bits = rng.between(from, to);
    Duration::from_nanos(rng.below(1 << bits))
}
