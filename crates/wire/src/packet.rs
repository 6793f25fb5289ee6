//! Parses and emits RoCEv2 packets. A packet is a UDP payload without its ICRC.

use crate::BTH_LEN;
use crate::error::ParseError;
use crate::extension_headers::{Aeth, AtomicEth, Deth, Reth, XRCETH_LEN, decode_xrceth, encode_xrceth};
use crate::message::{ExtensionHeader, Message, Transport};
use crate::opcode;
use crate::psn::{Psn, Qpn, Srqn};

/// A RoCEv2 packet: the fields of the BTH (IBTA 9.2), the transport and the operation with their
/// extension headers, and the payload. A `Packet` contains neither the ICRC nor pad bytes.
///
/// Some fields of a `Packet` have more bits than in the datagram ([`ReservedBits`], [`Aeth::msn`]
/// and the contents of [`Syndrome`](crate::Syndrome)). Only their low bits are emitted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Packet<'a> {
    /// The transport service. UD contains the DETH, and XRC the number in the XRCETH.
    pub transport: Transport,
    /// Whether the receiver's completion is a solicited event (IBTA 9.2).
    pub solicited: bool,
    /// The MigReq bit. It is set if the sender's path migration state is MIGRATED (IBTA 9.2).
    pub mig_req: bool,
    /// The partition key. 0xffff is the default partition with full membership.
    pub pkey: u16,
    /// Whether the packet experienced congestion (forward explicit congestion notification).
    pub fecn: bool,
    /// Whether packets in the opposite direction experienced congestion (backward explicit
    /// congestion notification).
    pub becn: bool,
    /// The number of the receiving queue pair.
    pub dest_qp: Qpn,
    /// Whether the requester asks for an acknowledgement of this packet (IBTA 9.2).
    pub ack_req: bool,
    /// The packet sequence number.
    pub psn: Psn,
    /// The operation, with its extension headers.
    pub message: Message,
    /// The payload. It is not emitted if the operation has no payload ([`Message::has_payload`]).
    pub payload: &'a [u8],
    /// The reserved bits. A parsed packet keeps them, so that it can be emitted unchanged. Mitra's
    /// NICs send zeros.
    pub reserved: ReservedBits,
}

/// The reserved fields of the BTH, the DETH and the XRCETH. Senders set them to zero, and receivers
/// ignore them (IBTA 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReservedBits {
    /// The 6 bits of the BTH after FECN and BECN. The ICRC does not cover them.
    pub bth_resv6: u8,
    /// The 7 bits of the BTH after the acknowledge request.
    pub bth_resv7: u8,
    /// The byte of the DETH before the source queue pair, or of the XRCETH before the shared
    /// receive queue. It is 0 if a parsed packet has neither.
    pub extension: u8,
}

/// A payload is padded to a multiple of four bytes (IBTA 9.2).
const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

/// The methods are always inlined. A call would pass its result through memory, and parsing a
/// packet would take 32 ns instead of 10 ns.
pub(crate) struct HeaderReader<'a> {
    rest: &'a [u8],
    /// The number of bytes that have been read.
    at: usize,
}

impl<'a> HeaderReader<'a> {
    #[inline(always)]
    pub(crate) fn new(rest: &'a [u8]) -> HeaderReader<'a> {
        HeaderReader { rest, at: 0 }
    }

    /// Returns what follows the headers that have been read.
    #[inline(always)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline(always)]
    pub(crate) fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], ParseError> {
        match self.rest.split_first_chunk() {
            Some((head, rest)) => {
                self.rest = rest;
                self.at += N;
                Ok(head)
            }
            None => Err(ParseError::Truncated { have: self.at + self.rest.len(), need: self.at + N }),
        }
    }

    #[inline(always)]
    pub(crate) fn word(&mut self) -> Result<u32, ParseError> {
        self.take().map(|b| u32::from_be_bytes(*b))
    }

