//! Requesters of a recoverable counter: every add counts exactly once.

use mitra_objects::recoverable_counter::{Add, CounterClient, CounterLayout};
use mitra_objects::{Outcome, Request, Requests, WordOp};

use crate::object_world::{ObjectWorld, OutputOf, PathRules, Scenario, word};
use crate::{Exploration, RunLimits, SeedResult};

/// A rule that a mutant breaks. Each variant describes its mutant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BrokenCounterRule {
    /// The step from the highest content of a field is carried into the next field.
    StepWithoutCarry,
    /// More adds are under way than the field can decide: the requester reads one bit less of the
    /// field.
    BoundUndecided,
    /// Adds without a known outcome are posted again without reading the field.
    ReadField,
}

/// The configuration of a world with one counter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CounterWorldConfig {
    /// The bits of each field.
    pub field_bits: u8,
    /// The batches of adds of each requester.
    pub programs: Vec<Vec<Vec<i64>>>,
    /// The number of times that the path of each requester may fail.
    pub failures: Vec<u8>,
    /// The rules of NICs and paths.
    pub rules: PathRules,
    /// The rule that is broken, for a mutant.
    pub broken: Option<BrokenCounterRule>,
}

/// The requesters of a counter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CounterScenario {
    config: CounterWorldConfig,
    layout: CounterLayout,
    clients: Vec<Option<CounterClient>>,
    /// The number of batches that each requester has begun.
    begun: Vec<u8>,
    /// The value before each executed add of the batch under way.
    before: Vec<Vec<i64>>,
    sum: i64,
    holds: bool,
}

impl CounterWorldConfig {
    /// Returns the world. The memory is the counter's word.
    ///
    /// # Panics
    /// If the fields do not fit, or a batch cannot be added.
    pub fn world(self) -> ObjectWorld<CounterScenario> {
        let requesters = self.programs.len() as u8;
        let layout = CounterLayout::new(requesters, self.field_bits).expect("the fields fit");
        let client = |requester| CounterClient::new(word(0), layout, requester).ok();
        let (failures, rules) = (self.failures.clone(), self.rules);
        let scenario = CounterScenario {
            layout,
            clients: (0..requesters).map(client).collect(),
            begun: vec![0; self.programs.len()],
            before: vec![Vec::new(); self.programs.len()],
            sum: 0,
            holds: true,
            config: self,
        };
        ObjectWorld::new(vec![0], &failures, scenario, rules)
    }
}

impl CounterScenario {
    /// Returns the batch that the requester has begun last.
    fn batch(&self, client: usize) -> &[i64] {
        match self.begun[client] {
            0 => &[],
            begun => &self.config.programs[client][usize::from(begun) - 1],
        }
    }

    fn field_bits(&self) -> u32 {
        self.config.field_bits.into()
    }
}

impl Scenario for CounterScenario {
    type Operation = Add;
    const PROPERTY: &'static str = "every add counts exactly once";

    fn has_next(&self, client: usize) -> bool {
        self.clients[client].is_some() && usize::from(self.begun[client]) < self.config.programs[client].len()
    }

    fn begin(&mut self, client: usize, _memory: &[u64]) -> Add {
        self.begun[client] += 1;
        self.before[client].clear();
        let requester = self.clients[client].take().expect("no add is under way");
        requester.add_all(self.batch(client)).expect("the adds fit")
    }

    fn on_change(&mut self, client: usize, is_current: bool, _request: Request, memory: &[u64]) {
        let next = self.batch(client).get(self.before[client].len()).copied();
        let (before, after) = (self.sum, self.layout.value(memory[0]));
        self.before[client].push(before);
        self.sum = after;
        self.holds &= is_current && next.is_some_and(|delta| before + delta == after);
    }

    fn on_end(&mut self, client: usize, output: OutputOf<Self>, _memory: &[u64]) {
        let before = &self.before[client];
        self.holds &= output.as_ref().is_ok_and(|added| {
            let known = added.previous.iter().zip(before);
            before.len() == self.batch(client).len()
                && known.into_iter().all(|(known, before)| known.is_none_or(|value| value == *before))
        });
        self.clients[client] = output.ok().map(|added| added.client);
    }

    fn holds(&self) -> bool {
        self.holds
    }

    fn alter_requests(&mut self, client: usize, requests: &mut Requests) {
        if self.config.broken != Some(BrokenCounterRule::StepWithoutCarry) {
            return;
        }
        let bits = self.field_bits();
        let unit = 1 << (client as u32 * bits);
        let fields = (1_u64 << (bits * self.clients.len() as u32)) - 1;
        for request in requests {
            if let WordOp::FetchAdd(add) = &mut request.op
                && *add & fields != unit
            {
                *add = add.wrapping_add(unit << bits);
            }
        }
    }

    fn alter_outcomes(&mut self, client: usize, posted: &[Request], outcomes: &mut Vec<Outcome>) {
        let top_bit = 1 << ((client as u32 + 1) * self.field_bits() - 1);
        let is_read = posted.iter().any(|request| request.op == WordOp::Read);
        for outcome in outcomes {
            match (self.config.broken, &outcome) {
                (Some(BrokenCounterRule::BoundUndecided), Outcome::Executed { value }) if is_read => {
                    *outcome = Outcome::Executed { value: value & !top_bit };
                }
                (Some(BrokenCounterRule::ReadField), Outcome::Unknown) => *outcome = Outcome::NotExecuted,
                _ => {}
            }
        }
    }
}

/// Returns a world in which three requesters with one-bit fields add two times each.
pub fn one_bit_fields() -> CounterWorldConfig {
    CounterWorldConfig {
        field_bits: 1,
        programs: vec![vec![vec![1], vec![5]], vec![vec![-2], vec![3]], vec![vec![7], vec![-1]]],
        failures: vec![2, 2, 1],
        rules: PathRules::IBTA,
        broken: None,
    }
}

/// Returns a world in which two requesters with two-bit fields add two batches each.
pub fn two_bit_fields() -> CounterWorldConfig {
    CounterWorldConfig {
        field_bits: 2,
        programs: vec![vec![vec![1, 5, -2], vec![3, 4]], vec![vec![7, -9, 2], vec![6]]],
        failures: vec![2, 1],
        rules: PathRules::IBTA,
        broken: None,
    }
}

pub(crate) fn explore() -> Exploration {
    one_bit_fields().world().explore().and_then(|| two_bit_fields().world().explore())
}

pub(crate) fn run(seed: u64) -> SeedResult {
    let field_bits = 1 + (seed % 3) as u8;
    let batch = |n: u64| (0..1 + n % ((1 << field_bits) - 1)).map(|k| (n * 7 + k) as i64 - 20).collect();
    let programs = (0..4).map(|client| (0..6).map(|n| batch(seed / 3 + client * 6 + n)).collect()).collect();
    let config = CounterWorldConfig {
        field_bits,
        programs,
        failures: vec![4; 4],
        rules: PathRules::IBTA,
        broken: None,
    };
    config.world().run(seed, RunLimits { adversary_steps: 400, stable_steps: 2_000 })
}
