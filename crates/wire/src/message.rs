//! The transport service and the operation of a packet, with their extension headers.

use crate::extension_headers::{Aeth, AtomicEth, Deth, Reth};
use crate::psn::Srqn;

/// The transport service of a packet, from the top three bits of its opcode (IBTA 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram. The DETH of a packet contains the sender's queue pair number.
    Ud(Deth),
    /// Extended reliable connection (annex A14). The XRCETH of a request contains the number of the
    /// shared receive queue to which the message is addressed. A response has no XRCETH. The number
    /// of a parsed response is 0, and `emit` ignores the number of a response.
    Xrc(Srqn),
}

impl Transport {
    /// Whether the service has this operation (IBTA 9.2, opcode table): RC and XRC have all
    /// operations, UC has WRITEs and SENDs without invalidate, and UD has SENDs of one packet.
    pub const fn carries(&self, message: &Message) -> bool {
        use Message::*;
        match self {
            Transport::Rc | Transport::Xrc(_) => true,
            Transport::Uc => matches!(
                message,
                SendFirst
                    | SendMiddle
                    | SendLast
                    | SendLastImm(_)
                    | SendOnly
                    | SendOnlyImm(_)
                    | WriteFirst(_)
                    | WriteMiddle
                    | WriteLast
                    | WriteLastImm(_)
                    | WriteOnly(_)
                    | WriteOnlyImm(_, _)
            ),
            Transport::Ud(_) => matches!(message, SendOnly | SendOnlyImm(_)),
        }
    }
}

/// The operation of a packet, with the extension headers that its opcode has, except for the DETH
/// and the XRCETH (IBTA 9.2, opcode table).
///
/// A variant whose name ends in `Imm` holds the immediate data, read as a big-endian number. A
/// variant whose name ends in `Inv` holds the remote key to invalidate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Message {
    /// The first packet of a SEND of several packets.
    SendFirst,
    /// A packet of a SEND that is neither the first nor the last.
    SendMiddle,
    /// The last packet of a SEND of several packets, without immediate data and remote key.
    SendLast,
    /// The last packet of a SEND of several packets with immediate data.
    SendLastImm(u32),
    /// The last packet of a SEND of several packets with a remote key to invalidate.
    SendLastInv(u32),
    /// A SEND of one packet.
    SendOnly,
    /// A SEND of one packet with immediate data.
    SendOnlyImm(u32),
    /// A SEND of one packet with a remote key to invalidate.
    SendOnlyInv(u32),
    /// The first packet of a WRITE of several packets.
    WriteFirst(Reth),
    /// A packet of a WRITE that is neither the first nor the last.
    WriteMiddle,
    /// The last packet of a WRITE of several packets, without immediate data.
    WriteLast,
    /// The last packet of a WRITE of several packets with immediate data.
    WriteLastImm(u32),
    /// A WRITE of one packet.
    WriteOnly(Reth),
    /// A WRITE of one packet with immediate data.
    WriteOnlyImm(Reth, u32),
    /// A READ request.
    ReadRequest(Reth),
    /// The first packet of a READ response of several packets.
    ReadFirst(Aeth),
    /// A packet of a READ response that is neither the first nor the last.
    ReadMiddle,
    /// The last packet of a READ response of several packets.
    ReadLast(Aeth),
    /// A READ response of one packet.
    ReadOnly(Aeth),
    /// An acknowledgement, positive or negative.
    Ack(Aeth),
    /// The response to an atomic, with the value of the operand before the operation.
    AtomicAck(Aeth, u64),
    /// A compare-and-swap request.
    CompareSwap(AtomicEth),
    /// A fetch-and-add request.
    FetchAdd(AtomicEth),
}

/// An extension header other than the DETH and the XRCETH (IBTA 9.3). The opcode of a packet
/// determines which extension headers it has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExtensionHeader {
    /// RDMA extended transport header.
    Reth(Reth),
    /// Immediate data, read as a big-endian number.
    ImmDt(u32),
    /// Invalidate extended transport header: the remote key to invalidate.
    Ieth(u32),
    /// ACK extended transport header.
    Aeth(Aeth),
    /// Atomic ACK extended transport header: the operand's value before the operation.
    AtomicAckEth(u64),
    /// Atomic extended transport header of a compare-and-swap.
    CompareSwap(AtomicEth),
    /// Atomic extended transport header of a fetch-and-add.
    FetchAdd(AtomicEth),
}

