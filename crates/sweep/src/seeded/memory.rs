//! Memory of an end of a world: windows on it, and its contents.

use mitra_failover::{VirtualMr, VirtualMw};
use mitra_verbs::{Access, Buffer, Data, Key, SendFlags, SendOp, SendWr, WindowBind};

/// Returns a signalled request that binds a window to a whole region.
pub(super) fn window_bind(wr_id: u64, mr: &VirtualMr, mw: &VirtualMw, rkey: Key) -> SendWr {
    let (mw, region) = (mw.primary().id, mr.primary());
    let bind = WindowBind {
        mw,
        rkey,
        mr: region.id,
        addr: region.addr,
        len: mr.len(),
        access: Access::REMOTE,
        zero_based: false,
    };
    SendWr::new(wr_id, SendOp::BindWindow(bind), Data::empty()).with_flags(SendFlags::SIGNALED)
}

pub(super) fn read(memory: &Buffer, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_at(at, &mut bytes);
    bytes
}

pub(super) fn read_all(memory: &Buffer) -> Vec<u8> {
    read(memory, 0, memory.len())
}
