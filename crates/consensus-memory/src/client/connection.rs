//! The client's connection: the import of the keys of the regions that the process may use, and the
//! effect of a broken connection on operations.

use mitra_consensus::{Op, OpId, Response};
use mitra_mutants::Mutant;

use super::{Client, ClientLink, RegionState, SeqRequest, Stage, State};
use crate::messages::{MAX_SEQ_SCAN_BYTES, MAX_SEQS, MemoryRequest, Welcome};

impl<C, K> Client<C, K> {
    /// Handles the loss or the end of the connection. The driver dials again unless
    /// [`Client::is_crashed`].
    pub fn on_disconnect(&mut self) {
        for pending in &mut self.pending {
            pending.stage = match (pending.stage, &pending.op) {
                (Stage::Queued, _) => Stage::Queued,
                (_, Op::Write { .. }) => Stage::OutcomeUnknown,
                _ => Stage::Queued,
            };
        }
        self.seq_requests.clear();
        if self.state == State::Connected {
            self.state = State::Disconnected;
        }
    }

    /// Handles the memory node's answer to a handshake on the unconnected end `link`. Afterwards,
    /// the client is connected or crashed, or it stays disconnected if `link` does not connect.
    pub fn on_welcome(
        &mut self,
        welcome: &Welcome,
        link: &mut impl ClientLink<Key = K>,
        responses: &mut Vec<(OpId, Response<C>)>,
    ) {
        let same_incarnation = *self.incarnation.get_or_insert(welcome.incarnation) == welcome.incarnation;
        let same_layout = welcome.register_capacity as usize == self.layout.register_capacity()
            && welcome.regions.len() == self.layout.regions();
        if !same_incarnation && !Mutant::LostMemoryUsed.is_on() || !same_layout {
            self.state = State::Crashed;
            return;
        }
        if !link.connect(&welcome.info) {
            return;
        }
        self.state = State::Connected;
        for (region, grant) in welcome.regions.iter().enumerate() {
            let registers = self.layout.registers(region as u8).into();
            let read = self.import(region, grant.read.as_deref(), link);
            let write = self.import(region, grant.write.as_deref(), link);
            let mut seqs = vec![None; registers];
            if Mutant::SeqsKeptAtReconnect.is_on() && self.regions[region].seqs.len() == registers {
                seqs = std::mem::take(&mut self.regions[region].seqs);
            }
            self.regions[region] = RegionState { read, write, seqs };
        }
        // The memory node has fenced the old connection, so a WRITE that is not executed yet will
        // never be executed.
        while let Some(at) = self.pending.iter().position(|p| p.stage == Stage::OutcomeUnknown) {
            let response =
                if Mutant::UndoneWriteAcknowledged.is_on() { Response::Ack } else { Response::Nak };
            self.respond(at, response, responses);
        }
    }

    fn import(
        &self,
        region: usize,
        encoded: Option<&[u8]>,
        link: &mut impl ClientLink<Key = K>,
    ) -> Option<K> {
        link.import(encoded?, self.layout.len(region as u8) as u64)
    }

    /// Replaces the key by which the process may write a region. Forgets the region's sequence
    /// numbers, because another process may have written the registers.
    pub(super) fn set_write_key(
        &mut self,
        region: usize,
        encoded: Option<&[u8]>,
        link: &mut impl ClientLink<Key = K>,
    ) {
        self.regions[region].write = self.import(region, encoded, link);
        if !Mutant::SeqsKeptAtChange.is_on() {
            self.regions[region].seqs.fill(None);
        }
    }

    /// Requests the sequence numbers of register `first` and of the registers after it, which the
    /// process probably writes next. Does nothing if the number of `first` is already requested.
    /// The range ends before the first register whose number is known or requested, because the
    /// process may write such a register while the memory node reads it.
    pub(super) fn request_seqs(&mut self, region: u8, first: u16, link: &mut impl ClientLink<Key = K>) {
        let covers = |request: &SeqRequest| request.region == region && request.registers.contains(&first);
        if self.seq_requests.iter().any(covers) {
            return;
        }
        let count = (MAX_SEQ_SCAN_BYTES / self.layout.stride(region)).clamp(1, usize::from(MAX_SEQS)) as u16;
        let end = first.saturating_add(count).min(self.layout.registers(region));
        let is_known = |register: &u16| {
            let seqs = &self.regions[usize::from(region)].seqs;
            seqs.get(usize::from(*register)).is_some_and(Option::is_some)
                || self.seq_requests.iter().any(|r| r.region == region && r.registers.contains(register))
        };
        let end = (first..end).find(is_known).unwrap_or(end);
        let request = MemoryRequest::ReadSeqs { region, first, count: end - first };
        if link.send(postcard::to_stdvec(&request).expect("postcard encodes any MemoryRequest")) {
            self.seq_requests.push_back(SeqRequest { region, registers: first..end });
        }
    }
}
