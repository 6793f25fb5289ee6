//! Recoverable and indirect cells.

use std::cell::RefCell;
use std::rc::Rc;

use mitra_driver::Connection;
use mitra_objects::{
    Announcements, CellError, Change, ChangeCell, ChangeIndirect, Changed, Execution, Finished, IndirectCell,
    OpenOwner, Operation, Outcome, Owner, PathError, Progress, Publication, ReadCell, ReadIndirect,
    RecoverableCell, Word,
};
use mitra_verbs::{AtomicScope, Buffer};

use super::cell_history::{Call, Entry, Returned, check};
use super::client::{Script, Turn};
use super::shared_object::SharedObject;
use super::{Finding, ObjectMemory};
use mitra_sim::Prng;

/// A value of an indirect cell, which has 64 bits, is a value of the history times this number.
const SPREAD: u64 = (1 << 32) + 1;

#[derive(Clone, Copy)]
enum SharedCell {
    Recoverable { cell: RecoverableCell, offset: usize },
    Indirect { cell: IndirectCell, offset: usize, words: usize },
}

struct Shared {
    histories: Vec<Vec<Entry>>,
    /// The number of calls that have begun, plus the number that have ended.
    time: u64,
    /// The number of compare-and-swaps. Each stores a value that no other call stores.
    swaps: u32,
    errors: Vec<CellError>,
}

pub(super) struct Cells {
    announcements: Announcements,
    publication: Publication,
    cells: Vec<SharedCell>,
    shared: Rc<RefCell<Shared>>,
}

impl Cells {
    pub(super) fn new(
        memory: &mut ObjectMemory,
        clients: usize,
        atomics: AtomicScope,
        rng: &mut Prng,
    ) -> Cells {
        let owners = clients as u8;
        let announcements = Announcements::new(memory.allocate(Announcements::bytes(owners)).0, owners);
        // A WRITE may publish only if the NIC's atomics are also atomic with respect to WRITEs.
        let publication = match atomics {
            AtomicScope::Global if rng.below(2) == 0 => Publication::Write,
            _ => Publication::CompareSwap,
        };
        let mut cells = Vec::new();
        for _ in 0..rng.between(1, 2) {
            let (word, offset) = memory.allocate(8);
            cells.push(SharedCell::Recoverable { cell: RecoverableCell::new(word), offset });
            let bytes = IndirectCell::bytes(owners);
            let (first, offset): (Word, usize) = memory.allocate(bytes);
            let cell = IndirectCell::new(first, owners);
            cells.push(SharedCell::Indirect { cell, offset, words: bytes / 8 });
        }
        let histories = vec![Vec::new(); cells.len()];
        let shared = Shared { histories, time: 0, swaps: 0, errors: Vec::new() };
        Cells { announcements, publication, cells, shared: Rc::new(RefCell::new(shared)) }
    }
}

impl SharedObject for Cells {
    fn script(&self, client: usize, rng: &mut Prng) -> Box<dyn Script> {
        let open = Owner::open(self.announcements, client as u8 + 1, self.publication);
        let open = open.expect("each client has an announcement");
        Box::new(CellScript {
            cells: self.cells.clone(),
            shared: Rc::clone(&self.shared),
            state: State::Opening(Execution::new(open.clone())),
            open,
            seen: vec![0; self.cells.len()],
            calls_left: rng.between(10, 60) as u32,
            rng: Prng::new(rng.bits()),
        })
    }

    fn findings(&self, memory: &Buffer, _all_finished: bool) -> Vec<Finding> {
        let shared = self.shared.borrow();
        let mut findings: Vec<Finding> =
            shared.errors.iter().map(|error| Finding::violation("cell-error", error.to_string())).collect();
        for (number, (cell, history)) in self.cells.iter().zip(&shared.histories).enumerate() {
            let result = match *cell {
                SharedCell::Recoverable { offset, .. } => {
                    Some(RecoverableCell::value_of(memory.load(offset)))
                }
                SharedCell::Indirect { offset, words, .. } => {
                    let words: Vec<u64> = (0..words).map(|nth| memory.load(offset + 8 * nth)).collect();
                    IndirectCell::value_of(&words).and_then(from_spread)
                }
            };
            let checked = match result {
                Some(last) => check(history, last),
                None => Err("the memory has no value of this cell".to_owned()),
            };
            if let Err(what) = checked {
                findings.push(Finding::violation("linearizable", format!("cell {number}: {what}")));
            }
        }
        findings
    }
}

/// Returns the value of the history for a value of an indirect cell.
fn from_spread(value: u64) -> Option<u32> {
    let low = value as u32;
    (u64::from(low) * SPREAD == value).then_some(low)
}

/// Returns the change of a call. `value` converts a value of the history to a value of the cell.
fn change<V>(call: Call, value: impl Fn(u32) -> V) -> Option<Change<V>> {
    match call {
        Call::Read => None,
        Call::CompareSwap { expected, new } => {
            Some(Change::CompareSwap { expected: value(expected), new: value(new) })
        }
        Call::FetchAdd(add) => Some(Change::FetchAdd(value(add))),
    }
}

struct CellScript {
    cells: Vec<SharedCell>,
    shared: Rc<RefCell<Shared>>,
    open: OpenOwner,
    state: State,
    /// For each cell, the last value that the client has seen.
    seen: Vec<u32>,
    calls_left: u32,
    rng: Prng,
}

enum State {
    Opening(Execution<OpenOwner>),
    Idle(Owner),
    /// A call on this cell is in flight, with the position `nth` in the history. A read does not
    /// take the owner.
    Calling {
        execution: Box<Execution<CellOperation>>,
        owner: Option<Owner>,
        cell: usize,
        nth: usize,
    },
}

