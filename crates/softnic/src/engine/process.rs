//! What happens to a received datagram, whichever carrier has brought it: the ICRC check, the
//! capture, injected faults, and the transport.

use std::net::SocketAddr;

use mitra_transport::IpPath;
use mitra_transport::fault::Verdict;
use mitra_verbs::{Gid, Psn, Time};
use mitra_wire::{Aeth, ICRC_LEN, Message, Packet, Syndrome, opcode};

use crate::delay_queue::Direction;
use crate::engine::Engine;
use crate::path_cache::IcrcCheck;
use crate::udp_socket::{ACK_LEN, Carrier, Received};

#[derive(Clone, Copy)]
struct Destination {
    local: SocketAddr,
    /// The multicast group of `local`. `None` if `local` is the NIC's own address.
    group: Option<Gid>,
}

/// Returns whether a datagram is a positive acknowledgement. A NAK may end the queue pair, and the
/// NIC would then drop the requests that arrived before the NAK.
pub(super) fn is_ack(datagram: &[u8]) -> bool {
    datagram.len() == ACK_LEN
        && Packet::parse(&datagram[..ACK_LEN - ICRC_LEN]).is_ok_and(|packet| {
            matches!(packet.message, Message::Ack(Aeth { syndrome: Syndrome::Ack { .. }, .. }))
        })
}

/// Returns whether the last datagram of a run is a positive acknowledgement, and all others are
/// requests.
fn is_ack_behind_requests(run: &[u8], segment_len: usize) -> bool {
    let mut datagrams = run.chunks(segment_len);
    datagrams.len() > 1
        && datagrams.next_back().is_some_and(is_ack)
        && !datagrams.any(|datagram| opcode::is_response(datagram[0]))
}

impl Engine {
    /// Processes two datagrams of one sender: `first` is in the other buffer, and `next` has
    /// arrived after it, in this buffer. An acknowledgement is processed first.
    pub(super) fn process_two(&mut self, now: Time, local: SocketAddr, first: &Received, next: &Received) {
        let is_next_first = is_ack(&self.rx_buffer.bytes_mut()[..next.len]);
        if is_next_first {
            self.process(now, local, None, next);
        }
        self.rx_buffer.swap();
        self.process(now, local, None, first);
        if !is_next_first {
            self.rx_buffer.swap();
            self.process(now, local, None, next);
        }
    }

    /// Processes what a carrier has put into the buffer for the address `local`, which belongs to
    /// `group` or to the NIC itself.
    pub(crate) fn process(&mut self, now: Time, local: SocketAddr, group: Option<Gid>, received: &Received) {
        let destination = Destination { local, group };
        let mut buffer = self.rx_buffer.take();
        let bytes = &mut buffer[..received.len];
        let segment_len = received.segment_len.unwrap_or(received.len).max(1);
        self.driver_counters.rx_runs += u64::from(segment_len < received.len);
        let has_ack_behind = is_ack_behind_requests(bytes, segment_len);
        let mut datagrams = bytes.chunks_mut(segment_len).enumerate();
        // The NIC handles an acknowledgement before the requests that precede it, because the
        // program posted the acknowledged requests before its answers to those requests.
        if has_ack_behind && let Some((index, ack)) = datagrams.next_back() {
            self.process_datagram(now, received, destination, ack, index as u16);
        }
        for (index, datagram) in datagrams {
            self.process_datagram(now, received, destination, datagram, index as u16);
        }
        if received.len == 0 {
            self.process_datagram(now, received, destination, &mut [], 0);
        }
        self.rx_buffer.put_back(buffer);
    }

