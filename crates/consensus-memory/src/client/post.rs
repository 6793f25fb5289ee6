//! The posting of queued operations as work requests.

use mitra_consensus::{Op, OpId, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Client, ClientLink, MAX_READ_BYTES, PendingOp, RegionState, Stage};
use crate::messages::MemoryRequest;
use crate::two_slot_register;
use crate::word_cell::encode_word;

/// When the process writes register r, the client requests the sequence number of register r +
/// `SEQ_PREFETCH_DISTANCE`, unless it knows the number. The number then usually arrives before the
/// process writes that register.
const SEQ_PREFETCH_DISTANCE: u16 = 32;

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq, K> Client<C, K> {
    /// Posts the queued operations that can be posted now. Does nothing unless the client is
    /// connected.
    pub fn post(&mut self, link: &mut impl ClientLink<Key = K>) {
        if !self.is_connected() {
            return;
        }
        for at in 0..self.pending.len() {
            if self.pending[at].stage != Stage::Queued {
                continue;
            }
            if link.free_send_slots() == 0 {
                return;
            }
            match &self.pending[at].op {
                Op::Write { .. } => self.post_write(at, link),
                Op::Read { .. } => self.post_read(at, link),
                Op::WriteOnce { .. } => self.post_write_once(at, link),
                Op::ChangePermissions { region, permissions } => {
                    let (read, write) = (permissions.read, permissions.write);
                    let request = MemoryRequest::ChangePermissions { region: *region, read, write };
                    let encoded = postcard::to_stdvec(&request).expect("postcard encodes any MemoryRequest");
                    if link.send(encoded) {
                        self.pending[at].stage = Stage::Requested;
                    }
                }
            }
        }
    }

    fn post_write(&mut self, at: usize, link: &mut impl ClientLink<Key = K>) {
        let Op::Write { region, register, cell } = &self.pending[at].op else { return };
        let state = self.regions.get_mut(usize::from(*region));
        let Some(RegionState { write: Some(key), seqs, .. }) = state else { return };
        let (region, register) = (*region, *register);
        let Some(last_seq) = seqs.get_mut(usize::from(register)) else { return };
        let Some(last_seq) = last_seq else { return self.request_seqs(region, register, link) };
        let seq = last_seq.wrapping_add(1);
        self.encoded_cell.clear();
        self.encoded_slot.clear();
        let buffer = std::mem::take(&mut self.encoded_cell);
        let Ok(encoded_cell) = postcard::to_extend(cell, buffer) else { return };
        self.encoded_cell = encoded_cell;
        if self.encoded_cell.len() > self.layout.register_capacity() {
            return; // `nak_impossible` responds to the operation
        }
        two_slot_register::encode_slot(seq, &self.encoded_cell, &mut self.encoded_slot);
        let offset = self.layout.slot_offset(region, register, seq);
        if !link.write(self.pending[at].wr_id, key, offset, &self.encoded_slot) {
            return;
        }
        *last_seq = seq;
        self.pending[at].stage = Stage::Posted;
        let ahead = register.saturating_add(SEQ_PREFETCH_DISTANCE);
        if self.regions[usize::from(region)].seqs.get(usize::from(ahead)) == Some(&None) {
            self.request_seqs(region, ahead, link);
        }
    }

    fn post_read(&mut self, at: usize, link: &mut impl ClientLink<Key = K>) {
        let pending = &mut self.pending[at];
        let Op::Read { region, first, count } = pending.op else { return };
        let done = pending.cells.len() as u16;
        let state = self.regions.get(usize::from(region));
        let Some(RegionState { read: Some(key), .. }) = state else { return };
        let (start, end) = (first.saturating_add(done), first.saturating_add(count));
        let chunk = self.layout.chunks(region, start..end, MAX_READ_BYTES).next();
        let Some(chunk) = chunk.filter(|c| c.end <= self.layout.registers(region)) else { return };
        let stride = self.layout.stride(region);
        let offset = (usize::from(chunk.start) * stride) as u64;
        if link.read(pending.wr_id, key, offset, usize::from(chunk.end - chunk.start) * stride) {
            pending.stage = Stage::Posted;
        }
    }

    /// Posts a compare-and-swap that replaces 0, the initial value of the word, with the encoded
    /// cell.
    fn post_write_once(&mut self, at: usize, link: &mut impl ClientLink<Key = K>) {
        let pending = &mut self.pending[at];
        let Op::WriteOnce { region, register, cell } = &pending.op else { return };
        let state = self.regions.get(usize::from(*region));
        let Some(RegionState { write: Some(key), .. }) = state else { return };
        let swap = encode_word(cell).filter(|_| *register < self.layout.registers(*region));
        let Some(swap) = swap else { return };
        if link.compare_swap(pending.wr_id, key, u64::from(*register) * 8, 0, swap) {
            pending.stage = Stage::Posted;
        }
    }

    /// Responds with NAK to queued operations that can never be posted, and with an empty list of
    /// cells to permitted reads of zero registers.
    pub fn nak_impossible(&mut self, responses: &mut Vec<(OpId, Response<C>)>) {
        while let Some((at, response)) = self.own_response() {
            self.respond(at, response, responses);
        }
    }

    /// Returns whether [`Client::nak_impossible`] has an operation to respond to.
    pub fn has_impossible(&self) -> bool {
        self.own_response().is_some()
    }

    /// Returns the index of the first operation to which the client responds without the memory,
    /// and the response.
    fn own_response(&self) -> Option<(usize, Response<C>)> {
        let mut queued = self.pending.iter().enumerate().filter(|(_, p)| p.stage == Stage::Queued);
        let of = |(at, pending): (usize, &PendingOp<C>)| match pending.op {
            _ if self.is_impossible(&pending.op) => Some((at, Response::Nak)),
            Op::Read { count: 0, .. } => Some((at, Response::Cells(Vec::new()))),
            _ => None,
        };
        if self.is_connected() { queued.find_map(of) } else { None }
    }

    /// Returns whether an operation can never be posted: the process lacks the permission, the
    /// register does not exist or is of the wrong kind, or the cell does not fit in the register.
    fn is_impossible(&self, op: &Op<C>) -> bool {
        let may_write = |region: u8, register: u16| {
            self.regions.get(usize::from(region)).is_some_and(|state| state.write.is_some())
                && register < self.layout.registers(region)
        };
        match op {
            Op::Read { region, first, count } => {
                self.regions.get(usize::from(*region)).is_none_or(|state| state.read.is_none())
                    || first.saturating_add(*count) > self.layout.registers(*region)
            }
            Op::Write { region, register, cell } => {
                let len = postcard::experimental::serialized_size(cell);
                !may_write(*region, *register)
                    || self.layout.is_write_once(*region)
                    || len.map_or(true, |len| len > self.layout.register_capacity())
            }
            Op::WriteOnce { region, register, cell } => {
                !may_write(*region, *register)
                    || !self.layout.is_write_once(*region)
                    || encode_word(cell).is_none()
            }
            Op::ChangePermissions { .. } => false,
        }
    }
}
