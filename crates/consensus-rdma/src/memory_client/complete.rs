//! The conversion of completions and of the memory node's replies into responses to operations.

use mitra_consensus::{Op, OpId, Response};
use mitra_failover::{Completion, Outcome, UnresolvedError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{MAX_READ_BYTES, MemoryClient, SeqRequest, Stage, StagingSlot};
use crate::memory_protocol::MemoryReply;
use crate::two_slot_register::{self, RegisterRead};
use crate::word_cell::decode_word;

/// The number of READs of one register that may find a torn slot. After that, the client assumes that the writer is Byzantine, and
/// reads the register as empty.
const MAX_TORN_READS: u32 = 256;

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq> MemoryClient<C> {
    /// Handles the completion of a work request.
    pub(super) fn handle_completion(
        &mut self,
        completion: &Completion,
        responses: &mut Vec<(OpId, Response<C>)>,
    ) {
        let at = self.pending.binary_search_by_key(&completion.wr_id, |p| p.wr_id);
        let Ok(at) = at else { return };
        let Stage::Posted(slot) = self.pending[at].stage else { return };
        self.free(slot);
        let refused = matches!(completion.outcome, Outcome::Failed(_));
        let executed = Outcome::Unresolved(UnresolvedError::ExecutedBehindError);
        match (&self.pending[at].op, completion.is_success()) {
            (Op::Write { .. }, true) => self.respond(at, Response::Ack, responses),
            (Op::Write { .. }, false) if refused => self.respond(at, Response::Nak, responses),
            // The WRITE was executed, although an earlier request failed. The failed request makes the client reconnect.
            (Op::Write { .. }, false) if completion.outcome == executed => {
                self.respond(at, Response::Ack, responses);
            }
            (Op::Write { .. }, false) => self.pending[at].stage = Stage::OutcomeUnknown,
            (_, false) => self.pending[at].stage = Stage::Queued,
            (Op::WriteOnce { .. }, true) => self.finish_write_once(at, slot, responses),
            (_, true) => self.finish_read(at, slot, responses),
        }
    }

    /// Returns a staging slot to the free list.
    pub(super) fn free(&mut self, slot: StagingSlot) {
        match slot {
            StagingSlot::None => {}
            StagingSlot::Read(slot) => self.free_reads.push(slot),
            StagingSlot::Write(slot) => self.free_writes.push(slot),
        }
    }

    /// Handles a reply of the memory node's CPU. Ignores malformed replies.
    pub(super) fn handle_reply(&mut self, message: &[u8], responses: &mut Vec<(OpId, Response<C>)>) {
        match postcard::from_bytes(message) {
            Ok(MemoryReply::PermissionsChanged { write }) => self.finish_change(write.as_deref(), responses),
            Ok(MemoryReply::Seqs { seqs }) => {
                let Some(SeqRequest { region, registers }) = self.seq_requests.pop_front() else { return };
                let Some(state) = self.regions.get_mut(usize::from(region)) else { return };
                for (register, seq) in registers.zip(seqs) {
                    // If the client knows a number already, the process has written the register since the request, and the
                    // known number is newer.
                    if let Some(unknown @ None) = state.seqs.get_mut(usize::from(register)) {
                        *unknown = Some(seq);
                    }
                }
            }
            Err(_) => {}
        }
    }

    /// Finishes the oldest change of permissions. The response is ACK also if the change was not legal and so had no effect.
    fn finish_change(&mut self, write: Option<&[u8]>, responses: &mut Vec<(OpId, Response<C>)>) {
        let Some(at) = self.pending.iter().position(|p| p.stage == Stage::Requested) else { return };
        let Op::ChangePermissions { region, .. } = self.pending[at].op else { return };
        if usize::from(region) < self.regions.len() {
            self.set_write_key(region.into(), write);
        }
        self.respond(at, Response::Ack, responses);
    }

    fn finish_write_once(&mut self, at: usize, slot: StagingSlot, responses: &mut Vec<(OpId, Response<C>)>) {
        let StagingSlot::Read(slot) = slot else { return };
        let before = self.staging.load(slot * self.read_slot_bytes);
        let Op::WriteOnce { cell, .. } = &self.pending[at].op else { return };
        let held = if before == 0 { cell.clone() } else { decode_word(before) };
        self.respond(at, Response::Cells(vec![held]), responses);
    }

    /// Decodes the registers that a READ has fetched. A torn register and those after it are read again.
    fn finish_read(&mut self, at: usize, slot: StagingSlot, responses: &mut Vec<(OpId, Response<C>)>) {
        let StagingSlot::Read(slot) = slot else { return };
        let Op::Read { region, count, .. } = self.pending[at].op else { return };
        let stride = self.layout.stride(region);
        let mut register = vec![0; stride];
        let pending = &mut self.pending[at];
        pending.stage = Stage::Queued;
        let fetched = (MAX_READ_BYTES / stride).max(1).min(usize::from(count) - pending.cells.len());
        for i in 0..fetched {
            self.staging.read_at(slot * self.read_slot_bytes + i * stride, &mut register);
            if self.layout.is_write_once(region) {
                let word = register[..8].try_into().expect("a write-once register has 8 bytes");
                pending.cells.push(decode_word(u64::from_le_bytes(word)));
                continue;
            }
            let contents = match two_slot_register::read_slots(&register) {
                RegisterRead::Stable(_, contents) => contents,
                RegisterRead::OneTorn(seq, contents) if pending.whole_beside_torn == Some(seq) => contents,
                _ if pending.torn_reads >= MAX_TORN_READS => &[][..],
                RegisterRead::OneTorn(seq, _) => {
                    pending.whole_beside_torn = Some(seq);
                    pending.torn_reads += 1;
                    break;
                }
                RegisterRead::BothTorn => {
                    pending.whole_beside_torn = None;
                    pending.torn_reads += 1;
                    break;
                }
            };
            (pending.whole_beside_torn, pending.torn_reads) = (None, 0);
            // Contents that are not a valid cell come from a Byzantine writer, and are read as the default cell.
            pending.cells.push(postcard::from_bytes(contents).unwrap_or_default());
        }
        if pending.cells.len() == usize::from(count) {
            let cells = std::mem::take(&mut pending.cells);
            self.respond(at, Response::Cells(cells), responses);
        }
    }

    /// Removes a pending operation and appends its response.
    pub(super) fn respond(
        &mut self,
        at: usize,
        response: Response<C>,
        responses: &mut Vec<(OpId, Response<C>)>,
    ) {
        if let Some(pending) = self.pending.remove(at) {
            responses.push((pending.id, response));
        }
    }
}