enum CellOperation {
    Read(ReadCell),
    Change(ChangeCell),
    ReadIndirect(ReadIndirect),
    ChangeIndirect(ChangeIndirect),
}

/// The owner, if the operation took it, whether the cell was changed, and the value.
type CellResult = (Option<Owner>, Result<(bool, u64), CellError>);

fn changed<V: Copy + Into<u64>>(finished: Finished<Changed<V>>) -> CellResult {
    let result = finished.result.map(|c| (matches!(c, Changed::From(_)), c.value().into()));
    (Some(finished.owner), result)
}

impl CellOperation {
    fn advance(&mut self, outcomes: Option<&[Outcome]>) -> Progress<CellResult> {
        fn go<O: Operation>(operation: &mut O, outcomes: Option<&[Outcome]>) -> Progress<O::Output> {
            match outcomes {
                None => operation.start(),
                Some(outcomes) => operation.on_outcomes(outcomes),
            }
        }
        match self {
            CellOperation::Read(op) => go(op, outcomes).map(|value| (None, Ok((false, value.into())))),
            CellOperation::Change(op) => go(op, outcomes).map(changed),
            CellOperation::ReadIndirect(op) => {
                go(op, outcomes).map(|value| (None, value.map(|value| (false, value))))
            }
            CellOperation::ChangeIndirect(op) => go(op, outcomes).map(changed),
        }
    }
}

impl Operation for CellOperation {
    type Output = CellResult;

    fn start(&mut self) -> Progress<CellResult> {
        self.advance(None)
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<CellResult> {
        self.advance(Some(outcomes))
    }
}

impl CellScript {
    fn draw(&mut self, cell: usize) -> Call {
        let seen = self.seen[cell];
        match self.rng.below(6) {
            0 => Call::Read,
            1 | 2 => {
                let swaps = &mut self.shared.borrow_mut().swaps;
                *swaps += 1;
                // Most often the value that the client has seen last.
                let expected = if self.rng.below(8) == 0 { seen ^ 1 } else { seen };
                Call::CompareSwap { expected, new: *swaps << 16 }
            }
            _ => Call::FetchAdd(self.rng.between(1, 100) as u32),
        }
    }

    fn begin(&mut self, owner: Owner) {
        self.calls_left -= 1;
        let cell = self.rng.index(self.cells.len());
        let call = self.draw(cell);
        let (operation, owner) = match self.cells[cell] {
            SharedCell::Recoverable { cell, .. } => match change(call, |value| value) {
                None => (CellOperation::Read(cell.read()), Some(owner)),
                Some(change) => (CellOperation::Change(cell.change(owner, change)), None),
            },
            SharedCell::Indirect { cell, .. } => match change(call, |value| u64::from(value) * SPREAD) {
                None => (CellOperation::ReadIndirect(cell.read()), Some(owner)),
                Some(change) => (CellOperation::ChangeIndirect(cell.change(owner, change)), None),
            },
        };
        let shared = &mut *self.shared.borrow_mut();
        shared.time += 1;
        let history = &mut shared.histories[cell];
        history.push(Entry { call, begun: shared.time, ended: None });
        let nth = history.len() - 1;
        self.state = State::Calling { execution: Box::new(Execution::new(operation)), owner, cell, nth };
    }

    fn end(&mut self, cell: usize, nth: usize, result: Result<(bool, u64), CellError>) {
        let shared = &mut *self.shared.borrow_mut();
        shared.time += 1;
        let (is_changed, value) = match result {
            Ok(result) => result,
            Err(error) => return shared.errors.push(error),
        };
        let value = match self.cells[cell] {
            SharedCell::Recoverable { .. } => Some(value as u32),
            SharedCell::Indirect { .. } => from_spread(value),
        };
        // No history has this value, so the check fails.
        let value = value.unwrap_or(u32::MAX);
        let returned = if is_changed { Returned::ChangedFrom(value) } else { Returned::Value(value) };
        shared.histories[cell][nth].ended = Some((shared.time, returned));
        self.seen[cell] = match (is_changed, shared.histories[cell][nth].call) {
            (true, Call::CompareSwap { new, .. }) => new,
            (true, Call::FetchAdd(add)) => value.wrapping_add(add),
            _ => value,
        };
    }
}

impl Script for CellScript {
    fn on_new_path(&mut self, has_crashed: bool) {
        if has_crashed {
            // The call in flight stays undecided.
            self.state = State::Opening(Execution::new(self.open.clone()));
            return;
        }
        match &mut self.state {
            State::Opening(execution) => execution.fenced(),
            State::Calling { execution, .. } => execution.fenced(),
            State::Idle(_) => {}
        }
    }

    fn poll(&mut self, path: &mut Connection) -> Result<Turn, PathError> {
        match &mut self.state {
            State::Opening(execution) => {
                let Some(owner) = execution.poll(path)? else { return Ok(Turn::Running) };
                self.state = State::Idle(owner);
            }
            State::Idle(_) if self.calls_left == 0 => return Ok(Turn::Ended),
            State::Idle(owner) => {
                let owner = owner.clone();
                self.begin(owner);
                return Ok(Turn::Begun);
            }
            State::Calling { execution, owner, cell, nth } => {
                let Some((returned, result)) = execution.poll(path)? else { return Ok(Turn::Running) };
                let (cell, nth) = (*cell, *nth);
                if let Some(owner) = owner.take().or(returned) {
                    self.state = State::Idle(owner);
                }
                self.end(cell, nth, result);
            }
        }
        Ok(Turn::Between)
    }
}
