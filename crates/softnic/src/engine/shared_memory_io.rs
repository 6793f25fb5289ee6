//! Datagrams through shared memory: sending the packets of the transport, and receiving those of
//! other NICs of this host.

use std::net::{IpAddr, SocketAddr};

use mitra_transport::IpPath;
use mitra_verbs::{Gid, Time};
use mitra_wire::{ICRC_LEN, ROCE_PORT};

use super::Engine;
use super::receive::is_ack;
use super::transmit::{SendResult, TxQueue, datagram_start};
use crate::path_cache::IcrcCheck;
use crate::progress::MAX_RECEIVES_LATE_TIMER;
use crate::shared_memory::{Broken, OutgoingLink, Record, Route, readable};

/// The largest number of datagrams that one round takes from a link.
const MAX_RECORDS: u32 = 64;

/// The bytes of a long batch that wait for those behind them.
const MAX_HIDDEN: usize = 16 << 10;

/// The largest number of attempts to send a probe.
const MAX_ATTEMPTS: u32 = 8;

/// The result of adding datagrams to a link.
#[derive(Default)]
struct Pushes {
    /// The number of datagrams that were sent, the first ones.
    sent: usize,
    is_full: bool,
    is_broken: bool,
}

/// Adds datagrams to a link, and makes them visible to the receiver, which reads the first while
/// this end adds the last.
fn push_all<'a>(
    link: &mut OutgoingLink,
    now: Time,
    (traffic_class, is_sealed): (u8, bool),
    mut datagrams: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Pushes {
    let mut pushes = Pushes::default();
    let mut hidden = 0;
    while let Some(datagram) = datagrams.next() {
        match link.push(now, Record { len: datagram.len(), traffic_class, is_sealed }, datagram) {
            Ok(true) => pushes.sent += 1,
            Ok(false) => pushes.is_full = true,
            Err(Broken) => pushes.is_broken = true,
        }
        if pushes.is_full || pushes.is_broken {
            break;
        }
        hidden += datagram.len();
        // An acknowledgement becomes visible together with the request in front of it.
        if hidden >= MAX_HIDDEN && datagrams.len() >= 2 {
            hidden = 0;
            pushes.is_broken |= link.publish().is_err();
        }
    }
    pushes.is_broken |= link.publish().is_err();
    pushes
}

impl Engine {
    /// Sends the datagrams of the transmit queue through shared memory. Returns `None` if they go
    /// over UDP.
    pub(super) fn send_by_link(&mut self, now: Time) -> Option<SendResult> {
        let TxQueue { batch, next, .. } = &mut self.tx_queue;
        let (peer, count) = (batch.destination, batch.ends.len() - *next);
        let link = match self.links.route(peer, now) {
            Route::Link(link) => link,
            Route::Udp => return None,
            Route::Later => return Some(SendResult::Stalled),
            Route::None => {
                self.driver_counters.tx_errors += count as u64;
                return Some(SendResult::Consumed(count));
            }
        };
        if !self.is_interface_up {
            self.driver_counters.tx_errors += count as u64;
            return Some(SendResult::Consumed(count));
        }
        let start = datagram_start(&batch.ends, *next);
        let mut from = start;
        let datagrams = batch.ends[*next..].iter().map(|&end| {
            let start = std::mem::replace(&mut from, end as usize);
            &batch.bytes[start..end as usize]
        });
        let pushes = push_all(link, now, (batch.traffic_class, false), datagrams);
        let sent = *next..*next + pushes.sent;
        let end = batch.ends[sent.clone()].last().map_or(start, |end| *end as usize);
        self.driver_counters.tx_bytes += (end - start) as u64;
        if let (Some(capture), Some(socket)) = (&mut self.capture, &self.socket) {
            let path = self.paths.tx(peer);
            for index in sent {
                let datagram =
                    &mut batch.bytes[datagram_start(&batch.ends, index)..batch.ends[index] as usize];
                path.icrc.seal(datagram, 0);
                capture.packet(socket.address(), path.address, 0, datagram);
            }
        }
        Some(self.after_push(now, peer, &pushes))
    }

