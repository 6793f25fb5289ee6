//! What has been read, as cells.

use mitra_consensus::{Op, OpId, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{LOOKS, Port, READ, Slot, Stage};
use crate::inline_cell::cell_of;
use crate::register::{self, Seen};

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq> Port<C> {
    pub(super) fn settled(&mut self, at: usize, slot: Slot, answers: &mut Vec<(OpId, Response<C>)>) {
        let Slot::Read(slot) = slot else { return };
        let before = self.staging.load(slot * self.read_len);
        let Op::WriteOnce { cell, .. } = &self.pending[at].op else { return };
        let held = if before == 0 { cell.clone() } else { cell_of(before) };
        self.answer(at, Response::Cells(vec![held]), answers);
    }

    /// A piece has been read.
    pub(super) fn have_read(&mut self, at: usize, slot: Slot, answers: &mut Vec<(OpId, Response<C>)>) {
        let Slot::Read(slot) = slot else { return };
        let Op::Read { region, count, .. } = self.pending[at].op else { return };
        let stride = self.layout.stride(region);
        let mut register = vec![0; stride];
        let pending = &mut self.pending[at];
        pending.stage = Stage::Queued;
        for i in 0..(READ / stride).max(1).min(usize::from(count) - pending.cells.len()) {
            self.staging.read_at(slot * self.read_len + i * stride, &mut register);
            let seen = if self.layout.is_settled(region) {
                let word = u64::from_le_bytes(register[..8].try_into().expect("eight bytes"));
                pending.cells.push(cell_of(word));
                continue;
            } else {
                register::look(&register)
            };
            let contents = match seen {
                Seen::Held(_, contents) => contents,
                Seen::Half(seq, contents) if pending.half == Some(seq) => contents,
                _ if pending.looks >= LOOKS => &[][..],
                Seen::Half(seq, _) => {
                    (pending.half, pending.looks) = (Some(seq), pending.looks + 1);
                    break;
                }
                Seen::Torn => {
                    (pending.half, pending.looks) = (None, pending.looks + 1);
                    break;
                }
            };
            (pending.half, pending.looks) = (None, 0);
            // What its writer should not have written is nothing.
            pending.cells.push(postcard::from_bytes(contents).unwrap_or_default());
        }
        if pending.cells.len() == usize::from(count) {
            let cells = std::mem::take(&mut pending.cells);
            self.answer(at, Response::Cells(cells), answers);
        }
    }
}
