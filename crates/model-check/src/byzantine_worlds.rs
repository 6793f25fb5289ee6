//! Worlds in which some processes are Byzantine.

use mitra_consensus::broadcast::{self, Broadcast};
use mitra_consensus::cheap_quorum::{self, CheapQuorum};
use mitra_consensus::fast_and_robust::FastAndRobust;
use mitra_consensus::paxos::Paxos;
use mitra_consensus::preferential_paxos;
use mitra_consensus::robust_backup::{self, RobustBackup};
use mitra_consensus::signature::{Signed, Signer, Symbolic, SymbolicSignature};
use mitra_consensus::single_broadcast::SingleBroadcast;
use mitra_consensus::{AllRules, Process, ProcessId, ProcessSet};

use crate::protocol_worlds::proposal;
use crate::{
    Actor, ByzantineProcess, FaultLimits, Forge, ForgedHistory, ForgedProof, SingleWrite, Violation, World,
};

/// The Byzantine processes of a world, and the seed of their random choices.
#[derive(Clone, Copy, Debug)]
pub struct ByzantineSet {
    /// The Byzantine processes.
    pub processes: ProcessSet,
    /// Without a seed, each Byzantine process runs two instances and changes none of their
    /// operations.
    pub adversary_seed: Option<u64>,
}

impl ByzantineSet {
    /// No process is Byzantine.
    pub const NONE: ByzantineSet = ByzantineSet { processes: ProcessSet::NONE, adversary_seed: None };
}

/// Returns the proposal of the second instance of Byzantine process `p`. The first instance
/// proposes [`proposal`]`(p)`.
pub fn second_proposal(p: u8) -> u8 {
    20 + p
}

/// The rules of a protocol that the instances of Byzantine processes follow. Correct processes
/// follow more rules.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RelaxedRules;

impl broadcast::Rules for RelaxedRules {
    const SCANS_AFTER_COPYING: bool = false;
    const ONE_MESSAGE_ONLY: bool = false;
}

impl cheap_quorum::Rules for RelaxedRules {
    const AWAITS_PROOFS: bool = false;
}

/// Creates a process for each signer. For each of two proposals, a Byzantine process runs an
/// instance that `instance` creates.
pub fn actors<K, P, F>(
    signers: Vec<K>,
    byzantine: ByzantineSet,
    correct: impl Fn(ProcessId, K, u8) -> P,
    instance: impl Fn(ProcessId, K, u8) -> F,
) -> Vec<Actor<P, F>>
where
    K: Signer,
    P: Process<Cell: Forge>,
    F: Process<Cell = P::Cell, Message = P::Message>,
{
    let n = signers.len() as u8;
    let actor = |(p, keys): (u8, K)| {
        let me = ProcessId(p);
        if !byzantine.processes.contains(me) {
            return Actor::Correct(correct(me, keys, proposal(p)));
        }
        let instances = [proposal(p), second_proposal(p)].map(|value| instance(me, keys.clone(), value));
        let adversary_seed = byzantine.adversary_seed.map(|seed| seed ^ u64::from(p) << 56);
        Actor::Byzantine(ByzantineProcess::new(n, instances.into(), adversary_seed))
    };
    (0..n).zip(signers).map(actor).collect()
}

/// A process of [`broadcast()`].
pub type BroadcastActor<R> =
    Actor<SingleBroadcast<u8, Symbolic, R>, SingleBroadcast<u8, Symbolic, RelaxedRules>>;
/// A process of [`small_broadcast`].
pub type SmallBroadcastActor<R = AllRules> =
    Actor<SingleBroadcast<u8, Symbolic, R>, SingleWrite<broadcast::Slot<u8, SymbolicSignature>, u8>>;

const SENDER: ProcessId = ProcessId(0);

fn broadcaster<R: broadcast::Rules>(
    (n, m): (u8, u8),
    me: ProcessId,
    keys: Symbolic,
    value: u8,
) -> SingleBroadcast<u8, Symbolic, R> {
    SingleBroadcast::new(Broadcast::new(me, n, m, 1, keys), (me == SENDER).then_some(value), SENDER)
}

/// Creates a world of `n` processes over `m` memories. The first process broadcasts one message.
pub fn broadcast<R: broadcast::Rules>(
    (n, m): (u8, u8),
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<BroadcastActor<R>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| broadcaster((n, m), me, keys, value),
        |me, keys, value| broadcaster((n, m), me, keys, value),
    );
    World::new(processes, m, &Broadcast::<u8, Symbolic, R>::regions(n, 1), limits)
        .with_byzantine(byzantine.processes)
}

