//! The conversion of completions and of the memory node's replies into responses to operations.

use mitra_consensus::{Op, OpId, Response};
use mitra_mutants::Mutant;
use mitra_verbs::Ended;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Client, ClientLink, SeqRequest, Stage};
use crate::messages::MemoryReply;
use crate::two_slot_register::{self, RegisterRead};
use crate::word_cell::decode_word;

/// The number of READs of one register that may find a torn slot. After that, the client assumes
/// that the writer is Byzantine, and reads the register as empty.
const MAX_TORN_READS: u32 = 256;

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq, K> Client<C, K> {
    /// Handles the completion of a work request. `data` has the bytes that a successful READ has
    /// read, or the word that a successful compare-and-swap has found.
    pub fn on_completion(
        &mut self,
        wr_id: u64,
        ended: Ended,
        data: &[u8],
        responses: &mut Vec<(OpId, Response<C>)>,
    ) {
        let Ok(at) = self.pending.binary_search_by_key(&wr_id, |p| p.wr_id) else { return };
        if self.pending[at].stage != Stage::Posted {
            return;
        }
        match (&self.pending[at].op, ended) {
            // A WRITE returns no value that could be lost.
            (Op::Write { .. }, Ended::Success | Ended::ValueLost) => {
                self.respond(at, Response::Ack, responses);
            }
            (Op::Write { .. }, Ended::NotExecuted) => self.respond(at, Response::Nak, responses),
            (Op::Write { .. }, Ended::Unknown) if Mutant::UnresolvedWriteAcknowledged.is_on() => {
                self.respond(at, Response::Ack, responses);
            }
            (Op::Write { .. }, Ended::Unknown) if Mutant::UnresolvedWriteRefused.is_on() => {
                self.respond(at, Response::Nak, responses);
            }
            (Op::Write { .. }, Ended::Unknown) => self.pending[at].stage = Stage::OutcomeUnknown,
            (Op::WriteOnce { .. }, Ended::Success) => self.finish_write_once(at, data, responses),
            (_, Ended::Success) => self.finish_read(at, data, responses),
            // The operation can be repeated.
            _ => self.pending[at].stage = Stage::Queued,
        }
    }

    /// Handles a reply of the memory node's CPU. Ignores malformed replies.
    pub fn on_message(
        &mut self,
        message: &[u8],
        link: &mut impl ClientLink<Key = K>,
        responses: &mut Vec<(OpId, Response<C>)>,
    ) {
        match postcard::from_bytes(message) {
            Ok(MemoryReply::PermissionsChanged { write }) => {
                self.finish_change(write.as_deref(), link, responses);
            }
            Ok(MemoryReply::Seqs { seqs }) => {
                let Some(SeqRequest { region, registers }) = self.seq_requests.pop_front() else { return };
                let Some(state) = self.regions.get_mut(usize::from(region)) else { return };
                for (register, seq) in registers.zip(seqs) {
                    // If the client knows a number already, the process has written the register
                    // since the request, and the known number is newer.
                    if let Some(unknown @ None) = state.seqs.get_mut(usize::from(register)) {
                        *unknown = Some(seq);
                    }
                }
            }
            Err(_) => {}
        }
    }

    /// Finishes the oldest change of permissions. The response is ACK even if the change was not
    /// legal and so had no effect.
    fn finish_change(
        &mut self,
        write: Option<&[u8]>,
        link: &mut impl ClientLink<Key = K>,
        responses: &mut Vec<(OpId, Response<C>)>,
    ) {
        let Some(at) = self.pending.iter().position(|p| p.stage == Stage::Requested) else { return };
        let Op::ChangePermissions { region, .. } = self.pending[at].op else { return };
        if usize::from(region) < self.regions.len() {
            self.set_write_key(region.into(), write, link);
        }
        self.respond(at, Response::Ack, responses);
    }

    fn finish_write_once(&mut self, at: usize, data: &[u8], responses: &mut Vec<(OpId, Response<C>)>) {
        let Op::WriteOnce { cell, .. } = &self.pending[at].op else { return };
        let Ok(before) = data.try_into().map(u64::from_ne_bytes) else { return };
        let held = if before == 0 { cell.clone() } else { decode_word(before) };
        self.respond(at, Response::Cells(vec![held]), responses);
    }

    /// Decodes the registers that a READ has fetched. The next READ fetches a torn register and the
    /// registers after it again.
    fn finish_read(&mut self, at: usize, data: &[u8], responses: &mut Vec<(OpId, Response<C>)>) {
        let Op::Read { region, count, .. } = self.pending[at].op else { return };
        let pending = &mut self.pending[at];
        pending.stage = Stage::Queued;
        for register in data.chunks_exact(self.layout.stride(region)) {
            if self.layout.is_write_once(region) {
                let word = register[..8].try_into().expect("a write-once register has 8 bytes");
                pending.cells.push(decode_word(u64::from_le_bytes(word)));
                continue;
            }
            let contents = match two_slot_register::read_slots(register) {
                RegisterRead::Stable(_, contents) => contents,
                RegisterRead::OneTorn(seq, contents)
                    if pending.whole_beside_torn == Some(seq) || Mutant::TornRegisterBelieved.is_on() =>
                {
                    contents
                }
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
            // Contents that are not a valid cell come from a Byzantine writer, and are read as the
            // default cell.
            pending.cells.push(postcard::from_bytes(contents).unwrap_or_default());
        }
        if pending.cells.len() == usize::from(count) {
            let cells = std::mem::take(&mut pending.cells);
            self.respond(at, Response::Cells(cells), responses);
        }
    }
}
