//! Failures of rails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mitra_softnic::SoftNic;
use mitra_softnic::fault::{Failure, Stage, Trigger};
use mitra_txn::{NodeId, Outcome, Request};
use mitra_txn_rdma::{Links, QpKind};

use crate::common::{
    ServedNode, TIMEOUT, WRITTEN, connect, execute, executed, links_config, read, start_nodes, swap, write,
};

/// The number of records of each node. There are few, so the tickets of both coordinators contend.
const RECORDS: usize = 4;
/// A record: its lock, then its count in each of the other words.
const RECORD_BYTES: usize = 512;
const TICKETS: usize = 16;
/// The increments of each ticket.
const INCREMENTS: u64 = 25;

/// The step of a ticket, which locks a record, adds 1 to its count, and unlocks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// A swap takes the lock, and a READ behind it reads the record.
    Lock,
    /// Unknown whether the ticket holds the lock: a READ shows it.
    Look,
    /// The ticket holds the lock: a WRITE stores this count, and a swap behind it unlocks.
    Add(u64),
    /// Unknown whether the lock is free again: a READ shows it.
    LookAfter(u64),
}

struct Worker {
    step: Step,
    /// The lock word of the attempt, which no other attempt has.
    id: u64,
    increments: u64,
}

impl Worker {
    fn place(&self) -> (u16, u64) {
        let record = self.id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((record % 2) as u16, (record / 2 % RECORDS as u64) * RECORD_BYTES as u64)
    }

    fn requests(&self) -> Vec<Request> {
        let (node, at) = self.place();
        let look = read(node, at, RECORD_BYTES as u32);
        match self.step {
            Step::Lock => vec![swap(node, at, 0, self.id), look],
            Step::Look | Step::LookAfter(_) => vec![look],
            Step::Add(count) => {
                let content = count.to_le_bytes().repeat(RECORD_BYTES / 8 - 1);
                vec![write(node, at + 8, content), swap(node, at, self.id, 0)]
            }
        }
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) {
        let last = outcomes.last().expect("each step has a request");
        self.step = match self.step {
            Step::Lock => match (&outcomes[0], last) {
                (Outcome::Executed(old), Outcome::Executed(record)) if *old == [0; 8] => {
                    self.add_to(record).expect("the swap has taken the lock")
                }
                (Outcome::Executed(old), _) if *old != [0; 8] => {
                    assert_ne!(*old, self.id.to_le_bytes(), "the swap was executed twice");
                    self.next_attempt()
                }
                _ => Step::Look,
            },
            Step::Look => match last {
                Outcome::Executed(record) => self.add_to(record).unwrap_or_else(|| self.next_attempt()),
                _ => Step::Look,
            },
            Step::Add(count) => match last {
                Outcome::Executed(old) => {
                    assert_eq!(*old, self.id.to_le_bytes(), "the lock was held");
                    assert_ne!(outcomes[0], Outcome::NotExecuted, "the swap has passed the WRITE");
                    self.next_increment()
                }
                _ => Step::LookAfter(count),
            },
            Step::LookAfter(count) => match last {
                Outcome::Executed(record) if record[..8] == self.id.to_le_bytes() => Step::Add(count),
                Outcome::Executed(_) => self.next_increment(),
                _ => Step::LookAfter(count),
            },
        };
    }

    /// Returns the next step if the ticket holds the lock of this record.
    fn add_to(&self, record: &[u8]) -> Option<Step> {
        let words: Vec<u64> = record
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        (words[0] == self.id).then(|| {
            assert!(words[2..].iter().all(|&word| word == words[1]), "the record is torn under its lock");
            Step::Add(words[1] + 1)
        })
    }

    fn next_attempt(&mut self) -> Step {
        self.id += 1 << 16;
        Step::Lock
    }

    fn next_increment(&mut self) -> Step {
        self.increments += 1;
        self.next_attempt()
    }
}

