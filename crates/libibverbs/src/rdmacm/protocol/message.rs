//! The messages between two connection managers, and their encoding.
//!
//! The messages have the names and the meaning of the IBTA connection manager's (volume 1, chapter
//! 12), without the fields that RoCE does not use. REQ, REP, RTU, REJ, DREQ and DREP establish and
//! end a connection over TCP. SIDR_REQ and SIDR_REP look up a datagram service by UDP.
//!
//! The encoding is Mitra's own: a header of magic, version, kind and length, then fields of fixed
//! width in network order, then private data preceded by its length. A message with missing or
//! surplus bytes is malformed.

use mitra_verbs::{Codec, Kinds, Malformed, Reader, codec};

#[cfg(test)]
mod tests;

const MAGIC: [u8; 4] = *b"MiCM";
const VERSION: u8 = 1;
/// Magic, version, kind and a 16-bit length.
const HEADER_LEN: usize = 8;
/// The maximum length of a message, including the header.
pub const MAX_MESSAGE: usize = 256;

// The limits are those of `man rdma_connect` (REQ, SIDR_REQ), `man rdma_accept` (REP, SIDR_REP) and
// IBTA volume 1, 12.6.7 (REJ).
pub const REQ_PRIVATE_DATA_LEN: usize = 56;
pub const REP_PRIVATE_DATA_LEN: usize = 196;
pub const REJ_PRIVATE_DATA_LEN: usize = 148;
pub const SIDR_REQ_PRIVATE_DATA_LEN: usize = 180;
pub const SIDR_REP_PRIVATE_DATA_LEN: usize = 136;

/// Reasons of a REJ (IBTA 12.6.7.2).
pub mod reject_reason {
    /// The sender of the REJ waited too long for a message.
    pub const TIMEOUT: u16 = 4;
    /// No program listens at the port.
    pub const INVALID_SERVICE_ID: u16 = 8;
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

/// The body of REQ and REP: the parameters of the sender's end (IBTA 12.6.5, 12.6.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionParams {
    /// 24 bits.
    pub qpn: u32,
    /// The first PSN that the sender's queue pair sends, 24 bits.
    pub starting_psn: u32,
    /// The GID of the sender's NIC.
    pub gid: [u8; 16],
    /// The path MTU of the sender's port, as an `ibv_mtu`.
    pub path_mtu: u8,
    /// The number of READs and atomics that the sender's queue pair accepts at once as responder.
    pub responder_resources: u8,
    /// The number of READs and atomics that the sender's queue pair has outstanding as requester.
    pub initiator_depth: u8,
    /// The number of retransmissions after a timeout, at most 7.
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

/// The body of REJ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// One of [`reject_reason`].
    pub reason: u16,
    pub private_data: Vec<u8>,
}

impl Rejection {
    pub fn without_data(reason: u16) -> Self {
        Self { reason, private_data: Vec::new() }
    }
}

/// The body of SIDR_REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// A random number by which the requester matches the reply.
    pub request_id: u64,
    /// The GID of the requester's NIC.
    pub gid: [u8; 16],
    pub private_data: Vec<u8>,
}

/// The body of SIDR_REP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrReply {
    /// The request id of the SIDR_REQ.
    pub request_id: u64,
    /// One of [`sidr_status`]. `qpn`, `qkey` and `gid` are valid only with [`sidr_status::VALID`].
    pub status: u8,
    /// 24 bits.
    pub qpn: u32,
    pub qkey: u32,
    /// The GID of the service's NIC.
    pub gid: [u8; 16],
    pub private_data: Vec<u8>,
}

impl SidrReply {
    /// Creates the reply of a program that rejects the request.
    pub fn rejection(request_id: u64, private_data: Vec<u8>) -> Self {
        Self { request_id, status: sidr_status::REJECTED, qpn: 0, qkey: 0, gid: [0; 16], private_data }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Request for communication: the active side requests a connection.
    Req(ConnectionParams),
    /// Reply: the passive side accepts.
    Rep(ConnectionParams),
    /// Ready to use: the active side confirms the reply.
    Rtu,
    /// Reject: either side declines.
    Rej(Rejection),
    /// Disconnection request, from either side.
    Dreq,
    /// Disconnection reply.
    Drep,
    /// Service ID resolution request: asks for the queue pair of a datagram service.
    SidrReq(SidrRequest),
    /// Service ID resolution reply.
    SidrRep(SidrReply),
}

codec! {
    enum Message {
        1 => Req(params),
        2 => Rep(params),
        3 => Rtu,
        4 => Rej(rejection),
        5 => Dreq,
        6 => Drep,
        7 => SidrReq(request),
        8 => SidrRep(reply),
    }
}

codec! {
    struct ConnectionParams {
        qpn as network_u24, starting_psn as network_u24, gid, path_mtu, responder_resources,
        initiator_depth, retry_count, rnr_retry_count, flags, private_data as counted
    }
    // An `ibv_mtu` is 1 to 5; retry counts have three bits (`man rdma_connect`).
    if (1..=5).contains(&path_mtu) && retry_count <= 7 && rnr_retry_count <= 7
}
codec! { struct Rejection { reason as network_u16, private_data as counted } }
codec! { struct SidrRequest { request_id as network_u64, gid, private_data as counted } }
codec! {
    struct SidrReply {
        request_id as network_u64, status, qpn as network_u24, qkey as network_u32, gid,
        private_data as counted
    }
}

impl Codec<'_> for ConnectionFlags {
    fn put(&self, out: &mut impl Extend<u8>) {
        (u8::from(self.flow_control) | u8::from(self.srq) << 1).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::take(reader)? {
            bits @ 0..=3 => Ok(Self { flow_control: bits & 1 != 0, srq: bits & 2 != 0 }),
            _ => Err(Malformed::Field),
        }
    }
}

