//! The transmit path: from the transport through fault injection and the ICRC to the socket, in as
//! few system calls as possible. [`shared_memory_io`](super::shared_memory_io) sends to the NICs of
//! this host, and [`stalls`](super::stalls) to those whose rings are full.

use mitra_transport::TxBatch;
use mitra_transport::fault::{TapResult, Verdict};
use mitra_verbs::{Gid, Time};
use mitra_wire::{ICRC_LEN, Packet};
use nix::errno::Errno;

use crate::Offload;
use crate::delay_queue::Direction;
use crate::engine::Engine;
use crate::engine::stalls::Stalls;
use crate::udp_socket::{ACK_LEN, MAX_GSO_SEGMENTS, MAX_SENDMMSG, MAX_UDP_PAYLOAD};

/// A run of two datagrams shorter than this, in bytes, is sent as two datagrams, unless the second
/// is an ACK.
///
/// If the datagrams are sent separately, the first is on the wire while the second is prepared. In
/// a run, the receiving kernel must split the run, which costs more than a second send call. An
/// 8-byte WRITE with a completion log takes 1.2 times as long as without a log if the datagrams are
/// sent separately, and 1.35 times as long in a run. A receiver of a request and an ACK waits for
/// both, so a run is faster for this pair (`ib_send_lat`: 3.5 µs instead of 4.2 µs).
const MIN_PAIR_LEN: usize = 1000;

/// Packets that the transport has produced and the socket has not yet taken.
pub(crate) struct TxQueue {
    pub(super) batch: TxBatch,
    /// The index of the first datagram of the batch that is not sent.
    pub(super) next: usize,
    /// Whether the NIC uses `UDP_SEGMENT`. Cleared if the kernel rejects it.
    use_gso: bool,
    /// The number of send calls in a row that have reported an ICMP message about an earlier
    /// datagram.
    icmp_errors: u32,
    /// The decision of fault injection about the next datagram, if that has met a full ring.
    pub(super) tap: Option<TapResult>,
    /// The datagrams of peers whose rings are full.
    pub(super) stalls: Stalls,
}

/// The maximum number of send calls that are repeated because they have reported ICMP messages
/// about earlier datagrams.
const MAX_ICMP_ERRORS: u32 = 4;

impl TxQueue {
    pub(crate) fn new(offload: Offload) -> TxQueue {
        TxQueue {
            batch: TxBatch::new(),
            next: 0,
            use_gso: offload == Offload::Auto,
            icmp_errors: 0,
            tap: None,
            stalls: Stalls::default(),
        }
    }

    /// Returns whether a datagram of the batch is not sent. After [`Engine::transmit`], such a
    /// datagram waits for space in the socket's send buffer.
    pub(crate) fn is_blocked(&self) -> bool {
        self.next < self.batch.ends.len()
    }

    /// Returns whether datagrams wait for space in a ring.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.stalls.is_empty()
    }
}

pub(super) enum SendResult {
    /// The number of datagrams to remove from the queue, because the kernel has taken them or they
    /// are lost.
    Consumed(usize),
    /// The socket's send buffer is full.
    Blocked,
    /// The ring to the destination is full, or not there yet.
    Stalled,
}

impl Engine {
    /// Sends all packets that the transport can send now, until the socket blocks.
    pub(crate) fn transmit(&mut self, now: Time) {
        if self.socket.is_none() {
            return;
        }
        let mut stalled = self.tx_queue.stalls.len();
        loop {
            while self.tx_queue.is_blocked() {
                let result =
                    if self.faults.is_idle() { self.send_next(now) } else { self.send_next_with_faults(now) };
                match result {
                    SendResult::Consumed(count) => self.tx_queue.next += count,
                    SendResult::Blocked => {
                        self.driver_counters.tx_blocked += 1;
                        return;
                    }
                    SendResult::Stalled => self.stall(now),
                }
            }
            self.end_stall(now);
            self.tx_queue.batch.clear();
            (self.tx_queue.next, self.tx_queue.tap) = (0, None);
            if stalled > 0 {
                stalled -= 1;
                self.resume_stalled();
                continue;
            }
            if !self.nic.poll_transmit(now, &mut self.memory, &mut self.tx_queue.batch) {
                return;
            }
            self.drop_for_stopped_peer();
        }
    }