    #[inline(always)]
    pub(crate) fn reth(&mut self) -> Result<Reth, ParseError> {
        self.take().map(Reth::decode)
    }

    #[inline(always)]
    fn aeth(&mut self) -> Result<Aeth, ParseError> {
        self.take().map(Aeth::decode)
    }

    #[inline(always)]
    fn atomic(&mut self) -> Result<AtomicEth, ParseError> {
        self.take().map(AtomicEth::decode)
    }

    #[inline(always)]
    fn message(&mut self, code: u8) -> Result<Message, ParseError> {
        let operation = code & 0x1f;
        let exists = match code & 0xe0 {
            opcode::RC | opcode::XRC => true,
            opcode::UC => operation <= opcode::WRITE_ONLY_IMM,
            opcode::UD => operation == opcode::SEND_ONLY || operation == opcode::SEND_ONLY_IMM,
            _ => false,
        };
        if !exists {
            return Err(ParseError::UnknownOpcode(code));
        }
        Ok(match operation {
            opcode::SEND_FIRST => Message::SendFirst,
            opcode::SEND_MIDDLE => Message::SendMiddle,
            opcode::SEND_LAST => Message::SendLast,
            opcode::SEND_LAST_IMM => Message::SendLastImm(self.word()?),
            opcode::SEND_ONLY => Message::SendOnly,
            opcode::SEND_ONLY_IMM => Message::SendOnlyImm(self.word()?),
            opcode::WRITE_FIRST => Message::WriteFirst(self.reth()?),
            opcode::WRITE_MIDDLE => Message::WriteMiddle,
            opcode::WRITE_LAST => Message::WriteLast,
            opcode::WRITE_LAST_IMM => Message::WriteLastImm(self.word()?),
            opcode::WRITE_ONLY => Message::WriteOnly(self.reth()?),
            opcode::WRITE_ONLY_IMM => Message::WriteOnlyImm(self.reth()?, self.word()?),
            opcode::READ_REQUEST => Message::ReadRequest(self.reth()?),
            opcode::READ_FIRST => Message::ReadFirst(self.aeth()?),
            opcode::READ_MIDDLE => Message::ReadMiddle,
            opcode::READ_LAST => Message::ReadLast(self.aeth()?),
            opcode::READ_ONLY => Message::ReadOnly(self.aeth()?),
            opcode::ACK => Message::Ack(self.aeth()?),
            opcode::ATOMIC_ACK => {
                let aeth = self.aeth()?;
                Message::AtomicAck(aeth, u64::from_be_bytes(*self.take()?))
            }
            opcode::COMPARE_SWAP => Message::CompareSwap(self.atomic()?),
            opcode::FETCH_ADD => Message::FetchAdd(self.atomic()?),
            opcode::SEND_LAST_INV => Message::SendLastInv(self.word()?),
            opcode::SEND_ONLY_INV => Message::SendOnlyInv(self.word()?),
            _ => return Err(ParseError::UnknownOpcode(code)),
        })
    }
}

/// The buffer has space for every combination of transport and message, even for a combination
/// without an opcode.
struct HeaderBuf {
    bytes: [u8; HeaderBuf::CAPACITY],
    len: usize,
}

