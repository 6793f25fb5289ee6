//! The RDMA vocabulary, and the [`Provider`] trait that every NIC implements.
//!
//! Devices, protection domains, memory regions and windows, completion queues, queue pairs, work requests,
//! completions, events and errors, in the words of the verbs (IBTA volume 1, chapters 10 and 11, and the
//! `ibv_*` manual pages). This room never drives a NIC, opens a socket or starts a thread: it only says what
//! things are called and what a NIC must do.
//!
//! One operation walked through the vocabulary: [`Buffer::new`], [`Provider::reg_mr`], [`Provider::create_cq`],
//! [`Provider::create_qp`], [`Provider::modify_qp`] to RTS, [`Provider::post_send`], [`Provider::poll_cq`].
#![forbid(unsafe_code)]

mod atomic_words;
mod buffer;
mod device;
mod error;
mod event;
mod foreign_memory;
mod handle;
mod mr;
mod provider;
mod qp;
mod rc_connection;
mod time;
mod timer_codes;
mod wc;
mod wr;

pub use buffer::Buffer;
pub use device::{AtomicScope, Capabilities, Counter, DeviceAttr, Gid, Limits, Mtu, PortAttr, PortState};
pub use error::{Error, PostError, Result};
pub use event::AsyncEvent;
pub use foreign_memory::{ForeignMemory, Unmapped};
pub use handle::{AhId, CqId, Key, MrId, MwId, PdId, RegionId, SrqId};
pub use mitra_wire::{Psn, Qpn};
pub use mr::{Access, Mr, Mw, WindowBind};
pub use provider::{CompletionChannel, Provider, SavedResult};
pub use qp::{
    GSI_QKEY, ModifyError, QpAttr, QpAttribute, QpCap, QpInitAttr, QpState, QpStatus, QpType, SqDrain,
    check_modify, required_attributes,
};
pub use rc_connection::RcConnection;
pub use time::Time;
pub use timer_codes::{LocalAckTimeout, RnrTimer};
pub use wc::{Wc, WcOpcode, WcStatus};
pub use wr::{Data, InlineData, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, SgeList, UdDestination};
