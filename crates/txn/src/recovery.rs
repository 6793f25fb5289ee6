//! The recovery of an ended life: its logged attempts take effect, and the locks of these attempts
//! become free.
//!
//! The caller has fenced the life on every node that is not declared dead, so no request of the
//! life is executed any more. The caller has also made sure that no other recovery of the life
//! runs. Locks of attempts without a log entry stay. A transaction that meets such a lock frees it
//! when the life is known to be recovered ([`free_stale_lock`]).

use mitra_mutants::Mutant;

use crate::lock_word::{Life, LockWord};
use crate::log_entry::{Logged, decode_entry, encode_entry};
use crate::place::{Copies, Location, Place};
use crate::record::{self, HEADER_BYTES, LOCK_AND_VERSION_BYTES, LOCK_BYTES, Version};
use crate::request::{Outcome, Request};

/// The next action of the caller, or the end of the recovery.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RecoveryStep {
    /// Execute these requests: at least one.
    Post(Vec<Request>),
    /// The life is recovered.
    Recovered,
    /// Fewer nodes live than must have an entry, so nothing may be decided.
    TooFewNodes,
    /// A log entry names a place that does not exist, or a content that does not fit there: the
    /// memory is damaged, or the layouts differ.
    UnknownPlace(Place),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// The slots are read.
    Reading(Vec<(usize, Location)>),
    /// The entries are written where they are missing.
    Completing(Vec<(usize, Location)>),
    /// The locks of the primaries are read.
    Looking(Vec<usize>),
    /// The versions of these backups are read, because their primaries are dead.
    Comparing(Vec<(usize, Location)>),
    WritingBackups(Vec<(usize, Location)>),
    WritingPrimaries(Vec<usize>),
    Ended,
}

/// A record that a logged attempt writes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Change {
    attempt: LockWord,
    copies: Copies,
    content: Vec<u8>,
    /// Whether the primary is dead.
    is_orphan: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot {
    copies: Vec<Location>,
    /// The latest complete entry. `having` has the locations that have it.
    entry: Option<(LockWord, Vec<Logged>)>,
    having: Vec<Location>,
    dead: Vec<Location>,
}

/// The recovery of one life.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recovery {
    life: Life,
    copies: usize,
    slot_bytes: u32,
    slots: Vec<Slot>,
    changes: Vec<Change>,
    /// The backups to write, each with the index of its change. `primaries` has the indexes of the
    /// changes whose primaries are to be written.
    backups: Vec<(usize, Location)>,
    primaries: Vec<usize>,
    stage: Stage,
}

impl Recovery {
    /// Creates the recovery of a life. `slots` has the locations of each slot of its log, one on
    /// every node. A slot has `slot_bytes` bytes. An entry must be on `copies` nodes.
    pub fn new(life: Life, slots: Vec<Vec<Location>>, slot_bytes: u32, copies: usize) -> Recovery {
        let slot = |copies: Vec<Location>| Slot { copies, entry: None, having: Vec::new(), dead: Vec::new() };
        let slots: Vec<Slot> = slots.into_iter().map(slot).collect();
        let all =
            slots.iter().enumerate().flat_map(|(index, slot)| slot.copies.iter().map(move |&at| (index, at)));
        let stage = Stage::Reading(all.collect());
        let (changes, backups, primaries) = (Vec::new(), Vec::new(), Vec::new());
        Recovery { life, copies, slot_bytes, slots, changes, backups, primaries, stage }
    }

    /// Begins. `resolve` returns the copies of a place.
    pub fn start(&mut self, resolve: impl Fn(Place) -> Option<Copies>) -> RecoveryStep {
        self.go_on(resolve)
    }

