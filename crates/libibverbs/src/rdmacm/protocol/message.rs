//! The messages between two connection managers (IBTA volume 1, chapter 12).
//!
//! REQ, MRA, REJ, REP, RTU, DREQ and DREP establish and end a connection. SIDR_REQ and SIDR_REP
//! look up a datagram service. [`encoding`](super::encoding) has their form on the wire, which the
//! kernel's connection manager shares. A REQ and a SIDR_REQ name the addresses of both programs in
//! the header that the kernel's `rdma_cm` defines (IBTA volume 1, annex A11).

use std::net::SocketAddr;

// The limits of the program's private data in each message: those of `man rdma_connect` (REQ,
// SIDR_REQ), `man rdma_accept` (REP, SIDR_REP) and IBTA volume 1, 12.6.7 (REJ).
pub const REQ_PRIVATE_DATA_LEN: usize = 56;
pub const REP_PRIVATE_DATA_LEN: usize = 196;
pub const REJ_PRIVATE_DATA_LEN: usize = 148;
pub const SIDR_REQ_PRIVATE_DATA_LEN: usize = 180;
pub const SIDR_REP_PRIVATE_DATA_LEN: usize = 136;

/// Reasons of a REJ (IBTA 12.6.7.2).
pub mod reject_reason {
    /// The sender of the REJ waited too long for a message.
    pub const TIMEOUT: u16 = 4;
    /// The message names a connection that the sender of the REJ does not have.
    pub const INVALID_COMMUNICATION_ID: u16 = 6;
    /// No program listens at the port.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The path MTU of the REQ exceeds that of the receiver's port, which the REJ contains.
    pub const INVALID_PATH_MTU: u16 = 26;
    /// The program rejected the request or the reply.
    pub const CONSUMER_DEFINED: u16 = 28;
    /// The program called `rdma_reject_ece`.
    pub const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// Status codes of a SIDR_REP (IBTA 12.11.2).
pub mod sidr_status {
    pub const VALID: u8 = 0;
    /// No program listens at the port.
    pub const UNSUPPORTED: u8 = 1;
    /// The program rejected the request.
    pub const REJECTED: u8 = 2;
}

/// The port space of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// RDMA_PS_TCP: connected queue pairs.
    #[default]
    Tcp,
    /// RDMA_PS_UDP: datagram queue pairs.
    Udp,
}

/// The port to which a request goes, and the addresses of both programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    pub space: PortSpace,
    /// The requester's address and port.
    pub source: SocketAddr,
    /// The service's address and port, of the same family as `source`.
    pub destination: SocketAddr,
}

/// The parameters of the sender's end in a REQ or a REP (IBTA 12.6.5, 12.6.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionParams {
    /// 24 bits.
    pub qpn: u32,
    /// The first PSN that the sender's queue pair receives, 24 bits. The receiver of the message
    /// begins to send with it (the kernel's `cm_req_handler`).
    pub starting_psn: u32,
    /// The GID of the sender's device. A REP does not contain it, so the receiver sets it.
    pub gid: [u8; 16],
    /// The GUID of the sender's device.
    pub guid: u64,
    /// The path MTU, as an `ibv_mtu`. A REP does not contain it, so the receiver sets that of its
    /// REQ.
    pub path_mtu: u8,
    /// The number of READs and atomics that the sender's queue pair accepts at once as responder.
    pub responder_resources: u8,
    /// The number of READs and atomics that the sender's queue pair has outstanding as requester.
    pub initiator_depth: u8,
    /// The number of retransmissions after a timeout, at most 7. 0 in a REP, which has none.
    pub retry_count: u8,
    /// How often the queue pair of the message's receiver retries after an RNR NAK, at most 7.
    pub rnr_retry_count: u8,
    pub flags: ConnectionFlags,
    pub private_data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionFlags {
    /// The sender supports end-to-end flow control.
    pub flow_control: bool,
    /// The sender's queue pair uses a shared receive queue.
    pub srq: bool,
}

/// The transport service of a connection's queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    #[default]
    Reliable,
    Unreliable,
    /// XRC.
    ExtendedReliable,
}

/// The body of REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The communication id of the sender.
    pub sender: u32,
    pub service: Service,
    pub transport: Transport,
    /// The local ACK timeout of the path: 4.096 µs · 2^value, five bits.
    pub ack_timeout: u8,
    pub traffic_class: u8,
    /// The GID of the receiver's device, as far as the sender knows it.
    pub remote_gid: [u8; 16],
    pub params: ConnectionParams,
}

/// The communication ids of a message that belongs to a connection. An id of 0 is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ids {
    pub sender: u32,
    pub receiver: u32,
}

/// The message that an MRA or a REJ answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    Req,
    Rep,
    /// Another message, or none.
    Other,
}

/// The body of REJ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub answered: Answered,
    /// One of [`reject_reason`], or another reason of the kernel's connection manager.
    pub reason: u16,
    /// More about the reason, at most 72 bytes.
    pub info: Vec<u8>,
    pub private_data: Vec<u8>,
}

impl Rejection {
    pub fn new(answered: Answered, reason: u16) -> Self {
        Self { answered, reason, info: Vec::new(), private_data: Vec::new() }
    }
}

/// The body of SIDR_REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// A random number by which the requester matches the reply.
    pub request_id: u32,
    pub service: Service,
    pub private_data: Vec<u8>,
}

/// The body of SIDR_REP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrReply {
    /// The request id of the SIDR_REQ.
    pub request_id: u32,
    /// One of [`sidr_status`]. `qpn` and `qkey` are valid only with [`sidr_status::VALID`].
    pub status: u8,
    /// 24 bits.
    pub qpn: u32,
    pub qkey: u32,
    pub private_data: Vec<u8>,
}

impl SidrReply {
    /// Creates a reply without a queue pair.
    pub fn refusal(request_id: u32, status: u8, private_data: Vec<u8>) -> Self {
        Self { request_id, status, qpn: 0, qkey: 0, private_data }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Request for communication: the active side requests a connection.
    Req(Box<Request>),
    /// Message receipt acknowledgement: the program of the sender has not yet answered the message.
    Mra(Ids, Answered),
    /// Reject: either side declines.
    Rej(Ids, Rejection),
    /// Reply: the passive side accepts.
    Rep(Ids, ConnectionParams),
    /// Ready to use: the active side confirms the reply.
    Rtu(Ids),
    /// Disconnection request, from either side. Contains the number of the receiver's queue pair.
    Dreq(Ids, u32),
    /// Disconnection reply.
    Drep(Ids),
    /// Service ID resolution request: asks for the queue pair of a datagram service.
    SidrReq(SidrRequest),
    /// Service ID resolution reply.
    SidrRep(SidrReply),
}

impl Message {
    /// Whether the sender says that it does not have the connection.
    pub fn denies_connection(&self) -> bool {
        matches!(self, Message::Rej(_, rejection) if rejection.reason == reject_reason::INVALID_COMMUNICATION_ID)
    }
}

/// A message with the id of its transaction. An answer has the id of the message that it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub id: u64,
    pub message: Message,
}