    /// Sends the next datagrams of the queue with one system call: a GSO run, a `sendmmsg` batch or
    /// a single datagram.
    fn send_next(&mut self, now: Time) -> SendResult {
        if let Some(result) = self.send_by_link(now) {
            return result;
        }
        let Some(socket) = &self.socket else { return SendResult::Blocked };
        let TxQueue { batch, next, use_gso, icmp_errors, .. } = &mut self.tx_queue;
        let path = self.paths.tx(batch.destination);
        socket.set_traffic_class(batch.traffic_class);
        let ends = &batch.ends[*next..];
        let start = datagram_start(&batch.ends, *next);
        let (mut count, segment_len) = gso_run(start, ends);
        if count == 2 && segment_len < MIN_PAIR_LEN && (ends[1] - ends[0]) as usize != ACK_LEN {
            count = 1;
        }
        if !*use_gso {
            count = ends.len().min(MAX_SENDMMSG);
        }
        let mut from = start;
        for (index, &end) in ends[..count].iter().enumerate() {
            let ident = if *use_gso { index as u16 } else { 0 };
            path.icrc.seal(&mut batch.bytes[from..end as usize], ident);
            from = end as usize;
        }
        let sent = if count == 1 {
            socket.send(&batch.bytes[start..from], &path.socket_address).map(|()| 1)
        } else if *use_gso {
            let run = &batch.bytes[start..from];
            socket.send_gso(run, segment_len as u16, &path.socket_address).map(|()| count)
        } else {
            let datagrams = ends[..count].iter().scan(start, |from, &end| {
                let start = std::mem::replace(from, end as usize);
                Some(&batch.bytes[start..end as usize])
            });
            socket.send_mmsg(datagrams, &path.socket_address)
        };
        match sent {
            Ok(count) => {
                *icmp_errors = 0;
                self.driver_counters.tx_datagrams += count as u64;
                self.driver_counters.tx_bytes += (ends[count - 1] as usize - start) as u64;
                self.driver_counters.tx_runs += u64::from(*use_gso && count > 1);
                if let Some(capture) = &mut self.capture {
                    let mut from = start;
                    for (index, &end) in ends[..count].iter().enumerate() {
                        let ident = if *use_gso { index as u16 } else { 0 };
                        let datagram = &batch.bytes[from..end as usize];
                        capture.packet(socket.address(), path.address, ident, datagram);
                        from = end as usize;
                    }
                }
                SendResult::Consumed(count)
            }
            Err(Errno::EAGAIN) => SendResult::Blocked,
            Err(Errno::EINTR) => SendResult::Consumed(0),
            Err(error) => self.on_send_error(error, count),
        }
    }

    fn on_send_error(&mut self, error: Errno, count: usize) -> SendResult {
        if self.is_about_earlier_datagram() {
            return SendResult::Consumed(0);
        }
        let use_gso = &mut self.tx_queue.use_gso;
        let is_refused_run =
            matches!(error, Errno::EINVAL | Errno::EIO | Errno::EOPNOTSUPP | Errno::ENOPROTOOPT);
        if is_refused_run && *use_gso && count > 1 {
            *use_gso = false;
            return SendResult::Consumed(0);
        }
        let count = if *use_gso { count } else { 1 };
        self.driver_counters.tx_errors += count as u64;
        SendResult::Consumed(count)
    }

    /// Returns whether a send call has failed because of an ICMP message about an earlier datagram,
    /// perhaps to another peer. The call is then to be repeated.
    fn is_about_earlier_datagram(&mut self) -> bool {
        self.tx_queue.icmp_errors += 1;
        let is_repeated = self.read_socket_errors() && self.tx_queue.icmp_errors <= MAX_ICMP_ERRORS;
        if !is_repeated {
            self.tx_queue.icmp_errors = 0;
        }
        is_repeated
    }

