//! What two sides tell each other, and its bytes.
//!
//! The messages are those of the IBTA connection manager (volume 1, chapter 12) without what RoCE has no use for: REQ,
//! REP, RTU, REJ, DREQ and DREP make and end a connection over TCP; SIDR_REQ and SIDR_REP look a datagram service up, one
//! UDP datagram each. The bytes are our own: a header of magic, version, kind and length, then fields of fixed width
//! in network order, then private data behind its length. Whatever does not parse to the last byte is malformed.

#[cfg(test)]
mod tests;

/// First in every message.
const MAGIC: [u8; 4] = *b"MiCM";
const VERSION: u8 = 1;
const HEADER: usize = 8;
/// No message is longer, header included.
pub const MAX_MESSAGE: usize = 256;

/// Limits of private data: `man rdma_connect`, `man rdma_accept`; of a REJ, IBTA 12.6.7.
pub const REQ_PRIVATE: usize = 56;
/// See [`REQ_PRIVATE`].
pub const REP_PRIVATE: usize = 196;
/// See [`REQ_PRIVATE`].
pub const REJ_PRIVATE: usize = 148;
/// See [`REQ_PRIVATE`].
pub const SIDR_REQ_PRIVATE: usize = 180;
/// See [`REQ_PRIVATE`].
pub const SIDR_REP_PRIVATE: usize = 136;

/// Why a connection is rejected: IBTA 12.6.7.2.
pub mod reason {
    /// The responder has no room for another connection.
    pub const NO_RESOURCES: u16 = 3;
    /// The sender waited too long.
    pub const TIMEOUT: u16 = 4;
    /// Nobody listens.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The program said so.
    pub const CONSUMER_DEFINED: u16 = 28;
    /// The program said so, of the enhancements asked for.
    pub const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// How a lookup ended: IBTA 12.11.2.
pub mod sidr {
    /// The service is there.
    pub const VALID: u8 = 0;
    /// Nobody listens.
    pub const UNSUPPORTED: u8 = 1;
    /// The program said no.
    pub const REJECTED: u8 = 2;
}

/// What one side of a connection offers the other: the body of REQ and REP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its QP.
    pub qpn: u32,
    /// The first PSN that it sends.
    pub starting_psn: u32,
    /// Its NIC's GID.
    pub gid: [u8; 16],
    /// Its path MTU, as an `ibv_mtu`.
    pub path_mtu: u8,
    /// How many READs and atomics it answers at once.
    pub responder_resources: u8,
    /// How many READs and atomics it has outstanding.
    pub initiator_depth: u8,
    /// How often to retry after a time-out.
    pub retry_count: u8,
    /// How often the other side is to retry after an RNR NAK.
    pub rnr_retry_count: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Whether its QP receives from a shared queue.
    pub srq: bool,
    /// The program's own.
    pub private_data: Vec<u8>,
}

/// The body of REJ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// One of [`reason`].
    pub reason: u16,
    /// The program's own.
    pub private_data: Vec<u8>,
}

/// The body of SIDR_REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// Chosen at random; the answer repeats it.
    pub request_id: u64,
    /// The asking NIC's GID.
    pub gid: [u8; 16],
    /// The program's own.
    pub private_data: Vec<u8>,
}

