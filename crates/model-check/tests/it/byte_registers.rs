//! Fast & Robust as over real memories: registers hold bytes, the signatures are Ed25519
//! signatures, and a Byzantine process writes arbitrary bytes.

use std::sync::Arc;

use ed25519_dalek::SigningKey;
use mitra_consensus::fast_and_robust::{Cell, FastAndRobust, convert_response, offset_regions};
use mitra_consensus::signature::{Ed25519, Ed25519Signature};
use mitra_consensus::{Action, Actions, Input, MemoryId, Op, OpId, Process, ProcessId, ProcessSet, Response};
use mitra_model_check::{FaultLimits, RunLimits, World, run_agreement};
use mitra_prng::{Prng, seeds};

/// The number of broadcasts of each process that the memories have room for.
const BROADCAST_ROOM: u16 = 12;
/// The maximum size of a register in bytes. A register holds a batch three times: as copy, witness
/// and proof. A batch has at most a claim with three signatures and 31 other events. The three
/// copies of the batch have five signatures together.
const REGISTER_BYTES: usize = 1200;

type Fast = FastAndRobust<u8, Ed25519>;
type Slot = Cell<u8, Ed25519Signature>;

/// A process over byte registers: a correct process, or a process that writes random bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum ByteProcess {
    Correct(Box<Fast>),
    /// `read_cells` are contents that the process has read.
    Garbage {
        regions: u8,
        seed: u64,
        read_cells: Vec<Bytes>,
    },
}

/// The content of a register. Bytes that do not decode to a cell count as an empty cell.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Bytes(Vec<u8>);

impl From<Bytes> for Slot {
    fn from(Bytes(bytes): Bytes) -> Slot {
        postcard::from_bytes(&bytes).unwrap_or_default()
    }
}

impl From<Slot> for Bytes {
    fn from(cell: Slot) -> Bytes {
        let bytes = Bytes(postcard::to_stdvec(&cell).expect("every cell can be serialized"));
        assert!(bytes.0.len() <= REGISTER_BYTES, "{} bytes: {cell:?}", bytes.0.len());
        assert_eq!(Slot::from(bytes.clone()), cell);
        bytes
    }
}

/// Returns a truncated and modified copy of a cell that the process has read, and the generator for
/// further random choices.
fn garbage(seed: &mut u64, read_cells: &[Bytes]) -> (Prng, Bytes) {
    *seed = seed.wrapping_add(1);
    let mut rng = Prng::new(*seed);
    let mut below = |n: usize| rng.bits() as usize % n.max(1);
    let Bytes(mut bytes) = read_cells.get(below(read_cells.len())).cloned().unwrap_or_default();
    bytes.truncate(below(2 * bytes.len() + 1));
    for _ in 0..below(6) {
        let (at, byte) = (below(bytes.len() + 1), below(256) as u8);
        match bytes.get_mut(at) {
            Some(existing) => *existing = byte,
            None => bytes.push(byte),
        }
    }
    (rng, Bytes(bytes))
}

impl ByteProcess {
    /// Writes garbage to a random register, or reads a random register.
    fn access_random_register(
        regions: u8,
        seed: &mut u64,
        read_cells: &[Bytes],
        out: &mut Actions<ByteProcess>,
    ) {
        let (mut rng, cell) = garbage(seed, read_cells);
        let mut below = |n: u64| (rng.bits() % n) as u8;
        let (memory, region) = (MemoryId(below(3)), below(regions.into()));
        let register = if region <= 3 { 0 } else { below(3 * u64::from(BROADCAST_ROOM)).into() };
        let op = match below(2) {
            0 => Op::Write { region, register, cell },
            _ => Op::Read { region, first: register, count: 1 },
        };
        out.push(Action::Invoke { memory, id: OpId::ONLY, op });
    }
}

impl Process for ByteProcess {
    type Cell = Bytes;
    type Message = ();
    type Value = u8;

    fn handle(&mut self, input: Input<Bytes, ()>, out: &mut Actions<Self>) {
        let process = match self {
            ByteProcess::Correct(process) => process,
            ByteProcess::Garbage { regions, seed, read_cells } => {
                if let Input::Response { response: Response::Cells(cells), .. } = &input {
                    read_cells.extend(cells.iter().filter(|cell| !cell.0.is_empty()).cloned());
                    read_cells.truncate(64);
                }
                return ByteProcess::access_random_register(*regions, seed, read_cells, out);
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
            ByteProcess::Correct(process) => process.decision(),
            ByteProcess::Garbage { .. } => None,
        }
    }

    fn attempts(&self) -> u64 {
        0
    }
}

/// Returns a world of three processes. `garbage` is the process that writes garbage, and its seed.
fn world(garbage: Option<(u8, u64)>, max_polls: u8) -> World<ByteProcess> {
    let secrets: Vec<[u8; 32]> = (1..=3).map(|p| [p; 32]).collect();
    let public_keys: Arc<[_]> = secrets.iter().map(|s| SigningKey::from_bytes(s).verifying_key()).collect();
    let regions = Fast::regions(3, BROADCAST_ROOM);
    let process = |(p, secret): (u8, &[u8; 32])| match garbage {
        Some((byzantine, seed)) if p == byzantine => {
            ByteProcess::Garbage { regions: regions.len() as u8, seed: seed << 32, read_cells: Vec::new() }
        }
        _ => {
            let keys = Ed25519::new(7, secret, Arc::clone(&public_keys));
            ByteProcess::Correct(Box::new(FastAndRobust::new(
                ProcessId(p),
                (3, 3),
                max_polls,
                BROADCAST_ROOM,
                keys,
                10 + p,
            )))
        }
    };
    let processes = (0..3).zip(&secrets).map(process).collect();
    let limits = FaultLimits { leader_changes: 3, memory_crashes: 1, ..FaultLimits::default() };
    let byzantine = garbage.map_or(ProcessSet::NONE, |(p, _)| ProcessSet::only(ProcessId(p)));
    World::new(processes, 3, &regions, limits).with_byzantine(byzantine)
}

#[test]
fn correct_processes_decide_despite_garbage_in_registers() {
    let run_limits = RunLimits { adversary_steps: 600, stable_steps: 60_000 };
    for seed in seeds(40) {
        for garbage in [None, Some((0, seed)), Some((2, seed))] {
            let report =
                run_agreement(seed, world(garbage, [0, 20][seed as usize % 2]), run_limits, &[10, 11, 12]);
            assert_eq!(report.violation, None, "seed {seed} {garbage:?}: {:?}", report.steps);
        }
    }
}