    fn send_next_with_faults(&mut self, now: Time) -> SendResult {
        let start = datagram_start(&self.tx_queue.batch.ends, self.tx_queue.next);
        let end = self.tx_queue.batch.ends[self.tx_queue.next] as usize;
        let (peer, class) = (self.tx_queue.batch.destination, self.tx_queue.batch.traffic_class);
        let mut datagram = self.tx_queue.batch.bytes[start..end].to_vec();
        let Ok(packet) = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]) else {
            debug_assert!(false, "the transport emits well-formed packets");
            return SendResult::Consumed(1);
        };
        let mut tap = self.tx_queue.tap.take().unwrap_or_else(|| self.faults.transmit(&packet));
        let flip = if let Verdict::Corrupt(bit) = tap.verdict { Some(bit) } else { None };
        match tap.verdict {
            Verdict::Pass | Verdict::Corrupt(_) | Verdict::Duplicate => {
                if !self.send_one(now, peer, class, &mut datagram, flip) {
                    self.tx_queue.tap = Some(tap);
                    return SendResult::Stalled;
                }
                self.driver_counters.fault_corrupted += u64::from(flip.is_some());
                if tap.verdict == Verdict::Duplicate {
                    self.driver_counters.fault_duplicated += 1;
                    if !self.send_one(now, peer, class, &mut datagram, None) {
                        // The first copy is sent.
                        tap.verdict = Verdict::Pass;
                        self.tx_queue.tap = Some(tap);
                        return SendResult::Stalled;
                    }
                }
            }
            Verdict::Drop => self.driver_counters.fault_dropped += 1,
            Verdict::Delay(by) => {
                match self.delay_queue.push(now + by, Direction::Transmit(class), peer, &datagram) {
                    true => self.driver_counters.fault_delayed += 1,
                    false => self.driver_counters.fault_dropped += 1,
                }
            }
        }
        self.handle_failure(tap.failure);
        SendResult::Consumed(1)
    }

    /// Sets the ICRC of a datagram, flips one of its bits if `flip` is set, and sends it. If the
    /// socket does not take the datagram, the datagram is lost. Returns false if it met a full
    /// ring, and is still to be sent.
    pub(crate) fn send_one(
        &mut self,
        now: Time,
        peer: Gid,
        traffic_class: u8,
        datagram: &mut [u8],
        flip: Option<u32>,
    ) -> bool {
        self.paths.tx(peer).icrc.seal(datagram, 0);
        if let Some(bit) = flip {
            flip_bit(datagram, bit);
        }
        match self.send_one_by_link(now, peer, traffic_class, datagram) {
            None => {}
            Some(SendResult::Stalled) => return false,
            Some(SendResult::Consumed(_) | SendResult::Blocked) => return true,
        }
        let Some(socket) = &self.socket else { return true };
        socket.set_traffic_class(traffic_class);
        let path = self.paths.tx(peer);
        let mut sent = socket.send(datagram, &path.socket_address);
        let (local, address, socket_address) = (socket.address(), path.address, path.socket_address);
        while sent.is_err_and(|error| error != Errno::EAGAIN) && self.is_about_earlier_datagram() {
            let Some(socket) = &self.socket else { return true };
            sent = socket.send(datagram, &socket_address);
        }
        match sent {
            Ok(()) => {
                self.driver_counters.tx_datagrams += 1;
                self.driver_counters.tx_bytes += datagram.len() as u64;
                if let Some(capture) = &mut self.capture {
                    capture.packet(local, address, 0, datagram);
                }
            }
            Err(_) => self.driver_counters.tx_errors += 1,
        }
        true
    }
}

pub(crate) fn flip_bit(datagram: &mut [u8], bit: u32) {
    let bit = bit as usize % (datagram.len() * 8);
    datagram[bit / 8] ^= 1 << (bit % 8);
}

/// Returns the offset of a datagram, from the end offsets of all datagrams.
pub(super) fn datagram_start(ends: &[u32], index: usize) -> usize {
    index.checked_sub(1).map_or(0, |previous| ends[previous] as usize)
}

/// Returns the number of datagrams that form a GSO run, beginning at the offset `start`, and the
/// length of each. All datagrams of a run have the same length, except that the last may be shorter
/// (`udp(7)`).
fn gso_run(start: usize, ends: &[u32]) -> (usize, usize) {
    let segment_len = ends[0] as usize - start;
    let mut count = 1;
    while count < ends.len().min(MAX_GSO_SEGMENTS) {
        let len = (ends[count] - ends[count - 1]) as usize;
        if len > segment_len || ends[count] as usize - start > MAX_UDP_PAYLOAD {
            break;
        }
        count += 1;
        if len < segment_len {
            break;
        }
    }
    (count, segment_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_into_runs(lens: &[u32]) -> Vec<usize> {
        let ends: Vec<u32> = lens
            .iter()
            .scan(0, |end, len| {
                *end += len;
                Some(*end)
            })
            .collect();
        let (mut at, mut counts) = (0, Vec::new());
        while at < ends.len() {
            let (count, segment_len) = gso_run(datagram_start(&ends, at), &ends[at..]);
            assert_eq!(segment_len, lens[at] as usize);
            counts.push(count);
            at += count;
        }
        counts
    }

    #[test]
    fn longer_datagram_begins_run_and_shorter_datagram_ends_it() {
        assert_eq!(split_into_runs(&[4132, 4116, 4116, 4116, 1000]), [2, 3]);
        assert_eq!(split_into_runs(&[4132, 4116, 4116, 20, 4132, 20]), [2, 2, 2]);
    }

    #[test]
    fn small_equal_datagrams_form_one_run() {
        assert_eq!(split_into_runs(&[40; 10]), [10]);
        assert_eq!(split_into_runs(&[40; 100]), [64, 36]);
        assert_eq!(split_into_runs(&[40, 40, 36, 40]), [3, 1]);
        assert_eq!(split_into_runs(&[36, 40, 40]), [1, 2]);
    }

    #[test]
    fn run_fits_udp_payload() {
        assert_eq!(split_into_runs(&[4116; 20]), [15, 5]);
    }

    #[test]
    fn bit_flips_stay_inside_datagram() {
        let mut datagram = [0; 5];
        flip_bit(&mut datagram, 43);
        assert_eq!(datagram, [8, 0, 0, 0, 0]);
        flip_bit(&mut datagram, u32::MAX);
        assert_eq!(datagram.iter().map(|b| b.count_ones()).sum::<u32>(), 2);
    }
}