    /// Checks a datagram, which is at position `index` of a `UDP_GRO` run, and executes its packet.
    fn process_datagram(
        &mut self,
        now: Time,
        received: &Received,
        Destination { local, group }: Destination,
        datagram: &mut [u8],
        index: u16,
    ) {
        let &Received { carrier, from, .. } = received;
        let counters = &mut self.driver_counters;
        counters.rx_datagrams += 1;
        counters.rx_shared_memory += u64::from(carrier != Carrier::Udp);
        counters.rx_bytes += datagram.len() as u64;
        let is_unsealed = carrier == Carrier::Ring { is_sealed: false } && datagram.len() > ICRC_LEN;
        let check = match is_unsealed {
            true => IcrcCheck::Good { ident: 0, solved: false },
            false => self.paths.rx(from, local).check(datagram, index),
        };
        if let Some(capture) = &mut self.capture {
            if is_unsealed {
                self.paths.rx(from, local).seal(datagram);
            }
            let ident = if let IcrcCheck::Good { ident, .. } = check { ident } else { index };
            capture.packet(from, local, ident, datagram);
        }
        match check {
            IcrcCheck::Good { solved, .. } => self.driver_counters.rx_icrc_solved += u64::from(solved),
            IcrcCheck::Bad => {
                self.driver_counters.rx_icrc_bad += 1;
                return;
            }
            IcrcCheck::TooShort => {
                // By an empty datagram over UDP, another NIC of this host asks whether the process
                // lives (`send_probes`).
                let is_probe = carrier == Carrier::Udp && datagram.is_empty();
                self.driver_counters.rx_malformed += u64::from(!is_probe);
                return;
            }
        }
        let peer = IpPath { address: Gid::from(from.ip()), traffic_class: received.traffic_class };
        self.process_packet(now, peer, group, datagram);
    }

    /// Executes the packet of a datagram, whose ICRC was checked.
    fn process_packet(&mut self, now: Time, peer: IpPath, group: Option<Gid>, datagram: &[u8]) {
        let Ok(packet) = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]) else {
            self.driver_counters.rx_malformed += 1;
            return;
        };
        if self.faults.is_idle() {
            self.dispatch(now, peer, group, &packet);
        } else {
            self.execute_with_faults(now, peer, group, datagram, &packet);
        }
    }

    fn execute_with_faults(
        &mut self,
        now: Time,
        peer: IpPath,
        group: Option<Gid>,
        datagram: &[u8],
        packet: &Packet<'_>,
    ) {
        let tap = self.faults.receive(packet);
        // A failure that defers placements applies to this packet too, so it is handled before the
        // packet is executed.
        self.handle_failure(tap.failure);
        match tap.verdict {
            Verdict::Pass => self.execute(now, peer, group, packet),
            Verdict::Drop => self.driver_counters.fault_dropped += 1,
            Verdict::Corrupt(_) => {
                // The ICRC detects every single-bit error, so the corrupted packet would fail the
                // check.
                self.driver_counters.fault_corrupted += 1;
                self.driver_counters.rx_icrc_bad += 1;
            }
            Verdict::Duplicate => {
                self.driver_counters.fault_duplicated += 1;
                self.execute(now, peer, group, packet);
                self.execute(now, peer, group, packet);
            }
            Verdict::Delay(by) => {
                match self.delay_queue.push(
                    now + by,
                    Direction::Receive(group, peer.traffic_class),
                    peer.address,
                    datagram,
                ) {
                    true => self.driver_counters.fault_delayed += 1,
                    false => self.driver_counters.fault_dropped += 1,
                }
            }
        }
    }

    pub(crate) fn execute_delayed(&mut self, now: Time, peer: IpPath, group: Option<Gid>, datagram: &[u8]) {
        if let Ok(packet) = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]) {
            self.execute(now, peer, group, &packet);
        }
    }

    /// Executes a packet. If the expected PSN has changed, reports the packet to fault injection,
    /// whose stages 4 and 5 (`docs/faults.md`) count only executed packets.
    fn execute(&mut self, now: Time, peer: IpPath, group: Option<Gid>, packet: &Packet<'_>) {
        if !self.dma_ok() {
            return;
        }
        let psn_before = self.expected_psn(packet);
        self.dispatch(now, peer, group, packet);
        if self.expected_psn(packet) != psn_before {
            let failure = self.faults.executed(packet);
            self.handle_failure(failure);
        }
    }

    fn dispatch(&mut self, now: Time, peer: IpPath, group: Option<Gid>, packet: &Packet<'_>) {
        match group {
            None => self.nic.handle_packet(now, peer, packet, &mut self.memory),
            Some(group) => self.nic.handle_multicast(now, peer, group, packet, &mut self.memory),
        }
    }

    /// Returns the expected request PSN of the queue pair that a packet addresses.
    fn expected_psn(&self, packet: &Packet<'_>) -> Option<Psn> {
        self.nic.query_qp(packet.dest_qp).ok().map(|status| status.rq_psn)
    }
}
