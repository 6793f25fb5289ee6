//! Receiving from the rings of other NICs of this host, and the care for the links. What a datagram
//! does then is in [`process`](super::process).

use std::net::{IpAddr, SocketAddr};

use mitra_verbs::Time;
use mitra_wire::ROCE_PORT;

use super::Engine;
use crate::progress::MAX_RECEIVES_LATE_TIMER;
use crate::shared_memory::{Broken, Record, readable};
use crate::udp_socket::{Carrier, Received};

/// The largest number of datagrams that one round takes from a link.
const MAX_RECORDS: u32 = 64;

/// The largest number of attempts to send a probe.
const MAX_ATTEMPTS: u32 = 8;

impl Engine {
    /// Receives from the links of other NICs. Returns the number of datagrams.
    pub(crate) fn receive_from_links(&mut self, now: Time) -> u32 {
        let mut received = 0;
        let mut index = 0;
        // An older link of a peer is read before its newer one.
        while index < self.links.incoming_count() {
            if self.links.begins(index) {
                let from_socket = self.empty_socket(now);
                received += from_socket;
                if from_socket == MAX_RECEIVES_LATE_TIMER {
                    index += 1;
                    continue;
                }
                self.links.begin(index);
            }
            let mut from_link = 0;
            let mut is_finished = false;
            while from_link < MAX_RECORDS && !is_finished {
                match self.receive_record(now, index) {
                    Ok(0) if self.links.is_closed(index) => is_finished = true,
                    Ok(0) => break,
                    Ok(count) => from_link += count,
                    Err(Broken) => {
                        self.driver_counters.rx_malformed += 1;
                        is_finished = true;
                    }
                }
            }
            received += from_link;
            self.links.wake_waiting_sender(index);
            match is_finished {
                true => self.links.close_incoming(index),
                false => index += 1,
            }
        }
        received
    }

    /// Handles the events of the links if the last look at their descriptors was long ago.
    pub(crate) fn look_at_links(&mut self, now: Time) {
        if self.progress.begin_link_look(now) {
            let descriptors = self.links.descriptors(now);
            self.links.handle_events(&readable(&descriptors), now);
        }
    }

    /// Receives from the links until they are empty, or one round of many has passed.
    pub(super) fn empty_links(&mut self, now: Time) -> u32 {
        let mut received = 0;
        for _ in 0..MAX_RECEIVES_LATE_TIMER {
            let from_links = self.receive_from_links(now);
            received += from_links;
            if from_links == 0 {
                break;
            }
        }
        received
    }

    /// Receives what waits in the socket, by [`MAX_RECEIVES_LATE_TIMER`] receive calls at most.
    /// Returns the number of receive calls that returned data.
    fn empty_socket(&mut self, now: Time) -> u32 {
        let mut received = 0;
        while received < MAX_RECEIVES_LATE_TIMER && self.receive(now) {
            received += 1;
        }
        received
    }

    /// Receives the next datagram of a link, and the acknowledgement behind it if the NIC must
    /// handle that first. Returns the number of datagrams.
    fn receive_record(&mut self, now: Time, index: usize) -> Result<u32, Broken> {
        let Some(first) = self.pop_record(index)? else { return Ok(0) };
        // A link needs no socket, but the NIC's address is the socket's.
        let Some(local) = self.socket.as_ref().map(|socket| socket.address()) else { return Ok(1) };
        if !self.is_interface_up {
            return Ok(1);
        }
        if !self.datagram_may_overtake_ack(first.len) {
            self.process(now, local, None, &first);
            return Ok(1);
        }
        // The sender has made both visible at once.
        self.rx_buffer.swap();
        match self.pop_record(index) {
            Ok(Some(next)) => {
                self.process_two(now, local, &first, &next);
                Ok(2)
            }
            next => {
                self.rx_buffer.swap();
                self.process(now, local, None, &first);
                next.map(|_| 1)
            }
        }
    }

    /// Takes the next datagram of a link into the buffer.
    fn pop_record(&mut self, index: usize) -> Result<Option<Received>, Broken> {
        let Some(record) = self.links.pop(index, self.rx_buffer.bytes_mut())? else { return Ok(None) };
        let Record { len, traffic_class, is_sealed } = record;
        let shows_class = self.socket.as_ref().is_some_and(|socket| socket.receives_traffic_classes());
        Ok(Some(Received {
            carrier: Carrier::Ring { is_sealed },
            from: SocketAddr::new(IpAddr::from(self.links.sender_of(index)), ROCE_PORT),
            len,
            segment_len: None,
            traffic_class: if shows_class { traffic_class } else { 0 },
        }))
    }

    /// Asks the peers whose links have ended whether their processes have ended, too: the host of
    /// such a process answers "port unreachable" to an empty datagram.
    pub(super) fn send_probes(&mut self, now: Time) {
        while let Some(peer) = self.links.take_probe(now) {
            let address = self.paths.tx(peer).socket_address;
            for _ in 0..MAX_ATTEMPTS {
                let Some(socket) = &self.socket else { return };
                // The call fails if it reports an answer to an earlier datagram.
                if socket.send(&[], &address).is_ok() || !self.read_socket_errors() {
                    break;
                }
            }
        }
    }
}
