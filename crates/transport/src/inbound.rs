//! A message in the making at its receiver: SENDs and WRITEs, packet by packet, on connected services.

use mitra_verbs::{Access, Key, RecvWr, WcOpcode, WcStatus};
use mitra_wire::{Message, NakCode, Packet, Reth};

use crate::cq::completion;
use crate::host::Host;
use crate::keys::Span;
use crate::qp::Common;
use crate::recv_queue::Receives;
use crate::{Memory, sges};

/// The longest message that IBTA volume 1 knows.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// The message of which some packets have been executed, if there is one.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Inbound {
    /// Between messages.
    #[default]
    None,
    /// A SEND.
    Send { receive: RecvWr, room: u64, offset: u64 },
    /// A WRITE.
    Write { va: u64, key: Key, len: u32, offset: u32 },
}

/// Why a packet is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No receive is posted.
    NotReady,
    /// The request is wrong.
    Nak(NakCode),
    /// The receive that it consumed is wrong.
    Receive(WcStatus),
}

const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest);
const DENIED: Refusal = Refusal::Nak(NakCode::RemoteAccess);

/// Whether a packet is the first and the last of its message.
pub(crate) fn ends(message: &Message) -> (bool, bool) {
    use Message::*;
    match message {
        SendFirst | WriteFirst(_) => (true, false),
        SendMiddle | WriteMiddle => (false, false),
        SendLast | SendLastImm(_) | SendLastInv(_) | WriteLast | WriteLastImm(_) => (false, true),
        _ => (true, true),
    }
}

impl Inbound {
    /// The receive that the message was filling.
    pub(crate) fn take_receive(&mut self) -> Option<RecvWr> {
        match core::mem::take(self) {
            Inbound::Send { receive, .. } => Some(receive),
            _ => None,
        }
    }

    /// Judges what every request must fulfil, whatever it does: its place in the message (IBTA volume 1, 9.7.4:
    /// opcode sequence) and its length (ibidem, length validation).
    pub(crate) fn check(&self, c: &Common, packet: &Packet<'_>) -> Result<(), Refusal> {
        use Message::*;
        let in_order = match packet.message {
            SendMiddle | SendLast | SendLastImm(_) | SendLastInv(_) => matches!(self, Inbound::Send { .. }),
            WriteMiddle | WriteLast | WriteLastImm(_) => matches!(self, Inbound::Write { .. }),
            _ => *self == Inbound::None,
        };
        let n = packet.payload.len();
        let length = match ends(&packet.message) {
            (_, false) => n == c.mtu,
            (false, true) => (1..=c.mtu).contains(&n),
            (true, true) => n <= c.mtu,
        };
        if in_order && length { Ok(()) } else { Err(INVALID) }
    }

    /// Executes a packet of a SEND or WRITE that `check` found good. What is refused has touched no memory.
    pub(crate) fn execute(
        &mut self,
        c: &Common,
        receives: &mut Receives,
        host: &mut Host,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        match packet.message {
            Message::WriteFirst(reth) | Message::WriteOnly(reth) | Message::WriteOnlyImm(reth, _) => {
                let Reth { va, rkey, len } = reth;
                if len > MAX_MESSAGE {
                    return Err(INVALID);
                }
                // The whole range is judged at the first packet.
                may_write(c, host, va, Key(rkey), len)?;
                self.write(c, receives, host, packet, memory, (va, Key(rkey), len, 0))
            }
            Message::WriteMiddle | Message::WriteLast | Message::WriteLastImm(_) => match *self {
                Inbound::Write { va, key, len, offset } => {
                    self.write(c, receives, host, packet, memory, (va, key, len, offset))
                }
                _ => Err(INVALID),
            },
            _ => self.send(c, receives, host, packet, memory),
        }
    }

    fn send(
        &mut self,
        c: &Common,
        receives: &mut Receives,
        host: &mut Host,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        let (first, last) = ends(&packet.message);
        if first {
            let receive = host.take_receive(receives).ok_or(Refusal::NotReady)?;
            let room = sges::total(&receive.sges);
            *self = Inbound::Send { receive, room, offset: 0 };
        }
        let Inbound::Send { receive, room, offset } = self else { return Err(INVALID) };
        let after = *offset + packet.payload.len() as u64;
        if after > *room {
            return Err(Refusal::Receive(WcStatus::LocalLength));
        }
        let invalidated = match packet.message {
            Message::SendLastInv(key) | Message::SendOnlyInv(key) => Some(Key(key)),
            _ => None,
        };
        if let Some(key) = invalidated {
            host.keys.invalidate(c.qpn, c.init.pd, key).map_err(|_| DENIED)?;
        }
        sges::scatter(&host.keys, c.recv_pd, &receive.sges, *offset, packet.payload, memory)
            .map_err(|_| Refusal::Receive(WcStatus::LocalProtection))?;
        *offset = after;
        if last {
            let mut wc = completion(receive.wr_id, WcStatus::Success, WcOpcode::Recv, c.qpn);
            wc.byte_len = after as u32;
            wc.invalidated = invalidated;
            wc.imm = match packet.message {
                Message::SendLastImm(imm) | Message::SendOnlyImm(imm) => Some(imm),
                _ => None,
            };
            wc.src_qp = c.dest_qpn;
            *self = Inbound::None;
            host.complete(c.init.recv_cq, wc, packet.solicited);
        }
        Ok(())
    }

    fn write(
        &mut self,
        c: &Common,
        receives: &mut Receives,
        host: &mut Host,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
        (va, key, len, offset): (u64, Key, u32, u32),
    ) -> Result<(), Refusal> {
        let payload = packet.payload;
        let n = payload.len() as u32;
        let (_, last) = ends(&packet.message);
        // The packets add up to what the RETH says.
        let after = offset.checked_add(n).filter(|&after| if last { after == len } else { after < len });
        let after = after.ok_or(INVALID)?;
        let at = va.wrapping_add(offset.into());
        // Rights may have been revoked since the first packet.
        let span = may_write(c, host, at, key, n)?;
        let imm = match packet.message {
            Message::WriteLastImm(imm) | Message::WriteOnlyImm(_, imm) => Some(imm),
            _ => None,
        };
        if imm.is_some() && host.next_receive(receives).is_none() {
            return Err(Refusal::NotReady);
        }
        if let Some(span) = span {
            memory
                .place(span.region, span.offset, payload)
                .map_err(|_| Refusal::Nak(NakCode::RemoteOperational))?;
        }
        if imm.is_some()
            && let Some(receive) = host.take_receive(receives)
        {
            let mut wc = completion(receive.wr_id, WcStatus::Success, WcOpcode::RecvWithImm, c.qpn);
            wc.byte_len = len;
            wc.imm = imm;
            wc.src_qp = c.dest_qpn;
            host.complete(c.init.recv_cq, wc, packet.solicited);
        }
        *self = if last { Inbound::None } else { Inbound::Write { va, key, len, offset: after } };
        Ok(())
    }
}

/// Judges writing: the memory to write, or nothing if there are no bytes, which need no key.
fn may_write(c: &Common, host: &Host, va: u64, key: Key, len: u32) -> Result<Option<Span>, Refusal> {
    // A function that the queue pair does not have is an invalid request, not a denied access.
    if !c.access().contains(Access::REMOTE_WRITE) {
        return Err(INVALID);
    }
    if len == 0 {
        return Ok(None);
    }
    let span = host.keys.remote(c.qpn, c.init.pd, key, va, len.into(), Access::REMOTE_WRITE);
    span.map(Some).map_err(|_| DENIED)
}
