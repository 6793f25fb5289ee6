//! The records of a trace, prepared for a drawing: the packets and where they arrived, failures,
//! moves and completions.

use std::collections::{HashMap, VecDeque};

use mitra_verbs::Time;

use crate::trace::{PacketHead, Trace, TraceEvent};

/// The part of a world that a record describes, by its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The whole world.
    World,
    /// A host, or its program.
    Host(usize),
    /// A NIC.
    Nic(usize),
}

/// The content of a record that describes no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoteKind {
    /// A failure.
    Fault,
    /// The end of a failure.
    Recovery,
    /// The departure of a connection from a rail, or its close.
    Move,
    /// A post or an end of operations.
    Operation,
    /// Anything else.
    Event,
}

/// A step in the life of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketStep {
    /// A NIC sends the packet.
    Sent,
    /// A NIC executes the packet.
    Taken,
    /// The packet is lost at the NIC of the record.
    Lost,
    /// A fault delays or corrupts the packet.
    Changed,
}

/// The content of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A step of a packet.
    Packet {
        /// The step.
        step: PacketStep,
        /// For a packet that arrives or is lost: the index of the record in which the packet was
        /// sent, if the trace keeps this record.
        sent: Option<usize>,
    },
    /// A completion becomes visible in memory.
    Completion,
    /// Anything else.
    Note(NoteKind),
}

/// A record of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimelineEvent {
    /// The virtual time.
    pub at: Time,
    /// The subject of the record.
    pub about: Subject,
    /// The content.
    pub kind: EventKind,
    /// The record in words.
    pub text: String,
}

/// A NIC of a time line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimelineNic {
    /// The name.
    pub name: String,
    /// The index of its host.
    pub host: usize,
    /// The number of its rail.
    pub rail: u8,
}

/// The kept records of a trace.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Timeline {
    /// The names of the hosts.
    pub hosts: Vec<String>,
    /// The NICs.
    pub nics: Vec<TimelineNic>,
    /// The records, in order.
    pub events: Vec<TimelineEvent>,
    /// The number of earlier records, which are not kept.
    pub earlier: u64,
}

impl Timeline {
    pub(crate) fn new(hosts: Vec<String>, nics: Vec<TimelineNic>, trace: &Trace) -> Timeline {
        let mut in_flight = Flights::default();
        let records = trace.records().enumerate();
        let events: Vec<_> = records.map(|(i, (at, event))| draw(*at, event, i, &mut in_flight)).collect();
        let earlier = trace.count() - events.len() as u64;
        Timeline { hosts, nics, events, earlier }
    }
}

/// The packets that were sent and have not arrived, by content. Copies of a packet arrive in the
/// order in which they were sent.
#[derive(Default)]
struct Flights(HashMap<PacketHead, VecDeque<usize>>);

fn draw(at: Time, event: &TraceEvent, index: usize, in_flight: &mut Flights) -> TimelineEvent {
    let (about, kind, text) = match event {
        TraceEvent::Packet { action, nic, head } => {
            let (step, sent) = in_flight.follow(action, *head, index);
            let control = head.control_message().map(|kind| format!("{kind:?}: ")).unwrap_or_default();
            let text = format!("{action} {control}{head}");
            (Subject::Nic(*nic as usize), EventKind::Packet { step, sent }, text)
        }
        TraceEvent::Nic { action, nic, a, .. } => {
            (Subject::Nic(*nic as usize), EventKind::Completion, format!("{action} CQ {a}"))
        }
        TraceEvent::Note { about, kind, text } => (*about, EventKind::Note(*kind), text.clone()),
    };
    TimelineEvent { at, about, kind, text }
}

impl Flights {
    /// Returns the step, and the record in which the packet was sent.
    fn follow(&mut self, action: &str, head: PacketHead, index: usize) -> (PacketStep, Option<usize>) {
        let step = match action {
            "sends" => {
                self.0.entry(head).or_default().push_back(index);
                return (PacketStep::Sent, None);
            }
            "takes" => PacketStep::Taken,
            "delays" | "corrupts" | "holds" => return (PacketStep::Changed, None),
            _ => PacketStep::Lost,
        };
        // A packet that is lost at its sender was never in flight. For such a packet, the list may
        // contain an earlier copy, which is still in flight.
        let was_sent = !matches!(action, "loses" | "has no way for");
        let sent = self.0.get_mut(&head).filter(|_| was_sent).and_then(VecDeque::pop_front);
        (step, sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mitra_wire::{Message, Packet, Psn, Qpn, Transport};

    fn datagram(psn: u32) -> Vec<u8> {
        let mut out = Vec::new();
        Packet::new(Transport::Rc, Qpn::new(9), Psn::new(psn), Message::SendOnly, &[]).emit_to(&mut out);
        out.extend_from_slice(&[0; 4]);
        out
    }

    fn timeline(records: &[(&'static str, usize, u32)]) -> Vec<EventKind> {
        let mut trace = Trace::new(100, false);
        for &(action, nic, psn) in records {
            trace.packet(Time::ZERO, action, nic, &datagram(psn));
        }
        let timeline = Timeline::new(Vec::new(), Vec::new(), &trace);
        assert_eq!(timeline.earlier, 0);
        timeline.events.into_iter().map(|event| event.kind).collect()
    }

    #[test]
    fn arrival_refers_to_the_oldest_copy_in_flight() {
        let sent = |step, sent| EventKind::Packet { step, sent };
        let kinds = timeline(&[
            ("sends", 0, 7),
            ("sends", 0, 8),
            ("sends", 0, 7),
            ("loses", 0, 7),
            ("lost at", 1, 7),
            ("takes", 1, 7),
            ("takes", 1, 9),
        ]);
        assert_eq!(
            kinds[3..],
            [
                sent(PacketStep::Lost, None),
                sent(PacketStep::Lost, Some(0)),
                sent(PacketStep::Taken, Some(2)),
                sent(PacketStep::Taken, None),
            ]
        );
    }
}
