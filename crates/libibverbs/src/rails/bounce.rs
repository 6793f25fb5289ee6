//! Where the messages of a queue pair arrive that takes its receives from a shared queue.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_failover::{Completion, VirtualMr, VirtualQp};
use mitra_verbs::{Access, Buffer, RecvWr, Result, WcOpcode, WcStatus};

use super::shared_receives::SharedReceives;
use super::spanning::Spanning;

/// Messages that may wait, at most ...
pub(super) const SLOTS: usize = 64;
/// ... at least ...
const FEWEST: usize = 4;
/// ... and in bytes, unless the fewest take more.
const BYTES: usize = 4 << 20;

/// A ring of receives of Mitra's. They are used and given back in order, as the connection delivers.
pub(super) struct Bounce {
    spanning: Arc<Spanning>,
    buffer: Arc<Buffer>,
    mr: VirtualMr,
    slot: usize,
    /// Messages that no shared receive was there for.
    waiting: VecDeque<Completion>,
}

impl Bounce {
    /// Posts receives for messages as long as the longest shared receive so far; longer ones that come are refused, even if a
    /// shared receive posted later had room for them.
    pub(super) fn new(
        spanning: &Arc<Spanning>,
        shared: &SharedReceives,
        vqp: &mut VirtualQp,
    ) -> Result<Bounce> {
        let longest = spanning.domain.limits().message_bytes as usize;
        let slot = shared.longest().clamp(1, longest).next_multiple_of(8);
        let slots = (BYTES / slot).clamp(FEWEST, SLOTS);
        let buffer = Arc::new(Buffer::new(slot * slots));
        let mr = spanning.domain.register(&buffer, Access::LOCAL_WRITE)?;
        let bounce = Bounce { spanning: Arc::clone(spanning), buffer, mr, slot, waiting: VecDeque::new() };
        (0..slots).try_for_each(|i| vqp.post_recv(bounce.receive(i as u64)))?;
        Ok(bounce)
    }

    fn receive(&self, slot: u64) -> RecvWr {
        RecvWr::new(slot, self.mr.sge(slot * self.slot as u64, self.slot as u32))
    }

    /// A message, or an error that only a receive can report.
    pub(super) fn arrived(&mut self, completion: Completion) {
        self.waiting.push_back(completion);
    }

    /// Whether no message waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Messages that wait are not wanted any more.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }

    /// Gives the oldest message to a shared receive, and its place to the next: the receive's name, and how it ended.
    pub(super) fn next(
        &mut self,
        shared: &SharedReceives,
        vqp: &mut VirtualQp,
    ) -> Option<(u64, WcStatus, Completion)> {
        let message = *self.waiting.front()?;
        let wr = shared.take()?;
        self.waiting.pop_front();
        let mut status = WcStatus::Success;
        // A WRITE with immediate is where it belongs already.
        if message.is_success() && message.opcode == WcOpcode::Recv {
            let mut bytes = vec![0; message.byte_len as usize];
            self.buffer.read_at(message.wr_id as usize * self.slot, &mut bytes);
            let room: u64 = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
            status = match () {
                () if room < bytes.len() as u64 => WcStatus::LocalLength,
                () if !self.spanning.domain.scatter(&wr.sges, &bytes) => WcStatus::LocalProtection,
                () => WcStatus::Success,
            };
        }
        // It is refused when the queue pair has ended: then no message comes either.
        let _ = vqp.post_recv(self.receive(message.wr_id));
        Some((wr.wr_id, status, message))
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // A NIC that does not confirm is dead; the memory is Mitra's, and stays as long as a NIC holds it.
        let _ = self.spanning.domain.deregister(&self.mr);
    }
}
