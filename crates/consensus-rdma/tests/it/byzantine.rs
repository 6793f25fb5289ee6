//! One of three processes is Byzantine. The test runs the model checker's Byzantine processes over
//! NICs, which enforce their permissions. The two correct processes must agree and terminate.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::common::{Cluster, keys};
use mitra_consensus::broadcast::Broadcast;
use mitra_consensus::cheap_quorum::CheapQuorum;
use mitra_consensus::fast_and_robust::FastAndRobust;
use mitra_consensus::paxos::Paxos;
use mitra_consensus::robust_backup::RobustBackup;
use mitra_consensus::signature::Ed25519;
use mitra_consensus::single_broadcast::SingleBroadcast;
use mitra_consensus::{AllRules, Process, ProcessId, ProcessSet, Region};
use mitra_model_check::byzantine_worlds::{ByzantineSet, RelaxedRules, actors};
use mitra_model_check::{Actor, ByzantineProcess, Forge, ForgedHistory, ForgedProof};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The number of memories. One of them may crash.
const M: u8 = 3;
/// The number of broadcasts per process for which the memories have registers.
const ROUNDS: u16 = 24;
/// The number of polls after which a process of Cheap Quorum panics.
const PANIC_POLLS: u8 = 30;

/// Returns the behaviours of a Byzantine process that equivocates and follows only some rules. With
/// a seed, the process also omits, replays and forges messages, stops, and panics.
fn behaviours(byzantine: u8) -> Vec<ByzantineSet> {
    let processes = ProcessSet::only(ProcessId(byzantine));
    [None, Some(1), Some(2), Some(3)].map(|adversary_seed| ByzantineSet { processes, adversary_seed }).into()
}

fn silence<F: Process<Cell: Forge>>() -> ByzantineProcess<F> {
    ByzantineProcess::new(3, Vec::new(), None)
}

fn cluster<P, F>(regions: Vec<Region>, processes: Vec<Actor<P, F>>) -> Cluster<Actor<P, F>>
where
    P: Process + Debug,
    F: Process<Cell = P::Cell, Message = P::Message> + Debug,
    P::Cell: Forge + Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    Cluster::start(processes, &vec![regions; M.into()], 1)
}

/// Checks that the two correct processes decide the same value. The Byzantine process leads for a
/// while, one memory crashes, and then a correct process leads.
fn correct_processes_decide<P, F>(regions: Vec<Region>, byzantine: u8, processes: Vec<Actor<P, F>>)
where
    P: Process + Debug,
    F: Process<Cell = P::Cell, Message = P::Message> + Debug,
    P::Cell: Forge + Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    let mut cluster = cluster(regions, processes);
    cluster.announce_leader(byzantine);
    for _ in 0..200 {
        cluster.poll_all();
    }
    cluster.memories[0].crash();
    cluster.announce_leader((byzantine + 1) % 3);
    cluster.decided_without(ProcessSet::only(ProcessId(byzantine)));
}

type Sender<R> = SingleBroadcast<u8, Ed25519, R>;

const SENDER: ProcessId = ProcessId(0);

fn broadcasters(set: ByzantineSet) -> Vec<Actor<Sender<AllRules>, Sender<RelaxedRules>>> {
    let message = |me, value| (me == SENDER).then_some(value);
    actors(
        keys(),
        set,
        |me, keys, value| SingleBroadcast::new(Broadcast::new(me, 3, M, 1, keys), message(me, value), SENDER),
        |me, keys, value| SingleBroadcast::new(Broadcast::new(me, 3, M, 1, keys), message(me, value), SENDER),
    )
}

#[test]
fn broadcast_of_correct_sender_is_delivered_despite_byzantine_reader() {
    for set in behaviours(2) {
        let regions = Broadcast::<u8, Ed25519, AllRules>::regions(3, 1);
        assert_eq!(cluster(regions, broadcasters(set)).decided_without(set.processes), 10, "{set:?}");
    }
}

