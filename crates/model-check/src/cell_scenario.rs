//! Clients that change recoverable and indirect cells: every change happens exactly once and
//! returns the value before it.

use mitra_objects::{
    Announcements, Change, ChangeCell, ChangeIndirect, Changed, Finished, IndirectCell, Operation, Outcome,
    Owner, Progress, Publication, ReadCell, ReadIndirect, RecoverableCell, Request, Requests, WordOp,
};

use crate::object_world::{ObjectWorld, PathRules, Scenario, word};

/// A rule that a mutant breaks. Each variant describes its mutant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BrokenCellRule {
    /// An owner overwrites the announcement of another owner by a WRITE instead of a
    /// compare-and-swap.
    HelpByCompareSwap,
    /// An owner overwrites the word of another owner without changing that owner's announcement.
    Help,
    /// The recovery reads the announcement before the word.
    WordBeforeAnnouncement,
    /// An owner announces its operation after the compare-and-swap of the word.
    PublishFirst,
    /// An owner begins again with sequence number 1 for each operation.
    NoReuseOfSequences,
    /// An owner announces its operation by the first of the two compare-and-swaps only.
    BothPublications,
}

/// The kind of the cells.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CellKind {
    /// [`RecoverableCell`].
    Recoverable,
    /// [`IndirectCell`].
    Indirect,
}

/// A client's operation: the number of the cell, and the change, or `None` for a read.
pub type CellCall = (u8, Option<Change<u32>>);

/// The configuration of a world of cells.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CellWorldConfig {
    /// The kind of the cells.
    pub kind: CellKind,
    /// The number of cells. All have the value 0 at first.
    pub cells: u8,
    /// The operations of each client.
    pub programs: Vec<Vec<CellCall>>,
    /// The number of times that the path of each client may fail.
    pub failures: Vec<u8>,
    /// How owners publish.
    pub publication: Publication,
    /// The rules of NICs and paths.
    pub rules: PathRules,
    /// The rule that is broken, for a mutant.
    pub broken: Option<BrokenCellRule>,
}

/// An operation under way, and its effects.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct UnderWay {
    call: CellCall,
    /// The value before the change, if the change was executed.
    changed_from: Option<u64>,
    /// The values that the cell has had since the operation began.
    seen: Vec<u64>,
    /// Whether the operation has tried to change the word.
    attempted: bool,
    /// The announcement that a mutant has read too early.
    read_early: Option<u64>,
}

/// The clients of cells.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CellScenario {
    config: CellWorldConfig,
    owners: Vec<Owner>,
    /// The number of operations that each client has begun.
    begun: Vec<u8>,
    under_way: Vec<Option<UnderWay>>,
    values: Vec<u64>,
    holds: bool,
}

/// An operation on a cell.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CellOperation {
    /// A read of a recoverable cell.
    Read(ReadCell),
    /// A change of a recoverable cell.
    Change(ChangeCell),
    /// A read of an indirect cell.
    ReadIndirect(ReadIndirect),
    /// A change of an indirect cell.
    ChangeIndirect(ChangeIndirect),
}

/// The result: the owner if the operation needed one, whether the cell was changed, and the value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CellOutput(Option<Owner>, Option<(bool, u64)>);

impl CellOutput {
    fn of_change<V: Copy + Into<u64>>(finished: Finished<Changed<V>>) -> CellOutput {
        let result =
            finished.result.ok().map(|changed| (matches!(changed, Changed::From(_)), changed.value().into()));
        CellOutput(Some(finished.owner), result)
    }

    fn of_read(value: Option<u64>) -> CellOutput {
        CellOutput(None, value.map(|value| (false, value)))
    }
}

impl CellOperation {
    fn convert(
        &mut self,
        read: impl FnOnce(&mut ReadCell) -> Progress<u32>,
        change: impl FnOnce(&mut ChangeCell) -> Progress<Finished<Changed<u32>>>,
        read_indirect: impl FnOnce(&mut ReadIndirect) -> Progress<<ReadIndirect as Operation>::Output>,
        change_indirect: impl FnOnce(&mut ChangeIndirect) -> Progress<Finished<Changed<u64>>>,
    ) -> Progress<CellOutput> {
        match self {
            CellOperation::Read(op) => read(op).map(|value| CellOutput::of_read(Some(value.into()))),
            CellOperation::Change(op) => change(op).map(CellOutput::of_change),
            CellOperation::ReadIndirect(op) => read_indirect(op).map(|value| CellOutput::of_read(value.ok())),
            CellOperation::ChangeIndirect(op) => change_indirect(op).map(CellOutput::of_change),
        }
    }
}

impl Operation for CellOperation {
    type Output = CellOutput;

