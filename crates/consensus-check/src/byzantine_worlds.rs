//! Worlds in which some processes are Byzantine.

use mitra_consensus::broadcast::{self, Broadcast};
use mitra_consensus::broadcaster::Broadcaster;
use mitra_consensus::cheap_quorum::{self, CheapQuorum};
use mitra_consensus::fast_and_robust::FastAndRobust;
use mitra_consensus::paxos::Paxos;
use mitra_consensus::preferential_paxos;
use mitra_consensus::robust_backup::{self, RobustBackup};
use mitra_consensus::signature::{Signed, Signer, Symbolic, SymbolicSignature};
use mitra_consensus::{AllRules, Process, ProcessId, ProcessSet};

use crate::protocol_worlds::proposal;
use crate::{
    Actor, ByzantineProcess, FaultLimits, Forge, ForgedHistory, ForgedProof, SingleWrite, Violation, World,
};

/// Who is Byzantine in a world, and the seed of their whims, if they have any.
#[derive(Clone, Copy, Debug)]
pub struct ByzantineSet {
    /// Who they are.
    pub processes: ProcessSet,
    /// Without, each has only two faces.
    pub adversary_seed: Option<u64>,
}

impl ByzantineSet {
    /// Everybody is correct.
    pub const NONE: ByzantineSet = ByzantineSet { processes: ProcessSet::NONE, adversary_seed: None };
}

/// What the second face of a Byzantine process proposes.
pub fn second_proposal(p: u8) -> u8 {
    20 + p
}

/// Rules that the faces of traitors keep: few.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RelaxedRules;

impl broadcast::Rules for RelaxedRules {
    const SCANS_AFTER_COPYING: bool = false;
    const ONE_MESSAGE_ONLY: bool = false;
}

impl cheap_quorum::Rules for RelaxedRules {
    const AWAITS_PROOFS: bool = false;
}

/// A process for each signer; those of traitors have a face for each of two proposals.
pub fn actors<K, P, F>(
    signers: Vec<K>,
    byzantine: ByzantineSet,
    correct: impl Fn(ProcessId, K, u8) -> P,
    face: impl Fn(ProcessId, K, u8) -> F,
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
        let faces = [proposal(p), second_proposal(p)].map(|value| face(me, keys.clone(), value));
        let whim = byzantine.adversary_seed.map(|seed| seed ^ u64::from(p) << 56);
        Actor::Byzantine(ByzantineProcess::new(n, faces.into(), whim))
    };
    (0..n).zip(signers).map(actor).collect()
}

/// A process of [`broadcast()`].
pub type BroadcastActor<R> = Actor<Broadcaster<u8, Symbolic, R>, Broadcaster<u8, Symbolic, RelaxedRules>>;
/// A process of [`small_broadcast`].
pub type SmallBroadcastActor<R = AllRules> =
    Actor<Broadcaster<u8, Symbolic, R>, SingleWrite<broadcast::Slot<u8, SymbolicSignature>, u8>>;

const SENDER: ProcessId = ProcessId(0);

fn broadcaster<R: broadcast::Rules>(
    (n, m): (u8, u8),
    me: ProcessId,
    keys: Symbolic,
    value: u8,
) -> Broadcaster<u8, Symbolic, R> {
    Broadcaster::new(Broadcast::new(me, n, m, 1, keys), (me == SENDER).then_some(value), SENDER)
}

/// `n` processes over `m` memories, of which the first broadcasts one message.
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

