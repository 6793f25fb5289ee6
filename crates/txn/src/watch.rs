//! Watches a coordinator's line before a process starts as this coordinator, so that the start does
//! not take over a life that runs.
//!
//! The watch only reads. A heartbeat of the new life would overwrite the heartbeat that the watch
//! looks for. A life that has paused for the whole time-out counts as ended: the start fences it on
//! all nodes, so it loses its rights before its log is read.

use core::time::Duration;

use crate::life_word::{LifeState, LifeWord};
use crate::lock_word::Life;
use crate::place::Location;
use crate::request::{Op, Outcome, Request};

/// The life word and the heartbeat.
const BYTES: u32 = 16;
/// The number of changes that show a running life. A request of a process that was killed may still
/// be executed after the first READ, so one change shows nothing.
const CHANGES: u32 = 3;

/// What a [`Watch`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Watched {
    /// A process runs as the coordinator, in this life.
    Runs(Life),
    /// No process seems to run as the coordinator. [`Takeover::over`](crate::Takeover::over) takes
    /// the word, so that the start ends if another process begins meanwhile.
    Silent(LifeWord),
}

/// The line, as last read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Seen {
    word: LifeWord,
    beat: u64,
    /// The time of the last READ that found a change.
    changed: Duration,
}

/// A watch of a coordinator's line. Times are durations since a fixed moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Watch {
    coordinator: u16,
    /// The line on the nodes that are not known to be dead, the last node first.
    line: Vec<Location>,
    timeout: Duration,
    seen: Option<Seen>,
    changes: u32,
}

impl Watch {
    /// Creates a watch. `line` has the location of the coordinator's line on every node, in the
    /// order of the nodes. A line that does not change for `timeout` is silent.
    pub fn new(coordinator: u16, mut line: Vec<Location>, timeout: Duration) -> Watch {
        line.reverse();
        Watch { coordinator, line, timeout, seen: None, changes: 0 }
    }

    /// Returns the next READ, which the caller executes once in each interval of heartbeats; `None`
    /// if all nodes are dead.
    pub fn request(&self) -> Option<Request> {
        let &Location { node, at } = self.line.last()?;
        Some(Request { node, at, op: Op::Read(BYTES) })
    }

    /// Takes the outcome of the READ. Returns the result when it is known.
    pub fn on_outcome(&mut self, outcome: &Outcome, now: Duration) -> Option<Watched> {
        if *outcome == Outcome::NodeDead {
            self.line.pop();
            (self.seen, self.changes) = (None, 0);
            return None;
        }
        let (word, rest) = outcome.bytes()?.split_first_chunk()?;
        let (word, beat) = (LifeWord::from_bits(u64::from_le_bytes(*word)), rest.first_chunk()?);
        let beat = u64::from_le_bytes(*beat);
        if word.state() == LifeState::Recovered {
            return Some(Watched::Silent(word));
        }
        match self.seen {
            Some(seen) if (seen.word, seen.beat) == (word, beat) => {
                let is_silent = now.saturating_sub(seen.changed) >= self.timeout;
                return is_silent.then_some(Watched::Silent(word));
            }
            Some(_) => self.changes += 1,
            None => {}
        }
        self.seen = Some(Seen { word, beat, changed: now });
        let life = Life { coordinator: self.coordinator, incarnation: (beat >> 48) as u16 };
        (self.changes >= CHANGES).then_some(Watched::Runs(life))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    const TIMEOUT: Duration = Duration::from_millis(10);
    const LIFE: Life = Life { coordinator: 2, incarnation: 3 };

    fn watch() -> Watch {
        let at = |node| Location { node: NodeId(node), at: 128 };
        Watch::new(LIFE.coordinator, vec![at(0), at(1)], TIMEOUT)
    }

    fn line(word: LifeWord, beat: u64) -> Outcome {
        let beat = u64::from(LIFE.incarnation) << 48 | beat;
        Outcome::Executed([word.bits().to_le_bytes(), beat.to_le_bytes()].concat())
    }

    fn millis(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn line_that_changes_runs_and_one_late_request_does_not_count() {
        let word = LifeWord::new(LIFE, LifeState::Live);
        let mut running = watch();
        let found: Vec<_> = (0..4).map(|beat| running.on_outcome(&line(word, beat), millis(beat))).collect();
        assert_eq!(found, [None, None, None, Some(Watched::Runs(LIFE))]);

        let mut ended = watch();
        assert_eq!(ended.on_outcome(&line(word, 1), millis(0)), None);
        assert_eq!(ended.on_outcome(&line(word, 2), millis(5)), None);
        assert_eq!(ended.on_outcome(&line(word, 2), millis(14)), None);
        assert_eq!(ended.on_outcome(&Outcome::Unknown, millis(20)), None);
        assert_eq!(ended.on_outcome(&line(word, 2), millis(15)), Some(Watched::Silent(word)));
    }

    #[test]
    fn recovered_life_needs_no_wait() {
        for word in [LifeWord::from_bits(0), LifeWord::new(LIFE, LifeState::Recovered)] {
            assert_eq!(watch().on_outcome(&line(word, 1), millis(0)), Some(Watched::Silent(word)));
        }
    }

    #[test]
    fn dead_node_is_left_out() {
        let (mut watch, word) = (watch(), LifeWord::new(LIFE, LifeState::Live));
        assert_eq!(watch.request().map(|request| request.node), Some(NodeId(0)));
        assert_eq!(watch.on_outcome(&line(word, 1), millis(0)), None);
        assert_eq!(watch.on_outcome(&Outcome::NodeDead, millis(20)), None);
        assert_eq!(watch.request().map(|request| request.node), Some(NodeId(1)));
        assert_eq!(watch.on_outcome(&line(word, 1), millis(20)), None, "the time begins again");
        assert_eq!(watch.on_outcome(&Outcome::NodeDead, millis(21)), None);
        assert_eq!(watch.request(), None);
    }
}
