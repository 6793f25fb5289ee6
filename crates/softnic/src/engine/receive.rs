//! The receive path: from the socket through the ICRC check and fault injection to the transport.

use core::time::Duration;
use std::net::SocketAddr;

use mitra_transport::IpPath;
use mitra_transport::fault::Verdict;
use mitra_verbs::{Gid, Psn, Time};
use mitra_wire::{Aeth, ICRC_LEN, Message, Packet, Syndrome, opcode};
use nix::errno::Errno;

use crate::Offload;
use crate::clock;
use crate::delay_queue::Direction;
use crate::engine::Engine;
use crate::gro_policy::GroPolicy;
use crate::path_cache::IcrcCheck;
use crate::udp_socket::{ACK_LEN, Received};

#[derive(Clone, Copy)]
struct Destination {
    local: SocketAddr,
    /// The multicast group of `local`. `None` if `local` is the NIC's own address.
    group: Option<Gid>,
}

/// The length of the receive buffer, in bytes.
const MAX_RECEIVE: usize = 1 << 16;

pub(crate) struct RxBuffer {
    /// Holds the longest UDP payload, which may be several datagrams under `UDP_GRO`.
    bytes: Box<[u8]>,
    /// Holds the first of two datagrams while [`Engine::receive`] handles the second. Allocated
    /// when it is first needed.
    earlier: Box<[u8]>,
    gro: GroPolicy,
    /// The number of datagrams in a row that may have overtaken an acknowledgement. For each of
    /// them, the NIC made a second receive call. A receive call on an empty socket does not reset
    /// the number.
    overtakers: u32,
}

/// After this many datagrams in a row that may have overtaken an acknowledgement, the NIC enables
/// `UDP_GRO`. Without `UDP_GRO`, the kernel delivers the datagrams of a run one after the other,
/// and the acknowledgement may arrive after the second receive call.
const MAX_OVERTAKERS_WITHOUT_GRO: u32 = 3;

/// The longest wait for an acknowledgement that the peer sent in one run with the received
/// datagram. Without `UDP_GRO`, the kernel delivers the two one after the other. In between, it
/// wakes the threads that sleep on the socket, which takes 20 µs and more on a busy virtual
/// machine.
const MAX_WAIT_FOR_ACK: Duration = Duration::from_micros(200);

impl RxBuffer {
    pub(crate) fn new(offload: Offload) -> RxBuffer {
        RxBuffer {
            bytes: vec![0; MAX_RECEIVE].into(),
            earlier: Box::default(),
            gro: GroPolicy::new(offload),
            overtakers: 0,
        }
    }

    /// Observes the senders anew, because a new socket does not use `UDP_GRO`.
    pub(crate) fn use_new_socket(&mut self) {
        if !matches!(self.gro, GroPolicy::Off) {
            self.gro = GroPolicy::new(Offload::Auto);
        }
    }

    /// Exchanges the buffer for the other one, whose content stays.
    pub(super) fn swap(&mut self) {
        std::mem::swap(&mut self.bytes, &mut self.earlier);
        if self.bytes.is_empty() {
            self.bytes = vec![0; MAX_RECEIVE].into();
        }
    }

    /// Takes the buffer out, to be put back.
    pub(super) fn take(&mut self) -> Box<[u8]> {
        std::mem::take(&mut self.bytes)
    }

    pub(super) fn put_back(&mut self, bytes: Box<[u8]>) {
        self.bytes = bytes;
    }

    /// Returns the buffer for a receive call. [`Engine::process_received`] reads the data from it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
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
    /// Receives from the NIC's own socket and processes the data. Returns false if the socket was
    /// empty.
    ///
    /// Makes one receive call. Makes a second call if an acknowledgement may follow that the NIC
    /// must handle before the first datagram.
    pub(crate) fn receive(&mut self, now: Time) -> bool {
        let Some(socket) = &self.socket else { return false };
        let local = socket.address();
        let received = socket.receive(&mut self.rx_buffer.bytes, &mut self.rx_buffer.gro);
        if !received.as_ref().is_ok_and(|received| self.may_overtake_ack(received)) {
            if received.is_ok() {
                self.rx_buffer.overtakers = 0;
            }
            return self.process_received(now, local, None, received);
        }
        let buffer = &mut self.rx_buffer;
        buffer.overtakers += 1;
        let wait_until = buffer.gro.is_observing().then(|| clock::now() + MAX_WAIT_FOR_ACK);
        if buffer.overtakers >= MAX_OVERTAKERS_WITHOUT_GRO {
            socket.enable_gro(&mut buffer.gro);
        }
        buffer.swap();
        let mut next = socket.receive(&mut buffer.bytes, &mut buffer.gro);
        while matches!(next, Err(Errno::EAGAIN)) && wait_until.is_some_and(|until| clock::now() < until) {
            std::thread::yield_now();
            next = socket.receive(&mut buffer.bytes, &mut buffer.gro);
        }
        if wait_until.is_some() && matches!(next, Err(Errno::EAGAIN)) {
            // `UDP_GRO` makes such a wait unnecessary: one call returns both datagrams.
            socket.enable_gro(&mut buffer.gro);
        }
        let mut next = Some(next);
        let is_next_ack = |next: &mut Result<Received, Errno>| {
            next.as_ref().is_ok_and(|next| is_ack(&buffer.bytes[..next.len]))
        };
        if let Some(ack) = next.take_if(is_next_ack) {
            self.process_received(now, local, None, ack);
        }
        self.rx_buffer.swap();
        self.process_received(now, local, None, received);
        if let Some(next) = next {
            self.rx_buffer.swap();
            self.process_received(now, local, None, next);
        }
        true
    }

