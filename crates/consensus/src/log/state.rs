//! The state of a log process that does not depend on its role.

use super::outstanding_ops::OutstandingLogOps;
use super::{CommitOutcome, Config, Delivery, Entry, Header, Payload, Ticket};
use crate::{ProcessId, ProcessSet};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    pub(super) me: ProcessId,
    pub(super) config: Config,
    /// The processes that may lead, as of the last delivered entry.
    pub(super) leaders: ProcessSet,
    pub(super) highest_ballot: u64,
    /// The index of the last delivered entry.
    pub(super) commit: u64,
    /// The highest index known to be committed. The process may not have read the entries yet.
    pub(super) known_commit: u64,
    /// The highest recycling point seen.
    pub(super) recycled: u64,
    /// The number of times that a memory refused a write and was taken over again in the same term.
    pub(super) retaken: u64,
    pub(super) outstanding: OutstandingLogOps,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) outcomes: Vec<(Ticket, CommitOutcome)>,
}

impl State {
    pub(super) fn new(me: ProcessId, config: Config) -> State {
        State {
            me,
            config,
            leaders: ProcessSet::first(config.processes),
            highest_ballot: 0,
            commit: 0,
            known_commit: 0,
            recycled: 0,
            retaken: 0,
            outstanding: OutstandingLogOps::new(config.memories),
            deliveries: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    pub(super) fn deliver(&mut self, payload: Payload) {
        self.commit += 1;
        if let Payload::EligibleLeaders(leaders) = payload {
            self.leaders = leaders;
        }
        self.deliveries.push(Delivery::Entry { index: self.commit, payload });
    }

    pub(super) fn observe_entry(&mut self, entry: &Entry) {
        self.highest_ballot = self.highest_ballot.max(entry.ballot);
        self.known_commit = self.known_commit.max(entry.commit);
    }

    pub(super) fn observe_header(&mut self, header: &Header) {
        self.highest_ballot = self.highest_ballot.max(header.ballot);
        self.known_commit = self.known_commit.max(header.snapshot.index);
        self.recycled = self.recycled.max(header.snapshot.index);
    }
}