/// Three processes over one memory, and a sender that writes one message, and another, and the first again, each with its own word that it has
/// seen no other.
pub fn small_broadcast<R: broadcast::Rules>() -> World<SmallBroadcastActor<R>> {
    let keys = Symbolic::all(0, 3);
    let signed = |purpose, value| Some(Signed::by(SENDER, &keys[0], purpose, (SENDER, 0_u16), value));
    let face = |value| {
        let (copy, witness) = (signed(broadcast::MESSAGE, value), signed(broadcast::WITNESS, value));
        SingleWrite::new(1, (SENDER.0, 0), broadcast::Slot { copy, witness, proof: None })
    };
    let faces = [proposal(0), second_proposal(0), proposal(0)].map(face);
    let mut processes = vec![Actor::Byzantine(ByzantineProcess::new(3, faces.into(), None))];
    let others = [1, 2].map(|p| broadcaster((3, 1), ProcessId(p), keys[usize::from(p)].clone(), 0));
    processes.extend(others.map(Actor::Correct));
    World::new(processes, 1, &Broadcast::<u8, Symbolic, R>::regions(3, 1), FaultLimits::default())
        .with_byzantine(ProcessSet::only(SENDER))
}

/// Robust Backup of Paxos.
pub type RobustPaxos<R = AllRules, B = AllRules> = RobustBackup<Paxos<u8>, Symbolic, R, B>;

/// So many turns of each process have room.
pub const TURNS: u16 = 24;

/// `n` processes of Robust Backup over `m` memories.
pub fn robust_backup<R: robust_backup::Rules, B: broadcast::Rules>(
    (n, m): (u8, u8),
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<Actor<RobustPaxos<R, B>, RobustPaxos<AllRules, RelaxedRules>>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| RobustBackup::new(me, (n, m), TURNS, keys, value),
        |me, keys, value| RobustBackup::new(me, (n, m), TURNS, keys, value),
    );
    World::new(processes, m, &RobustPaxos::<R, B>::regions(n, TURNS), limits)
        .with_byzantine(byzantine.processes)
}

/// A process of [`small_robust_backup`].
pub type SmallRobustPaxosActor = Actor<RobustPaxos, RobustPaxos>;

/// Three processes over one memory, of which the last is silent, with room for so many turns of each.
pub fn small_robust_backup(turns: u16, limits: FaultLimits) -> World<SmallRobustPaxosActor> {
    let mut processes: Vec<_> = (0..2)
        .zip(Symbolic::all(0, 3))
        .map(|(p, keys)| Actor::Correct(RobustBackup::new(ProcessId(p), (3, 1), turns, keys, proposal(p))))
        .collect();
    processes.push(Actor::Byzantine(ByzantineProcess::new(3, Vec::new(), None)));
    World::new(processes, 1, &RobustPaxos::<AllRules, AllRules>::regions(3, turns), limits)
        .with_byzantine(ProcessSet::only(ProcessId(2)))
}

/// A process of [`robust_backup_with_forged_histories`].
pub type ForgedHistoryPaxos<R> = Actor<RobustPaxos<R>, ForgedHistory<Paxos<u8>, Symbolic, RelaxedRules>>;

/// The same, where traitors make their histories up.
pub fn robust_backup_with_forged_histories<R: robust_backup::Rules>(
    (n, m): (u8, u8),
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<ForgedHistoryPaxos<R>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| RobustBackup::new(me, (n, m), TURNS, keys, value),
        |me, keys, value| {
            let whim = byzantine.adversary_seed.unwrap_or_default() ^ u64::from(value);
            ForgedHistory::new(n, value, Broadcast::new(me, n, m, TURNS, keys), whim)
        },
    );
    World::new(processes, m, &RobustPaxos::<R>::regions(n, TURNS), limits).with_byzantine(byzantine.processes)
}

/// How often a face of a traitor polls before it panics: at will.
fn byzantine_max_polls(max_polls: u8, byzantine: ByzantineSet) -> u8 {
    byzantine.adversary_seed.map_or(max_polls, |whim| (whim / 7 % 30) as u8)
}

/// Cheap Quorum, and what its traitors are.
pub type CheapQuorumActor<R = AllRules> =
    Actor<CheapQuorum<u8, Symbolic, R>, CheapQuorum<u8, Symbolic, RelaxedRules>>;

/// `n` processes of Cheap Quorum over `m` memories, which panic when they have polled `max_polls` times.
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

/// A leader that keeps to Cheap Quorum and a follower that panics at once, over three memories. To be explored as far as nobody polls, and the leader
/// does no more than propose.
pub fn small_cheap_quorum<R: cheap_quorum::Rules>() -> World<CheapQuorumActor<R>> {
    cheap_quorum((2, 3), 0, ByzantineSet::NONE, FaultLimits::default())
}