fn run(mut links: Links, increments: &AtomicUsize) -> Links {
    let first = u64::from(links.life().coordinator) << 8 | 1;
    let mut workers: Vec<_> = (0..TICKETS as u64)
        .map(|ticket| Worker { step: Step::Lock, id: first + ticket, increments: 0 })
        .collect();
    for (ticket, worker) in (0..).zip(&workers) {
        links.post(ticket, worker.requests()).expect("the requests are valid");
    }
    let (mut done, mut under_way, end) = (Vec::new(), workers.len(), Instant::now() + TIMEOUT);
    while under_way > 0 {
        assert!(Instant::now() < end, "the tickets did not end");
        links.wait(&mut done, Duration::from_millis(1)).expect("a rail is left");
        for (ticket, outcomes) in done.drain(..) {
            let worker = &mut workers[ticket as usize];
            let before = worker.increments;
            worker.on_outcomes(&outcomes);
            increments.fetch_add((worker.increments - before) as usize, Ordering::Relaxed);
            if worker.increments < INCREMENTS {
                links.post(ticket, worker.requests()).expect("the requests are valid");
            } else {
                under_way -= 1;
            }
        }
    }
    links
}

/// Two coordinators increment counts under locks, and something fails in the middle. Each increment
/// must count once.
fn increments_count_once(
    kind: QpKind,
    rails: usize,
    fail: impl FnOnce(&[ServedNode], &[Arc<SoftNic>]),
) -> Vec<Links> {
    let nodes = start_nodes(2, rails, kind);
    let (one, nics) = connect(&links_config(1, &nodes, kind), rails);
    let (other, _other_nics) = connect(&links_config(2, &nodes, kind), rails);
    let increments = AtomicUsize::new(0);
    let all = 2 * TICKETS * INCREMENTS as usize;
    let links: Vec<Links> = std::thread::scope(|scope| {
        let threads = [one, other].map(|links| scope.spawn(|| run(links, &increments)));
        let end = Instant::now() + TIMEOUT;
        while increments.load(Ordering::Relaxed) < all / 4 && Instant::now() < end {
            std::thread::yield_now();
        }
        fail(&nodes, &nics);
        threads.map(|thread| thread.join().expect("the tickets end")).into()
    });
    let mut sum = 0;
    for node in &nodes {
        for record in 0..RECORDS {
            let word = |index: usize| node.memory.load(record * RECORD_BYTES + 8 * index);
            assert_eq!(word(0), 0, "no lock is left");
            assert!((2..RECORD_BYTES / 8).all(|index| word(index) == word(1)));
            sum += word(1);
        }
    }
    assert_eq!(sum, all as u64);
    links
}

#[test]
fn increments_count_once_without_a_failure() {
    increments_count_once(QpKind::Virtual, 2, |_, _| ());
    increments_count_once(QpKind::Rc, 1, |_, _| ());
}

#[test]
fn increments_count_once_when_a_node_loses_a_rail() {
    for failure in [Failure::LinkDown, Failure::NicDead] {
        let links =
            increments_count_once(QpKind::Virtual, 2, |nodes, _| nodes[0].nics[0].faults().fail(failure));
        assert!(links.iter().all(|links| links.last_failover(NodeId(0)).is_some()), "{failure:?}");
    }
}

#[test]
fn increments_count_once_when_a_coordinator_loses_a_nic() {
    let links = increments_count_once(QpKind::Virtual, 2, |_, nics| nics[0].faults().fail(Failure::NicDead));
    for node in [NodeId(0), NodeId(1)] {
        assert!(links.iter().any(|links| links.last_failover(node).is_some()));
    }
}