    /// Returns whether the NIC must look for an acknowledgement in the socket and handle it before
    /// this datagram. False for a run, which contains its acknowledgement.
    fn may_overtake_ack(&self, received: &Received) -> bool {
        received.segment_len.is_none_or(|len| len >= received.len)
            && self.datagram_may_overtake_ack(received.len)
    }

    /// Returns whether the next datagram may be an acknowledgement that the NIC must handle before
    /// the datagram of `len` bytes in the buffer.
    pub(super) fn datagram_may_overtake_ack(&self, len: usize) -> bool {
        let datagram = &self.rx_buffer.bytes[..len];
        datagram.len() > ICRC_LEN
            && opcode::completes_receive(datagram[0])
            && Packet::parse(&datagram[..datagram.len() - ICRC_LEN])
                .is_ok_and(|packet| self.nic.may_overtake_ack(&packet))
    }

    /// Processes the result of a receive call on the socket that is bound to `local`. Returns false
    /// if the socket was empty.
    pub(crate) fn process_received(
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
                // An example is an ICMP error for a datagram that was sent earlier. Retransmission
                // recovers the lost datagram.
                self.driver_counters.rx_errors += u64::from(!self.read_socket_errors());
                return true;
            }
        };
        let destination = Destination { local, group };
        let buffer = std::mem::take(&mut self.rx_buffer.bytes);
        let bytes = &buffer[..received.len];
        let segment_len = received.segment_len.unwrap_or(received.len).max(1);
        self.driver_counters.rx_runs += u64::from(segment_len < received.len);
        let mut datagrams = bytes.chunks(segment_len).enumerate();
        // The NIC handles an acknowledgement before the requests that precede it, because the
        // program posted the acknowledged requests before its answers to those requests.
        if is_ack_behind_requests(bytes, segment_len)
            && let Some((index, ack)) = datagrams.next_back()
        {
            self.process_datagram(now, &received, destination, ack, index as u16);
        }
        for (index, datagram) in datagrams {
            self.process_datagram(now, &received, destination, datagram, index as u16);
        }
        if bytes.is_empty() {
            self.process_datagram(now, &received, destination, &[], 0);
        }
        self.rx_buffer.bytes = buffer;
        true
    }

    /// Checks a datagram, which is at position `index` of a `UDP_GRO` run, and executes its packet.
    fn process_datagram(
        &mut self,
        now: Time,
        received: &Received,
        destination: Destination,
        datagram: &[u8],
        index: u16,
    ) {
        self.driver_counters.rx_datagrams += 1;
        self.driver_counters.rx_bytes += datagram.len() as u64;
        let from = received.from;
        let path = self.paths.rx(from, destination.local);
        let peer = IpPath { address: path.gid, traffic_class: received.traffic_class };
        let check = path.check(datagram, index);
        if let Some(capture) = &mut self.capture {
            let ident = if let IcrcCheck::Good { ident, .. } = check { ident } else { index };
            capture.packet(from, destination.local, ident, datagram);
        }
        match check {
            IcrcCheck::Good { solved, .. } => self.driver_counters.rx_icrc_solved += u64::from(solved),
            IcrcCheck::Bad => {
                self.driver_counters.rx_icrc_bad += 1;
                return;
            }
            IcrcCheck::TooShort => {
                // By an empty datagram, another NIC of this host asks whether the process lives
                // (`send_probes`).
                self.driver_counters.rx_malformed += u64::from(!datagram.is_empty());
                return;
            }
        }
        self.process_packet(now, peer, destination.group, datagram);
    }

    /// Executes the packet of a datagram, whose ICRC was checked.
    pub(super) fn process_packet(&mut self, now: Time, peer: IpPath, group: Option<Gid>, datagram: &[u8]) {
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