/// Creates a world of three processes over one memory. The sender is Byzantine: in any order, it
/// writes one message twice and a second message once. For each message, the sender claims as a
/// witness that it has found no other message.
pub fn small_broadcast<R: broadcast::Rules>() -> World<SmallBroadcastActor<R>> {
    let keys = Symbolic::all(0, 3);
    let signed = |purpose, value| Some(Signed::by(SENDER, &keys[0], purpose, (SENDER, 0_u16), value));
    let instance = |value| {
        let (copy, witness) = (signed(broadcast::MESSAGE, value), signed(broadcast::WITNESS, value));
        SingleWrite::new(1, (SENDER.0, 0), broadcast::Slot { copy, witness, proof: None })
    };
    let instances = [proposal(0), second_proposal(0), proposal(0)].map(instance);
    let mut processes = vec![Actor::Byzantine(ByzantineProcess::new(3, instances.into(), None))];
    let others = [1, 2].map(|p| broadcaster((3, 1), ProcessId(p), keys[usize::from(p)].clone(), 0));
    processes.extend(others.map(Actor::Correct));
    World::new(processes, 1, &Broadcast::<u8, Symbolic, R>::regions(3, 1), FaultLimits::default())
        .with_byzantine(ProcessSet::only(SENDER))
}

/// A process of Robust Backup of Paxos.
pub type RobustPaxos<R = AllRules, B = AllRules> = RobustBackup<Paxos<u8>, Symbolic, R, B>;

/// The number of broadcasts of each process that the memories have room for.
pub const BROADCAST_ROOM: u16 = 24;

/// Creates a world of `n` processes of Robust Backup over `m` memories.
pub fn robust_backup<R: robust_backup::Rules, B: broadcast::Rules>(
    (n, m): (u8, u8),
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<Actor<RobustPaxos<R, B>, RobustPaxos<AllRules, RelaxedRules>>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| RobustBackup::new(me, (n, m), BROADCAST_ROOM, keys, value),
        |me, keys, value| RobustBackup::new(me, (n, m), BROADCAST_ROOM, keys, value),
    );
    World::new(processes, m, &RobustPaxos::<R, B>::regions(n, BROADCAST_ROOM), limits)
        .with_byzantine(byzantine.processes)
}

/// A process of [`small_robust_backup`].
pub type SmallRobustPaxosActor = Actor<RobustPaxos, RobustPaxos>;

/// Creates a world of three processes over one memory, with room for `room` broadcasts of each
/// process. The last process is Byzantine and sends nothing.
pub fn small_robust_backup(room: u16, limits: FaultLimits) -> World<SmallRobustPaxosActor> {
    let mut processes: Vec<_> = (0..2)
        .zip(Symbolic::all(0, 3))
        .map(|(p, keys)| Actor::Correct(RobustBackup::new(ProcessId(p), (3, 1), room, keys, proposal(p))))
        .collect();
    processes.push(Actor::Byzantine(ByzantineProcess::new(3, Vec::new(), None)));
    World::new(processes, 1, &RobustPaxos::<AllRules, AllRules>::regions(3, room), limits)
        .with_byzantine(ProcessSet::only(ProcessId(2)))
}

/// A process of [`robust_backup_with_forged_histories`].
pub type ForgedHistoryPaxos<R> = Actor<RobustPaxos<R>, ForgedHistory<Paxos<u8>, Symbolic, RelaxedRules>>;

/// Creates a world of `n` processes of Robust Backup over `m` memories. The Byzantine processes
/// broadcast forged histories.
pub fn robust_backup_with_forged_histories<R: robust_backup::Rules>(
    (n, m): (u8, u8),
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<ForgedHistoryPaxos<R>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| RobustBackup::new(me, (n, m), BROADCAST_ROOM, keys, value),
        |me, keys, value| {
            let adversary_seed = byzantine.adversary_seed.unwrap_or_default() ^ u64::from(value);
            ForgedHistory::new(n, value, Broadcast::new(me, n, m, BROADCAST_ROOM, keys), adversary_seed)
        },
    );
    World::new(processes, m, &RobustPaxos::<R>::regions(n, BROADCAST_ROOM), limits)
        .with_byzantine(byzantine.processes)
}

/// Returns the number of polls after which an instance of a Byzantine process panics. With a seed,
/// the number is random.
fn byzantine_max_polls(max_polls: u8, byzantine: ByzantineSet) -> u8 {
    byzantine.adversary_seed.map_or(max_polls, |seed| (seed / 7 % 30) as u8)
}

/// A process of [`cheap_quorum()`].
pub type CheapQuorumActor<R = AllRules> =
    Actor<CheapQuorum<u8, Symbolic, R>, CheapQuorum<u8, Symbolic, RelaxedRules>>;