    /// Continues with the outcomes of the last requests.
    pub fn on_outcomes(
        &mut self,
        outcomes: &[Outcome],
        resolve: impl Fn(Place) -> Option<Copies>,
    ) -> RecoveryStep {
        let mut outcomes = outcomes.iter();
        let mut next = || outcomes.next().unwrap_or(&Outcome::Unknown);
        self.stage = match core::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Reading(wanted) => {
                let again = wanted.into_iter().filter(|&(slot, at)| !self.on_slot(slot, at, next()));
                Stage::Reading(again.collect())
            }
            Stage::Completing(wanted) => {
                let mut again = Vec::new();
                for (slot, at) in wanted {
                    match next() {
                        Outcome::NodeDead => self.slots[slot].dead.push(at),
                        outcome if outcome.is_executed() => self.slots[slot].having.push(at),
                        _ => again.push((slot, at)),
                    }
                }
                Stage::Completing(again)
            }
            Stage::Looking(wanted) => {
                let mut again = Vec::new();
                for change in wanted {
                    match next() {
                        Outcome::NodeDead => self.changes[change].is_orphan = true,
                        outcome => match outcome.bytes().and_then(record::decode_header) {
                            Some(header)
                                if header.lock == self.changes[change].attempt
                                    || Mutant::RecoveredUnlocked.is_on() =>
                            {
                                self.primaries.push(change)
                            }
                            Some(_) => {}
                            None => again.push(change),
                        },
                    }
                }
                Stage::Looking(again)
            }
            Stage::Comparing(wanted) => {
                let mut again = Vec::new();
                for (change, at) in wanted {
                    let outcome = next();
                    match outcome.bytes().and_then(record::decode_header) {
                        Some(header)
                            if header.version.number() < self.version(change).number()
                                || Mutant::OrphanOverwritten.is_on() =>
                        {
                            self.backups.push((change, at));
                        }
                        None if *outcome != Outcome::NodeDead => again.push((change, at)),
                        _ => {}
                    }
                }
                Stage::Comparing(again)
            }
            Stage::WritingBackups(wanted) => {
                let again = wanted
                    .into_iter()
                    .filter(|_| [next(), next()].iter().any(|write| write.needs_repetition()));
                Stage::WritingBackups(again.collect())
            }
            Stage::WritingPrimaries(wanted) => {
                let mut looked = Vec::new();
                for change in wanted {
                    let (_, unlock) = (next(), next());
                    if unlock.word().is_none() && *unlock != Outcome::NodeDead {
                        looked.push(change);
                    }
                }
                // The lock word shows whether both requests were executed.
                self.primaries.clear();
                if looked.is_empty() { Stage::WritingPrimaries(looked) } else { Stage::Looking(looked) }
            }
            Stage::Ended => Stage::Ended,
        };
        self.go_on(resolve)
    }

    fn go_on(&mut self, resolve: impl Fn(Place) -> Option<Copies>) -> RecoveryStep {
        loop {
            let requests = self.requests();
            if !requests.is_empty() {
                return RecoveryStep::Post(requests);
            }
            self.stage = match core::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Reading(_) | Stage::Completing(_) => match self.missing() {
                    None => return RecoveryStep::TooFewNodes,
                    Some(missing) if !missing.is_empty() => Stage::Completing(missing),
                    Some(_) => match self.list_changes(&resolve) {
                        Ok(()) => Stage::Looking((0..self.changes.len()).collect()),
                        Err(place) => return RecoveryStep::UnknownPlace(place),
                    },
                },
                Stage::Looking(_) => {
                    let is_orphan = |change: &Change| change.is_orphan && !Mutant::OrphanForgotten.is_on();
                    let orphans = self.changes.iter().enumerate().filter(|(_, change)| is_orphan(change));
                    let backups = orphans
                        .flat_map(|(index, change)| change.copies.backups.iter().map(move |&at| (index, at)));
                    Stage::Comparing(backups.collect())
                }
                Stage::Comparing(_) => {
                    let mut backups = core::mem::take(&mut self.backups);
                    for &index in self.primaries.iter().filter(|_| !Mutant::BackupsNotRecovered.is_on()) {
                        backups.extend(self.changes[index].copies.backups.iter().map(|&at| (index, at)));
                    }
                    Stage::WritingBackups(backups)
                }
                Stage::WritingBackups(_) => Stage::WritingPrimaries(self.primaries.clone()),
                Stage::WritingPrimaries(_) => return RecoveryStep::Recovered,
                Stage::Ended => return RecoveryStep::TooFewNodes,
            };
        }
    }

    fn requests(&self) -> Vec<Request> {
        let content = |change: usize| self.changes[change].content.clone();
        let primary = |change: usize| self.changes[change].copies.primary;
        match &self.stage {
            Stage::Reading(wanted) => {
                wanted.iter().map(|&(_, at)| Request::read(at, self.slot_bytes)).collect()
            }
            Stage::Completing(wanted) => {
                let entry = |slot: usize| {
                    self.slots[slot]
                        .entry
                        .as_ref()
                        .map_or(Vec::new(), |(attempt, records)| encode_entry(*attempt, records))
                };
                wanted.iter().map(|&(slot, at)| Request::write(at, 0, entry(slot))).collect()
            }
            Stage::Looking(wanted) => {
                wanted.iter().map(|&change| Request::read(primary(change), LOCK_AND_VERSION_BYTES)).collect()
            }
            Stage::Comparing(wanted) => {
                wanted.iter().map(|&(_, at)| Request::read(at, LOCK_AND_VERSION_BYTES)).collect()
            }
            Stage::WritingBackups(wanted) => {
                wanted.iter().flat_map(|&(change, at)| Request::write_backup(at, &content(change))).collect()
            }
            Stage::WritingPrimaries(wanted) => {
                let both = |&change: &usize| {
                    let attempt = self.changes[change].attempt;
                    [
                        Request::write(primary(change), LOCK_BYTES, content(change)),
                        Request::swap_lock(primary(change), attempt, LockWord::FREE),
                    ]
                };
                wanted.iter().flat_map(both).collect()
            }
            Stage::Ended => Vec::new(),
        }
    }

    /// Takes the content of a slot on a node. Returns whether the content is known.
    fn on_slot(&mut self, index: usize, at: Location, outcome: &Outcome) -> bool {
        let slot = &mut self.slots[index];
        if *outcome == Outcome::NodeDead {
            slot.dead.push(at);
            return true;
        }
        let Some(bytes) = outcome.bytes() else { return false };
        let Some(found) = decode_entry(bytes).filter(|(attempt, _)| attempt.life() == Some(self.life)) else {
            return true;
        };
        match &slot.entry {
            Some((known, _)) if known.attempt() > found.0.attempt() => {}
            Some((known, _)) if *known == found.0 => slot.having.push(at),
            _ => (slot.entry, slot.having) = (Some(found), vec![at]),
        }
        true
    }

    /// Returns the locations that still lack an entry; `None` if too few nodes live.
    fn missing(&self) -> Option<Vec<(usize, Location)>> {
        let mut missing = Vec::new();
        for (index, slot) in self.slots.iter().enumerate() {
            let live = slot.copies.iter().filter(|at| !slot.dead.contains(at));
            if live.clone().count() < self.copies {
                return None;
            }
            let having = slot.having.iter().filter(|at| !slot.dead.contains(at)).count();
            if slot.entry.is_some() && !Mutant::EntryNotCompleted.is_on() {
                let others = live.filter(|at| !slot.having.contains(at));
                missing.extend(others.take(self.copies.saturating_sub(having)).map(|&at| (index, at)));
            }
        }
        Some(missing)
    }

    fn list_changes(&mut self, resolve: &impl Fn(Place) -> Option<Copies>) -> Result<(), Place> {
        self.changes.clear();
        for slot in &self.slots {
            let Some((attempt, records)) = &slot.entry else { continue };
            for Logged { place, content } in records {
                let copies = resolve(*place).ok_or(*place)?;
                let fits = content.len() + LOCK_BYTES <= copies.bytes as usize;
                if content.len() < HEADER_BYTES - LOCK_BYTES || !fits {
                    return Err(*place);
                }
                let (attempt, content) = (*attempt, content.clone());
                self.changes.push(Change { attempt, copies, content, is_orphan: false });
            }
        }
        Ok(())
    }

    fn version(&self, change: usize) -> Version {
        record::version_behind_lock(&self.changes[change].content)
    }
}

