//! A world for each protocol, at any size.

use mitra_agreement::aligned_paxos::{self, AlignedPaxos};
use mitra_agreement::broadcast::{self, Broadcast};
use mitra_agreement::disk_paxos::{self, DiskPaxos};
use mitra_agreement::fast_paxos::{self, FastPaxos, Quorums};
use mitra_agreement::hbo::{self, Hbo};
use mitra_agreement::omega::{self, Omega};
use mitra_agreement::paxos::{self, Paxos};
use mitra_agreement::protected_memory_paxos::{self, ProtectedMemoryPaxos};
use mitra_agreement::robust_backup::{self, RobustBackup};
use mitra_agreement::signature::{Signed, Symbolic, SymbolicSignature};
use mitra_agreement::{Process, ProcessId, ProcessSet, Sound};

use crate::{Actor, Broadcaster, Byzantine, Fabulist, Forge, Limits, Scribble, World};

/// What process `p` proposes.
pub fn proposal(p: u8) -> u8 {
    10 + p
}

/// `n` processes of Paxos.
pub fn paxos<R: paxos::Rules>(n: u8, limits: Limits) -> World<Paxos<u8, R>> {
    World::new((0..n).map(|p| Paxos::new(ProcessId(p), n, proposal(p))).collect(), 0, &[], limits)
}

/// `n` processes of Disk Paxos over `m` memories.
pub fn disk_paxos<R: disk_paxos::Rules>(n: u8, m: u8, limits: Limits) -> World<DiskPaxos<u8, R>> {
    let processes = (0..n).map(|p| DiskPaxos::new(ProcessId(p), n, m, proposal(p))).collect();
    World::new(processes, m, &DiskPaxos::<u8, R>::regions(n), limits)
}

/// `n` processes of Protected Memory Paxos over `m` memories.
pub fn protected_memory_paxos<R: protected_memory_paxos::Rules>(
    n: u8,
    m: u8,
    limits: Limits,
) -> World<ProtectedMemoryPaxos<u8, R>> {
    let processes = (0..n).map(|p| ProtectedMemoryPaxos::new(ProcessId(p), n, m, proposal(p))).collect();
    World::new(processes, m, &ProtectedMemoryPaxos::<u8, R>::regions(n), limits)
}

/// `n` processes of Aligned Paxos and `m` memories.
pub fn aligned_paxos<R: aligned_paxos::Rules, M: protected_memory_paxos::Rules>(
    n: u8,
    m: u8,
    limits: Limits,
) -> World<AlignedPaxos<u8, R, M>> {
    let processes = (0..n).map(|p| AlignedPaxos::new(ProcessId(p), n, m, proposal(p))).collect();
    World::new(processes, m, &AlignedPaxos::<u8, R, M>::regions(n), limits)
}

/// `n` processes of Fast Paxos, of which `proposers` propose a value each, for `f` crashes, and `e` in a fast ballot.
///
/// # Panics
/// There are no such quorums: n > 2f, n > 2e + f, e ≤ f.
pub fn fast_paxos<R: fast_paxos::Rules>(
    (n, f, e): (u8, u8, u8),
    proposers: &[u8],
    limits: Limits,
) -> World<FastPaxos<u8, R>> {
    let quorums = Quorums::new(n, f, e).expect("n > 2f, n > 2e + f");
    let input = |p: u8| proposers.contains(&p).then_some(proposal(p));
    let processes = (0..n).map(|p| FastPaxos::new(ProcessId(p), quorums, input(p))).collect();
    World::new(processes, 0, &[], limits)
}

/// `n` processes that elect a leader by Ω, over one memory.
pub fn omega<R: omega::Rules>(n: u8, limits: Limits) -> World<Omega<R>> {
    let processes = (0..n).map(|p| Omega::new(ProcessId(p), n)).collect();
    World::new(processes, 1, &Omega::<R>::regions(n), limits)
}