    fn start(&mut self) -> Progress<CellOutput> {
        self.convert(Operation::start, Operation::start, Operation::start, Operation::start)
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<CellOutput> {
        self.convert(
            |op| op.on_outcomes(outcomes),
            |op| op.on_outcomes(outcomes),
            |op| op.on_outcomes(outcomes),
            |op| op.on_outcomes(outcomes),
        )
    }
}

impl CellWorldConfig {
    /// Returns the world. The memory has the announcements first, and then the cells.
    pub fn world(self) -> ObjectWorld<CellScenario> {
        let (clients, cells) = (self.programs.len(), usize::from(self.cells));
        let owners = (0..clients).map(|client| self.open(client, 0)).collect();
        let (failures, rules) = (self.failures.clone(), self.rules);
        let memory = vec![0; clients + cells * self.cell_words()];
        let scenario = CellScenario {
            owners,
            begun: vec![0; clients],
            under_way: vec![None; clients],
            values: vec![0; cells],
            holds: true,
            config: self,
        };
        ObjectWorld::new(memory, &failures, scenario, rules)
    }

    fn owners(&self) -> u8 {
        self.programs.len() as u8
    }

    /// Returns the owner of a client, opened with this content of the client's announcement.
    fn open(&self, client: usize, announcement: u64) -> Owner {
        let announcements = Announcements::new(word(0), self.owners());
        let open = Owner::open(announcements, client as u8 + 1, self.publication);
        let read = [Outcome::Executed { value: announcement }];
        match open.expect("each client has an announcement").on_outcomes(&read) {
            Progress::Done(owner) => owner,
            Progress::Post(_) => unreachable!("the announcement was read"),
        }
    }

    fn cell_words(&self) -> usize {
        match self.kind {
            CellKind::Recoverable => 1,
            CellKind::Indirect => IndirectCell::bytes(self.owners()) / 8,
        }
    }

    fn first_word(&self, cell: u8) -> u64 {
        self.programs.len() as u64 + u64::from(cell) * self.cell_words() as u64
    }

    fn value(&self, cell: u8, memory: &[u64]) -> u64 {
        let first = self.first_word(cell) as usize;
        match self.kind {
            CellKind::Recoverable => RecoverableCell::value_of(memory[first]).into(),
            CellKind::Indirect => IndirectCell::value_of(&memory[first..first + self.cell_words()])
                .expect("every tag names a record"),
        }
    }
}

impl CellScenario {
    fn expect(&mut self, condition: bool) {
        self.holds &= condition;
    }

    /// Returns whether the request is on the client's own announcement.
    fn is_publication(client: usize, request: &Request) -> bool {
        request.word == word(client as u64) && request.op != WordOp::Read
    }
}

impl Scenario for CellScenario {
    type Operation = CellOperation;
    const PROPERTY: &'static str = "exactly once, with its result";

    fn has_next(&self, client: usize) -> bool {
        usize::from(self.begun[client]) < self.config.programs[client].len()
    }

    fn begin(&mut self, client: usize, memory: &[u64]) -> CellOperation {
        let call = self.config.programs[client][usize::from(self.begun[client])];
        self.begun[client] += 1;
        let (cell, change) = call;
        self.under_way[client] = Some(UnderWay {
            call,
            changed_from: None,
            seen: vec![self.config.value(cell, memory)],
            attempted: false,
            read_early: None,
        });
        if self.config.broken == Some(BrokenCellRule::NoReuseOfSequences) {
            self.owners[client] = self.config.open(client, 0);
        }
        let (first, owner) = (word(self.config.first_word(cell)), self.owners[client].clone());
        match (self.config.kind, change) {
            (CellKind::Recoverable, None) => CellOperation::Read(RecoverableCell::new(first).read()),
            (CellKind::Recoverable, Some(change)) => {
                CellOperation::Change(RecoverableCell::new(first).change(owner, change))
            }
            (CellKind::Indirect, change) => {
                let cell = IndirectCell::new(first, self.config.owners());
                match change {
                    None => CellOperation::ReadIndirect(cell.read()),
                    Some(change) => CellOperation::ChangeIndirect(cell.change(owner, widen(change))),
                }
            }
        }
    }

