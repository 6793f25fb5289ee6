//! Coordinators swap one lock word of a memory node over NICs whose atomics are atomic only with
//! atomics of the same NIC. One coordinator has lost a rail.

use core::cell::RefCell;
use core::time::Duration;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{Domain, Policy};
use mitra_sim::workload::shared_word::{config, domain};
use mitra_sim::{AppContext, Config, DurationRange, World};
use mitra_txn::{NodeId, Op, Outcome, Request};
use mitra_txn_rdma::{Answer, Ask, Channels, Hello, Link, Node, NodeConfig, QpKind, VERSION};
use mitra_verbs::AtomicScope;

const COORDINATORS: u16 = 3;
const RAILS: u8 = 2;
/// The number of successful swaps of each coordinator.
const SWAPS: u64 = 200;
const WORD: u64 = 0;

/// A coordinator that counts in the word: it replaces the last number that it has seen there by the
/// next number.
struct Coordinator {
    channels: Channels,
    seen: u64,
    succeeded: u64,
    undecided: u64,
}

impl Coordinator {
    fn connect(
        node: &mut Node,
        number: u16,
        domain: &Arc<Domain>,
        failover: mitra_failover::Config,
    ) -> Coordinator {
        let repeatable: Arc<[_]> = Arc::new([]);
        let mut link =
            Link::new(domain, QpKind::Virtual, &failover, 4096, &repeatable).expect("the NICs are new");
        let ask = Ask::Connect { incarnation: 1, info: link.info().expect("the NICs are new") };
        let (version, token) = (VERSION, [number as u8; 16]);
        let hello = Hello { version, token, fingerprint: 0, node: 0, coordinator: number, ask };
        let Ok(Answer::Connected { info, region }) = node.answer(&hello) else { panic!("the node refuses") };
        assert_eq!(link.connect(&info, &region), Ok(true));
        let mut channels = Channels::new(1);
        channels.add(NodeId(0), link);
        let mut coordinator = Coordinator { channels, seen: 0, succeeded: 0, undecided: 0 };
        coordinator.swap();
        coordinator
    }

    fn is_done(&self) -> bool {
        self.succeeded + self.undecided >= SWAPS
    }

    fn swap(&mut self) {
        let op = Op::CompareSwap { compare: self.seen, swap: self.seen + 1 };
        self.channels
            .post(0, vec![Request { node: NodeId(0), at: WORD, op }])
            .expect("the word is in the memory");
    }

    fn step(&mut self) {
        let mut done = Vec::new();
        self.channels.poll(&mut done).expect("the node is reached over a rail");
        for (_, outcomes) in done {
            match &outcomes[..] {
                [Outcome::Executed(word)] => {
                    let found = u64::from_le_bytes(word[..].try_into().expect("a word"));
                    self.succeeded += u64::from(found == self.seen);
                    self.seen = if found == self.seen { found + 1 } else { found };
                }
                [Outcome::NotExecuted] => {}
                _ => self.undecided += 1,
            }
            if !self.is_done() {
                self.swap();
            }
        }
    }
}

/// Returns the word at the end, the number of swaps that succeeded, and the number of swaps with an
/// unknown outcome.
fn run(seed: u64, policy: Policy) -> (u64, u64, u64) {
    let mut world = Config::fault_free();
    world.memory.atomic_delay = DurationRange::nanos(100, 3_000);
    let capabilities = &mut world.capabilities;
    (capabilities.reset, capabilities.ack_after_placement, capabilities.write_order) = (true, true, true);
    capabilities.atomic_scope = AtomicScope::Nic;
    let mut world = World::with_config(seed, world);
    let failover = mitra_failover::Config { policy, ..config() };
    let hosts: Vec<_> = (0..=COORDINATORS)
        .map(|number| {
            let host = world.add_host(&format!("h{number}"));
            (host, (0..RAILS).map(|rail| world.add_nic(host, rail)).collect::<Vec<_>>())
        })
        .collect();
    let node = NodeConfig {
        node: NodeId(0),
        bytes: 64,
        fingerprint: 0,
        tokens: (1..=COORDINATORS).map(|number| [number as u8; 16]).collect(),
        kind: QpKind::Virtual,
        failover,
    };
    let mut node = Node::new(domain(&hosts[0].1), node).expect("the NICs keep what transactions rely on");
    let memory = Arc::clone(node.memory());
    world.set_link(hosts[1].1[0].id(), false);
    let mut coordinators = Vec::new();
    for (number, (host, nics)) in (1..).zip(&hosts[1..]) {
        let coordinator = Coordinator::connect(&mut node, number, &domain(nics), failover);
        let coordinator = Rc::new(RefCell::new(coordinator));
        coordinators.push(Rc::clone(&coordinator));
        world.add_app(*host, move |_: &mut AppContext<'_>| coordinator.borrow_mut().step());
    }
    world.add_app(hosts[0].0, move |_: &mut AppContext<'_>| node.poll());
    let all = coordinators.clone();
    let is_done = move |_: &World| all.iter().all(|coordinator| coordinator.borrow().is_done());
    world.run_until(is_done, Duration::from_secs(10)).expect("all coordinators go on");
    let sum = |count: fn(&Coordinator) -> u64| coordinators.iter().map(|it| count(&it.borrow())).sum();
    (memory.load(WORD as usize), sum(|it| it.succeeded), sum(|it| it.undecided))
}

#[test]
fn swaps_of_coordinators_on_different_rails_exclude_each_other() {
    for seed in 0..100 {
        let (word, succeeded, undecided) = run(seed, Policy::Exact);
        assert!(
            (succeeded..=succeeded + undecided).contains(&word),
            "seed {seed}: {word}, {succeeded}, {undecided}"
        );
    }
}

/// With a policy whose queue pairs share no home rail, two coordinators take the same number.
#[test]
fn swaps_over_two_nics_are_lost_without_a_home_rail() {
    let losing = (0..20).filter(|&seed| {
        let (word, succeeded, _) = run(seed, Policy::Blanket);
        word < succeeded
    });
    assert!(losing.count() > 0);
}