/// Defines encodings of numbers in network order, each with the greatest value allowed.
macro_rules! network_order {
    ($($name:ident: $type:ty, $max:expr;)*) => {$(
        mod $name {
            use super::{Codec, Malformed, Reader};

            pub fn put(number: &$type, out: &mut impl Extend<u8>) {
                number.to_be_bytes().put(out);
            }

            pub fn take(reader: &mut Reader<'_>) -> Result<$type, Malformed> {
                let number = <$type>::from_be_bytes(Codec::take(reader)?);
                if (..=$max).contains(&number) { Ok(number) } else { Err(Malformed::Field) }
            }
        }
    )*};
}

network_order! {
    network_u16: u16, u16::MAX;
    network_u24: u32, (1 << 24) - 1;
    network_u32: u32, u32::MAX;
    network_u64: u64, u64::MAX;
}

/// The encoding of private data: the length in one byte, then the data.
mod counted {
    use super::{Codec, Malformed, Reader};

    pub fn put(data: &[u8], out: &mut impl Extend<u8>) {
        (data.len() as u8).put(out);
        data.put(out);
    }

    pub fn take(reader: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
        let length = u8::take(reader)?;
        reader.bytes(length.into()).map(<[u8]>::to_vec)
    }
}

impl Message {
    fn keeps_limit(&self) -> bool {
        let (data, limit) = match self {
            Message::Req(params) => (&params.private_data, REQ_PRIVATE_DATA_LEN),
            Message::Rep(params) => (&params.private_data, REP_PRIVATE_DATA_LEN),
            Message::Rej(rejection) => (&rejection.private_data, REJ_PRIVATE_DATA_LEN),
            Message::SidrReq(request) => (&request.private_data, SIDR_REQ_PRIVATE_DATA_LEN),
            Message::SidrRep(reply) => (&reply.private_data, SIDR_REP_PRIVATE_DATA_LEN),
            Message::Rtu | Message::Dreq | Message::Drep => return true,
        };
        data.len() <= limit
    }

    /// Appends the encoded message to `to`. The caller keeps private data within its limit.
    pub fn encode(&self, to: &mut Vec<u8>) {
        debug_assert!(self.keeps_limit());
        let start = to.len();
        to.extend(MAGIC);
        to.extend([VERSION, self.kind(), 0, 0]);
        self.put_fields(to);
        if let Message::SidrReq(_) = self {
            // The padding makes every request at least as long as its reply. A sender that forges
            // its source address therefore cannot amplify traffic.
            to.resize(start + MAX_MESSAGE, 0);
        }
        let length = to.len() - start - HEADER_LEN;
        debug_assert!(HEADER_LEN + length <= MAX_MESSAGE);
        to[start + 6..start + HEADER_LEN].copy_from_slice(&(length as u16).to_be_bytes());
    }

    /// Decodes the message at the front of `bytes` and returns it with its length, or `None` if
    /// `bytes` ends within it.
    ///
    /// # Errors
    /// [`Malformed`] as soon as the bytes cannot become a valid message.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Message, usize)>, Malformed> {
        // A peer of another protocol is refused before it has sent a whole header.
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return Err(Malformed::Field);
        }
        let Some(header) = bytes.get(..HEADER_LEN) else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([header[6], header[7]]));
        if header[4] != VERSION || HEADER_LEN + length > MAX_MESSAGE {
            return Err(Malformed::Field);
        }
        let Some(body) = bytes.get(HEADER_LEN..HEADER_LEN + length) else { return Ok(None) };
        let mut reader = Reader::new(body);
        let message = Message::take_fields(header[5], &mut reader)?;
        let is_padded = match message {
            Message::SidrReq(_) => {
                HEADER_LEN + length == MAX_MESSAGE && reader.rest().iter().all(|byte| *byte == 0)
            }
            _ => true,
        };
        reader.finish()?;
        match is_padded && message.keeps_limit() {
            true => Ok(Some((message, HEADER_LEN + length))),
            false => Err(Malformed::Field),
        }
    }
}
