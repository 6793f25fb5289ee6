use crate::{Key, Qpn};

/// How a work request ended (`enum ibv_wc_status`; IBTA volume 1, 11.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WcStatus {
    /// It was executed.
    Success,
    /// The message is longer than the receive buffers or the request's own.
    LocalLength,
    /// The NIC itself failed at this request.
    LocalQpOperation,
    /// A local key, bound or right is wrong.
    LocalProtection,
    /// The queue pair went to ERR before this request was executed.
    Flushed,
    /// A window could not be bound.
    WindowBind,
    /// The responder's answer made no sense.
    BadResponse,
    /// A local access right is missing at the responder's side of a request.
    LocalAccess,
    /// The responder calls the request invalid.
    RemoteInvalidRequest,
    /// The responder denies the key, bound or right.
    RemoteAccess,
    /// The responder failed at it.
    RemoteOperation,
    /// No acknowledgement within all retries: whether it was executed is not known.
    RetryExceeded,
    /// The responder had no receive posted, all retries long.
    RnrRetryExceeded,
}

/// What completed (`enum ibv_wc_opcode`).
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
    /// As posted.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// The queue pair it was posted on.
    pub qpn: Qpn,
    /// Bytes received or read. A UD receive counts the 40 bytes of the GRH area.
    pub byte_len: u32,
    /// Immediate data, of a receive.
    pub imm: Option<u32>,
    /// The key that a SEND with invalidate killed, of a receive.
    pub invalidated: Option<Key>,
    /// The sender, of a UD receive.
    pub src_qp: Qpn,
    /// The sender asked that who waits for such messages is woken, of a receive.
    pub solicited: bool,
    /// More about an error, of this project's own counting; 0 if there is no more.
    pub vendor_err: u32,
}