/// Creates a world of `n` processes of Cheap Quorum over `m` memories. A process panics after
/// `max_polls` polls without a decision.
pub fn cheap_quorum<R: cheap_quorum::Rules>(
    (n, m): (u8, u8),
    max_polls: u8,
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<CheapQuorumActor<R>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| CheapQuorum::new(me, (n, m), max_polls, keys, value),
        |me, keys, value| {
            CheapQuorum::new(me, (n, m), byzantine_max_polls(max_polls, byzantine), keys, value)
        },
    );
    World::new(processes, m, &CheapQuorum::<u8, Symbolic, R>::regions(n), limits)
        .with_byzantine(byzantine.processes)
}

/// Creates a world of a leader and a follower over three memories. The follower panics immediately.
/// The world is to be explored with 0 attempts: no process polls, and the leader only proposes.
pub fn small_cheap_quorum<R: cheap_quorum::Rules>() -> World<CheapQuorumActor<R>> {
    cheap_quorum((2, 3), 0, ByzantineSet::NONE, FaultLimits::default())
}

/// Returns whether all aborts of correct processes have the decided value, with a signature for it.
/// True if no process has decided.
pub fn aborts_agree<R: cheap_quorum::Rules>(world: &World<CheapQuorumActor<R>>) -> bool {
    let Some(decided) = world.decisions().iter().flatten().next() else { return true };
    correct(world)
        .filter_map(CheapQuorum::aborted)
        .all(|claim| claim.value == *decided && !claim.by.is_empty())
}

/// A check of Cheap Quorum for [`run_agreement_with`](crate::run_agreement_with): every correct
/// process must decide or abort, and the aborts must agree with the decision.
pub fn abort_violation<R: cheap_quorum::Rules>(world: &World<CheapQuorumActor<R>>) -> Option<Violation> {
    let has_ended = |p: &CheapQuorum<u8, Symbolic, R>| p.aborted().is_some() || p.decision().is_some();
    match (aborts_agree(world), correct(world).all(has_ended)) {
        (false, _) => Some(Violation::Disagreement),
        (true, all_ended) => (!all_ended).then_some(Violation::Stuck),
    }
}

/// Returns the correct processes that have not crashed.
fn correct<P, F: Process>(world: &World<Actor<P, F>>) -> impl Iterator<Item = &P>
where
    Actor<P, F>: Process,
{
    world.correct().into_iter().filter_map(|p| match world.process(p)? {
        Actor::Correct(process) => Some(process),
        Actor::Byzantine(_) => None,
    })
}

type FastProcess<R, P> = FastAndRobust<u8, Symbolic, R, P>;
/// A process of [`fast_and_robust()`].
pub type FastAndRobustActor<R = AllRules, P = AllRules> =
    Actor<FastProcess<R, P>, FastProcess<RelaxedRules, AllRules>>;
/// A process of [`fast_and_robust_with_forged_proofs`].
pub type ForgedProofActor<R = AllRules, P = AllRules> = Actor<FastProcess<R, P>, ForgedProof<Symbolic>>;

/// Creates a world of `n` processes of Fast & Robust over `m` memories, with room for `room`
/// broadcasts of each process. A process panics after `max_polls` polls without a decision.
pub fn fast_and_robust<R: cheap_quorum::Rules, P: preferential_paxos::Rules>(
    (n, m): (u8, u8),
    (max_polls, room): (u8, u16),
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<FastAndRobustActor<R, P>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| FastAndRobust::new(me, (n, m), max_polls, room, keys, value),
        |me, keys, value| {
            FastAndRobust::new(me, (n, m), byzantine_max_polls(max_polls, byzantine), room, keys, value)
        },
    );
    World::new(processes, m, &FastProcess::<R, P>::regions(n, room), limits)
        .with_byzantine(byzantine.processes)
}

/// Creates a world of a leader and a follower over one memory, with room for two broadcasts of each
/// process. A process panics immediately unless it has decided.
pub fn small_fast_and_robust() -> World<FastAndRobustActor> {
    fast_and_robust(
        (2, 1),
        (0, 2),
        ByzantineSet::NONE,
        FaultLimits { leader_changes: 1, ..FaultLimits::default() },
    )
}

/// Creates a world like [`fast_and_robust()`]. A Byzantine process takes part in Cheap Quorum, and
/// simultaneously presents a forged unanimity proof in the backup.
pub fn fast_and_robust_with_forged_proofs<R: cheap_quorum::Rules, P: preferential_paxos::Rules>(
    (n, m): (u8, u8),
    max_polls: u8,
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<ForgedProofActor<R, P>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| FastAndRobust::new(me, (n, m), max_polls, BROADCAST_ROOM, keys, value),
        |me, keys, value| match value == proposal(me.0) {
            true => ForgedProof::CheapQuorum(Box::new(CheapQuorum::new(me, (n, m), max_polls, keys, value))),
            false => ForgedProof::backup(me, (n, m), BROADCAST_ROOM, keys, value),
        },
    );
    World::new(processes, m, &FastProcess::<R, P>::regions(n, BROADCAST_ROOM), limits)
        .with_byzantine(byzantine.processes)
}