/// A node's NIC fails at each stage of a list that is posted in pieces. Each outcome must match the
/// memory. After a request that is not executed, only requests in flight are executed.
#[test]
fn outcomes_are_true_whenever_a_rail_fails() {
    let stages = [Stage::Arrived, Stage::PartlyExecuted, Stage::Executed, Stage::AckOnWire];
    for (stage, failure) in stages.into_iter().flat_map(|s| [(s, Failure::NicDead), (s, Failure::LinkDown)]) {
        let nodes = start_nodes(1, 2, QpKind::Virtual);
        let mut config = links_config(1, &nodes, QpKind::Virtual);
        config.staging_bytes = 16 << 10;
        let (mut links, _nics) = connect(&config, 2);
        nodes[0].nics[0].faults().arm(Trigger { stage, nth: 3, failure });
        // In turn: a swap of a word, and a WRITE of more than a packet.
        let (slot, long) = (8192, 6000);
        let count = 12;
        let content = |i: u64| vec![i as u8 + 1; long];
        let requests = (0..count)
            .map(|i| if i % 2 == 0 { swap(0, i * slot, 0, i + 1) } else { write(0, i * slot, content(i)) });
        let outcomes = execute(&mut links, requests.collect());
        let failover = links.last_failover(NodeId(0));
        assert!(failover.is_some(), "{stage:?} {failure:?}: {outcomes:?}");
        let mut is_broken = false;
        for (i, outcome) in (0..count).zip(&outcomes) {
            let mut found = vec![0; long];
            nodes[0].memory.read_at((i * slot) as usize, &mut found);
            let (is_there, is_absent) = match i % 2 {
                0 => (found[..8] == (i + 1).to_le_bytes(), found[..8] == [0; 8]),
                _ => (found == content(i), found == vec![0; long]),
            };
            let is_true = match outcome {
                Outcome::Executed(_) => {
                    is_there && !is_broken && *outcome == if i % 2 == 0 { executed(0) } else { WRITTEN }
                }
                Outcome::ValueLost => is_there,
                Outcome::NotExecuted => is_absent,
                Outcome::Unknown => i % 2 == 1 || is_there || is_absent,
                Outcome::NodeDead => false,
            };
            assert!(is_true, "{stage:?} {failure:?}, request {i}: {outcomes:?}");
            is_broken |= matches!(outcome, Outcome::NotExecuted | Outcome::Unknown);
        }
        if failure == Failure::NicDead {
            let has = |outcome| outcomes.contains(&outcome);
            assert!(has(Outcome::Unknown) && has(Outcome::NotExecuted), "{stage:?}: {outcomes:?}");
        }
        // The connection goes on.
        assert_eq!(execute(&mut links, vec![swap(0, count * slot, 0, 1)]), [executed(0)]);
    }
}

/// A node's NIC dies with all its evidence. WRITEs to the ranges that may be repeated are executed,
/// and a WRITE outside these ranges stays in doubt.
#[test]
fn only_writes_to_the_named_ranges_are_repeated() {
    for is_repeatable in [true, false] {
        let nodes = start_nodes(1, 2, QpKind::Virtual);
        let mut config = links_config(1, &nodes, QpKind::Virtual);
        let (slot, count) = (1024, 16);
        // The last byte of the last WRITE is inside the range, or directly behind the range.
        config.repeatable = vec![0..8, 8..count * slot + if is_repeatable { 8 } else { 7 }];
        let (mut links, _nics) = connect(&config, 2);
        nodes[0].nics[0].faults().arm(Trigger { stage: Stage::Executed, nth: 3, failure: Failure::NicDead });
        let content = |i: u64| vec![i as u8 + 1; slot as usize];
        let writes = (0..count).map(|i| write(0, i * slot + 8, content(i)));
        let outcomes = execute(&mut links, writes.collect());
        let (last, others) = outcomes.split_last().expect("the list has WRITEs");
        assert!(others.iter().all(|outcome| *outcome == WRITTEN), "{outcomes:?}");
        assert_eq!(*last == WRITTEN, is_repeatable, "{outcomes:?}");
        assert!(links.last_failover(NodeId(0)).is_some());
    }
}