/// If the sender equivocates, no process needs to deliver. If one correct process delivers, the
/// other correct process delivers the same message.
#[test]
fn equivocating_sender_causes_no_two_deliveries() {
    for set in behaviours(SENDER.0) {
        let mut cluster = cluster(Broadcast::<u8, Ed25519, AllRules>::regions(3, 1), broadcasters(set));
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            cluster.poll_all();
        }
        if cluster.decisions(set.processes).any(|delivered| delivered.is_some()) {
            cluster.decided_without(set.processes);
        }
    }
}

type Backup<R = AllRules> = RobustBackup<Paxos<u8>, Ed25519, AllRules, R>;

fn backup<R>(me: ProcessId, keys: Ed25519, value: u8) -> Backup<R>
where
    R: mitra_consensus::broadcast::Rules,
{
    RobustBackup::new(me, (3, M), ROUNDS, keys, value)
}

#[test]
fn robust_backup_decides_with_equivocating_process() {
    for byzantine in [0, 2] {
        for set in behaviours(byzantine) {
            let processes = actors(keys(), set, backup::<AllRules>, backup::<RelaxedRules>);
            correct_processes_decide(Backup::<AllRules>::regions(3, ROUNDS), byzantine, processes);
        }
    }
}

#[test]
fn robust_backup_decides_with_forged_histories() {
    for byzantine in [0, 2] {
        for set in behaviours(byzantine) {
            let forged_history = |me, keys, value: u8| {
                let seed = set.adversary_seed.unwrap_or_default() ^ u64::from(value);
                ForgedHistory::<Paxos<u8>, _, RelaxedRules>::new(
                    3,
                    value,
                    Broadcast::new(me, 3, M, ROUNDS, keys),
                    seed,
                )
            };
            let processes = actors(keys(), set, backup::<AllRules>, forged_history);
            correct_processes_decide(Backup::<AllRules>::regions(3, ROUNDS), byzantine, processes);
        }
    }
}

#[test]
fn robust_backup_decides_with_silent_process() {
    let mut processes = actors(keys(), ByzantineSet::NONE, backup::<AllRules>, backup::<RelaxedRules>);
    processes[0] = Actor::Byzantine(silence());
    correct_processes_decide(Backup::<AllRules>::regions(3, ROUNDS), 0, processes);
}

type Fast<R = AllRules> = FastAndRobust<u8, Ed25519, R, AllRules>;

fn fast<R>(me: ProcessId, keys: Ed25519, value: u8) -> Fast<R>
where
    R: mitra_consensus::cheap_quorum::Rules,
{
    FastAndRobust::new(me, (3, M), PANIC_POLLS, ROUNDS, keys, value)
}

/// The Byzantine process is the leader of Cheap Quorum, or a follower.
#[test]
fn fast_and_robust_decides_with_equivocating_process() {
    for byzantine in [0, 2] {
        for set in behaviours(byzantine) {
            let processes = actors(keys(), set, fast::<AllRules>, fast::<RelaxedRules>);
            correct_processes_decide(Fast::<AllRules>::regions(3, ROUNDS), byzantine, processes);
        }
    }
}

/// While Cheap Quorum runs, the Byzantine process claims in the backup that all processes signed
/// another value.
#[test]
fn fast_and_robust_decides_with_forged_unanimity_proof() {
    for byzantine in [0, 2] {
        for set in behaviours(byzantine) {
            let forged_proof = |me: ProcessId, keys, value: u8| match value < 20 {
                true => {
                    ForgedProof::CheapQuorum(Box::new(CheapQuorum::new(me, (3, M), PANIC_POLLS, keys, value)))
                }
                false => ForgedProof::backup(me, (3, M), ROUNDS, keys, value),
            };
            let processes = actors(keys(), set, fast::<AllRules>, forged_proof);
            correct_processes_decide(Fast::<AllRules>::regions(3, ROUNDS), byzantine, processes);
        }
    }
}

#[test]
fn fast_and_robust_decides_with_silent_process() {
    for byzantine in [0, 2] {
        let mut processes = actors(keys(), ByzantineSet::NONE, fast::<AllRules>, fast::<RelaxedRules>);
        processes[usize::from(byzantine)] = Actor::Byzantine(silence());
        correct_processes_decide(Fast::<AllRules>::regions(3, ROUNDS), byzantine, processes);
    }
}
