//! A reduction of the world that a seed draws, to a smaller world with the same failure.

use core::fmt;
use core::str::FromStr;

use super::SeedRun;

/// A part of a world that a [`Reduction`] leaves out or replaces by the simplest value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Extra {
    /// Random loss, duplication, reordering, corruption and delay of packets.
    Noise,
    /// Random pauses of hosts.
    Pauses,
    /// Times in which a program, a NIC or a whole process gets no processor.
    Starvation,
    /// Memory windows, through which the ends access each other's memory.
    Windows,
    /// Shared receive queues.
    SharedReceives,
    /// The mode `durable`.
    Durable,
    /// The completion log.
    Log,
    /// The preferred rail.
    Failback,
    /// Turns that only take completions.
    LazyPolls,
    /// Inline data, pieces of local memory, empty and unsignalled operations.
    Shapes,
    /// FENCE, and READs of memory that the next operation changes.
    Fences,
    /// MTUs other than 1024.
    Mtu,
    /// Shared cells.
    Cells,
    /// The shared counter.
    Counter,
    /// The shared latch.
    Latch,
    /// The shared mutex.
    Mutex,
    Mailboxes,
}

impl Extra {
    /// In the order in which a search leaves them out.
    pub const ALL: [Extra; 17] = [
        Extra::Noise,
        Extra::Pauses,
        Extra::Starvation,
        Extra::Windows,
        Extra::SharedReceives,
        Extra::Durable,
        Extra::Log,
        Extra::Failback,
        Extra::LazyPolls,
        Extra::Shapes,
        Extra::Fences,
        Extra::Mtu,
        Extra::Cells,
        Extra::Counter,
        Extra::Latch,
        Extra::Mutex,
        Extra::Mailboxes,
    ];

    const fn name(self) -> &'static str {
        match self {
            Extra::Noise => "noise",
            Extra::Pauses => "pauses",
            Extra::Starvation => "starvation",
            Extra::Windows => "windows",
            Extra::SharedReceives => "shared-receives",
            Extra::Durable => "durable",
            Extra::Log => "log",
            Extra::Failback => "failback",
            Extra::LazyPolls => "lazy-polls",
            Extra::Shapes => "shapes",
            Extra::Fences => "fences",
            Extra::Mtu => "mtu",
            Extra::Cells => "cells",
            Extra::Counter => "counter",
            Extra::Latch => "latch",
            Extra::Mutex => "mutex",
            Extra::Mailboxes => "mailboxes",
        }
    }
}

/// A reduction of the world that a seed draws. A seed and the text of a reduction, such as
/// `faults=0+3,operations=4+0,without=noise+log`, repeat a world.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Reduction {
    /// The positions, in the drawn schedule, of the faults that are left. `None`: all.
    pub faults: Option<Vec<usize>>,
    /// The number of connections that are left.
    pub connections: Option<usize>,
    /// The number of rails that are left.
    pub rails: Option<usize>,
    /// The number of operations of each end that are left, in each connection.
    pub operations: Option<[usize; 2]>,
    /// The extras that are left out, without repetition.
    pub without: Vec<Extra>,
}

impl Reduction {
    /// Returns whether the world is as the seed draws it.
    pub fn is_empty(&self) -> bool {
        *self == Reduction::default()
    }

    /// Returns a changed copy.
    #[must_use]
    pub fn with(&self, change: impl FnOnce(&mut Reduction)) -> Reduction {
        let mut reduction = self.clone();
        change(&mut reduction);
        reduction
    }

    /// Returns whether the reduction leaves this extra out.
    pub fn lacks(&self, extra: Extra) -> bool {
        self.without.contains(&extra)
    }

    /// Returns how many of the `drawn` operations of an end are left.
    pub(crate) fn operations_of(&self, end: usize, drawn: usize) -> usize {
        self.operations.map_or(drawn, |operations| operations[end].min(drawn))
    }

    pub(crate) fn and_without(&self, extra: Extra) -> Reduction {
        self.with(|reduction| reduction.without.push(extra))
    }
}

/// A part of a world that a step of a search reduces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReductionStep {
    Faults,
    Connections,
    /// Operations of the ends.
    Operations,
    Rails,
    Extras,
}

impl ReductionStep {
    /// In the order of a search.
    pub const ALL: [ReductionStep; 5] = [
        ReductionStep::Faults,
        ReductionStep::Connections,
        ReductionStep::Operations,
        ReductionStep::Rails,
        ReductionStep::Extras,
    ];
}

