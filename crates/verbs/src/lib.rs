#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod atomic_words;
/// The atomics of `atomic_words`. `tests/memory_orders.rs` replaces the atomics by those of loom.
mod atomics {
    pub(crate) use core::sync::atomic::{AtomicU64, Ordering, fence};
}
mod buffer;
mod checks;
mod codec;
mod device;
mod ended;
mod error;
mod event;
pub mod fault;
mod foreign_memory;
mod handle;
mod mr;
mod nic;
mod nic_source;
mod provider;
mod qp;
mod qp_builder;
mod qp_names;
mod rc_connection;
mod time;
mod timer_codes;
mod wc;
mod wr;

pub use buffer::Buffer;
pub use checks::{check_qp_cap, check_recv_state, check_region_access, check_send, check_send_state};
pub use codec::{Codec, Kinds, Malformed, Reader};
pub use device::{
    AtomicScope, Capabilities, Counter, DeviceAttr, GRH_LEN, Gid, Limits, Mtu, PortAttr, PortState,
};
pub use ended::Ended;
pub use error::{Error, PostError, Result};
pub use event::AsyncEvent;
pub use foreign_memory::{ForeignMemory, Unmapped};
pub use handle::{AhId, CqId, Key, MrId, MwId, PdId, RegionId, SrqId, XrcdId};
pub use mitra_wire::{Psn, Qpn, Srqn};
pub use mr::{Access, Mr, Mw, WindowBind, WindowType};
pub use nic::{Extras, Links, Nic};
pub use nic_source::{NicAddress, NicOpenError, NicRequest, NicSource, OpenedNic};
pub use provider::{CompletionChannel, Provider, SavedResult};
pub use qp::{
    GSI_QKEY, ModifyError, QpAttr, QpAttribute, QpCap, QpInitAttr, QpState, QpStatus, QpType, SqDrain,
    check_modify, required_attributes,
};
pub use qp_builder::{QpBuildError, QpBuilder};
pub use rc_connection::RcConnection;
pub use time::Time;
pub use timer_codes::{LocalAckTimeout, RnrTimer};
pub use wc::{Wc, WcOpcode, WcStatus};
pub use wr::{Data, InlineData, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, SgeList, UdDestination};