impl ExtensionHeader {
    /// Returns the length of the header in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no header is empty")]
    pub const fn len(&self) -> usize {
        match self {
            ExtensionHeader::Reth(_) => Reth::LEN,
            ExtensionHeader::ImmDt(_) | ExtensionHeader::Ieth(_) => 4,
            ExtensionHeader::Aeth(_) => Aeth::LEN,
            ExtensionHeader::AtomicAckEth(_) => 8,
            ExtensionHeader::CompareSwap(_) | ExtensionHeader::FetchAdd(_) => AtomicEth::LEN,
        }
    }
}

impl Message {
    /// Whether packets of the operation have a payload. The payload may be empty.
    pub const fn has_payload(&self) -> bool {
        use Message::*;
        !matches!(self, ReadRequest(_) | Ack(_) | AtomicAck(_, _) | CompareSwap(_) | FetchAdd(_))
    }

    /// Whether a requester sends the packet.
    pub const fn is_request(&self) -> bool {
        !self.is_response()
    }

    /// Whether a responder sends the packet.
    pub const fn is_response(&self) -> bool {
        use Message::*;
        matches!(self, ReadFirst(_) | ReadMiddle | ReadLast(_) | ReadOnly(_) | Ack(_) | AtomicAck(_, _))
    }

    /// Calls `visit` for each extension header other than the DETH and the XRCETH, in the order in
    /// which a packet contains them (IBTA 9.2, opcode table).
    ///
    /// The method is always inlined and is not an iterator, because the items of an iterator pass
    /// through memory: emitting a packet would take 22 ns instead of 15 ns.
    #[inline(always)]
    pub fn for_each_extension_header(&self, mut visit: impl FnMut(ExtensionHeader)) {
        use ExtensionHeader as Header;
        use Message::*;
        match *self {
            SendFirst | SendMiddle | SendLast | SendOnly | WriteMiddle | WriteLast | ReadMiddle => {}
            SendLastImm(imm) | SendOnlyImm(imm) | WriteLastImm(imm) => visit(Header::ImmDt(imm)),
            SendLastInv(rkey) | SendOnlyInv(rkey) => visit(Header::Ieth(rkey)),
            WriteFirst(reth) | WriteOnly(reth) | ReadRequest(reth) => visit(Header::Reth(reth)),
            WriteOnlyImm(reth, imm) => {
                visit(Header::Reth(reth));
                visit(Header::ImmDt(imm));
            }
            ReadFirst(aeth) | ReadLast(aeth) | ReadOnly(aeth) | Ack(aeth) => visit(Header::Aeth(aeth)),
            AtomicAck(aeth, original) => {
                visit(Header::Aeth(aeth));
                visit(Header::AtomicAckEth(original));
            }
            CompareSwap(atomic) => visit(Header::CompareSwap(atomic)),
            FetchAdd(atomic) => visit(Header::FetchAdd(atomic)),
        }
    }

    /// Returns the total length of the extension headers other than the DETH and the XRCETH, in
    /// bytes.
    #[inline]
    pub fn headers_len(&self) -> usize {
        let mut len = 0;
        self.for_each_extension_header(|header| len += header.len());
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_either_request_or_response() {
        let aeth = Aeth { syndrome: crate::Syndrome::ACK, msn: 0 };
        for response in [
            Message::ReadFirst(aeth),
            Message::ReadMiddle,
            Message::ReadLast(aeth),
            Message::ReadOnly(aeth),
            Message::Ack(aeth),
            Message::AtomicAck(aeth, 0),
        ] {
            assert!(response.is_response() && !response.is_request(), "{response:?}");
        }
        for request in [
            Message::SendOnly,
            Message::ReadRequest(Reth::default()),
            Message::FetchAdd(AtomicEth::default()),
        ] {
            assert!(request.is_request() && !request.is_response(), "{request:?}");
        }
        assert!(!Message::ReadRequest(Reth::default()).has_payload());
        assert!(!Message::Ack(aeth).has_payload());
        assert!(Message::ReadMiddle.has_payload());
    }
}