/// Returns the request that frees a lock whose life is recovered. It has no effect if the lock has
/// changed meanwhile.
pub fn free_stale_lock(primary: Location, lock: LockWord) -> Request {
    Request::swap_lock(primary, lock, LockWord::FREE)
}

/// Returns the attempt whose complete log entry is in a slot. A recovery makes this attempt take
/// effect.
pub fn logged_attempt(slot: &[u8]) -> Option<LockWord> {
    decode_entry(slot).map(|(attempt, _)| attempt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeId, PlaceKind, TableId};

    #[test]
    fn content_that_does_not_fit_is_an_error() {
        let life = Life { coordinator: 1, incarnation: 1 };
        let attempt = LockWord::new(life, 1);
        let place = Place { table: TableId(0), partition: 0, kind: PlaceKind::Record, index: 0 };
        let entry = encode_entry(attempt, &[Logged { place, content: Vec::new() }]);
        let at = |node| Location { node: NodeId(node), at: 0 };
        let mut recovery = Recovery::new(life, vec![vec![at(0), at(1)]], 4096, 2);
        let copies = Copies { place, primary: at(0), backups: vec![at(1)], bytes: 64 };
        let resolve = |_: Place| Some(copies.clone());
        let mut step = recovery.start(resolve);
        for _ in 0..10 {
            let RecoveryStep::Post(requests) = step else { break };
            let outcomes: Vec<_> = requests
                .iter()
                .map(|request| match request.op {
                    crate::Op::Read(16) => Outcome::Executed([attempt.bits().to_le_bytes(), [0; 8]].concat()),
                    crate::Op::Read(_) => Outcome::Executed(entry.clone()),
                    _ => Outcome::Executed(vec![0; 8]),
                })
                .collect();
            step = recovery.on_outcomes(&outcomes, resolve);
        }
        assert_eq!(step, RecoveryStep::UnknownPlace(place));
    }
}
