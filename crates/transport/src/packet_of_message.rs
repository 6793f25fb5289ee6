//! The properties of a packet that follow from its opcode, and the choice of the opcode of a
//! request packet.

use mitra_verbs::{Key, SendOp};
use mitra_wire::{Message, Reth};

/// The position of a packet in its message. A message of one packet is both first and last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PacketPosition {
    pub(crate) first: bool,
    pub(crate) last: bool,
}

pub(crate) fn position(message: &Message) -> PacketPosition {
    use Message::*;
    let (first, last) = match message {
        SendFirst | WriteFirst(_) => (true, false),
        SendMiddle | WriteMiddle => (false, false),
        SendLast | SendLastImm(_) | SendLastInv(_) | WriteLast | WriteLastImm(_) => (false, true),
        _ => (true, true),
    };
    PacketPosition { first, last }
}

pub(crate) fn immediate(message: &Message) -> Option<u32> {
    use Message::*;
    match *message {
        SendLastImm(imm) | SendOnlyImm(imm) | WriteLastImm(imm) | WriteOnlyImm(_, imm) => Some(imm),
        _ => None,
    }
}

/// Returns whether a request takes a receive from the queue.
pub(crate) fn takes_receive(message: &Message) -> bool {
    use Message::*;
    matches!(
        message,
        SendFirst | SendOnly | SendOnlyImm(_) | SendOnlyInv(_) | WriteLastImm(_) | WriteOnlyImm(..)
    )
}

pub(crate) fn invalidated_key(message: &Message) -> Option<Key> {
    match *message {
        Message::SendLastInv(key) | Message::SendOnlyInv(key) => Some(Key(key)),
        _ => None,
    }
}

/// A *fetch* is a READ or an atomic. The response to a fetch carries data.
pub(crate) fn is_fetch(message: &Message) -> bool {
    matches!(message, Message::ReadRequest(_) | Message::CompareSwap(_) | Message::FetchAdd(_))
}

/// Returns the opcode and the extended headers of packet `index` of a SEND or WRITE of `packets`
/// packets and `len` bytes.
pub(crate) fn data_message(op: &SendOp, index: u32, packets: u32, len: u32) -> Message {
    let (first, last) = (index == 0, index + 1 == packets);
    match *op {
        SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) => {
            let reth = Reth { va: remote.addr, rkey: remote.rkey.0, len };
            match (first, last, op) {
                (true, true, SendOp::WriteWithImm(_, imm)) => Message::WriteOnlyImm(reth, *imm),
                (true, true, _) => Message::WriteOnly(reth),
                (true, false, _) => Message::WriteFirst(reth),
                (false, false, _) => Message::WriteMiddle,
                (false, true, SendOp::WriteWithImm(_, imm)) => Message::WriteLastImm(*imm),
                (false, true, _) => Message::WriteLast,
            }
        }
        _ => match (first, last, op) {
            (true, true, SendOp::SendWithImm(imm)) => Message::SendOnlyImm(*imm),
            (true, true, SendOp::SendWithInvalidate(key)) => Message::SendOnlyInv(key.0),
            (true, true, _) => Message::SendOnly,
            (true, false, _) => Message::SendFirst,
            (false, false, _) => Message::SendMiddle,
            (false, true, SendOp::SendWithImm(imm)) => Message::SendLastImm(*imm),
            (false, true, SendOp::SendWithInvalidate(key)) => Message::SendLastInv(key.0),
            (false, true, _) => Message::SendLast,
        },
    }
}
