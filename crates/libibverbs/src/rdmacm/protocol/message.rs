//! The messages between two connection managers, and their encoding.
//!
//! The messages are those of the IBTA connection manager (volume 1, chapter 12), without the fields
//! that RoCE does not use. REQ, REP, RTU, REJ, DREQ and DREP establish and end a connection over
//! TCP. SIDR_REQ and SIDR_REP look up a datagram service, each in one UDP datagram.
//!
//! The encoding is Mitra's own: a header of magic, version, kind and length, then fields of fixed
//! width in network order, then private data preceded by its length. A message with missing or
//! surplus bytes is malformed.

use mitra_verbs::{Codec, Kinds, Malformed, Reader, codec};

#[cfg(test)]
mod tests;

/// The first bytes of every message.
const MAGIC: [u8; 4] = *b"MiCM";
const VERSION: u8 = 1;
/// Bytes of the header: magic, version, kind and a 16-bit length.
const HEADER_LEN: usize = 8;
/// The greatest length of a message in bytes, header included.
pub const MAX_MESSAGE: usize = 256;

/// The greatest length of private data in a REQ, in bytes (`man rdma_connect`).
pub const REQ_PRIVATE_DATA_LEN: usize = 56;
/// The greatest length of private data in a REP, in bytes (`man rdma_accept`).
pub const REP_PRIVATE_DATA_LEN: usize = 196;
/// The greatest length of private data in a REJ, in bytes (IBTA 12.6.7).
pub const REJ_PRIVATE_DATA_LEN: usize = 148;
/// The greatest length of private data in a SIDR_REQ, in bytes (`man rdma_connect`).
pub const SIDR_REQ_PRIVATE_DATA_LEN: usize = 180;
/// The greatest length of private data in a SIDR_REP, in bytes (`man rdma_accept`).
pub const SIDR_REP_PRIVATE_DATA_LEN: usize = 136;

/// Reasons of a REJ (IBTA 12.6.7.2).
pub mod reject_reason {
    /// The sender of the REJ waited too long for a message.
    pub const TIMEOUT: u16 = 4;
    /// No program listens at the port.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The program rejected the request or the reply.
    pub const CONSUMER_DEFINED: u16 = 28;
    /// The program rejected the vendor enhancements of the request (`rdma_reject_ece`).
    pub const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// Status codes of a SIDR_REP (IBTA 12.11.2).
pub mod sidr_status {
    /// The reply names the service's queue pair.
    pub const VALID: u8 = 0;
    /// No program listens at the port.
    pub const UNSUPPORTED: u8 = 1;
    /// The program rejected the request.
    pub const REJECTED: u8 = 2;
}

/// The parameters of the sender's end of a connection: the body of REQ and REP (IBTA 12.6.5,
/// 12.6.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionParams {
    /// The sender's queue pair number, 24 bits.
    pub qpn: u32,
    /// The first PSN that the sender's queue pair uses, 24 bits.
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
    /// The number of retries after RNR NAKs that the receiver's queue pair makes, at most 7.
    pub rnr_retry_count: u8,
    /// Whether the sender supports end-to-end flow control.
    pub flow_control: bool,
    /// Whether the sender's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Data from the sender's program to the receiver's.
    pub private_data: Vec<u8>,
}

/// The body of REJ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// One of [`reject_reason`].
    pub reason: u16,
    /// Data from the sender's program to the receiver's.
    pub private_data: Vec<u8>,
}

/// The body of SIDR_REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// A random number by which the requester matches the reply.
    pub request_id: u64,
    /// The GID of the requester's NIC.
    pub gid: [u8; 16],
    /// Data from the requester's program to the service.
    pub private_data: Vec<u8>,
}

/// The body of SIDR_REP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrReply {
    /// The request id of the SIDR_REQ.
    pub request_id: u64,
    /// One of [`sidr_status`]. `qpn`, `qkey` and `gid` are valid only with [`sidr_status::VALID`].
    pub status: u8,
    /// The service's queue pair number, 24 bits.
    pub qpn: u32,
    /// The Q_Key of the service's queue pair.
    pub qkey: u32,
    /// The GID of the service's NIC.
    pub gid: [u8; 16],
    /// Data from the service to the requester's program.
    pub private_data: Vec<u8>,
}