impl HeaderBuf {
    /// The DETH is the longest header of a service, and the AtomicETH the longest of a message.
    const CAPACITY: usize = BTH_LEN + Deth::LEN + AtomicEth::LEN;

    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(&bytes);
        self.len += N;
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<'a> Packet<'a> {
    /// Creates a packet in the default partition (0xffff) with all flags clear.
    pub const fn new(
        transport: Transport,
        dest_qp: Qpn,
        psn: Psn,
        message: Message,
        payload: &'a [u8],
    ) -> Self {
        Packet {
            transport,
            solicited: false,
            mig_req: false,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
            message,
            payload,
            reserved: ReservedBits { bth_resv6: 0, bth_resv7: 0, extension: 0 },
        }
    }

    /// Parses a UDP payload *without* its last four bytes, which are the ICRC.
    ///
    /// The returned packet borrows the payload from `buf`. The pad bytes are dropped and may have
    /// any value. The transport, not this method, compares the payload with the path MTU and the
    /// RETH's length.
    ///
    /// # Errors
    /// See [`ParseError`].
    pub fn parse(buf: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let mut headers = HeaderReader::new(buf);
        let bth: &[u8; BTH_LEN] = headers.take()?;
        let version = bth[1] & 0x0f;
        if version != 0 {
            return Err(ParseError::BadVersion(version));
        }
        if !buf.len().is_multiple_of(4) {
            return Err(ParseError::BadLength(buf.len()));
        }
        let mut reserved = ReservedBits { bth_resv6: bth[4] & 0x3f, bth_resv7: bth[8] & 0x7f, extension: 0 };
        let (transport, message) = if bth[0] & 0xe0 == opcode::UD {
            // `HeaderReader::message` checks the opcode too, but after the DETH is read. The
            // earlier check reports an unknown opcode even if the packet is too short for a DETH.
            if bth[0] != opcode::UD | opcode::SEND_ONLY && bth[0] != opcode::UD | opcode::SEND_ONLY_IMM {
                return Err(ParseError::UnknownOpcode(bth[0]));
            }
            let (deth, resv) = Deth::decode(headers.take()?);
            reserved.extension = resv;
            (Transport::Ud(deth), headers.message(bth[0])?)
        } else if bth[0] & 0xe0 == opcode::XRC {
            // As for UD, the opcode is checked before the XRCETH is read.
            if opcode::name(bth[0]).is_none() {
                return Err(ParseError::UnknownOpcode(bth[0]));
            }
            let mut srqn = Srqn::default();
            if !matches!(bth[0] & 0x1f, opcode::READ_FIRST..=opcode::ATOMIC_ACK) {
                (srqn, reserved.extension) = decode_xrceth(headers.take()?);
            }
            (Transport::Xrc(srqn), headers.message(bth[0])?)
        } else {
            let message = headers.message(bth[0])?;
            (if bth[0] & 0xe0 == opcode::UC { Transport::Uc } else { Transport::Rc }, message)
        };

        let rest = headers.rest();
        let pad = usize::from(bth[1] >> 4 & 3);
        let payload = if message.has_payload() {
            let bad_pad = ParseError::BadPad { pad: pad as u8, available: rest.len() };
            rest.len().checked_sub(pad).map(|len| &rest[..len]).ok_or(bad_pad)?
        } else if pad != 0 {
            return Err(ParseError::BadPad { pad: pad as u8, available: rest.len() });
        } else if !rest.is_empty() {
            return Err(ParseError::UnexpectedPayload(rest.len()));
        } else {
            rest
        };
        Ok(Packet {
            transport,
            solicited: bth[1] & 0x80 != 0,
            mig_req: bth[1] & 0x40 != 0,
            pkey: u16::from_be_bytes([bth[2], bth[3]]),
            fecn: bth[4] & 0x80 != 0,
            becn: bth[4] & 0x40 != 0,
            dest_qp: Qpn::new(u32::from_be_bytes([0, bth[5], bth[6], bth[7]])),
            ack_req: bth[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]])),
            message,
            payload,
            reserved,
        })
    }

    /// Returns the opcode byte. If the transport does not carry the message
    /// ([`Transport::carries`]), the opcode does not exist, and receivers refuse it.
    pub const fn opcode(&self) -> u8 {
        self.transport.service() | self.message.operation()
    }

    /// Returns the total length of the BTH and the extension headers in bytes.
    pub fn headers_len(&self) -> usize {
        let service_header = match self.transport {
            Transport::Ud(_) => Deth::LEN,
            Transport::Xrc(_) if self.message.is_request() => XRCETH_LEN,
            _ => 0,
        };
        BTH_LEN + service_header + self.message.headers_len()
    }

    /// Returns the number of bytes that [`emit`](Self::emit) writes: headers, payload and pad,
    /// without the ICRC.
    pub fn emitted_len(&self) -> usize {
        let payload_len = self.emitted_payload().len();
        self.headers_len() + payload_len + pad_len(payload_len)
    }

    /// Returns the number of zero bytes (0 to 3) that pad a payload of this length.
    pub const fn pad_for(payload_len: usize) -> usize {
        pad_len(payload_len)
    }

    /// Writes the headers, the payload and the zero pad to the start of `buf`. Returns their total
    /// length in bytes.
    ///
    /// If `buf` is shorter than [`emitted_len`](Self::emitted_len), the method writes nothing and
    /// returns 0.
    #[must_use = "0 means that the buffer was too short"]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let payload = self.emitted_payload();
        let headers = self.headers(payload.len());
        let total = headers.len + payload.len() + pad_len(payload.len());
        let Some(buf) = buf.get_mut(..total) else { return 0 };
        let (head, rest) = buf.split_at_mut(headers.len);
        let (body, pad) = rest.split_at_mut(payload.len());
        head.copy_from_slice(headers.as_slice());
        body.copy_from_slice(payload);
        pad.fill(0);
        total
    }

    /// Appends the headers, the payload and the zero pad to `out`.
    pub fn emit_to(&self, out: &mut Vec<u8>) {
        let payload = self.emitted_payload();
        out.reserve(self.emitted_len() + crate::ICRC_LEN);
        self.emit_headers_to(payload.len(), out);
        out.extend_from_slice(payload);
        out.extend_from_slice(&[0; 3][..pad_len(payload.len())]);
    }

    /// Appends the headers of a packet with a payload of `payload_len` bytes. `self.payload` is
    /// ignored. The caller then appends the payload, for example gathered from several buffers, and
    /// [`pad_for(payload_len)`](Self::pad_for) zero bytes.
    pub fn emit_headers_to(&self, payload_len: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.headers(payload_len).as_slice());
    }

    const fn emitted_payload(&self) -> &'a [u8] {
        if self.message.has_payload() { self.payload } else { &[] }
    }

    fn headers(&self, payload_len: usize) -> HeaderBuf {
        let pad = if self.message.has_payload() { pad_len(payload_len) as u8 } else { 0 };
        let mut out = HeaderBuf { bytes: [0; HeaderBuf::CAPACITY], len: 0 };
        let [_, q0, q1, q2] = self.dest_qp.value().to_be_bytes();
        let [_, p0, p1, p2] = self.psn.value().to_be_bytes();
        let [k0, k1] = self.pkey.to_be_bytes();
        out.put([
            self.opcode(),
            u8::from(self.solicited) << 7 | u8::from(self.mig_req) << 6 | pad << 4,
            k0,
            k1,
            u8::from(self.fecn) << 7 | u8::from(self.becn) << 6 | self.reserved.bth_resv6 & 0x3f,
            q0,
            q1,
            q2,
            u8::from(self.ack_req) << 7 | self.reserved.bth_resv7 & 0x7f,
            p0,
            p1,
            p2,
        ]);
        match self.transport {
            Transport::Ud(deth) => out.put(deth.encode(self.reserved.extension)),
            Transport::Xrc(srqn) if self.message.is_request() => {
                out.put(encode_xrceth(srqn, self.reserved.extension));
            }
            _ => {}
        }
        self.message.for_each_extension_header(
            #[inline(always)]
            |header| match header {
                ExtensionHeader::Reth(reth) => out.put(reth.encode()),
                ExtensionHeader::ImmDt(word) | ExtensionHeader::Ieth(word) => out.put(word.to_be_bytes()),
                ExtensionHeader::Aeth(aeth) => out.put(aeth.encode()),
                ExtensionHeader::AtomicAckEth(original) => out.put(original.to_be_bytes()),
                ExtensionHeader::CompareSwap(atomic) | ExtensionHeader::FetchAdd(atomic) => {
                    out.put(atomic.encode());
                }
            },
        );
        out
    }
}
