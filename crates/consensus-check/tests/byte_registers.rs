//! Fast & Robust as over real memories: registers hold bytes, signatures are Ed25519's, and a Byzantine process writes what it likes.

use std::sync::Arc;

use ed25519_dalek::SigningKey;
use mitra_consensus::fast_and_robust::{Cell, FastAndRobust, convert_response, offset_regions};
use mitra_consensus::signature::{Ed25519, Ed25519Signature};
use mitra_consensus::{Action, Actions, Input, MemoryId, Op, OpId, Process, ProcessId, ProcessSet, Response};
use mitra_consensus_check::{FaultLimits, RunLimits, World, run_agreement};
use mitra_prng::Prng;

const TURNS: u16 = 12;
/// As much as a register can need: the turn in copy, witness and proof, each of at most a claim with three signatures and 31 events more, and five
/// signatures of it.
const ROOM: usize = 1200;

type Fast = FastAndRobust<u8, Ed25519>;
type Slot = Cell<u8, Ed25519Signature>;

/// A process whose registers hold bytes, or one that writes bytes at random.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum OverBytes {
    Correct(Box<Fast>),
    Garbage { regions: u8, seed: u64, good: Vec<Bytes> },
}

/// What a register holds. Bytes that make no cell are as good as none.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Bytes(Vec<u8>);

impl From<Bytes> for Slot {
    fn from(Bytes(bytes): Bytes) -> Slot {
        postcard::from_bytes(&bytes).unwrap_or_default()
    }
}

impl From<Slot> for Bytes {
    fn from(cell: Slot) -> Bytes {
        let bytes = Bytes(postcard::to_stdvec(&cell).expect("a cell has a plain form"));
        assert!(bytes.0.len() <= ROOM, "{} bytes: {cell:?}", bytes.0.len());
        assert_eq!(Slot::from(bytes.clone()), cell);
        bytes
    }
}

/// Something of what it has read, cut and with some of it changed.
fn garbage(seed: &mut u64, good: &[Bytes]) -> (Prng, Bytes) {
    *seed = seed.wrapping_add(1);
    let mut dice = Prng::new(*seed);
    let mut below = |n: usize| dice.bits() as usize % n.max(1);
    let Bytes(mut bytes) = good.get(below(good.len())).cloned().unwrap_or_default();
    bytes.truncate(below(2 * bytes.len() + 1));
    for _ in 0..below(6) {
        let (at, byte) = (below(bytes.len() + 1), below(256) as u8);
        match bytes.get_mut(at) {
            Some(place) => *place = byte,
            None => bytes.push(byte),
        }
    }
    (dice, Bytes(bytes))
}

impl OverBytes {
    fn scribble(regions: u8, seed: &mut u64, good: &[Bytes], out: &mut Actions<OverBytes>) {
        let (mut dice, cell) = garbage(seed, good);
        let mut below = |n: u64| (dice.bits() % n) as u8;
        let (memory, region) = (MemoryId(below(3)), below(regions.into()));
        let register = if region <= 3 { 0 } else { below(3 * u64::from(TURNS)).into() };
        let op = match below(2) {
            0 => Op::Write { region, register, cell },
            _ => Op::Read { region, first: register, count: 1 },
        };
        out.push(Action::Invoke { memory, id: OpId::ONLY, op });
    }
}

impl Process for OverBytes {
    type Cell = Bytes;
    type Message = ();
    type Value = u8;

    fn handle(&mut self, input: Input<Bytes, ()>, out: &mut Actions<Self>) {
        let process = match self {
            OverBytes::Correct(process) => process,
            OverBytes::Garbage { regions, seed, good } => {
                if let Input::Response { response: Response::Cells(cells), .. } = &input {
                    good.extend(cells.iter().filter(|cell| !cell.0.is_empty()).cloned());
                    good.truncate(64);
                }
                return OverBytes::scribble(*regions, seed, good, out);
            }
        };
        let input = match input {
            Input::Start => Input::Start,
            Input::Leader(p) => Input::Leader(p),
            Input::Message { from, message } => Input::Message { from, message },
            Input::Wake => Input::Wake,
            Input::Coin(side) => Input::Coin(side),
            Input::Response { memory, id, response } => {
                Input::Response { memory, id, response: convert_response(response) }
            }
        };
        let mut actions = Vec::new();
        process.handle(input, &mut actions);
        out.extend(actions.into_iter().map(|action| offset_regions(action, 0)));
    }

    fn decision(&self) -> Option<&u8> {
        match self {
            OverBytes::Correct(process) => process.decision(),
            OverBytes::Garbage { .. } => None,
        }
    }

    fn attempts(&self) -> u64 {
        0
    }
}

/// Three processes, of which one writes garbage, if any does.
fn world(garbage: Option<(u8, u64)>, patience: u8) -> World<OverBytes> {
    let secrets: Vec<[u8; 32]> = (1..=3).map(|p| [p; 32]).collect();
    let everybody: Arc<[_]> = secrets.iter().map(|s| SigningKey::from_bytes(s).verifying_key()).collect();
    let regions = Fast::regions(3, TURNS);
    let process = |(p, secret): (u8, &[u8; 32])| match garbage {
        Some((who, seed)) if p == who => {
            OverBytes::Garbage { regions: regions.len() as u8, seed: seed << 32, good: Vec::new() }
        }
        _ => {
            let keys = Ed25519::new(7, secret, Arc::clone(&everybody));
            OverBytes::Correct(Box::new(FastAndRobust::new(
                ProcessId(p),
                (3, 3),
                patience,
                TURNS,
                keys,
                10 + p,
            )))
        }
    };
    let processes = (0..3).zip(&secrets).map(process).collect();
    let limits = FaultLimits { leader_changes: 3, memory_crashes: 1, ..FaultLimits::default() };
    let who = garbage.map_or(ProcessSet::NONE, |(who, _)| ProcessSet::only(ProcessId(who)));
    World::new(processes, 3, &regions, limits).with_byzantine(who)
}

#[test]
fn processes_decide_over_bytes_by_ed25519_and_no_garbage_stops_them() {
    let chaos = RunLimits { adversary_steps: 600, stable_steps: 60_000 };
    for seed in 0..40 {
        for garbage in [None, Some((0, seed)), Some((2, seed))] {
            let report =
                run_agreement(seed, world(garbage, [0, 20][seed as usize % 2]), chaos, &[10, 11, 12]);
            assert_eq!(report.violation, None, "seed {seed} {garbage:?}: {:?}", report.steps);
        }
    }
}