impl SidrReply {
    /// Creates the reply of a program that rejects the request.
    pub fn rejection(request_id: u64, private_data: Vec<u8>) -> Self {
        Self { request_id, status: sidr_status::REJECTED, qpn: 0, qkey: 0, gid: [0; 16], private_data }
    }
}

/// A message of the connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Request for communication: the active side requests a connection.
    Req(ConnectionParams),
    /// Reply to a request: the passive side accepts.
    Rep(ConnectionParams),
    /// Ready to use: the active side confirms the reply.
    Rtu,
    /// Reject: either side declines.
    Rej(Rejection),
    /// Disconnection request, from either side.
    Dreq,
    /// Reply to a disconnection request.
    Drep,
    /// Service ID resolution request: asks for the queue pair of a datagram service.
    SidrReq(SidrRequest),
    /// Reply to a service ID resolution request.
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

impl Message {
    /// Returns whether the private data is at most as long as the kind allows.
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
            // Padded to the greatest length, so that a request with a forged source address causes
            // no longer reply than itself (no amplification).
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
        // The magic is checked byte by byte: a peer of another protocol is refused before it has
        // sent a whole header.
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

impl Codec<'_> for ConnectionParams {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.qpn.to_be_bytes().put(out);
        self.starting_psn.to_be_bytes().put(out);
        self.gid.put(out);
        [self.path_mtu, self.responder_resources, self.initiator_depth].put(out);
        [self.retry_count, self.rnr_retry_count].put(out);
        (u8::from(self.flow_control) | u8::from(self.srq) << 1).put(out);
        put_private_data(&self.private_data, out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<ConnectionParams, Malformed> {
        let (qpn, starting_psn, gid) = (take_u24(reader)?, take_u24(reader)?, Codec::take(reader)?);
        let [path_mtu, responder_resources, initiator_depth, retry_count, rnr_retry_count, flags] =
            Codec::take(reader)?;
        // An `ibv_mtu` is 1 to 5; retry counts have three bits (`man rdma_connect`).
        if !(1..=5).contains(&path_mtu) || retry_count > 7 || rnr_retry_count > 7 || flags > 3 {
            return Err(Malformed::Field);
        }
        Ok(ConnectionParams {
            qpn,
            starting_psn,
            gid,
            path_mtu,
            responder_resources,
            initiator_depth,
            retry_count,
            rnr_retry_count,
            flow_control: flags & 1 != 0,
            srq: flags & 2 != 0,
            private_data: take_private_data(reader)?,
        })
    }
}

impl Codec<'_> for Rejection {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.reason.to_be_bytes().put(out);
        put_private_data(&self.private_data, out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Rejection, Malformed> {
        let reason = u16::from_be_bytes(Codec::take(reader)?);
        Ok(Rejection { reason, private_data: take_private_data(reader)? })
    }
}

impl Codec<'_> for SidrRequest {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.request_id.to_be_bytes().put(out);
        self.gid.put(out);
        put_private_data(&self.private_data, out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<SidrRequest, Malformed> {
        Ok(SidrRequest {
            request_id: u64::from_be_bytes(Codec::take(reader)?),
            gid: Codec::take(reader)?,
            private_data: take_private_data(reader)?,
        })
    }
}

impl Codec<'_> for SidrReply {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.request_id.to_be_bytes().put(out);
        self.status.put(out);
        self.qpn.to_be_bytes().put(out);
        self.qkey.to_be_bytes().put(out);
        self.gid.put(out);
        put_private_data(&self.private_data, out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<SidrReply, Malformed> {
        Ok(SidrReply {
            request_id: u64::from_be_bytes(Codec::take(reader)?),
            status: Codec::take(reader)?,
            qpn: take_u24(reader)?,
            qkey: u32::from_be_bytes(Codec::take(reader)?),
            gid: Codec::take(reader)?,
            private_data: take_private_data(reader)?,
        })
    }
}

/// Reads a queue pair number or a PSN: a 32-bit field of which the top 8 bits are zero.
fn take_u24(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    let number = u32::from_be_bytes(Codec::take(reader)?);
    if number >> 24 == 0 { Ok(number) } else { Err(Malformed::Field) }
}

fn put_private_data(data: &[u8], out: &mut impl Extend<u8>) {
    (data.len() as u8).put(out);
    data.put(out);
}

fn take_private_data(reader: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    let length = u8::take(reader)?;
    reader.bytes(length.into()).map(<[u8]>::to_vec)
}