/// Processes of HBO, each of which shares memory with its neighbours. The even ones propose false.
pub fn hbo<R: hbo::Rules>(neighbours: &[ProcessSet], limits: Limits) -> World<Hbo<R>> {
    let each = || neighbours.iter().enumerate().map(|(p, &set)| (ProcessId(p as u8), set));
    let n = neighbours.len() as u8;
    let processes = each().map(|(p, set)| Hbo::new(p, n, set, p.0 % 2 == 1)).collect();
    let memories: Vec<_> = each().map(|(p, set)| Hbo::<R>::regions(p, set)).collect();
    World::with(processes, &memories, limits)
}

/// Who is Byzantine in a world, and the seed of their whims, if they have any.
#[derive(Clone, Copy, Debug)]
pub struct Traitors {
    /// Who they are.
    pub who: ProcessSet,
    /// Without, each has only two faces.
    pub whim: Option<u64>,
}

impl Traitors {
    /// Everybody is correct.
    pub const NONE: Traitors = Traitors { who: ProcessSet::NONE, whim: None };
}

/// What the second face of a Byzantine process proposes.
pub fn second_proposal(p: u8) -> u8 {
    20 + p
}

/// Rules that the faces of traitors keep: few.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lax;

impl broadcast::Rules for Lax {
    const SCANS_AFTER_COPYING: bool = false;
    const ONE_MESSAGE_ONLY: bool = false;
}

/// A process for each signer; those of traitors have a face for each of two proposals.
fn actors<P, F>(
    (n, m): (u8, u8),
    traitors: Traitors,
    correct: impl Fn(ProcessId, Symbolic, u8) -> P,
    face: impl Fn(ProcessId, Symbolic, u8) -> F,
) -> Vec<Actor<P, F>>
where
    P: Process<Cell: Forge>,
    F: Process<Cell = P::Cell, Message = P::Message>,
{
    let actor = |(p, keys): (u8, Symbolic)| {
        let me = ProcessId(p);
        if !traitors.who.contains(me) {
            return Actor::Correct(correct(me, keys, proposal(p)));
        }
        let faces = [proposal(p), second_proposal(p)].map(|value| face(me, keys.clone(), value));
        let whim = traitors.whim.map(|seed| seed ^ u64::from(p) << 56);
        Actor::Byzantine(Byzantine::new(n, m, faces.into(), whim))
    };
    (0..n).zip(Symbolic::all(0, n)).map(actor).collect()
}

/// A process of [`broadcast`].
pub type BroadcastActor<R> = Actor<Broadcaster<u8, Symbolic, R>, Broadcaster<u8, Symbolic, Lax>>;
/// A process of [`small_broadcast`].
pub type SmallBroadcaster<R = Sound> =
    Actor<Broadcaster<u8, Symbolic, R>, Scribble<broadcast::Slot<u8, SymbolicSignature>, u8>>;

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
    traitors: Traitors,
    limits: Limits,
) -> World<BroadcastActor<R>> {
    let processes = actors(
        (n, m),
        traitors,
        |me, keys, value| broadcaster((n, m), me, keys, value),
        |me, keys, value| broadcaster((n, m), me, keys, value),
    );
    World::new(processes, m, &Broadcast::<u8, Symbolic, R>::regions(n, 1), limits).byzantine(traitors.who)
}