    /// Sends one sealed datagram through shared memory. Returns `None` if it goes over UDP.
    pub(super) fn send_one_by_link(
        &mut self,
        now: Time,
        peer: Gid,
        traffic_class: u8,
        datagram: &[u8],
    ) -> Option<SendResult> {
        let link = match self.links.route(peer, now) {
            Route::Link(link) => link,
            Route::Udp => return None,
            Route::Later => return Some(SendResult::Stalled),
            Route::None => {
                self.driver_counters.tx_errors += 1;
                return Some(SendResult::Consumed(1));
            }
        };
        if !self.is_interface_up {
            self.driver_counters.tx_errors += 1;
            return Some(SendResult::Consumed(1));
        }
        let pushes = push_all(link, now, (traffic_class, true), core::iter::once(datagram));
        if pushes.sent > 0 {
            self.driver_counters.tx_bytes += datagram.len() as u64;
            if let (Some(capture), Some(socket)) = (&mut self.capture, &self.socket) {
                capture.packet(socket.address(), self.paths.tx(peer).address, 0, datagram);
            }
        }
        Some(self.after_push(now, peer, &pushes))
    }

    fn after_push(&mut self, now: Time, peer: Gid, pushes: &Pushes) -> SendResult {
        self.driver_counters.tx_datagrams += pushes.sent as u64;
        self.driver_counters.tx_shared_memory += pushes.sent as u64;
        if pushes.is_broken {
            // The remaining datagrams go over UDP.
            self.links.close(peer, now);
        }
        match pushes.sent {
            0 if pushes.is_full && !pushes.is_broken => SendResult::Stalled,
            count => SendResult::Consumed(count),
        }
    }

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
        let Some(record) = self.links.pop(index, self.rx_buffer.bytes_mut())? else { return Ok(0) };
        let peer = self.links.sender_of(index);
        if !self.datagram_may_overtake_ack(record.len) {
            self.process_record(now, peer, record);
            return Ok(1);
        }
        // The sender has made both visible at once.
        self.rx_buffer.swap();
        let next = self.links.pop(index, self.rx_buffer.bytes_mut());
        let Ok(Some(next)) = next else {
            self.rx_buffer.swap();
            self.process_record(now, peer, record);
            return next.map(|_| 1);
        };
        let is_next_first = is_ack(&self.rx_buffer.bytes_mut()[..next.len]);
        if is_next_first {
            self.process_record(now, peer, next);
        }
        self.rx_buffer.swap();
        self.process_record(now, peer, record);
        if !is_next_first {
            self.rx_buffer.swap();
            self.process_record(now, peer, next);
        }
        Ok(2)
    }

    fn process_record(&mut self, now: Time, from: Gid, record: Record) {
        let Some(socket) = &self.socket else { return };
        if !self.is_interface_up {
            return;
        }
        let local = socket.address();
        let traffic_class = if socket.receives_traffic_classes() { record.traffic_class } else { 0 };
        self.driver_counters.rx_datagrams += 1;
        self.driver_counters.rx_shared_memory += 1;
        self.driver_counters.rx_bytes += record.len as u64;
        let mut buffer = self.rx_buffer.take();
        let datagram = &mut buffer[..record.len];
        let address = SocketAddr::new(IpAddr::from(from), ROCE_PORT);
        let is_good = if record.len <= ICRC_LEN {
            self.driver_counters.rx_malformed += 1;
            false
        } else if record.is_sealed {
            let is_good = self.paths.rx(address, local).check(datagram, 0) != IcrcCheck::Bad;
            self.driver_counters.rx_icrc_bad += u64::from(!is_good);
            is_good
        } else {
            true
        };
        if let Some(capture) = &mut self.capture {
            if !record.is_sealed && is_good {
                self.paths.rx(address, local).seal(datagram);
            }
            capture.packet(address, local, 0, datagram);
        }
        if is_good {
            let peer = IpPath { address: from, traffic_class };
            self.process_packet(now, peer, None, datagram);
        }
        self.rx_buffer.put_back(buffer);
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
