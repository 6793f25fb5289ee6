//! vQPs with wakers. A vQP is polled only when its waker was called or its time has come. Idle vQPs
//! are then not polled, and nothing that happens to a vQP is missed.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use mitra_failover::{Completion, Config, Domain, Secret, SharedReceiveQueue, VirtualMr, VirtualQp};
use mitra_sim::{Failure, Testbed};
use mitra_verbs::{Buffer, Data, Provider, RecvWr, SendOp, SendWr, Time, WcOpcode};

use crate::vqp_pair::{FULL_ACCESS, MEMORY_BYTES, assert_liveness, config};

const PAIRS: usize = 100;
/// A round takes 25 µs.
const ROUNDS_PER_QUERY: usize = 40;

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Member {
    vqp: VirtualQp,
    woken: Arc<Flag>,
    /// The result of [`VirtualQp::next_poll`] after the last call of the vQP.
    due: Option<Time>,
    polls: usize,
    completions: Vec<Completion>,
}

impl Member {
    /// Makes a call of the vQP that returns no completions.
    fn call<T>(&mut self, call: impl FnOnce(&mut VirtualQp) -> T) -> T {
        let result = call(&mut self.vqp);
        self.due = self.vqp.next_poll();
        result
    }

    fn poll(&mut self) {
        self.polls += 1;
        self.vqp.poll(&mut self.completions);
        self.due = self.vqp.next_poll();
    }

    fn successes(&self, opcode: WcOpcode) -> Vec<u64> {
        let found = self.completions.iter().filter(|c| c.opcode == opcode && c.is_success());
        found.map(|c| c.wr_id).collect()
    }
}

/// Two ends with one domain each, and connected pairs of vQPs over two rails.
struct Group {
    testbed: Testbed,
    domains: [Arc<Domain>; 2],
    mr: [VirtualMr; 2],
    /// By end, then by pair.
    members: [Vec<Member>; 2],
    rounds: usize,
    /// The queue from which the second end takes receives. `None` if each vQP has its own.
    queue: Option<Arc<SharedReceiveQueue>>,
}

impl Group {
    fn new(config: Config) -> Group {
        Group::with_receives(config, |_| None)
    }

    fn with_shared_receives() -> Group {
        Group::with_receives(config(), |domain| Some(SharedReceiveQueue::new(domain, 2 * PAIRS as u32)))
    }

