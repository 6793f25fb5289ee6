//! One of three processes lies, over NICs: the models' traitors, as processes whose rights the memories' NICs enforce. The other two agree,
//! and end.

mod common;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use common::{Cluster, keys};
use mitra_consensus::broadcast::Broadcast;
use mitra_consensus::broadcaster::Broadcaster;
use mitra_consensus::cheap_quorum::CheapQuorum;
use mitra_consensus::fast_and_robust::FastAndRobust;
use mitra_consensus::paxos::Paxos;
use mitra_consensus::robust_backup::RobustBackup;
use mitra_consensus::signature::Ed25519;
use mitra_consensus::{AllRules, Process, ProcessId, ProcessSet, Region};
use mitra_consensus_check::traitors::{Lax, Traitors, actors};
use mitra_consensus_check::{Actor, Byzantine, Claimant, Fabulist, Forge};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Memories, one of which may crash.
const M: u8 = 3;
/// Turns for which the memories have room.
const TURNS: u16 = 24;
/// Polls before a process panics.
const PATIENCE: u8 = 30;

/// Processes of which this one has two faces that keep to few rules: without a whim it does nothing worse, with one it keeps silent,
/// replays, forges, freezes and panics.
fn behaviours(liar: u8) -> Vec<Traitors> {
    let who = ProcessSet::only(ProcessId(liar));
    [None, Some(1), Some(2), Some(3)].map(|whim| Traitors { who, whim }).into()
}

/// A process that says nothing.
fn silence<F: Process<Cell: Forge>>() -> Byzantine<F> {
    Byzantine::new(3, Vec::new(), None)
}

fn over<P, F>(regions: Vec<Region>, processes: Vec<Actor<P, F>>) -> Cluster<Actor<P, F>>
where
    P: Process + Debug,
    F: Process<Cell = P::Cell, Message = P::Message> + Debug,
    P::Cell: Forge + Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    Cluster::start(processes, &vec![regions; M.into()], 1)
}

/// Two honest processes of three decide alike: the liar leads for a while, then one of them does, and a memory crashes meanwhile.
fn two_decide<P, F>(regions: Vec<Region>, liar: u8, processes: Vec<Actor<P, F>>)
where
    P: Process + Debug,
    F: Process<Cell = P::Cell, Message = P::Message> + Debug,
    P::Cell: Forge + Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    let mut cluster = over(regions, processes);
    cluster.lead(liar);
    for _ in 0..200 {
        cluster.turn();
    }
    cluster.memories[0].crash();
    cluster.lead((liar + 1) % 3);
    cluster.decided_but(ProcessSet::only(ProcessId(liar)));
}

type Sender<R> = Broadcaster<u8, Ed25519, R>;

/// The first of three processes broadcasts.
const SENDER: ProcessId = ProcessId(0);

fn broadcasters(traitors: Traitors) -> Vec<Actor<Sender<AllRules>, Sender<Lax>>> {
    let message = |me, value| (me == SENDER).then_some(value);
    actors(
        keys(),
        traitors,
        |me, keys, value| Broadcaster::new(Broadcast::new(me, 3, M, 1, keys), message(me, value), SENDER),
        |me, keys, value| Broadcaster::new(Broadcast::new(me, 3, M, 1, keys), message(me, value), SENDER),
    )
}

#[test]
fn what_an_honest_process_broadcasts_is_delivered_though_a_reader_lies() {
    for traitors in behaviours(2) {
        let regions = Broadcast::<u8, Ed25519, AllRules>::regions(3, 1);
        assert_eq!(over(regions, broadcasters(traitors)).decided_but(traitors.who), 10, "{traitors:?}");
    }
}

/// Of what a sender says that says two things, nobody needs to deliver any; but what one delivers, the other does.
#[test]
fn a_sender_that_says_two_things_is_not_believed_twice() {
    for traitors in behaviours(SENDER.0) {
        let mut cluster = over(Broadcast::<u8, Ed25519, AllRules>::regions(3, 1), broadcasters(traitors));
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            cluster.turn();
        }
        if cluster.decisions(traitors.who).any(|delivered| delivered.is_some()) {
            cluster.decided_but(traitors.who);
        }
    }
}

type Backup<R = AllRules> = RobustBackup<Paxos<u8>, Ed25519, AllRules, R>;

fn backup<R>(me: ProcessId, keys: Ed25519, value: u8) -> Backup<R>
where
    R: mitra_consensus::broadcast::Rules,
{
    RobustBackup::new(me, (3, M), TURNS, keys, value)
}

#[test]
fn robust_backup_with_one_of_two_faces() {
    for liar in [0, 2] {
        for traitors in behaviours(liar) {
            let processes = actors(keys(), traitors, backup::<AllRules>, backup::<Lax>);
            two_decide(Backup::<AllRules>::regions(3, TURNS), liar, processes);
        }
    }
}

#[test]
fn robust_backup_with_one_that_makes_histories_up() {
    for liar in [0, 2] {
        for traitors in behaviours(liar) {
            let fabulist = |me, keys, value: u8| {
                let whim = traitors.whim.unwrap_or_default() ^ u64::from(value);
                Fabulist::<Paxos<u8>, _, Lax>::new(3, value, Broadcast::new(me, 3, M, TURNS, keys), whim)
            };
            let processes = actors(keys(), traitors, backup::<AllRules>, fabulist);
            two_decide(Backup::<AllRules>::regions(3, TURNS), liar, processes);
        }
    }
}

#[test]
fn robust_backup_with_one_that_is_silent() {
    let mut processes = actors(keys(), Traitors::NONE, backup::<AllRules>, backup::<Lax>);
    processes[0] = Actor::Byzantine(silence());
    two_decide(Backup::<AllRules>::regions(3, TURNS), 0, processes);
}

type Fast<R = AllRules> = FastAndRobust<u8, Ed25519, R, AllRules>;

fn fast<R>(me: ProcessId, keys: Ed25519, value: u8) -> Fast<R>
where
    R: mitra_consensus::cheap_quorum::Rules,
{
    FastAndRobust::new(me, (3, M), PATIENCE, TURNS, keys, value)
}

/// The leader of Cheap Quorum lies, or a follower does.
#[test]
fn fast_and_robust_with_one_of_two_faces() {
    for liar in [0, 2] {
        for traitors in behaviours(liar) {
            let processes = actors(keys(), traitors, fast::<AllRules>, fast::<Lax>);
            two_decide(Fast::<AllRules>::regions(3, TURNS), liar, processes);
        }
    }
}

/// While Cheap Quorum goes on, it claims in the backup that all have signed another value.
#[test]
fn fast_and_robust_with_one_that_lies_about_proofs() {
    for liar in [0, 2] {
        for traitors in behaviours(liar) {
            let claimant = |me: ProcessId, keys, value: u8| match value < 20 {
                true => Claimant::Quorum(Box::new(CheapQuorum::new(me, (3, M), PATIENCE, keys, value))),
                false => Claimant::claim(me, (3, M), TURNS, keys, value),
            };
            let processes = actors(keys(), traitors, fast::<AllRules>, claimant);
            two_decide(Fast::<AllRules>::regions(3, TURNS), liar, processes);
        }
    }
}

#[test]
fn fast_and_robust_with_one_that_is_silent() {
    for liar in [0, 2] {
        let mut processes = actors(keys(), Traitors::NONE, fast::<AllRules>, fast::<Lax>);
        processes[usize::from(liar)] = Actor::Byzantine(silence());
        two_decide(Fast::<AllRules>::regions(3, TURNS), liar, processes);
    }
}