/// The body of SIDR_REP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// That of the request.
    pub request_id: u64,
    /// One of [`sidr`]; the rest has a meaning with [`sidr::VALID`] only.
    pub status: u8,
    /// The service's QP.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// Its NIC's GID.
    pub gid: [u8; 16],
    /// The program's own.
    pub private_data: Vec<u8>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The active side asks.
    Req(Offer),
    /// The passive side agrees.
    Rep(Offer),
    /// The active side is ready.
    Rtu,
    /// Either side declines.
    Rej(Rejection),
    /// Either side ends the connection.
    Dreq,
    /// The other side has heard so.
    Drep,
    /// Where is the datagram service?
    SidrReq(Inquiry),
    /// Here.
    SidrRep(Answer),
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Message::Req(_) => 1,
            Message::Rep(_) => 2,
            Message::Rtu => 3,
            Message::Rej(_) => 4,
            Message::Dreq => 5,
            Message::Drep => 6,
            Message::SidrReq(_) => 7,
            Message::SidrRep(_) => 8,
        }
    }

    /// Appends the message's bytes. Private data longer than its limit is the caller's mistake.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend(MAGIC);
        to.extend([VERSION, self.kind(), 0, 0]);
        match self {
            Message::Req(offer) => offer.encode(to, REQ_PRIVATE),
            Message::Rep(offer) => offer.encode(to, REP_PRIVATE),
            Message::Rtu | Message::Dreq | Message::Drep => {}
            Message::Rej(rejection) => {
                to.extend(rejection.reason.to_be_bytes());
                put_private(to, &rejection.private_data, REJ_PRIVATE);
            }
            Message::SidrReq(inquiry) => {
                to.extend(inquiry.request_id.to_be_bytes());
                to.extend(inquiry.gid);
                put_private(to, &inquiry.private_data, SIDR_REQ_PRIVATE);
                // A request with a forged source draws no longer an answer than it is itself.
                to.resize(start + MAX_MESSAGE, 0);
            }
            Message::SidrRep(answer) => {
                to.extend(answer.request_id.to_be_bytes());
                to.push(answer.status);
                to.extend(answer.qpn.to_be_bytes());
                to.extend(answer.qkey.to_be_bytes());
                to.extend(answer.gid);
                put_private(to, &answer.private_data, SIDR_REP_PRIVATE);
            }
        }
        let length = to.len() - start - HEADER;
        debug_assert!(HEADER + length <= MAX_MESSAGE);
        to[start + 6..start + HEADER].copy_from_slice(&(length as u16).to_be_bytes());
    }

    /// The message at the front of `bytes` with its length; `None` while more bytes must come.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Message, usize)>, Malformed> {
        // A stranger is known by the first byte, not when it has sent a whole header.
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return Err(Malformed);
        }
        let Some(header) = bytes.get(..HEADER) else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([header[6], header[7]]));
        if header[4] != VERSION || HEADER + length > MAX_MESSAGE {
            return Err(Malformed);
        }
        let Some(body) = bytes.get(HEADER..HEADER + length) else { return Ok(None) };
        let mut body = Reader(body);
        let message = match header[5] {
            1 => Message::Req(Offer::decode(&mut body, REQ_PRIVATE)?),
            2 => Message::Rep(Offer::decode(&mut body, REP_PRIVATE)?),
            3 => Message::Rtu,
            4 => Message::Rej(Rejection {
                reason: u16::from_be_bytes(body.take()?),
                private_data: body.private(REJ_PRIVATE)?,
            }),
            5 => Message::Dreq,
            6 => Message::Drep,
            7 => {
                let inquiry = Inquiry {
                    request_id: u64::from_be_bytes(body.take()?),
                    gid: body.take()?,
                    private_data: body.private(SIDR_REQ_PRIVATE)?,
                };
                body.padding(MAX_MESSAGE - HEADER - length)?;
                Message::SidrReq(inquiry)
            }
            8 => Message::SidrRep(Answer {
                request_id: u64::from_be_bytes(body.take()?),
                status: body.byte()?,
                qpn: body.of_24_bits()?,
                qkey: u32::from_be_bytes(body.take()?),
                gid: body.take()?,
                private_data: body.private(SIDR_REP_PRIVATE)?,
            }),
            _ => return Err(Malformed),
        };
        if !body.0.is_empty() {
            return Err(Malformed);
        }
        Ok(Some((message, HEADER + length)))
    }
}

impl Offer {
    fn encode(&self, to: &mut Vec<u8>, limit: usize) {
        to.extend(self.qpn.to_be_bytes());
        to.extend(self.starting_psn.to_be_bytes());
        to.extend(self.gid);
        to.extend([self.path_mtu, self.responder_resources, self.initiator_depth]);
        to.extend([self.retry_count, self.rnr_retry_count]);
        to.push(u8::from(self.flow_control) | u8::from(self.srq) << 1);
        put_private(to, &self.private_data, limit);
    }

    fn decode(body: &mut Reader, limit: usize) -> Result<Offer, Malformed> {
        let (qpn, starting_psn) = (body.of_24_bits()?, body.of_24_bits()?);
        let gid = body.take()?;
        let [path_mtu, responder_resources, initiator_depth, retry_count, rnr_retry_count, flags] =
            body.take()?;
        // An `ibv_mtu` is 1 to 5; retry counts have three bits (`man rdma_connect`).
        if !(1..=5).contains(&path_mtu) || retry_count > 7 || rnr_retry_count > 7 || flags > 3 {
            return Err(Malformed);
        }
        Ok(Offer {
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
            private_data: body.private(limit)?,
        })
    }
}

fn put_private(to: &mut Vec<u8>, data: &[u8], limit: usize) {
    debug_assert!(data.len() <= limit);
    to.push(data.len() as u8);
    to.extend(data);
}

/// What is left of a body.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take().map(|[byte]| byte)
    }

    /// QPNs and PSNs.
    fn of_24_bits(&mut self) -> Result<u32, Malformed> {
        let number = u32::from_be_bytes(self.take()?);
        if number < 1 << 24 { Ok(number) } else { Err(Malformed) }
    }

    fn private(&mut self, limit: usize) -> Result<Vec<u8>, Malformed> {
        let length = usize::from(self.byte()?);
        if length > limit {
            return Err(Malformed);
        }
        let (data, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(data.to_vec())
    }

    /// The zeros that bring a request to its full length, of which `missing` are missing.
    fn padding(&mut self, missing: usize) -> Result<(), Malformed> {
        if missing != 0 || self.0.iter().any(|byte| *byte != 0) {
            return Err(Malformed);
        }
        self.0 = &[];
        Ok(())
    }
}
