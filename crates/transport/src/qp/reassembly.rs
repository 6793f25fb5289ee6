//! Reassembly of SENDs and WRITEs from their packets, at the receiver of a connected service (RC,
//! UC).

use mitra_mutants::Mutant;
use mitra_verbs::{Access, Key, RecvWr, Wc, WcOpcode, WcStatus};
use mitra_wire::{Message, NakCode, Packet, Reth};

use crate::nic::key_table::RegionSpan;
use crate::nic::recv_queue::RecvSource;
use crate::nic::shared_state::SharedState;
use crate::packet_of_message::{PacketPosition, immediate, invalidated_key, position};
use crate::qp::attributes::QpAttributes;
use crate::{Memory, scatter_gather};

/// The longest message, in bytes (IBTA volume 1).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// The unfinished message, of which only the first packets are executed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Reassembly {
    #[default]
    Idle,
    /// A SEND that has filled the first `offset` bytes of its receive, which holds `room` bytes.
    Send { receive: RecvWr, room: u64, offset: u64 },
    /// A WRITE of `len` bytes to the address `va`, of which `offset` bytes are placed.
    Write { va: u64, key: Key, len: u32, offset: u32 },
}

/// The reason why a packet is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No receive is posted.
    NotReady,
    /// The request is invalid or not permitted.
    Nak(NakCode),
    /// The receive of the message is too short, or its memory may not be written.
    Receive(WcStatus),
}

const INVALID_REQUEST: Refusal = Refusal::Nak(NakCode::InvalidRequest);
const ACCESS_DENIED: Refusal = Refusal::Nak(NakCode::RemoteAccess);

impl Reassembly {
    /// Removes and returns the receive of an unfinished SEND.
    pub(crate) fn take_recv(&mut self) -> Option<RecvWr> {
        match core::mem::take(self) {
            Reassembly::Send { receive, .. } => Some(receive),
            _ => None,
        }
    }

    /// Checks the position of a request packet in the current message, and its payload length (IBTA
    /// volume 1, 9.7.4: opcode sequence and length validation).
    pub(crate) fn check_packet(&self, attrs: &QpAttributes, packet: &Packet<'_>) -> Result<(), Refusal> {
        use Message::*;
        let continues_message = match packet.message {
            SendMiddle | SendLast | SendLastImm(_) | SendLastInv(_) => {
                matches!(self, Reassembly::Send { .. })
            }
            WriteMiddle | WriteLast | WriteLastImm(_) => matches!(self, Reassembly::Write { .. }),
            _ => *self == Reassembly::Idle,
        };
        let len = packet.payload.len();
        let valid_len = match position(&packet.message) {
            PacketPosition { last: false, .. } => len == attrs.mtu,
            PacketPosition { first: false, last: true } => (1..=attrs.mtu).contains(&len),
            PacketPosition { first: true, last: true } => len <= attrs.mtu,
        };
        if continues_message && valid_len { Ok(()) } else { Err(INVALID_REQUEST) }
    }

    /// Executes a packet of a SEND or WRITE that has passed `check_packet`. A refused packet has
    /// changed no memory, unless an access failed because the memory no longer exists.
    pub(crate) fn execute(
        &mut self,
        attrs: &QpAttributes,
        receives: &mut RecvSource,
        nic: &mut SharedState,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        match packet.message {
            Message::WriteFirst(reth) | Message::WriteOnly(reth) | Message::WriteOnlyImm(reth, _) => {
                let Reth { va, rkey, len } = reth;
                if len > MAX_MESSAGE {
                    return Err(INVALID_REQUEST);
                }
                // The first packet is refused if any byte of the message may not be written.
                check_write(attrs, nic, va, Key(rkey), len)?;
                self.execute_write(attrs, receives, nic, packet, memory, (va, Key(rkey), len, 0))
            }
            Message::WriteMiddle | Message::WriteLast | Message::WriteLastImm(_) => match *self {
                Reassembly::Write { va, key, len, offset } => {
                    self.execute_write(attrs, receives, nic, packet, memory, (va, key, len, offset))
                }
                _ => Err(INVALID_REQUEST),
            },
            _ => self.execute_send(attrs, receives, nic, packet, memory),
        }
    }

