//! The takeover by a new leader. The leader takes the permission to write each memory, writes its
//! ballot to each header, and reads the entries in the rings of a majority of the memories.

use std::collections::BTreeMap;

use super::layout::{READ_HEADER, write};
use super::leader::{Deposed, LeaderState};
use super::outstanding_ops::OpPurpose;
use super::{Cell, Committed, Config, Entry, Header, Payload, Rules, State};
use crate::process::majority;
use crate::{Action, Op, Permissions, Response};
use mitra_mutants::Mutant;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Phase {
    /// The process has not taken the permission yet. Operations of an earlier term may be
    /// outstanding.
    Waiting,
    /// The process holds the exclusive permission to write.
    Taken,
    /// The leader has read the header, which holds no higher ballot.
    Checked,
    /// The leader has written its ballot to the header.
    Promised,
}

/// The entries that a takeover has found in the rings.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Takeover {
    /// For each index, the entry of the highest ballot.
    found: BTreeMap<u64, Entry>,
    /// The number of windows to read at each memory.
    windows: u64,
    /// The number of windows already read, by memory.
    scanned: Vec<u64>,
}

impl Takeover {
    pub(super) fn new(memories: u8) -> Takeover {
        Takeover { found: BTreeMap::new(), windows: 1, scanned: vec![0; memories.into()] }
    }

    /// Returns the first index after `floor` without an entry.
    fn first_hole(&self, floor: u64) -> u64 {
        (floor + 1..).find(|index| !self.found.contains_key(index)).unwrap_or(u64::MAX)
    }

    fn record<R: Rules>(&mut self, entry: Entry) {
        let index = entry.index;
        let superseded = self.found.get(&index).is_some_and(|other| {
            other.ballot >= entry.ballot && R::BY_BALLOT && !Mutant::LastReadEntryWins.is_on()
        });
        if !superseded {
            self.found.insert(index, entry);
        }
    }

    /// Extends the scan to the window that contains the first hole, or to the whole ring if the
    /// ring has no hole. No entry after the hole is committed, so the scan need not go further.
    fn extend_scan(&mut self, floor: u64, config: &Config) {
        let windows = config.windows_between(floor + 1, self.first_hole(floor)) + 1;
        self.windows = windows.min(config.ring_windows.into());
    }
}

impl LeaderState {
    /// Once a majority of the memories has promised and been scanned, removes and returns the
    /// entries found between the floor and the first hole. Returns `None` until then, and after the
    /// takeover.
    pub(super) fn takeover_result<R: Rules>(&mut self, state: &State) -> Option<Vec<Payload>> {
        let takeover = self.takeover.as_mut()?;
        let ready = self.progress.iter().zip(&takeover.scanned);
        let ready = ready
            .filter(|(memory, scanned)| memory.phase == Phase::Promised && **scanned >= takeover.windows);
        if ready.count()
            < if R::BY_MAJORITY && !Mutant::TakesOverOneMemory.is_on() {
                majority(state.config.memories.into())
            } else {
                1
            }
        {
            return None;
        }
        let hole = takeover.first_hole(self.floor);
        let found = core::mem::take(&mut takeover.found);
        Some(
            found
                .into_iter()
                .take_while(|&(index, _)| index < hole || Mutant::HoleSkipped.is_on())
                .map(|(_, e)| e.payload)
                .collect(),
        )
    }

    /// Invokes the next operation of the takeover at memory `m`, if no operation is outstanding
    /// there.
    pub(super) fn drive_takeover<R: Rules>(
        &mut self,
        m: usize,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) {
        let memory = &mut self.progress[m];
        let outstanding = &mut state.outstanding;
        let busy = outstanding.at(m).any(|purpose| {
            purpose != OpPurpose::Stale || R::AWAITS_OUTSTANDING && !Mutant::EarlierWritesNotAwaited.is_on()
        });
        if busy {
            return;
        }
        let (purpose, op) = match (memory.phase, &self.takeover) {
            (Phase::Waiting, _) => {
                let permissions = Permissions::single_writer(state.config.processes, state.me);
                (OpPurpose::Permission, Op::ChangePermissions { region: 0, permissions })
            }
            (Phase::Taken, _) => (OpPurpose::Header, READ_HEADER),
            (Phase::Checked, _) => {
                memory.ballot_write_invoked = true;
                let header = Header { ballot: self.ballot, ..memory.header };
                (OpPurpose::Ballot, write(0, Cell::Header(header)))
            }
            (Phase::Promised, Some(takeover)) if takeover.scanned[m] < takeover.windows => {
                let from = self.floor + 1 + takeover.scanned[m] * u64::from(state.config.window);
                (OpPurpose::Scan, state.config.read_entries(from))
            }
            (Phase::Promised, _) => return,
        };
        outstanding.invoke(m, purpose, op, out);
    }

    pub(super) fn on_takeover_response<R: Rules>(
        &mut self,
        m: usize,
        purpose: OpPurpose,
        response: Response<Cell>,
        state: &mut State,
    ) -> Result<(), Deposed> {
        let memory = &mut self.progress[m];
        match (purpose, response) {
            (OpPurpose::Permission, Response::Ack) => memory.phase = Phase::Taken,
            (OpPurpose::Header, Response::Cells(cells)) => {
                if let Some(Cell::Header(header)) = cells.first() {
                    memory.header = *header;
                }
                state.observe_header(&memory.header);
                let behind = memory.header.snapshot.index > self.floor
                    && self.takeover.is_some()
                    && !Mutant::LeadsBehindRecycling.is_on();
                // If the header holds this ballot before the leader has written the header in this
                // term, the process wrote the ballot before it lost its state. The process does not
                // know which entries it wrote in that ballot, so it needs a higher ballot.
                let restarts_above = R::RESTARTS_ABOVE_OWN_BALLOT && !Mutant::OwnBallotUsedAgain.is_on();
                let first_refused_ballot =
                    self.ballot + u64::from(memory.ballot_write_invoked || !restarts_above);
                if behind
                    || memory.header.ballot >= first_refused_ballot
                        && R::CHECKS_BALLOT
                        && !Mutant::HigherBallotInHeaderIgnored.is_on()
                {
                    return Err(Deposed);
                }
                memory.phase = Phase::Checked;
            }
            (OpPurpose::Ballot, Response::Ack) => {
                memory.header.ballot = self.ballot;
                memory.phase = Phase::Promised;
            }
            (OpPurpose::Scan, Response::Cells(cells)) => {
                let Some(takeover) = &mut self.takeover else { return Ok(()) };
                for cell in cells {
                    let Cell::Entry(entry) = cell else { continue };
                    state.observe_entry(&entry);
                    // A leader with a higher ballot has written this memory.
                    if entry.ballot > self.ballot && R::CHECKS_BALLOT {
                        return Err(Deposed);
                    }
                    if entry.index > self.floor {
                        takeover.record::<R>(entry);
                    }
                }
                takeover.scanned[m] += 1;
                if R::SCANS_UNTIL_HOLE && !Mutant::ScansOneWindow.is_on() {
                    takeover.extend_scan(self.floor, &state.config);
                }
            }
            // A correct memory never sends this response.
            _ => return Err(Deposed),
        }
        Ok(())
    }
}
