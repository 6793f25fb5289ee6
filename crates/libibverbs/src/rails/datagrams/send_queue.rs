//! The sends of a UD queue pair over several rails that are posted and not completed, oldest first.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_verbs::{SendWr, WcOpcode, WcStatus};

use super::address_handles::AddressHandle;

#[derive(Default)]
pub(super) struct SendQueue {
    pub(super) sends: VecDeque<Posted>,
    /// The sequence number of the oldest send. On the rails, a send has its sequence number as
    /// `wr_id`.
    pub(super) first: u64,
    /// The number of sends that are on no rail yet.
    pub(super) waiting: usize,
    /// The datagrams that were posted on a rail since the last reset, modulo 2^32. A PSN is modulo
    /// 2^24.
    pub(super) datagrams: u32,
}

pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) byte_len: u32,
    pub(super) signaled: bool,
    pub(super) stage: Stage,
}

pub(super) enum Stage {
    /// The send is on no rail yet.
    Waiting(SendWr, Option<Arc<AddressHandle>>),
    OnRail(usize),
    Done(WcStatus),
}

impl SendQueue {
    /// Returns whether a send is on `rail`, or on any rail if `rail` is `None`.
    pub(super) fn is_on_rail(&self, rail: Option<usize>) -> bool {
        self.sends.iter().any(|send| match send.stage {
            Stage::OnRail(at) => rail.is_none_or(|rail| rail == at),
            _ => false,
        })
    }

    /// Records the completion of the send with a sequence number.
    pub(super) fn complete(&mut self, sequence: u64, status: WcStatus) {
        let index = sequence.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(send) = index.and_then(|index| self.sends.get_mut(index))
            && matches!(send.stage, Stage::OnRail(_))
        {
            send.stage = Stage::Done(status);
        }
    }

    /// Completes all sends on a rail whose NIC is dead, with success: a datagram may be lost, and
    /// is never sent again.
    pub(super) fn give_up_rail(&mut self, rail: usize) {
        for send in self.sends.iter_mut().filter(|send| matches!(send.stage, Stage::OnRail(at) if at == rail))
        {
            send.stage = Stage::Done(WcStatus::Success);
        }
    }

    /// Flushes the sends that are on no rail.
    pub(super) fn flush_waiting(&mut self) {
        for send in self.sends.iter_mut().filter(|send| matches!(send.stage, Stage::Waiting(..))) {
            send.stage = Stage::Done(WcStatus::Flushed);
        }
        self.waiting = 0;
    }

    pub(super) fn clear(&mut self) {
        self.first += self.sends.len() as u64;
        self.sends.clear();
        (self.waiting, self.datagrams) = (0, 0);
    }
}
