//! How a leader takes over: the right to write each memory, its ballot in each header, and what is in the ring of a majority.

use std::collections::BTreeMap;

use super::cells::{READ_HEADER, write};
use super::links::Asked;
use super::term::{Deposed, Term};
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
pub(super) struct Grab {
    /// Of each index what has the highest ballot.
    found: BTreeMap<u64, Entry>,
    /// How many windows are to be read, and how many were, of each memory.
    windows: u64,
    scanned: Vec<u64>,
}

impl Grab {
    pub(super) fn new(memories: u8) -> Grab {
        Grab { found: BTreeMap::new(), windows: 1, scanned: vec![0; memories.into()] }
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
        self.windows = windows.min(config.windows.into());
    }
}

impl Term {
    /// What a majority showed, if one is mine now: all entries behind the floor up to the first hole.
    pub(super) fn grabbed<R: Rules>(&mut self, state: &State) -> Option<Vec<Payload>> {
        let grab = self.grab.as_mut()?;
        let ready = self.tracks.iter().zip(&grab.scanned);
        let ready =
            ready.filter(|(track, scanned)| track.phase == Phase::Promised && **scanned >= grab.windows);
        if ready.count() < if R::BY_MAJORITY { majority(state.config.memories.into()) } else { 1 } {
            return None;
        }
        let hole = grab.hole(self.floor);
        let found = core::mem::take(&mut grab.found);
        Some(found.into_iter().take_while(|&(index, _)| index < hole).map(|(_, e)| e.payload).collect())
    }

    /// Asks a memory for what is next on its way to be mine.
    pub(super) fn grab_on<R: Rules>(
        &mut self,
        m: usize,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) {
        let track = &mut self.tracks[m];
        let links = &mut state.links;
        let busy = links.at(m).any(|asked| asked != Asked::Stale || R::AWAITS_OUTSTANDING);
        if busy {
            return;
        }
        let (asked, op) = match (track.phase, &self.grab) {
            (Phase::Waiting, _) => {
                let permissions = Permissions::single_writer(state.config.processes, state.me);
                (Asked::Right, Op::ChangePermissions { region: 0, permissions })
            }
            (Phase::Taken, _) => (Asked::Header, READ_HEADER),
            (Phase::Checked, _) => {
                track.asked = true;
                let header = Header { ballot: self.ballot, ..track.header };
                (Asked::Ballot, write(0, Cell::Header(header)))
            }
            (Phase::Promised, Some(grab)) if grab.scanned[m] < grab.windows => {
                let from = self.floor + 1 + grab.scanned[m] * u64::from(state.config.window);
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
        let track = &mut self.tracks[m];
        match (asked, response) {
            (Asked::Right, Response::Ack) => track.phase = Phase::Taken,
            (Asked::Header, Response::Cells(cells)) => {
                if let Some(Cell::Header(header)) = cells.first() {
                    track.header = *header;
                }
                state.see_header(&track.header);
                let behind = track.header.stamp.index > self.floor && self.grab.is_some();
                // My own ballot, but not of this term: I have forgotten what I wrote in it.
                let least = self.ballot + u64::from(track.asked || !R::RESTARTS_ABOVE);
                if behind || track.header.ballot >= least && R::CHECKS_BALLOT {
                    return Err(Deposed);
                }
                track.phase = Phase::Checked;
            }
            (Asked::Ballot, Response::Ack) => {
                track.header.ballot = self.ballot;
                track.phase = Phase::Promised;
            }
            (Asked::Scan, Response::Cells(cells)) => {
                let Some(grab) = &mut self.grab else { return Ok(()) };
                for cell in cells {
                    let Cell::Entry(entry) = cell else { continue };
                    state.see_entry(&entry);
                    // I have been deposed here already.
                    if entry.ballot > self.ballot && R::CHECKS_BALLOT {
                        return Err(Deposed);
                    }
                    if entry.index > self.floor {
                        grab.find::<R>(entry);
                    }
                }
                grab.scanned[m] += 1;
                if R::SCANS_ON {
                    grab.look_on(self.floor, &state.config);
                }
            }
            // No memory answers so.
            _ => return Err(Deposed),
        }
        Ok(())
    }
}