    fn with_receives(
        config: Config,
        queue: impl FnOnce(&Arc<Domain>) -> Option<Arc<SharedReceiveQueue>>,
    ) -> Group {
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
        let domains = [0, 1].map(|h: usize| {
            let nics = testbed.nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>);
            Domain::new(nics.collect()).expect("the NICs have the resources of a domain")
        });
        let memory = [0, 1].map(|_| Arc::new(Buffer::new(MEMORY_BYTES)));
        let mr = [0, 1].map(|h: usize| {
            domains[h].register(&memory[h], FULL_ACCESS).expect("the NICs have a free region")
        });
        let queue = queue(&domains[1]);
        let mut members = [Vec::new(), Vec::new()];
        for pair in 0..PAIRS as u64 {
            let mut ends = [0, 1].map(|h: usize| {
                let woken = Arc::<Flag>::default();
                let secret = Secret::fixed([2 * pair + h as u64 + 1, pair << 8 | h as u64]);
                let mut builder = VirtualQp::builder(&domains[h]).config(config).secret(secret);
                if let Some(queue) = queue.as_ref().filter(|_| h == 1) {
                    builder = builder.shared_receive_queue(queue);
                }
                let vqp = builder.waker(Arc::clone(&woken).into()).build();
                let vqp = vqp.expect("the NICs have the resources of a vQP");
                Member { vqp, woken, due: Some(Time::ZERO), polls: 0, completions: Vec::new() }
            });
            let infos = ends.each_ref().map(|end| end.vqp.local_info());
            for (h, end) in ends.iter_mut().enumerate() {
                end.vqp.connect(&infos[1 - h]).expect("the ends match");
                end.vqp.import(&mr[1 - h].remote()).expect("the vQP is connected");
            }
            members.iter_mut().zip(ends).for_each(|(members, end)| members.push(end));
        }
        Group { testbed, domains, mr, members, rounds: 0, queue }
    }

    /// Polls each domain, and the vQPs that have something to do.
    fn round(&mut self) {
        let queries = self.rounds.is_multiple_of(ROUNDS_PER_QUERY);
        for (domain, members) in self.domains.iter().zip(&mut self.members) {
            let now = if queries { domain.poll_and_query() } else { domain.poll() };
            for member in members {
                let is_due = member.due.is_some_and(|at| at <= now);
                if member.woken.0.swap(false, Ordering::Relaxed) || is_due {
                    member.poll();
                }
            }
        }
        self.testbed.world.run_for(Duration::from_micros(25));
        self.rounds += 1;
    }

    fn rounds(&mut self, n: usize) {
        (0..n).for_each(|_| self.round());
    }

    fn polls(&self) -> Vec<usize> {
        self.members.iter().flatten().map(|member| member.polls).collect()
    }

    fn post_recv(&mut self, pair: usize, wr_id: u64) {
        let sge = self.mr[1].sge(8 * pair as u64, 8);
        let wr = RecvWr::new(wr_id, sge);
        self.members[1][pair].call(|vqp| vqp.post_recv(wr)).expect("the queue has room");
    }

    fn post_shared_recv(&self, wr_id: u64, bytes: usize) {
        let wr = RecvWr::new(wr_id, self.mr[1].sge(0, bytes as u32));
        self.queue.as_ref().expect("the receives are shared").post_recv(&[wr]).expect("the queue has room");
    }

    /// The `wr_id`s of the receives that have completed, by pair.
    fn received(&self) -> Vec<(usize, u64)> {
        let members = self.members[1].iter().enumerate();
        members
            .flat_map(|(pair, end)| end.successes(WcOpcode::Recv).into_iter().map(move |id| (pair, id)))
            .collect()
    }

    fn send(&mut self, pair: usize, wr_id: u64) {
        let wr = SendWr::new(wr_id, SendOp::Send, Data::inline(&wr_id.to_ne_bytes()));
        self.members[0][pair].call(|vqp| vqp.post_send(wr)).expect("the queue has room");
    }

    /// Sends one message on each pair, and asserts that each arrives once.
    fn exchange(&mut self, wr_id: u64, rounds: usize) {
        for pair in 0..PAIRS {
            self.post_recv(pair, wr_id);
            self.send(pair, wr_id);
        }
        self.rounds(rounds);
        self.assert_exchanged(wr_id);
    }

    fn assert_exchanged(&self, wr_id: u64) {
        let ends = [(0, WcOpcode::Send), (1, WcOpcode::Recv)];
        for (pair, (h, opcode)) in (0..PAIRS).flat_map(|pair| ends.map(|end| (pair, end))) {
            let found = self.members[h][pair].successes(opcode);
            assert_eq!(found.iter().filter(|&&id| id == wr_id).count(), 1, "pair {pair}, {opcode}");
        }
    }

    fn active_rails(&self) -> Vec<usize> {
        self.members.iter().flatten().map(|member| member.vqp.active_rail()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for (a, b) in self.members[0].iter().zip(&self.members[1]) {
            assert_liveness(&self.testbed, [&a.vqp, &b.vqp]);
        }
    }
}

fn with_heartbeats() -> Config {
    let mut config = config();
    config.detector.max_missed_heartbeats = 5;
    config
}

#[test]
fn idle_members_are_not_polled() {
    let mut group = Group::new(config());
    group.rounds(200);
    let before = group.polls();
    group.rounds(1000);
    assert_eq!(group.polls(), before);
}

#[test]
fn message_between_two_of_many_members_costs_the_others_no_poll() {
    let mut group = Group::new(config());
    group.rounds(200);
    let before = group.polls();
    for wr_id in 0..10 {
        group.post_recv(17, wr_id);
        group.send(17, wr_id);
        group.rounds(20);
    }
    assert_eq!(group.members[0][17].successes(WcOpcode::Send), (0..10).collect::<Vec<_>>());
    assert_eq!(group.members[1][17].successes(WcOpcode::Recv), (0..10).collect::<Vec<_>>());
    let polled: Vec<_> = (0..2 * PAIRS).filter(|&at| group.polls()[at] > before[at]).collect();
    assert_eq!(polled, [17, PAIRS + 17]);
}

#[test]
fn idle_member_is_polled_for_heartbeats_only() {
    let mut group = Group::new(with_heartbeats());
    let interval = group.members[0][0].vqp.config().detector.heartbeat_interval;
    group.rounds(200);
    let before = group.polls();
    let intervals = 10;
    let rounds = interval.as_micros() as usize / 25 * intervals;
    group.rounds(rounds);
    let most = group.polls().iter().zip(&before).map(|(after, before)| after - before).max();
    assert!(most.is_some_and(|most| most <= 2 * intervals), "{most:?} polls in {rounds} rounds");
}

#[test]
fn all_members_leave_a_failed_link() {
    let mut group = Group::new(config());
    group.exchange(1, 200);
    for h in 0..2 {
        let rail = h;
        let nic = group.testbed.nics[h][rail].id();
        group.testbed.world.set_link(nic, false);
        group.rounds(2000);
        assert_eq!(group.active_rails(), [1 - rail; 2 * PAIRS]);
        group.exchange(h as u64 + 2, 200);
        group.testbed.world.set_link(nic, true);
        group.rounds(2000);
    }
}

