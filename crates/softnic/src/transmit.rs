//! The way out: from the state machine to the socket, sealed, in as few system calls as the kernel allows.

use mitra_transport::TxBatch;
use mitra_transport::fault::Verdict;
use mitra_verbs::{Gid, Time};
use mitra_wire::{ICRC_LEN, Packet};
use nix::errno::Errno;

use crate::Offload;
use crate::delayed::Way;
use crate::engine::Engine;
use crate::socket::{ACK_LEN, MAX_DATAGRAM, MAX_MANY, MAX_SEGMENTS};

/// Two datagrams shorter than this go one by one: the first is on its way while the second is prepared, and a kernel
/// that takes a run apart again costs more than a second call (a latency of 8 bytes with a completion log: 1.2 times
/// that of a bare queue pair, against 1.35). Not if the second is an acknowledgement: who gets that with a request waits for both
/// (`ib_send_lat`: 3.5 µs against 4.2).
const PAIR: usize = 1000;

/// Datagrams on their way to the socket.
pub(crate) struct Outbox {
    batch: TxBatch,
    /// The first that has not been sent.
    next: usize,
    /// Whether the kernel takes runs of equal datagrams in one piece.
    runs: bool,
}

impl Outbox {
    pub(crate) fn new(offload: Offload) -> Outbox {
        Outbox { batch: TxBatch::new(), next: 0, runs: offload == Offload::Auto }
    }

    /// Whether the socket's buffer was full and something waits for it.
    pub(crate) fn blocked(&self) -> bool {
        self.next < self.batch.ends.len()
    }
}

/// What became of an attempt to send.
enum Sent {
    /// So many datagrams went, or never will.
    Gone(usize),
    /// The socket's buffer is full.
    Blocked,
}

impl Engine {
    /// Sends all that there is to send now.
    pub(crate) fn transmit(&mut self, now: Time) {
        if self.socket.is_none() {
            return;
        }
        loop {
            while self.outbox.blocked() {
                let sent = if self.faults.is_idle() { self.send_some() } else { self.send_faulty(now) };
                match sent {
                    Sent::Gone(count) => self.outbox.next += count,
                    Sent::Blocked => {
                        self.counts.tx_blocked += 1;
                        return;
                    }
                }
            }
            self.outbox.next = 0;
            if !self.nic.poll_transmit(now, &mut self.memory, &mut self.outbox.batch) {
                return;
            }
        }
    }

    /// Sends the next run of datagrams.
    fn send_some(&mut self) -> Sent {
        let Some(socket) = &self.socket else { return Sent::Blocked };
        let Outbox { batch, next, runs } = &mut self.outbox;
        let path = self.paths.to(batch.destination);
        let ends = &batch.ends[*next..];
        let start = start_of(&batch.ends, *next);
        let (mut count, segment) = run(start, ends);
        if count == 2 && segment < PAIR && (ends[1] - ends[0]) as usize != ACK_LEN {
            count = 1;
        }
        if !*runs {
            count = ends.len().min(MAX_MANY);
        }
        let mut from = start;
        for (index, &end) in ends[..count].iter().enumerate() {
            let ident = if *runs { index as u16 } else { 0 };
            path.icrc.seal(&mut batch.bytes[from..end as usize], ident);
            from = end as usize;
        }
        let sent = if count == 1 {
            socket.send(&batch.bytes[start..from], &path.socket_address).map(|()| 1)
        } else if *runs {
            let run = &batch.bytes[start..from];
            socket.send_run(run, segment as u16, &path.socket_address).map(|()| count)
        } else {
            let datagrams = ends[..count].iter().scan(start, |from, &end| {
                let start = std::mem::replace(from, end as usize);
                Some(&batch.bytes[start..end as usize])
            });
            socket.send_many(datagrams, &path.socket_address)
        };
        match sent {
            Ok(count) => {
                self.counts.tx_datagrams += count as u64;
                self.counts.tx_bytes += (ends[count - 1] as usize - start) as u64;
                self.counts.tx_runs += u64::from(*runs && count > 1);
                if let Some(capture) = &mut self.capture {
                    let mut from = start;
                    for (index, &end) in ends[..count].iter().enumerate() {
                        let ident = if *runs { index as u16 } else { 0 };
                        let datagram = &batch.bytes[from..end as usize];
                        capture.packet(socket.address(), path.address, ident, datagram);
                        from = end as usize;
                    }
                }
                Sent::Gone(count)
            }
            Err(Errno::EAGAIN) => Sent::Blocked,
            Err(Errno::EINTR) => Sent::Gone(0),
            Err(Errno::EINVAL | Errno::EIO | Errno::EOPNOTSUPP | Errno::ENOPROTOOPT)
                if *runs && count > 1 =>
            {
                *runs = false;
                Sent::Gone(0)
            }
            Err(_) => {
                let count = if *runs { count } else { 1 };
                self.counts.tx_errors += count as u64;
                Sent::Gone(count)
            }
        }
    }

