//! The transmit path: from the transport through fault injection to the ring of a NIC of this host,
//! or through the ICRC to the socket, in as few system calls as possible. [`stalls`](super::stalls)
//! holds what waits for rings with room.

use mitra_transport::TxBatch;
use mitra_transport::fault::{TapResult, Verdict};
use mitra_verbs::{Gid, Time};
use mitra_wire::{ICRC_LEN, Packet};
use nix::errno::Errno;

use crate::Offload;
use crate::delay_queue::Direction;
use crate::engine::Engine;
use crate::engine::stalls::Stalls;
use crate::shared_memory::{Broken, OutgoingLink, Record, Route};
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

/// The bytes of a long batch that wait for those behind them.
const MAX_HIDDEN: usize = 16 << 10;

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
    /// Sends all packets that the transport can send now, until the socket blocks.
    pub(crate) fn transmit(&mut self, now: Time) {
        if self.socket.is_none() {
            return;
        }
        let mut stalled = self.tx_queue.stalls.len();
        loop {
            while self.tx_queue.is_blocked() {
                let result = if self.faults.is_idle() {
                    self.tx_queue.tap = None;
                    self.send_next(now, None)
                } else {
                    self.send_next_with_faults(now)
                };
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

    /// Sends the next datagrams of the queue: into the ring of the peer, or over UDP. Flips a bit
    /// of the first if `flip` is set.
    fn send_next(&mut self, now: Time, flip: Option<u32>) -> SendResult {
        let TxQueue { batch, next, .. } = &mut self.tx_queue;
        let count = batch.ends.len() - *next;
        let link = match self.links.route(batch.destination, now) {
            Route::Link(link) if self.is_interface_up => link,
            Route::Udp => return self.send_by_udp(flip),
            Route::Later => return SendResult::Stalled,
            Route::Link(_) | Route::None => {
                self.driver_counters.tx_errors += count as u64;
                return SendResult::Consumed(count);
            }
        };
        let mut from = datagram_start(&batch.ends, *next);
        if let Some(bit) = flip {
            let datagram = &mut batch.bytes[from..batch.ends[*next] as usize];
            self.paths.tx(batch.destination).icrc.seal(datagram, 0);
            flip_bit(datagram, bit);
        }
        let datagrams = batch.ends[*next..].iter().map(|&end| {
            let start = std::mem::replace(&mut from, end as usize);
            &batch.bytes[start..end as usize]
        });
        let Pushes { sent, is_full, is_broken } =
            push_all(link, now, (batch.traffic_class, flip.is_some()), datagrams);
        if is_broken {
            // The remaining datagrams go over UDP.
            self.links.close(batch.destination, now);
        }
        self.driver_counters.tx_shared_memory += sent as u64;
        if sent == 0 && is_full && !is_broken {
            return SendResult::Stalled;
        }
        self.record_sent(sent, false, flip.is_some());
        SendResult::Consumed(sent)
    }

    /// Sends the next datagrams of the queue with one system call: a GSO run, a `sendmmsg` batch or
    /// a single datagram.
    fn send_by_udp(&mut self, flip: Option<u32>) -> SendResult {
        let Some(socket) = &self.socket else { return SendResult::Blocked };
        let TxQueue { batch, next, use_gso, icmp_errors, .. } = &mut self.tx_queue;
        let use_gso = *use_gso;
        let path = self.paths.tx(batch.destination);
        socket.set_traffic_class(batch.traffic_class);
        let ends = &batch.ends[*next..];
        let start = datagram_start(&batch.ends, *next);
        let (mut count, segment_len) = gso_run(start, ends);
        if count == 2 && segment_len < MIN_PAIR_LEN && (ends[1] - ends[0]) as usize != ACK_LEN {
            count = 1;
        }
        if !use_gso {
            count = ends.len().min(MAX_SENDMMSG);
        }
        let mut from = start;
        for (index, &end) in ends[..count].iter().enumerate() {
            let ident = if use_gso { index as u16 } else { 0 };
            path.icrc.seal(&mut batch.bytes[from..end as usize], ident);
            from = end as usize;
        }
        if let Some(bit) = flip {
            flip_bit(&mut batch.bytes[start..ends[0] as usize], bit);
        }
        let sent = if count == 1 {
            socket.send(&batch.bytes[start..from], &path.socket_address).map(|()| 1)
        } else if use_gso {
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
                self.driver_counters.tx_runs += u64::from(use_gso && count > 1);
                self.record_sent(count, use_gso, true);
                SendResult::Consumed(count)
            }
            Err(Errno::EAGAIN) => SendResult::Blocked,
            Err(Errno::EINTR) => SendResult::Consumed(0),
            Err(error) => self.on_send_error(error, count),
        }
    }

    /// Counts and captures the first `count` datagrams of the queue, which a carrier has taken.
    /// With `has_idents`, the IPv4 identification of each is its position.
    fn record_sent(&mut self, count: usize, has_idents: bool, is_sealed: bool) {
        let TxQueue { batch, next, .. } = &mut self.tx_queue;
        let mut from = datagram_start(&batch.ends, *next);
        let ends = &batch.ends[*next..*next + count];
        let bytes = ends.last().map_or(0, |&end| end as usize - from);
        self.driver_counters.tx_datagrams += count as u64;
        self.driver_counters.tx_bytes += bytes as u64;
        let (Some(capture), Some(socket)) = (&mut self.capture, &self.socket) else { return };
        let path = self.paths.tx(batch.destination);
        for (index, &end) in ends.iter().enumerate() {
            let ident = if has_idents { index as u16 } else { 0 };
            let datagram = &mut batch.bytes[std::mem::replace(&mut from, end as usize)..end as usize];
            if !is_sealed {
                path.icrc.seal(datagram, ident);
            }
            capture.packet(socket.address(), path.address, ident, datagram);
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
        let TxQueue { batch, next, tap, .. } = &mut self.tx_queue;
        let (start, end) = (datagram_start(&batch.ends, *next), batch.ends[*next] as usize);
        let (peer, class) = (batch.destination, batch.traffic_class);
        let datagram = batch.bytes[start..end].to_vec();
        let Ok(packet) = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]) else {
            debug_assert!(false, "the transport emits well-formed packets");
            return SendResult::Consumed(1);
        };
        let mut tap = tap.take().unwrap_or_else(|| self.faults.transmit(&packet));
        let flip = if let Verdict::Corrupt(bit) = tap.verdict { Some(bit) } else { None };
        match tap.verdict {
            Verdict::Pass | Verdict::Corrupt(_) | Verdict::Duplicate => {
                let copies = if tap.verdict == Verdict::Duplicate { 2 } else { 1 };
                for copy in 0..copies {
                    let result = self.send_one(now, peer, class, &datagram, flip);
                    // A NIC that this packet has killed sends nothing later.
                    if !matches!(result, SendResult::Consumed(_)) && self.faults.dma_ok() {
                        if copy > 0 {
                            // The first copy is sent.
                            tap.verdict = Verdict::Pass;
                        }
                        self.tx_queue.tap = Some(tap);
                        return result;
                    }
                    if copy == 0 {
                        self.driver_counters.fault_corrupted += u64::from(flip.is_some());
                        self.driver_counters.fault_duplicated += u64::from(copies > 1);
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

    /// Sends one datagram, whose ICRC is not set, in front of the queue. Flips one of its bits if
    /// `flip` is set. Unless the result is [`SendResult::Consumed`], the datagram is still to be
    /// sent.
    pub(super) fn send_one(
        &mut self,
        now: Time,
        peer: Gid,
        traffic_class: u8,
        datagram: &[u8],
        flip: Option<u32>,
    ) -> SendResult {
        let ends = vec![datagram.len() as u32];
        let single = TxBatch { destination: peer, traffic_class, bytes: datagram.to_vec(), ends };
        let queued = std::mem::replace(&mut self.tx_queue.batch, single);
        let next = std::mem::take(&mut self.tx_queue.next);
        let result = loop {
            match self.send_next(now, flip) {
                SendResult::Consumed(0) => {}
                result => break result,
            }
        };
        (self.tx_queue.batch, self.tx_queue.next) = (queued, next);
        result
    }
}

pub(crate) fn flip_bit(datagram: &mut [u8], bit: u32) {
    let bit = bit as usize % (datagram.len() * 8);
    datagram[bit / 8] ^= 1 << (bit % 8);
}

/// Returns the offset of a datagram, from the end offsets of all datagrams.
fn datagram_start(ends: &[u32], index: usize) -> usize {
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
