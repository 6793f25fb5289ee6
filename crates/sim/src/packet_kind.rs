//! Faults at the nth datagram of a kind.

use core::time::Duration;

use mitra_failover::rail_negotiation::MessageKind;
use mitra_wire::{Message, Packet, Syndrome, Transport};

use crate::failure_injection::FailureInjection;

/// A kind of datagram, as a fault selects it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PacketKind {
    /// A control message of a vQP, of this kind.
    Control(MessageKind),
    /// A control message of any kind, other than a heartbeat.
    AnyControl,
    /// The packet with this position, from 0, of each WRITE of several packets. The first packet of
    /// a WRITE, or a WRITE of one packet, has position 0.
    WriteFragment(u32),
    /// The request of a READ.
    ReadRequest,
    /// The request of an atomic.
    AtomicRequest,
    /// The acknowledgement of an atomic.
    AtomicAck,
    /// A positive acknowledgement of a SEND or a WRITE.
    Ack,
    /// A negative acknowledgement.
    Nak,
    /// A packet of the response to a READ.
    ReadResponse,
}

impl PacketKind {
    /// The kinds that a NIC sends in a failover, and in the operations of the workload.
    pub const DRAWN: [PacketKind; 15] = [
        PacketKind::AnyControl,
        PacketKind::Control(MessageKind::Propose),
        PacketKind::Control(MessageKind::Evidence),
        PacketKind::Control(MessageKind::Resume),
        PacketKind::Control(MessageKind::Refuse),
        PacketKind::Control(MessageKind::NewQp),
        PacketKind::WriteFragment(0),
        PacketKind::WriteFragment(1),
        PacketKind::WriteFragment(2),
        PacketKind::ReadRequest,
        PacketKind::AtomicRequest,
        PacketKind::AtomicAck,
        PacketKind::Ack,
        PacketKind::Nak,
        PacketKind::ReadResponse,
    ];
}

/// Injects failures at the nth packet of a kind that a NIC sends, or that arrives there.
pub(crate) struct PacketProbe {
    pub(crate) kind: PacketKind,
    pub(crate) arriving: bool,
    /// The number of packets of the kind until the probe fires, including the packet at which it
    /// fires.
    pub(crate) left: u32,
    /// The position of the last observed packet in its WRITE.
    pub(crate) fragment: u32,
    pub(crate) fate: PacketFate,
    pub(crate) targets: Vec<FailureInjection>,
}

/// The fate of the packet at which a fault is placed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PacketFate {
    /// Delivery, unless the failure prevents it.
    Passes,
    /// Loss.
    Lost,
    /// Delivery with this delay.
    Held(Duration),
}

impl PacketProbe {
    /// Returns whether the probe fires at this packet.
    pub(crate) fn counts(&mut self, packet: &Packet<'_>, arriving: bool) -> bool {
        if arriving != self.arriving || !self.matches(packet) {
            return false;
        }
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    fn matches(&mut self, packet: &Packet<'_>) -> bool {
        if matches!(packet.transport, Transport::Ud(_)) {
            let kind = MessageKind::of_datagram(packet.payload);
            return match self.kind {
                PacketKind::Control(wanted) => kind == Some(wanted),
                PacketKind::AnyControl => kind.is_some_and(|kind| kind != MessageKind::Heartbeat),
                _ => false,
            };
        }
        let fragment = match packet.message {
            Message::WriteFirst(_) | Message::WriteOnly(_) | Message::WriteOnlyImm(..) => Some(0),
            Message::WriteMiddle | Message::WriteLast | Message::WriteLastImm(_) => Some(self.fragment + 1),
            _ => None,
        };
        self.fragment = fragment.unwrap_or(self.fragment);
        match self.kind {
            PacketKind::Control(_) | PacketKind::AnyControl => false,
            PacketKind::WriteFragment(position) => fragment == Some(position),
            PacketKind::ReadRequest => matches!(packet.message, Message::ReadRequest(_)),
            PacketKind::AtomicRequest => {
                matches!(packet.message, Message::FetchAdd(_) | Message::CompareSwap(_))
            }
            PacketKind::AtomicAck => matches!(packet.message, Message::AtomicAck(..)),
            PacketKind::Ack | PacketKind::Nak => matches!(packet.message, Message::Ack(aeth)
                if matches!(aeth.syndrome, Syndrome::Ack { .. }) == (self.kind == PacketKind::Ack)),
            PacketKind::ReadResponse => matches!(
                packet.message,
                Message::ReadFirst(_) | Message::ReadMiddle | Message::ReadLast(_) | Message::ReadOnly(_)
            ),
        }
    }
}
