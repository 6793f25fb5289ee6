//! The registered memory of control messages on a NIC without room for them as inline data.

use std::sync::{Arc, Mutex};

use mitra_verbs::{Access, Buffer, Data, Mr, MrId, Result};

use super::{LocalNic, lock};
use crate::control_message::MAX_LEN;

/// The number of buffers. A message for which none is free is lost, as by a full send queue.
const SLOTS: u64 = 256;

/// A buffer is in use from the posting of its message until the completion, since the NIC may read
/// it meanwhile.
#[derive(Debug)]
pub(super) struct SendBuffers {
    memory: Arc<Buffer>,
    mr: Mr,
    free: Mutex<Vec<u64>>,
}

impl SendBuffers {
    pub(super) fn new(nic: &LocalNic) -> Result<SendBuffers> {
        let memory = Arc::new(Buffer::new(SLOTS as usize * MAX_LEN));
        let mr = nic.provider.reg_mr(nic.pd, Arc::clone(&memory), Access::LOCAL_WRITE)?;
        Ok(SendBuffers { memory, mr, free: Mutex::new((0..SLOTS).collect()) })
    }

    pub(super) fn mr(&self) -> MrId {
        self.mr.id
    }

    /// Copies a message into a free buffer. Returns the number of the buffer, and the message's
    /// data. Returns `None` if all buffers are in use.
    pub(super) fn fill(&self, message: &[u8]) -> Option<(u64, Data)> {
        let slot = lock(&self.free).pop()?;
        let offset = slot as usize * MAX_LEN;
        self.memory.write_at(offset, message);
        Some((slot, Data::sge(self.mr.sge(offset as u64, message.len() as u32))))
    }

    pub(super) fn release(&self, slot: u64) {
        lock(&self.free).push(slot);
    }
}
