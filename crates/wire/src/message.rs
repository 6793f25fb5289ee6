//! What a packet says: its transport service and its operation, each with exactly the headers it has.

use crate::headers::{Aeth, AtomicEth, Deth, Reth};

/// The transport service of a packet, from the top three bits of its opcode (IBTA 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram; every packet says who sent it.
    Ud(Deth),
}

impl Transport {
    /// Whether the service has this operation: RC all, UC sends without invalidate and writes, UD whole
    /// sends only (IBTA 9.2, opcode table).
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

impl Message {
    /// Whether payload follows the headers. It may still be empty (a WRITE of no bytes).
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

    /// Bytes of the extension headers, without BTH and DETH.
    pub const fn headers_len(&self) -> usize {
        use Message::*;
        match self {
            SendFirst | SendMiddle | SendLast | SendOnly | WriteMiddle | WriteLast | ReadMiddle => 0,
            SendLastImm(_) | SendLastInv(_) | SendOnlyImm(_) | SendOnlyInv(_) | WriteLastImm(_) => 4,
            WriteFirst(_) | WriteOnly(_) | ReadRequest(_) => Reth::LEN,
            WriteOnlyImm(_, _) => Reth::LEN + 4,
            ReadFirst(_) | ReadLast(_) | ReadOnly(_) | Ack(_) => Aeth::LEN,
            AtomicAck(_, _) => Aeth::LEN + 8,
            CompareSwap(_) | FetchAdd(_) => AtomicEth::LEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_request_or_a_response() {
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