/// Three processes over one memory, and a sender that writes one message, and another, and the first again, each with its own word that it has
/// seen no other.
pub fn small_broadcast<R: broadcast::Rules>() -> World<SmallBroadcaster<R>> {
    let keys = Symbolic::all(0, 3);
    let signed = |purpose, value| Some(Signed::by(SENDER, &keys[0], purpose, (SENDER, 0_u16), value));
    let face = |value| {
        let (copy, witness) = (signed(broadcast::MESSAGE, value), signed(broadcast::WITNESS, value));
        Scribble::new(1, (SENDER.0, 0), broadcast::Slot { copy, witness, proof: None })
    };
    let faces = [proposal(0), second_proposal(0), proposal(0)].map(face);
    let mut processes = vec![Actor::Byzantine(Byzantine::new(3, 1, faces.into(), None))];
    let others = [1, 2].map(|p| broadcaster((3, 1), ProcessId(p), keys[usize::from(p)].clone(), 0));
    processes.extend(others.map(Actor::Correct));
    World::new(processes, 1, &Broadcast::<u8, Symbolic, R>::regions(3, 1), Limits::default())
        .byzantine(ProcessSet::only(SENDER))
}

/// Robust Backup of Paxos.
pub type RobustPaxos<R = Sound, B = Sound> = RobustBackup<Paxos<u8>, Symbolic, R, B>;

/// So many turns of each process have room.
const TURNS: u16 = 24;

/// `n` processes of Robust Backup over `m` memories.
pub fn robust_backup<R: robust_backup::Rules, B: broadcast::Rules>(
    (n, m): (u8, u8),
    traitors: Traitors,
    limits: Limits,
) -> World<Actor<RobustPaxos<R, B>, RobustPaxos<Sound, Lax>>> {
    let processes = actors(
        (n, m),
        traitors,
        |me, keys, value| RobustBackup::new(me, (n, m), TURNS, keys, value),
        |me, keys, value| RobustBackup::new(me, (n, m), TURNS, keys, value),
    );
    World::new(processes, m, &RobustPaxos::<R, B>::regions(n, TURNS), limits).byzantine(traitors.who)
}

/// A process of [`small_robust_backup`].
pub type SmallRobustPaxos = Actor<RobustPaxos, RobustPaxos>;

/// Three processes over one memory, of which the last is silent, with room for so many turns of each.
pub fn small_robust_backup(turns: u16, limits: Limits) -> World<SmallRobustPaxos> {
    let mut processes: Vec<_> = (0..2)
        .zip(Symbolic::all(0, 3))
        .map(|(p, keys)| Actor::Correct(RobustBackup::new(ProcessId(p), (3, 1), turns, keys, proposal(p))))
        .collect();
    processes.push(Actor::Byzantine(Byzantine::new(3, 1, Vec::new(), None)));
    World::new(processes, 1, &RobustPaxos::<Sound, Sound>::regions(3, turns), limits)
        .byzantine(ProcessSet::only(ProcessId(2)))
}

/// A process of [`robust_backup_with_fables`].
pub type FabulousPaxos<R> = Actor<RobustPaxos<R>, Fabulist<Paxos<u8>, Symbolic, Lax>>;

/// The same, where traitors make their histories up.
pub fn robust_backup_with_fables<R: robust_backup::Rules>(
    (n, m): (u8, u8),
    traitors: Traitors,
    limits: Limits,
) -> World<FabulousPaxos<R>> {
    let processes = actors(
        (n, m),
        traitors,
        |me, keys, value| RobustBackup::new(me, (n, m), TURNS, keys, value),
        |me, keys, value| {
            let whim = traitors.whim.unwrap_or_default() ^ u64::from(value);
            Fabulist::new(n, value, Broadcast::new(me, n, m, TURNS, keys), whim)
        },
    );
    World::new(processes, m, &RobustPaxos::<R>::regions(n, TURNS), limits).byzantine(traitors.who)
}

/// The neighbours of each of `n` processes, by edges.
pub fn graph(n: u8, edges: &[(u8, u8)]) -> Vec<ProcessSet> {
    let of = |p: u8| {
        let ends = edges.iter().flat_map(|&(u, v)| [(u, v), (v, u)]);
        let others = ends.filter(|&(u, _)| u == p).map(|(_, v)| ProcessId(v));
        others.fold(ProcessSet::NONE, ProcessSet::with)
    };
    (0..n).map(of).collect()
}
