//! The memory client's connection: dialling the memory node, and importing the keys of the regions that the process may use.

use std::time::{Duration, Instant};

use mitra_consensus::{Op, OpId, Response};
use mitra_failover::RemoteRegion;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{MemoryClient, READ_SLOTS, RegionState, SeqRequest, Stage, State, WRITE_SLOTS};
use crate::handshake::Welcome;
use crate::link::Link;
use crate::memory_protocol::{MAX_MESSAGE_BYTES, MAX_SEQ_SCAN_BYTES, MAX_SEQS, MemoryRequest};
use crate::pending_connect::{PendingConnect, RETRY_INTERVAL};

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq> MemoryClient<C> {
    /// Closes the current connection and dials again.
    pub(super) fn reconnect(&mut self) {
        for pending in &mut self.pending {
            pending.stage = match (&pending.stage, &pending.op) {
                (Stage::Queued, _) => Stage::Queued,
                (_, Op::Write { .. }) => Stage::OutcomeUnknown,
                _ => Stage::Queued,
            };
        }
        self.seq_requests.clear();
        (self.free_reads, self.free_writes) = ((0..READ_SLOTS).collect(), (0..WRITE_SLOTS).collect());
        // This drops the old link first, so that its queue pair no longer uses the staging memory.
        self.state = State::Backoff(Instant::now() + RETRY_INTERVAL);
        if let Ok(link) = self.identity.new_link(MAX_MESSAGE_BYTES) {
            self.dial(link, Duration::ZERO);
        }
    }

    /// Dials again, with a delay, after a failed handshake. The memory node may not have started yet, or may have stopped.
    pub(super) fn redial(&mut self) {
        let backoff = State::Backoff(Instant::now() + RETRY_INTERVAL);
        if let State::Connecting(PendingConnect { link, .. }) = std::mem::replace(&mut self.state, backoff) {
            self.dial(link, RETRY_INTERVAL);
        }
    }

    fn dial(&mut self, link: Link, delay: Duration) {
        if let Ok(connecting) = self.identity.connect(self.address, link, delay) {
            self.state = State::Connecting(connecting);
        }
    }

    pub(super) fn finish_connect(&mut self, welcome: &Welcome, responses: &mut Vec<(OpId, Response<C>)>) {
        let State::Connecting(PendingConnect { mut link, .. }) =
            std::mem::replace(&mut self.state, State::Crashed)
        else {
            return;
        };
        let same_incarnation = *self.incarnation.get_or_insert(welcome.incarnation) == welcome.incarnation;
        let same_layout = welcome.register_capacity as usize == self.layout.register_capacity()
            && welcome.regions.len() == self.layout.regions();
        if !same_incarnation || !same_layout {
            return;
        }
        if link.connect(&welcome.info).is_err() {
            return self.reconnect();
        }
        self.state = State::Connected(link);
        self.connections += 1;
        for (region, grant) in welcome.regions.iter().enumerate() {
            let registers = self.layout.registers(region as u8).into();
            self.regions[region] = RegionState { read: None, write: None, seqs: vec![None; registers] };
            self.regions[region].read = self.import(region, grant.read.as_deref());
            self.set_write_key(region, grant.write.as_deref());
        }
        // The memory node has fenced the old connection, so a WRITE that was not executed before will not be executed later.
        while let Some(at) = self.pending.iter().position(|p| p.stage == Stage::OutcomeUnknown) {
            self.respond(at, Response::Nak, responses);
        }
    }

    /// Imports the encoded key of a region into the link. Returns `None` if there is no key, if the key is malformed or has
    /// another length than the region, or if the link refuses it.
    fn import(&mut self, region: usize, encoded: Option<&[u8]>) -> Option<RemoteRegion> {
        let remote = RemoteRegion::decode(encoded?).ok()?;
        let State::Connected(link) = &mut self.state else { return None };
        let fits = remote.len() == self.layout.len(region as u8) as u64;
        (fits && link.import(&remote).is_ok()).then_some(remote)
    }

    /// Replaces the key by which the process may write a region. Forgets the region's sequence numbers, because another process
    /// may have written the registers.
    pub(super) fn set_write_key(&mut self, region: usize, encoded: Option<&[u8]>) {
        self.regions[region].write = self.import(region, encoded);
        self.regions[region].seqs.fill(None);
    }

    /// Requests the sequence numbers of register `first` and of the registers after it, which the process probably writes next.
    /// Does nothing if they are already requested.
    pub(super) fn request_seqs(&mut self, region: u8, first: u16) {
        let covers = |request: &SeqRequest| request.region == region && request.registers.contains(&first);
        if self.seq_requests.iter().any(covers) {
            return;
        }
        let count = (MAX_SEQ_SCAN_BYTES / self.layout.stride(region)).clamp(1, usize::from(MAX_SEQS)) as u16;
        let end = first.saturating_add(count).min(self.layout.registers(region));
        let State::Connected(link) = &mut self.state else { return };
        let request = MemoryRequest::ReadSeqs { region, first, count: end - first };
        if link.send(postcard::to_stdvec(&request).expect("postcard encodes any MemoryRequest")) {
            self.seq_requests.push_back(SeqRequest { region, registers: first..end });
        }
    }
}
