use core::fmt;

use crate::{Key, Qpn};

/// The result of a work request (`enum ibv_wc_status`; IBTA volume 1, 11.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WcStatus {
    /// The request was executed.
    Success,
    /// The message is longer than the buffers of the receive or of the READ.
    LocalLength,
    /// The local NIC has an error of its own that prevented it from executing the request.
    LocalQpOperation,
    /// A scatter/gather entry has an invalid local key, exceeds the bounds of the region, or lacks
    /// the access right.
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
    /// The responder refused the access: the remote key is invalid, or its bounds or rights forbid
    /// the access.
    RemoteAccess,
    /// The responder has an error of its own that prevented it from executing the request.
    RemoteOperation,
    /// No acknowledgement arrived after the last retransmission. The responder may have executed
    /// the request.
    RetryExceeded,
    /// The responder had no receive posted, even at the last RNR retry.
    RnrRetryExceeded,
}

impl fmt::Display for WcStatus {
    /// Writes the usual RDMA name of the status, and for an error its usual cause.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::Success => "success",
            WcStatus::LocalLength => "local length error: the message is longer than the buffer",
            WcStatus::LocalQpOperation => "local queue pair operation error: the local NIC failed",
            WcStatus::LocalProtection => {
                "local protection error: a local key is invalid, or its bounds or rights forbid the access"
            }
            WcStatus::Flushed => "flushed: the queue pair ended before it executed this request",
            WcStatus::WindowBind => "memory window bind error: the region or the rights forbid the window",
            WcStatus::BadResponse => "bad response error: the peer's NIC sent an unexpected response",
            WcStatus::LocalAccess => "local access error: the responder could not access its own memory",
            WcStatus::RemoteInvalidRequest => {
                "remote invalid request error: the peer's queue pair does not accept this request"
            }
            WcStatus::RemoteAccess => {
                "remote access error: the remote key is invalid, or its bounds or rights forbid the access"
            }
            WcStatus::RemoteOperation => {
                "remote operation error: the peer's NIC failed to execute the request"
            }
            WcStatus::RetryExceeded => "transport retry counter exceeded: the peer's NIC does not answer",
            WcStatus::RnrRetryExceeded => "RNR retry counter exceeded: the peer has posted no receive",
        })
    }
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

impl fmt::Display for WcOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcOpcode::Send => "SEND",
            WcOpcode::Write => "WRITE",
            WcOpcode::Read => "READ",
            WcOpcode::CompareSwap => "compare-and-swap",
            WcOpcode::FetchAdd => "fetch-and-add",
            WcOpcode::BindWindow => "window bind",
            WcOpcode::LocalInvalidate => "local invalidation",
            WcOpcode::Recv => "receive",
            WcOpcode::RecvWithImm => "receive with immediate",
        })
    }
}

/// A work completion. If `status` is not [`WcStatus::Success`], only `wr_id`, `status`, `qpn` and
/// `vendor_err` are valid (`ibv_poll_cq`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wc {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// The result of the request.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// The queue pair of the request.
    pub qpn: Qpn,
    /// For a receive, a READ and an atomic, the number of bytes that were received or read. On a UD
    /// queue pair, the number includes the 40 bytes of the GRH.
    pub byte_len: u32,
    /// For a receive, the immediate data.
    pub imm: Option<u32>,
    /// For a receive of a SEND with invalidate, the invalidated key.
    pub invalidated: Option<Key>,
    /// For a UD receive, the sender's queue pair.
    pub src_qp: Qpn,
    /// For a receive, whether the sender set [`SOLICITED`](crate::SendFlags::SOLICITED).
    pub solicited: bool,
    /// A code of Mitra with details of the error; 0 if there are no details.
    pub vendor_err: u32,
}

impl Wc {
    /// Returns a completion without data: every other field is zero or `None`.
    pub fn new(wr_id: u64, status: WcStatus, opcode: WcOpcode, qpn: Qpn) -> Wc {
        Wc {
            wr_id,
            status,
            opcode,
            qpn,
            byte_len: 0,
            imm: None,
            invalidated: None,
            src_qp: Qpn::new(0),
            solicited: false,
            vendor_err: 0,
        }
    }
}