    fn execute_send(
        &mut self,
        attrs: &QpAttributes,
        receives: &mut RecvSource,
        nic: &mut SharedState,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        let PacketPosition { first, last } = position(&packet.message);
        if first {
            let receive = nic.take_recv(receives).ok_or(Refusal::NotReady)?;
            let room = scatter_gather::total_len(&receive.sges);
            *self = Reassembly::Send { receive, room, offset: 0 };
        }
        let Reassembly::Send { receive, room, offset } = self else { return Err(INVALID_REQUEST) };
        let end = *offset + packet.payload.len() as u64;
        if end > *room && !Mutant::SendBeyondReceive.is_on() {
            return Err(Refusal::Receive(WcStatus::LocalLength));
        }
        let invalidated = invalidated_key(&packet.message);
        if let Some(key) = invalidated {
            nic.keys.invalidate(attrs.qpn, attrs.init.pd, key).map_err(|_| ACCESS_DENIED)?;
        }
        scatter_gather::scatter(&nic.keys, attrs.recv_pd, &receive.sges, *offset, packet.payload, memory)
            .map_err(|_| Refusal::Receive(WcStatus::LocalProtection))?;
        *offset = end;
        if last {
            let mut wc = Wc::new(receive.wr_id, WcStatus::Success, WcOpcode::Recv, attrs.qpn);
            wc.byte_len = end as u32;
            wc.invalidated = invalidated;
            wc.imm = immediate(&packet.message);
            *self = Reassembly::Idle;
            nic.complete(attrs.init.recv_cq, wc, packet.solicited);
        }
        Ok(())
    }

    fn execute_write(
        &mut self,
        attrs: &QpAttributes,
        receives: &mut RecvSource,
        nic: &mut SharedState,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
        (va, key, len, offset): (u64, Key, u32, u32),
    ) -> Result<(), Refusal> {
        let payload = packet.payload;
        let payload_len = payload.len() as u32;
        let last = position(&packet.message).last;
        // The payload lengths of all packets add up to the length in the RETH.
        let end = offset
            .checked_add(payload_len)
            .filter(|&end| if last { end == len || Mutant::WriteLengthUnchecked.is_on() } else { end < len })
            .ok_or(INVALID_REQUEST)?;
        // The consumer may have revoked the rights after the first packet.
        let span = check_write(attrs, nic, va.wrapping_add(offset.into()), key, payload_len)?;
        let imm = immediate(&packet.message);
        if imm.is_some() && nic.peek_recv(receives).is_none() && !Mutant::ImmediateWithoutReceive.is_on() {
            return Err(Refusal::NotReady);
        }
        if let Some(span) = span {
            memory
                .place(span.region, span.offset, payload)
                .map_err(|_| Refusal::Nak(NakCode::RemoteOperational))?;
        }
        if imm.is_some()
            && let Some(receive) = nic.take_recv(receives)
        {
            let mut wc = Wc::new(receive.wr_id, WcStatus::Success, WcOpcode::RecvWithImm, attrs.qpn);
            wc.byte_len = if Mutant::LengthOfLastPacket.is_on() { payload_len } else { len };
            wc.imm = imm;
            nic.complete(attrs.init.recv_cq, wc, packet.solicited);
        }
        *self = if last { Reassembly::Idle } else { Reassembly::Write { va, key, len, offset: end } };
        Ok(())
    }
}

/// Checks a remote write and returns where to place its bytes. A write of 0 bytes needs no key and
/// returns `None`.
fn check_write(
    attrs: &QpAttributes,
    nic: &SharedState,
    va: u64,
    key: Key,
    len: u32,
) -> Result<Option<RegionSpan>, Refusal> {
    // An operation that the queue pair does not permit is an invalid request. An operation that
    // only the key does not permit is a remote access error.
    if !attrs.access().contains(Access::REMOTE_WRITE) {
        return Err(INVALID_REQUEST);
    }
    if len == 0 {
        return Ok(None);
    }
    let span = nic.keys.check_remote(attrs.qpn, attrs.init.pd, key, va, len.into(), Access::REMOTE_WRITE);
    span.map(Some).map_err(|_| ACCESS_DENIED)
}
