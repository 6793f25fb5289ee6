//! The posting of queued operations as work requests.

use mitra_consensus::{Op, OpId, Response};
use mitra_verbs::{Data, SendOp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{MAX_READ_BYTES, MemoryClient, READ_SLOTS, RegionState, Stage, StagingSlot, State};
use crate::memory_protocol::MemoryRequest;
use crate::two_slot_register;
use crate::word_cell::encode_word;

/// When the process writes register r, the client requests the sequence number of register r + `SEQ_PREFETCH_DISTANCE`, unless it
/// knows the number. The number then usually arrives before the process writes that register.
const SEQ_PREFETCH_DISTANCE: u16 = 32;

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq> MemoryClient<C> {
    /// Posts the queued operations that can be posted now.
    pub(super) fn post(&mut self) {
        for at in 0..self.pending.len() {
            let State::Connected(link) = &mut self.state else { return };
            if self.pending[at].stage != Stage::Queued {
                continue;
            }
            if link.free_send_slots() == 0 {
                return;
            }
            match &self.pending[at].op {
                Op::Write { .. } => self.post_write(at),
                Op::Read { .. } => self.post_read(at),
                Op::WriteOnce { .. } => self.post_write_once(at),
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

    fn post_write(&mut self, at: usize) {
        let Op::Write { region, register, cell } = &self.pending[at].op else { return };
        let state = self.regions.get_mut(usize::from(*region));
        let Some(RegionState { write: Some(remote), seqs, .. }) = state else { return };
        let (region, register) = (*region, *register);
        let Some(last_seq) = seqs.get_mut(usize::from(register)) else { return };
        let Some(last_seq) = last_seq else { return self.request_seqs(region, register) };
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
        let target = remote.at(self.layout.slot_offset(region, register, seq));
        let inline = self.encoded_slot.len() <= self.identity.domain.limits().inline as usize;
        let (slot, data) = if inline {
            (StagingSlot::None, Data::inline(&self.encoded_slot))
        } else {
            let Some(slot) = self.free_writes.pop() else { return };
            let write_slot_bytes = two_slot_register::slot_bytes(self.layout.register_capacity());
            let offset = READ_SLOTS * self.read_slot_bytes + slot * write_slot_bytes;
            self.staging.write_at(offset, &self.encoded_slot);
            let sge = self.staging_mr.sge(offset as u64, self.encoded_slot.len() as u32);
            (StagingSlot::Write(slot), Data::sge(sge))
        };
        let State::Connected(link) = &mut self.state else { return };
        if link.post(self.pending[at].wr_id, SendOp::Write(target), data).is_ok() {
            *last_seq = seq;
            self.pending[at].stage = Stage::Posted(slot);
        } else {
            return self.free(slot);
        }
        let ahead = register.saturating_add(SEQ_PREFETCH_DISTANCE);
        if self.regions[usize::from(region)].seqs.get(usize::from(ahead)) == Some(&None) {
            self.request_seqs(region, ahead);
        }
    }

    /// Posts a READ of the next registers of a read operation.
    fn post_read(&mut self, at: usize) {
        let pending = &self.pending[at];
        let Op::Read { region, first, count } = pending.op else { return };
        let done = pending.cells.len() as u16;
        let state = self.regions.get(usize::from(region));
        let Some(RegionState { read: Some(remote), .. }) = state else { return };
        let (start, end) = (first.saturating_add(done), first.saturating_add(count));
        let chunk = self.layout.chunks(region, start..end, MAX_READ_BYTES).next();
        let Some(chunk) = chunk.filter(|c| c.end <= self.layout.registers(region)) else { return };
        let Some(slot) = self.free_reads.pop() else { return };
        let stride = self.layout.stride(region);
        let len = usize::from(chunk.end - chunk.start) * stride;
        let data = Data::sge(self.staging_mr.sge((slot * self.read_slot_bytes) as u64, len as u32));
        let op = SendOp::Read(remote.at((usize::from(chunk.start) * stride) as u64));
        self.post_with_read_slot(at, slot, op, data);
    }

    /// Posts a compare-and-swap that replaces 0, the initial value of the word, with the encoded cell.
    fn post_write_once(&mut self, at: usize) {
        let Op::WriteOnce { region, register, cell } = &self.pending[at].op else { return };
        let state = self.regions.get(usize::from(*region));
        let Some(RegionState { write: Some(remote), .. }) = state else { return };
        let swap = encode_word(cell).filter(|_| *register < self.layout.registers(*region));
        let Some(swap) = swap else { return };
        let Some(slot) = self.free_reads.pop() else { return };
        let op = SendOp::CompareSwap { remote: remote.at(u64::from(*register) * 8), compare: 0, swap };
        let data = Data::sge(self.staging_mr.sge((slot * self.read_slot_bytes) as u64, 8));
        self.post_with_read_slot(at, slot, op, data);
    }

    fn post_with_read_slot(&mut self, at: usize, slot: usize, op: SendOp, data: Data) {
        let State::Connected(link) = &mut self.state else { return };
        if link.post(self.pending[at].wr_id, op, data).is_ok() {
            self.pending[at].stage = Stage::Posted(StagingSlot::Read(slot));
        } else {
            self.free_reads.push(slot);
        }
    }

    /// Responds with NAK to queued operations that can never be posted.
    pub(super) fn nak_impossible(&mut self, responses: &mut Vec<(OpId, Response<C>)>) {
        let impossible = |client: &MemoryClient<C>| {
            client.pending.iter().position(|p| p.stage == Stage::Queued && client.is_impossible(&p.op))
        };
        while matches!(self.state, State::Connected(_))
            && let Some(at) = impossible(self)
        {
            self.respond(at, Response::Nak, responses);
        }
    }

    /// Returns whether an operation can never be posted: the process lacks the permission, the register does not exist or has the
    /// other kind, or the cell does not fit in the register.
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
