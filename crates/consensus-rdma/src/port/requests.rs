//! What is asked for, as requests of the queue pair.

use mitra_consensus::{Op, OpId, Response};
use mitra_verbs::{Data, SendOp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{AHEAD, Known, Port, READ, READS, Slot, Stage, State};
use crate::inline_cell::word;
use crate::memory_node::Request;
use crate::register;

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq> Port<C> {
    /// Posts what can be posted.
    pub(super) fn post(&mut self) {
        for at in 0..self.pending.len() {
            let State::Connected(link) = &mut self.state else { return };
            if self.pending[at].stage != Stage::Queued {
                continue;
            }
            if link.room() == 0 {
                return;
            }
            match &self.pending[at].op {
                Op::Write { .. } => self.post_write(at),
                Op::Read { .. } => self.post_read(at),
                Op::WriteOnce { .. } => self.post_settle(at),
                Op::ChangePermissions { region, permissions } => {
                    let change =
                        Request::Change { region: *region, read: permissions.read, write: permissions.write };
                    if link.send(postcard::to_stdvec(&change).expect("plain data")) {
                        self.pending[at].stage = Stage::Asked;
                    }
                }
            }
        }
    }

    fn post_write(&mut self, at: usize) {
        let Op::Write { region, register, cell } = &self.pending[at].op else { return };
        let known = self.known.get_mut(usize::from(*region));
        let Some(Known { write: Some(remote), seqs, .. }) = known else { return };
        let (region, register) = (*region, *register);
        let Some(last) = seqs.get_mut(usize::from(register)) else { return };
        let Some(last) = last else { return self.learn(region, register) };
        let seq = last.wrapping_add(1);
        self.bytes.clear();
        self.sealed.clear();
        // Longer than the room: it stays queued, and `refuse` says so.
        let Ok(bytes) = postcard::to_extend(cell, std::mem::take(&mut self.bytes)) else { return };
        self.bytes = bytes;
        if self.bytes.len() > self.layout.room() {
            return;
        }
        register::seal(seq, &self.bytes, &mut self.sealed);
        let to = remote.at(self.layout.place(region, register, seq));
        let inline = self.sealed.len() <= self.identity.domain.limits().inline as usize;
        let (slot, data) = if inline {
            (Slot::None, Data::inline(&self.sealed))
        } else {
            let Some(slot) = self.free_writes.pop() else { return };
            let offset = READS * self.read_len + slot * register::place_len(self.layout.room());
            self.staging.write_at(offset, &self.sealed);
            (Slot::Write(slot), Data::sge(self.mr.sge(offset as u64, self.sealed.len() as u32)))
        };
        let State::Connected(link) = &mut self.state else { return };
        if link.post(self.pending[at].number, SendOp::Write(to), data).is_ok() {
            *last = seq;
            self.pending[at].stage = Stage::Posted(slot);
        } else {
            return self.free(slot);
        }
        // Ahead of need.
        let soon = register.saturating_add(AHEAD);
        if self.known[usize::from(region)].seqs.get(usize::from(soon)) == Some(&None) {
            self.learn(region, soon);
        }
    }

    fn post_read(&mut self, at: usize) {
        let pending = &self.pending[at];
        let Op::Read { region, first, count } = pending.op else { return };
        let done = pending.cells.len() as u16;
        let Some(Known { read: Some(remote), .. }) = self.known.get(usize::from(region)) else { return };
        let (from, to) = (first.saturating_add(done), first.saturating_add(count));
        let piece = self.layout.pieces(region, from..to, READ).next();
        let Some(piece) = piece.filter(|p| p.end <= self.layout.registers(region)) else { return };
        let Some(slot) = self.free_reads.pop() else { return };
        let stride = self.layout.stride(region);
        let len = usize::from(piece.end - piece.start) * stride;
        let data = Data::sge(self.mr.sge((slot * self.read_len) as u64, len as u32));
        let op = SendOp::Read(remote.at((usize::from(piece.start) * stride) as u64));
        let State::Connected(link) = &mut self.state else { return };
        if link.post(self.pending[at].number, op, data).is_ok() {
            self.pending[at].stage = Stage::Posted(Slot::Read(slot));
        } else {
            self.free_reads.push(slot);
        }
    }

    fn post_settle(&mut self, at: usize) {
        let Op::WriteOnce { region, register, cell } = &self.pending[at].op else { return };
        let Some(Known { write: Some(remote), .. }) = self.known.get(usize::from(*region)) else { return };
        let Some(swap) = word(cell).filter(|_| *register < self.layout.registers(*region)) else { return };
        let Some(slot) = self.free_reads.pop() else { return };
        let op = SendOp::CompareSwap { remote: remote.at(u64::from(*register) * 8), compare: 0, swap };
        let data = Data::sge(self.mr.sge((slot * self.read_len) as u64, 8));
        let State::Connected(link) = &mut self.state else { return };
        if link.post(self.pending[at].number, op, data).is_ok() {
            self.pending[at].stage = Stage::Posted(Slot::Read(slot));
        } else {
            self.free_reads.push(slot);
        }
    }

    /// Refuses what can never be posted.
    pub(super) fn refuse(&mut self, answers: &mut Vec<(OpId, Response<C>)>) {
        while matches!(self.state, State::Connected(_))
            && let Some(at) =
                self.pending.iter().position(|p| p.stage == Stage::Queued && self.is_hopeless(&p.op))
        {
            self.answer(at, Response::Nak, answers);
        }
    }

    /// Without the right, of registers that do not exist, or of more than a register has room for.
    fn is_hopeless(&self, op: &Op<C>) -> bool {
        let may_write = |region: u8, register: u16| {
            self.known.get(usize::from(region)).is_some_and(|known| known.write.is_some())
                && register < self.layout.registers(region)
        };
        match op {
            Op::Read { region, first, count } => {
                self.known.get(usize::from(*region)).is_none_or(|known| known.read.is_none())
                    || first.saturating_add(*count) > self.layout.registers(*region)
            }
            Op::Write { region, register, cell } => {
                let len = postcard::experimental::serialized_size(cell);
                !may_write(*region, *register)
                    || self.layout.is_settled(*region)
                    || len.map_or(true, |len| len > self.layout.room())
            }
            Op::WriteOnce { region, register, cell } => {
                !may_write(*region, *register) || !self.layout.is_settled(*region) || word(cell).is_none()
            }
            Op::ChangePermissions { .. } => false,
        }
    }
}
