//! Receiving from the socket. What a datagram does then is in [`process`](super::process).

use core::time::Duration;

use mitra_verbs::Time;
use mitra_wire::{ICRC_LEN, Packet, opcode};
use nix::errno::Errno;

use crate::Offload;
use crate::clock;
use crate::engine::Engine;
use crate::gro_policy::GroPolicy;
use crate::udp_socket::Received;

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

    /// Returns the buffer for a receive call. [`Engine::process`] reads the data from it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
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
        let received = match received {
            Ok(received) => received,
            Err(error) => return self.handle_receive_error(error),
        };
        if !self.may_overtake_ack(&received) {
            self.rx_buffer.overtakers = 0;
            self.process(now, local, None, &received);
            return true;
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
        match next {
            Ok(next) => self.process_two(now, local, &received, &next),
            Err(error) => {
                self.rx_buffer.swap();
                self.process(now, local, None, &received);
                self.handle_receive_error(error);
            }
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

    /// Handles the error of a receive call. Returns false if the socket was empty.
    pub(super) fn handle_receive_error(&mut self, error: Errno) -> bool {
        if error == Errno::EAGAIN {
            return false;
        }
        // An example is an ICMP error for a datagram that was sent earlier. Retransmission recovers
        // the lost datagram.
        self.driver_counters.rx_errors += u64::from(!self.read_socket_errors());
        true
    }
}