    /// Sends the next datagram on a rail with faults, or not.
    fn send_faulty(&mut self, now: Time) -> Sent {
        let start = start_of(&self.outbox.batch.ends, self.outbox.next);
        let end = self.outbox.batch.ends[self.outbox.next] as usize;
        let peer = self.outbox.batch.destination;
        let mut datagram = self.outbox.batch.bytes[start..end].to_vec();
        let Ok(packet) = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]) else {
            debug_assert!(false, "the state machine emits packets");
            return Sent::Gone(1);
        };
        let fate = self.faults.transmit(&packet);
        match fate.verdict {
            Verdict::Pass => self.send_alone(peer, &mut datagram, None),
            Verdict::Drop => self.counts.fault_dropped += 1,
            Verdict::Corrupt(bit) => {
                self.counts.fault_corrupted += 1;
                self.send_alone(peer, &mut datagram, Some(bit));
            }
            Verdict::Duplicate => {
                self.counts.fault_duplicated += 1;
                self.send_alone(peer, &mut datagram, None);
                self.send_alone(peer, &mut datagram, None);
            }
            Verdict::Delay(by) => match self.delayed.push(now + by, Way::Out, peer, &datagram) {
                true => self.counts.fault_delayed += 1,
                false => self.counts.fault_dropped += 1,
            },
        }
        self.react(fate.failure);
        Sent::Gone(1)
    }

    /// Seals and sends a datagram by itself, with one bit flipped if asked. What the socket does not take is lost.
    pub(crate) fn send_alone(&mut self, peer: Gid, datagram: &mut [u8], flip: Option<u32>) {
        let Some(socket) = &self.socket else { return };
        let path = self.paths.to(peer);
        path.icrc.seal(datagram, 0);
        if let Some(bit) = flip {
            flip_bit(datagram, bit);
        }
        match socket.send(datagram, &path.socket_address) {
            Ok(()) => {
                self.counts.tx_datagrams += 1;
                self.counts.tx_bytes += datagram.len() as u64;
                if let Some(capture) = &mut self.capture {
                    capture.packet(socket.address(), path.address, 0, datagram);
                }
            }
            Err(_) => self.counts.tx_errors += 1,
        }
    }
}

/// Flips a bit, counted from the first byte on, modulo the length.
pub(crate) fn flip_bit(datagram: &mut [u8], bit: u32) {
    let bit = bit as usize % (datagram.len() * 8);
    datagram[bit / 8] ^= 1 << (bit % 8);
}

fn start_of(ends: &[u32], index: usize) -> usize {
    index.checked_sub(1).map_or(0, |previous| ends[previous] as usize)
}

/// How many datagrams from `start` on can go in one piece, and how long each is: all are equal, but the last may be
/// shorter.
fn run(start: usize, ends: &[u32]) -> (usize, usize) {
    let segment = ends[0] as usize - start;
    let mut count = 1;
    while count < ends.len().min(MAX_SEGMENTS) {
        let len = (ends[count] - ends[count - 1]) as usize;
        if len > segment || ends[count] as usize - start > MAX_DATAGRAM {
            break;
        }
        count += 1;
        if len < segment {
            break;
        }
    }
    (count, segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(lens: &[u32]) -> Vec<usize> {
        let ends: Vec<u32> = lens
            .iter()
            .scan(0, |end, len| {
                *end += len;
                Some(*end)
            })
            .collect();
        let (mut at, mut counts) = (0, Vec::new());
        while at < ends.len() {
            let (count, segment) = run(start_of(&ends, at), &ends[at..]);
            assert_eq!(segment, lens[at] as usize);
            counts.push(count);
            at += count;
        }
        counts
    }

    #[test]
    fn a_longer_packet_begins_a_run_and_a_shorter_one_ends_it() {
        assert_eq!(runs(&[4132, 4116, 4116, 4116, 1000]), [2, 3]);
        assert_eq!(runs(&[4132, 4116, 4116, 20, 4132, 20]), [2, 2, 2]);
    }

    #[test]
    fn small_equal_datagrams_go_together() {
        assert_eq!(runs(&[40; 10]), [10]);
        assert_eq!(runs(&[40; 100]), [64, 36]);
        assert_eq!(runs(&[40, 40, 36, 40]), [3, 1]);
        assert_eq!(runs(&[36, 40, 40]), [1, 2]);
    }

    #[test]
    fn a_run_fits_a_datagram() {
        assert_eq!(runs(&[4116; 20]), [15, 5]);
    }

    #[test]
    fn flips_stay_inside() {
        let mut datagram = [0; 5];
        flip_bit(&mut datagram, 43);
        assert_eq!(datagram, [8, 0, 0, 0, 0]);
        flip_bit(&mut datagram, u32::MAX);
        assert_eq!(datagram.iter().map(|b| b.count_ones()).sum::<u32>(), 2);
    }
}
