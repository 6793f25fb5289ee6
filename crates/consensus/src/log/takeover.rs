//! How a leader takes over: the right to write each memory, its ballot in each header, and what is in the ring of a majority.

use std::collections::BTreeMap;

use super::inflight::Asked;
use super::layout::{READ_HEADER, write};
use super::leader::{Deposed, LeaderState};
use super::{Cell, Committed, Config, Entry, Header, Payload, Rules, State};
use crate::process::majority;
use crate::{Action, Op, Permissions, Response};

/// How far a memory is on its way to be mine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Phase {
    /// It may still owe me answers of before.
    Waiting,
    /// Nobody else may write it.
    Taken,
    /// Nobody with a higher ballot has written it.
    Checked,
    /// My ballot is in its header.
    Promised,
}

/// What is found in the rings.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Takeover {
    /// Of each index what has the highest ballot.
    found: BTreeMap<u64, Entry>,
    /// How many windows are to be read, and how many were, of each memory.
    windows: u64,
    scanned: Vec<u64>,
}

impl Takeover {
    pub(super) fn new(memories: u8) -> Takeover {
        Takeover { found: BTreeMap::new(), windows: 1, scanned: vec![0; memories.into()] }
    }

    /// The first index behind `floor` for which nothing was found.
    fn hole(&self, floor: u64) -> u64 {
        (floor + 1..).find(|index| !self.found.contains_key(index)).unwrap_or(u64::MAX)
    }

    fn find<R: Rules>(&mut self, entry: Entry) {
        let index = entry.index;
        let known = self.found.get(&index).is_some_and(|known| known.ballot >= entry.ballot && R::BY_BALLOT);
        if !known {
            self.found.insert(index, entry);
        }
    }

    /// Reads on until a hole: what is committed has none before it. After all windows there is nothing more to be read.
    fn look_on(&mut self, floor: u64, config: &Config) {
        let windows = config.windows_between(floor + 1, self.hole(floor)) + 1;
        self.windows = windows.min(config.ring_windows.into());
    }
}

impl LeaderState {
    /// What a majority showed, if one is mine now: all entries behind the floor up to the first hole.
    pub(super) fn grabbed<R: Rules>(&mut self, state: &State) -> Option<Vec<Payload>> {
        let takeover = self.takeover.as_mut()?;
        let ready = self.progress.iter().zip(&takeover.scanned);
        let ready = ready
            .filter(|(memory, scanned)| memory.phase == Phase::Promised && **scanned >= takeover.windows);
        if ready.count() < if R::BY_MAJORITY { majority(state.config.memories.into()) } else { 1 } {
            return None;
        }
        let hole = takeover.hole(self.floor);
        let found = core::mem::take(&mut takeover.found);
        Some(found.into_iter().take_while(|&(index, _)| index < hole).map(|(_, e)| e.payload).collect())
    }

    /// Asks a memory for what is next on its way to be mine.
    pub(super) fn grab_on<R: Rules>(
        &mut self,
        m: usize,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) {
        let memory = &mut self.progress[m];
        let links = &mut state.inflight;
        let busy = links.at(m).any(|asked| asked != Asked::Stale || R::AWAITS_OUTSTANDING);
        if busy {
            return;
        }
        let (asked, op) = match (memory.phase, &self.takeover) {
            (Phase::Waiting, _) => {
                let permissions = Permissions::single_writer(state.config.processes, state.me);
                (Asked::Right, Op::ChangePermissions { region: 0, permissions })
            }
            (Phase::Taken, _) => (Asked::Header, READ_HEADER),
            (Phase::Checked, _) => {
                memory.asked = true;
                let header = Header { ballot: self.ballot, ..memory.header };
                (Asked::Ballot, write(0, Cell::Header(header)))
            }
            (Phase::Promised, Some(takeover)) if takeover.scanned[m] < takeover.windows => {
                let from = self.floor + 1 + takeover.scanned[m] * u64::from(state.config.window);
                (Asked::Scan, state.config.read_entries(from))
            }
            (Phase::Promised, _) => return,
        };
        links.ask(m, asked, op, out);
    }

    pub(super) fn grab_answered<R: Rules>(
        &mut self,
        m: usize,
        asked: Asked,
        response: Response<Cell>,
        state: &mut State,
    ) -> Result<(), Deposed> {
        let memory = &mut self.progress[m];
        match (asked, response) {
            (Asked::Right, Response::Ack) => memory.phase = Phase::Taken,
            (Asked::Header, Response::Cells(cells)) => {
                if let Some(Cell::Header(header)) = cells.first() {
                    memory.header = *header;
                }
                state.see_header(&memory.header);
                let behind = memory.header.snapshot.index > self.floor && self.takeover.is_some();
                // My own ballot, but not of this term: I have forgotten what I wrote in it.
                let least = self.ballot + u64::from(memory.asked || !R::RESTARTS_ABOVE_OWN_BALLOT);
                if behind || memory.header.ballot >= least && R::CHECKS_BALLOT {
                    return Err(Deposed);
                }
                memory.phase = Phase::Checked;
            }
            (Asked::Ballot, Response::Ack) => {
                memory.header.ballot = self.ballot;
                memory.phase = Phase::Promised;
            }
            (Asked::Scan, Response::Cells(cells)) => {
                let Some(takeover) = &mut self.takeover else { return Ok(()) };
                for cell in cells {
                    let Cell::Entry(entry) = cell else { continue };
                    state.see_entry(&entry);
                    // I have been deposed here already.
                    if entry.ballot > self.ballot && R::CHECKS_BALLOT {
                        return Err(Deposed);
                    }
                    if entry.index > self.floor {
                        takeover.find::<R>(entry);
                    }
                }
                takeover.scanned[m] += 1;
                if R::SCANS_UNTIL_HOLE {
                    takeover.look_on(self.floor, &state.config);
                }
            }
            // No memory answers so.
            _ => return Err(Deposed),
        }
        Ok(())
    }
}
