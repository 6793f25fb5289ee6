//! The way in: from the socket to the state machine, checked.

use std::net::SocketAddr;

use mitra_transport::fault::Verdict;
use mitra_verbs::{Gid, Psn, Time};
use mitra_wire::{ICRC_LEN, Packet};
use nix::errno::Errno;

use crate::Offload;
use crate::delayed::Way;
use crate::engine::Engine;
use crate::paths::Check;
use crate::socket::{Merging, Received};

/// Where a datagram went.
#[derive(Clone, Copy)]
struct To {
    local: SocketAddr,
    /// The multicast group, if that is one.
    group: Option<Gid>,
}

/// What a receive needs.
pub(crate) struct Inbox {
    /// Room for the longest datagram or run.
    bytes: Box<[u8]>,
    merging: Merging,
}

impl Inbox {
    pub(crate) fn new(offload: Offload) -> Inbox {
        Inbox { bytes: vec![0; 1 << 16].into(), merging: Merging::new(offload) }
    }

    /// Where a receive goes that [`Engine::received`] looks at next.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Engine {
    /// Takes what one receive brings and executes it; false if there was nothing.
    pub(crate) fn receive(&mut self, now: Time) -> bool {
        let Some(socket) = &self.socket else { return false };
        let received = socket.receive(&mut self.inbox.bytes, &mut self.inbox.merging);
        let local = socket.address();
        self.received(now, local, None, received)
    }

    /// Executes what a receive brought, to a multicast group if to one; false if that is nothing.
    pub(crate) fn received(
        &mut self,
        now: Time,
        local: SocketAddr,
        group: Option<Gid>,
        received: Result<Received, Errno>,
    ) -> bool {
        let received = match received {
            Ok(received) => received,
            Err(Errno::EAGAIN) => return false,
            Err(_) => {
                // Such as an ICMP message about something sent earlier: packets get lost.
                self.counts.rx_errors += 1;
                return true;
            }
        };
        let to = To { local, group };
        let inbox = std::mem::take(&mut self.inbox.bytes);
        let bytes = &inbox[..received.len];
        let segment = received.segment.unwrap_or(received.len).max(1);
        self.counts.rx_runs += u64::from(segment < received.len);
        for (index, datagram) in bytes.chunks(segment).enumerate() {
            self.arrived(now, received.from, to, datagram, index as u16);
        }
        if bytes.is_empty() {
            self.arrived(now, received.from, to, &[], 0);
        }
        self.inbox.bytes = inbox;
        true
    }

    /// Checks a datagram that came as number `index` of a run.
    fn arrived(&mut self, now: Time, from: SocketAddr, to: To, datagram: &[u8], index: u16) {
        self.counts.rx_datagrams += 1;
        self.counts.rx_bytes += datagram.len() as u64;
        let source = self.paths.from(from, to.local);
        let peer = source.gid;
        let check = source.check(datagram, index);
        if let Some(capture) = &mut self.capture {
            let ident = if let Check::Good { ident, .. } = check { ident } else { index };
            capture.packet(from, to.local, ident, datagram);
        }
        match check {
            Check::Good { solved, .. } => self.counts.rx_icrc_solved += u64::from(solved),
            Check::Bad => {
                self.counts.rx_icrc_bad += 1;
                return;
            }
            Check::TooShort => {
                self.counts.rx_malformed += 1;
                return;
            }
        }
        let Ok(packet) = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]) else {
            self.counts.rx_malformed += 1;
            return;
        };
        if self.faults.is_idle() {
            self.hand_over(now, peer, to.group, &packet);
        } else {
            self.arrived_faulty(now, peer, to.group, datagram, &packet);
        }
    }

    /// Executes a packet on a rail with faults, or not.
    fn arrived_faulty(
        &mut self,
        now: Time,
        peer: Gid,
        group: Option<Gid>,
        datagram: &[u8],
        packet: &Packet<'_>,
    ) {
        let fate = self.faults.receive(packet);
        // A NIC that begins to hold back begins with this packet.
        self.react(fate.failure);
        match fate.verdict {
            Verdict::Pass => self.execute(now, peer, group, packet),
            Verdict::Drop => self.counts.fault_dropped += 1,
            Verdict::Corrupt(_) => {
                // One flipped bit is always seen by the ICRC.
                self.counts.fault_corrupted += 1;
                self.counts.rx_icrc_bad += 1;
            }
            Verdict::Duplicate => {
                self.counts.fault_duplicated += 1;
                self.execute(now, peer, group, packet);
                self.execute(now, peer, group, packet);
            }
            Verdict::Delay(by) => match self.delayed.push(now + by, Way::In(group), peer, datagram) {
                true => self.counts.fault_delayed += 1,
                false => self.counts.fault_dropped += 1,
            },
        }
    }

    /// Executes a packet that a noisy rail had held back.
    pub(crate) fn execute_late(&mut self, now: Time, peer: Gid, group: Option<Gid>, datagram: &[u8]) {
        if let Ok(packet) = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]) {
            self.execute(now, peer, group, &packet);
        }
    }

    /// Executes a packet and tells the faults if that did anything.
    fn execute(&mut self, now: Time, peer: Gid, group: Option<Gid>, packet: &Packet<'_>) {
        if !self.dma_ok() {
            return;
        }
        let before = self.next_expected(packet);
        self.hand_over(now, peer, group, packet);
        if self.next_expected(packet) != before {
            let failed = self.faults.executed(packet);
            self.react(failed);
        }
    }

    /// Has the state machine execute a packet.
    fn hand_over(&mut self, now: Time, peer: Gid, group: Option<Gid>, packet: &Packet<'_>) {
        match group {
            None => self.nic.handle_packet(now, peer, packet, &mut self.memory),
            Some(group) => self.nic.handle_multicast(now, peer, group, packet, &mut self.memory),
        }
    }

    /// The next request that the packet's queue pair expects: it moves on when one is executed.
    fn next_expected(&self, packet: &Packet<'_>) -> Option<Psn> {
        self.nic.query_qp(packet.dest_qp).ok().map(|status| status.rq_psn)
    }
}
