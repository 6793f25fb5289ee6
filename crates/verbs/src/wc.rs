use crate::{Key, Qpn};

/// How a work request ended (`enum ibv_wc_status`; IBTA volume 1, 11.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WcStatus {
    /// The request was executed.
    Success,
    /// The message is longer than the receive buffers or the local buffers of the request.
    LocalLength,
    /// The NIC failed to execute the request.
    LocalQpOperation,
    /// A local key, bound or right is wrong.
    LocalProtection,
    /// The queue pair went to ERR before this request was executed.
    Flushed,
    /// A window could not be bound.
    WindowBind,
    /// The responder sent an unexpected response.
    BadResponse,
    /// The responder's queue pair could not access its own memory for a request.
    LocalAccess,
    /// The responder reported an invalid request.
    RemoteInvalidRequest,
    /// The responder refused the access: a key, bound or right is wrong.
    RemoteAccess,
    /// The responder failed to execute the request.
    RemoteOperation,
    /// No acknowledgement arrived within all retries. It is unknown whether the request was executed.
    RetryExceeded,
    /// The responder had no receive posted during all retries.
    RnrRetryExceeded,
}

/// The operation that completed (`enum ibv_wc_opcode`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A SEND of any kind.
    Send,
    /// A WRITE, with or without immediate.
    Write,
    /// A READ.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A window bind.
    BindWindow,
    /// A local invalidation.
    LocalInvalidate,
    /// A receive that a SEND consumed.
    Recv,
    /// A receive that a WRITE with immediate consumed.
    RecvWithImm,
}

/// A work completion. If `status` is not [`WcStatus::Success`], only `wr_id`, `status`, `qpn` and
/// `vendor_err` are valid (`ibv_poll_cq`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wc {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Whether and why the request failed.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// The queue pair of the request.
    pub qpn: Qpn,
    /// Bytes received or read. A UD receive counts the 40 bytes of the GRH area.
    pub byte_len: u32,
    /// For a receive, the immediate data.
    pub imm: Option<u32>,
    /// For a receive of a SEND with invalidate, the invalidated key.
    pub invalidated: Option<Key>,
    /// For a UD receive, the sender's queue pair.
    pub src_qp: Qpn,
    /// For a receive, whether the sender set [`SOLICITED`](crate::SendFlags::SOLICITED).
    pub solicited: bool,
    /// A code with details of an error, specific to this project; 0 if there are none.
    pub vendor_err: u32,
}