/// No event reports these failures.
#[test]
fn all_members_leave_a_nic_that_fails() {
    for failure in [Failure::NicDead, Failure::NicHung] {
        let mut group = Group::new(config());
        group.exchange(1, 200);
        let nic = group.testbed.nics[1][0].id();
        group.testbed.world.fail(nic, failure);
        group.rounds(4000);
        assert_eq!(group.active_rails(), [1; 2 * PAIRS], "{failure:?}");
        group.exchange(2, 200);
    }
}

#[test]
fn operations_in_flight_at_a_failure_complete_once() {
    let mut group = Group::new(config());
    group.rounds(200);
    let nic = group.testbed.nics[0][0].id();
    for pair in 0..PAIRS {
        group.post_recv(pair, 1);
        group.send(pair, 1);
        if pair == PAIRS / 2 {
            group.testbed.world.run_for(Duration::from_micros(3));
        }
    }
    group.testbed.world.set_link(nic, false);
    group.rounds(4000);
    group.assert_exchanged(1);
    assert_eq!(group.active_rails(), [1; 2 * PAIRS]);
}

/// The rail is up at both ends but carries nothing, which only the missing heartbeats show.
#[test]
fn all_idle_members_leave_a_silent_path() {
    let mut config = with_heartbeats();
    config.detector.heartbeat_interval = Duration::from_millis(1);
    let mut group = Group::new(config);
    group.exchange(1, 4000);
    let mut cut = group.testbed.world.config().link;
    cut.max_packet_bytes = 0;
    group.testbed.world.set_rail_link(0, cut);
    group.rounds(40_000);
    assert_eq!(group.active_rails(), [1; 2 * PAIRS]);
    group.exchange(2, 200);
}

/// The first Closed message is lost with the links. Later, the closed end answers its peer's
/// heartbeats.
#[test]
fn closed_member_answers_heartbeats() {
    let mut group = Group::new(with_heartbeats());
    group.exchange(1, 4000);
    let nics = group.testbed.nics[0].iter().map(|nic| nic.id()).collect::<Vec<_>>();
    nics.iter().for_each(|&nic| group.testbed.world.set_link(nic, false));
    group.members[0][17].vqp.shutdown();
    nics.iter().for_each(|&nic| group.testbed.world.set_link(nic, true));
    group.rounds(4000);
    for (pair, member) in group.members[1].iter().enumerate() {
        assert_eq!(member.vqp.close_reason().is_some(), pair == 17, "pair {pair}");
    }
}

/// Only the vQPs whose messages wait are polled.
#[test]
fn shared_receive_wakes_the_members_with_waiting_messages() {
    let mut group = Group::with_shared_receives();
    group.rounds(200);
    group.post_shared_recv(0, 8);
    group.rounds(200);
    for (pair, wr_id) in [(17, 0), (17, 1), (30, 0)] {
        group.send(pair, wr_id);
        group.rounds(20);
    }
    assert_eq!(group.received(), [(17, 0)]);
    let before = group.polls();
    group.post_shared_recv(1, 8);
    group.rounds(20);
    // The first of the two to be polled takes the receive, and the other goes on waiting.
    assert_eq!(group.received(), [(17, 0), (17, 1)]);
    group.post_shared_recv(2, 8);
    group.rounds(20);
    assert_eq!(group.received(), [(17, 0), (17, 1), (30, 2)]);
    let polled: Vec<_> = (0..2 * PAIRS).filter(|&at| group.polls()[at] > before[at]).collect();
    assert_eq!(polled, [PAIRS + 17, PAIRS + 30]);
}

#[test]
fn first_shared_receive_wakes_all_members() {
    let mut group = Group::with_shared_receives();
    group.rounds(200);
    let before = group.polls();
    group.rounds(100);
    assert_eq!(group.polls(), before);
    (0..PAIRS as u64).for_each(|wr_id| group.post_shared_recv(wr_id, 8));
    group.rounds(20);
    (0..PAIRS).for_each(|pair| group.send(pair, 7));
    group.rounds(200);
    let mut received = group.received();
    assert_eq!(received.iter().map(|&(pair, _)| pair).collect::<Vec<_>>(), (0..PAIRS).collect::<Vec<_>>());
    received.sort_unstable_by_key(|&(_, wr_id)| wr_id);
    assert_eq!(received.iter().map(|&(_, id)| id).collect::<Vec<_>>(), (0..PAIRS as u64).collect::<Vec<_>>());
}

/// A vQP lengthens its slots by a move.
#[test]
fn longest_shared_receive_wakes_all_members() {
    let mut group = Group::with_shared_receives();
    group.post_shared_recv(0, 8);
    group.rounds(200);
    assert_eq!(group.active_rails(), [0; 2 * PAIRS]);
    group.post_shared_recv(1, MEMORY_BYTES);
    group.rounds(2000);
    assert_eq!(group.active_rails(), [1; 2 * PAIRS]);
}