    fn on_change(&mut self, client: usize, is_current: bool, request: Request, memory: &[u64]) {
        let cells = 0..self.config.cells;
        let Some(cell) = cells.clone().find(|&cell| request.word == word(self.config.first_word(cell)))
        else {
            // Only a request on the first word of a cell changes a value.
            let unchanged = cells
                .into_iter()
                .all(|cell| self.config.value(cell, memory) == self.values[usize::from(cell)]);
            return self.expect(unchanged);
        };
        let (old, new) = (self.values[usize::from(cell)], self.config.value(cell, memory));
        self.values[usize::from(cell)] = new;
        let mut is_right = false;
        if let Some(op) = self.under_way[client].as_mut().filter(|op| is_current && op.call.0 == cell) {
            let result = match op.call.1 {
                Some(Change::FetchAdd(add)) => Some(old + u64::from(add)),
                Some(Change::CompareSwap { expected, new }) => {
                    (old == u64::from(expected)).then_some(u64::from(new))
                }
                None => None,
            };
            is_right = op.changed_from.replace(old).is_none() && result == Some(new);
        }
        self.expect(is_right);
        for op in self.under_way.iter_mut().flatten().filter(|op| op.call.0 == cell) {
            if !op.seen.contains(&new) {
                op.seen.push(new);
                op.seen.sort_unstable();
            }
        }
    }

    fn on_end(&mut self, client: usize, output: CellOutput, _memory: &[u64]) {
        let CellOutput(owner, result) = output;
        if let Some(owner) = owner {
            self.owners[client] = owner;
        }
        let Some(op) = self.under_way[client].take() else { return self.expect(false) };
        let is_right = match (result, op.call.1) {
            (Some((true, old)), _) => op.changed_from == Some(old),
            (Some((false, value)), change) => {
                let may_fail = match change {
                    None => true,
                    Some(Change::CompareSwap { expected, .. }) => value != u64::from(expected),
                    Some(Change::FetchAdd(_)) => false,
                };
                may_fail && op.changed_from.is_none() && op.seen.contains(&value)
            }
            (None, _) => false,
        };
        self.expect(is_right);
    }

    fn holds(&self) -> bool {
        self.holds
    }

    fn alter_requests(&mut self, client: usize, requests: &mut Requests) {
        let Some(op) = &mut self.under_way[client] else { return };
        let cell = word(self.config.first_word(op.call.0));
        let clients = self.config.programs.len();
        let of_another = |request: &Request| {
            (0..clients).any(|other| other != client && request.word == word(other as u64))
        };
        match self.config.broken {
            None | Some(BrokenCellRule::NoReuseOfSequences) => {}
            Some(BrokenCellRule::HelpByCompareSwap) => {
                for request in requests.iter_mut().filter(|request| of_another(request)) {
                    if let WordOp::CompareSwap { swap, .. } = request.op {
                        request.op = WordOp::Write(swap);
                    }
                }
            }
            Some(BrokenCellRule::Help) => requests.retain(|request| !of_another(request)),
            Some(BrokenCellRule::WordBeforeAnnouncement) => {
                if op.attempted && requests[..] == [Request::read(cell)] {
                    requests.insert(0, Request::read(word(client as u64)));
                }
            }
            Some(BrokenCellRule::PublishFirst) => {
                let (last, first): (Vec<Request>, Vec<Request>) =
                    requests.iter().partition(|request| Self::is_publication(client, request));
                *requests = first.into_iter().chain(last).collect();
            }
            Some(BrokenCellRule::BothPublications) => {
                let mut publications = 0;
                requests.retain(|request| {
                    publications += u8::from(Self::is_publication(client, request));
                    !Self::is_publication(client, request) || publications == 1
                });
            }
        }
        op.attempted |= requests.iter().any(|r| r.word == cell && r.op != WordOp::Read);
    }

    fn alter_outcomes(&mut self, client: usize, posted: &[Request], outcomes: &mut Vec<Outcome>) {
        let Some(op) = &mut self.under_way[client] else { return };
        match self.config.broken {
            Some(BrokenCellRule::PublishFirst) => {
                let publications = posted.iter().filter(|r| Self::is_publication(client, r)).count();
                outcomes.rotate_right(publications);
            }
            Some(BrokenCellRule::WordBeforeAnnouncement) => {
                let announcement = Request::read(word(client as u64));
                if posted.len() == 2 && posted[0] == announcement {
                    op.read_early = outcomes[0].value();
                    if op.read_early.is_none() {
                        outcomes[1] = Outcome::Unknown; // the recovery begins again
                    }
                } else if posted == [announcement]
                    && let Some(value) = op.read_early
                {
                    outcomes[0] = Outcome::Executed { value };
                }
            }
            _ => {}
        }
    }
}

/// Returns the change for a cell of 64 bits.
fn widen(change: Change<u32>) -> Change<u64> {
    match change {
        Change::CompareSwap { expected, new } => {
            Change::CompareSwap { expected: expected.into(), new: new.into() }
        }
        Change::FetchAdd(add) => Change::FetchAdd(add.into()),
    }
}