/// Whether those who have aborted have done so with the value that was decided, if one was, and with evidence for it.
pub fn aborts_agree<R: cheap_quorum::Rules>(world: &World<CheapQuorumActor<R>>) -> bool {
    let Some(decided) = world.decisions().iter().flatten().next() else { return true };
    correct(world)
        .filter_map(CheapQuorum::aborted)
        .all(|claim| claim.value == *decided && !claim.by.is_empty())
}

/// What is wrong where not all have decided in Cheap Quorum.
pub fn abort_violation<R: cheap_quorum::Rules>(world: &World<CheapQuorumActor<R>>) -> Option<Violation> {
    let ended = |p: &CheapQuorum<u8, Symbolic, R>| p.aborted().is_some() || p.decision().is_some();
    match (aborts_agree(world), correct(world).all(ended)) {
        (false, _) => Some(Violation::Disagreement),
        (true, ended) => (!ended).then_some(Violation::Stuck),
    }
}

fn correct<P, F: Process>(world: &World<Actor<P, F>>) -> impl Iterator<Item = &P>
where
    Actor<P, F>: Process,
{
    world.correct().into_iter().filter_map(|p| match world.process(p)? {
        Actor::Correct(process) => Some(process),
        Actor::Byzantine(_) => None,
    })
}

type Fast<R, P> = FastAndRobust<u8, Symbolic, R, P>;
/// A process of [`fast_and_robust()`].
pub type FastAndRobustActor<R = AllRules, P = AllRules> = Actor<Fast<R, P>, Fast<RelaxedRules, AllRules>>;
/// A process of [`fast_and_robust_with_forged_proofs`].
pub type ForgedProofActor<R = AllRules, P = AllRules> = Actor<Fast<R, P>, ForgedProof<Symbolic>>;

/// `n` processes of Fast & Robust over `m` memories, which panic when they have polled `max_polls` times.
pub fn fast_and_robust<R: cheap_quorum::Rules, P: preferential_paxos::Rules>(
    (n, m): (u8, u8),
    (max_polls, turns): (u8, u16),
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<FastAndRobustActor<R, P>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| FastAndRobust::new(me, (n, m), max_polls, turns, keys, value),
        |me, keys, value| {
            FastAndRobust::new(me, (n, m), byzantine_max_polls(max_polls, byzantine), turns, keys, value)
        },
    );
    World::new(processes, m, &Fast::<R, P>::regions(n, turns), limits).with_byzantine(byzantine.processes)
}

/// A leader and a follower over one memory, which panic at once unless they have decided; room for two turns of each.
pub fn small_fast_and_robust() -> World<FastAndRobustActor> {
    fast_and_robust(
        (2, 1),
        (0, 2),
        ByzantineSet::NONE,
        FaultLimits { leader_changes: 1, ..FaultLimits::default() },
    )
}

/// [`fast_and_robust()`], where traitors take part in Cheap Quorum, and at the same time go straight to the backup with a claim that they have forged.
pub fn fast_and_robust_with_forged_proofs<R: cheap_quorum::Rules, P: preferential_paxos::Rules>(
    (n, m): (u8, u8),
    max_polls: u8,
    byzantine: ByzantineSet,
    limits: FaultLimits,
) -> World<ForgedProofActor<R, P>> {
    let processes = actors(
        Symbolic::all(0, n),
        byzantine,
        |me, keys, value| FastAndRobust::new(me, (n, m), max_polls, TURNS, keys, value),
        |me, keys, value| match value == proposal(me.0) {
            true => ForgedProof::CheapQuorum(Box::new(CheapQuorum::new(me, (n, m), max_polls, keys, value))),
            false => ForgedProof::backup(me, (n, m), TURNS, keys, value),
        },
    );
    World::new(processes, m, &Fast::<R, P>::regions(n, TURNS), limits).with_byzantine(byzantine.processes)
}