/// The smaller worlds of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Reducible {
    /// Runs the world of a seed without the parts that the reduction takes away, like
    /// [`SeededWorkload::run`](super::SeededWorkload::run).
    ///
    /// # Errors
    /// The reduction names a part that the world of the seed does not have.
    pub run: fn(u64, &Reduction, usize) -> Result<SeedRun, ReductionError>,
    /// Returns reductions that take away more than the given reduction, by one step. The first
    /// reduction takes the most away.
    pub smaller: fn(u64, &Reduction, ReductionStep) -> Vec<Reduction>,
}

impl Reducible {
    pub(super) fn run_whole(&self, seed: u64, kept_records: usize) -> SeedRun {
        (self.run)(seed, &Reduction::default(), kept_records).expect("the whole world exists")
    }
}

fn join(words: impl Iterator<Item = String>) -> String {
    let words: Vec<_> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join("+") }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(faults) = &self.faults {
            parts.push(format!("faults={}", join(faults.iter().map(usize::to_string))));
        }
        let numbers = [("connections", self.connections), ("rails", self.rails)];
        parts.extend(numbers.iter().filter_map(|(name, n)| n.map(|n| format!("{name}={n}"))));
        if let Some([a, b]) = self.operations {
            parts.push(format!("operations={a}+{b}"));
        }
        if !self.without.is_empty() {
            parts.push(format!("without={}", join(self.without.iter().map(|extra| extra.name().to_owned()))));
        }
        f.write_str(&parts.join(","))
    }
}

/// The error for a text that is no [`Reduction`], and for a reduction that the world of a seed
/// cannot have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReductionError(String);

impl ReductionError {
    pub(crate) fn new(text: String) -> ReductionError {
        ReductionError(text)
    }
}

impl fmt::Display for ReductionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for ReductionError {}

impl FromStr for Reduction {
    type Err = ReductionError;

    fn from_str(text: &str) -> Result<Reduction, ReductionError> {
        let mut reduction = Reduction::default();
        for part in text.split(',') {
            let wrong = || {
                ReductionError(format!(
                    "{part:?} is no part of a shrunk world; use for example faults=0+3, connections=1, rails=2, operations=4+0 or without=noise+log"
                ))
            };
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let words = || value.split('+').filter(|&word| word != "none");
            let number = |word: &str| word.parse::<usize>().map_err(|_| wrong());
            match name {
                "faults" => reduction.faults = Some(words().map(number).collect::<Result<_, _>>()?),
                "connections" => reduction.connections = Some(number(value)?),
                "rails" => reduction.rails = Some(number(value)?),
                "operations" => {
                    let both: Vec<usize> = words().map(number).collect::<Result<_, _>>()?;
                    reduction.operations = Some(both.try_into().map_err(|_| wrong())?);
                }
                "without" => {
                    for word in words() {
                        let extra = Extra::ALL.into_iter().find(|extra| extra.name() == word);
                        let extra = extra.ok_or_else(wrong)?;
                        if !reduction.lacks(extra) {
                            reduction.without.push(extra);
                        }
                    }
                }
                _ => return Err(wrong()),
            }
        }
        Ok(reduction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_repeats_a_reduction() {
        let full = Reduction {
            faults: Some(vec![0, 3]),
            connections: Some(1),
            rails: Some(2),
            operations: Some([4, 0]),
            without: vec![Extra::Noise, Extra::Log],
        };
        let text = "faults=0+3,connections=1,rails=2,operations=4+0,without=noise+log";
        assert_eq!((full.to_string(), text.parse()), (text.to_owned(), Ok(full)));
        let no_faults = Reduction { faults: Some(Vec::new()), ..Reduction::default() };
        assert_eq!((no_faults.to_string(), "faults=none".parse()), ("faults=none".to_owned(), Ok(no_faults)));
        for extra in Extra::ALL {
            let reduction = Reduction::default().and_without(extra);
            assert_eq!(reduction.to_string().parse(), Ok(reduction));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "faults", "faults=x", "operations=1", "operations=1+2+3", "without=x", "rails=-1", "a=1"]
        {
            let error = text.parse::<Reduction>().unwrap_err().to_string();
            assert!(error.contains("operations=4+0"), "{text}: {error}");
        }
    }
}
