//! The transport service and the operation of a packet, each with exactly the headers that it has.

use crate::headers::{Aeth, AtomicEth, Deth, Reth};

/// The transport service of a packet, from the top three bits of its opcode (IBTA 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram; every packet names its sender in the DETH.
    Ud(Deth),
}

impl Transport {
    /// Whether the service has this operation (IBTA 9.2, opcode table): RC has all operations, UC has WRITEs and SENDs without
    /// invalidate, and UD has SENDs of one packet.
    pub const fn carries(&self, message: &Message) -> bool {
        use Message::*;
        match self {
            Transport::Rc => true,
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

/// The operation of a packet, with the extension headers that its opcode has (IBTA 9.2, opcode table).
///
/// `Imm` carries immediate data as the host value of the four big-endian bytes, `Inv` the remote key to
/// invalidate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Message {
    /// First packet of a SEND of several.
    SendFirst,
    /// Neither first nor last packet of a SEND.
    SendMiddle,
    /// Last packet of a SEND of several.
    SendLast,
    /// Last packet of a SEND with immediate data.
    SendLastImm(u32),
    /// Last packet of a SEND with a remote key to invalidate.
    SendLastInv(u32),
    /// A SEND of one packet.
    SendOnly,
    /// A SEND of one packet with immediate data.
    SendOnlyImm(u32),
    /// A SEND of one packet with a remote key to invalidate.
    SendOnlyInv(u32),
    /// First packet of a WRITE of several.
    WriteFirst(Reth),
    /// Neither first nor last packet of a WRITE.
    WriteMiddle,
    /// Last packet of a WRITE of several.
    WriteLast,
    /// Last packet of a WRITE with immediate data.
    WriteLastImm(u32),
    /// A WRITE of one packet.
    WriteOnly(Reth),
    /// A WRITE of one packet with immediate data.
    WriteOnlyImm(Reth, u32),
    /// A READ request.
    ReadRequest(Reth),
    /// First response to a READ of several packets.
    ReadFirst(Aeth),
    /// Neither first nor last response to a READ.
    ReadMiddle,
    /// Last response to a READ of several packets.
    ReadLast(Aeth),
    /// The response to a READ of one packet.
    ReadOnly(Aeth),
    /// Acknowledgement, positive or negative.
    Ack(Aeth),
    /// Acknowledgement of an atomic, with the value that the operand had before.
    AtomicAck(Aeth, u64),
    /// Compare and swap.
    CompareSwap(AtomicEth),
    /// Fetch and add.
    FetchAdd(AtomicEth),
}

/// One extension header of a packet (IBTA 9.3), with the contents that the opcode gives it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExtensionHeader {
    /// RDMA extended transport header.
    Reth(Reth),
    /// Immediate data, as the host value of the four big-endian bytes.
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
    /// The length of the header in bytes.
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
    /// Whether a payload follows the headers. The payload may be empty, as in a WRITE of no bytes.
    pub const fn has_payload(&self) -> bool {
        use Message::*;
        !matches!(self, ReadRequest(_) | Ack(_) | AtomicAck(_, _) | CompareSwap(_) | FetchAdd(_))
    }

    /// Whether a requester sends it.
    pub const fn is_request(&self) -> bool {
        !self.is_response()
    }

    /// Whether a responder sends it.
    pub const fn is_response(&self) -> bool {
        use Message::*;
        matches!(self, ReadFirst(_) | ReadMiddle | ReadLast(_) | ReadOnly(_) | Ack(_) | AtomicAck(_, _))
    }

    /// Calls `visit` for each extension header after the BTH and the DETH, in the order of the wire (IBTA 9.2, opcode
    /// table).
    ///
    /// Inlined by force: as an iterator, whose items go through memory, emitting a packet takes 22 ns instead of 15 ns.
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

    /// The length of the extension headers in bytes, without BTH and DETH.
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
