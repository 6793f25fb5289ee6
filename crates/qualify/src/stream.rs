//! The streams of requests in whose middle the responder is fenced. From the responder's memory
//! alone, each stream knows which of its packets were executed.

use mitra_verbs::{Buffer, Data, SendOp, SendWr};

use crate::connection::Pair;

/// The bytes of a WRITE.
const MESSAGE: usize = 64 << 10;

/// The WRITEs that are outstanding, and the places in memory that they take in turn.
const RING: usize = 4;

const WORD: usize = 8;

/// The offset of the word that the atomics change, behind the WRITEs.
const COUNTER: usize = RING * MESSAGE;

/// The memory that each end needs: the WRITEs, and the counter or the results of the atomics.
pub(crate) const MEMORY: usize = COUNTER + WORD;

/// A kind of stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// WRITEs of 64 KiB. Each word of a packet's payload is the number of the packet in the stream,
    /// counted from 1.
    Writes,
    /// The same, each followed by an atomic that adds 1 to one word. Without WRITEs between them,
    /// atomics are over before a fence can cut them off.
    Atomics,
}

/// What the responder's PSN says, compared with what its memory contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Comparison {
    /// A packet that the PSN counts is not in memory, or not all of it.
    pub is_ahead: bool,
    /// Something of a packet that the PSN does not count is in memory.
    pub is_behind: bool,
}

impl Stream {
    /// The atomics behind each WRITE.
    fn atomics(self) -> u64 {
        match self {
            Stream::Writes => 0,
            Stream::Atomics => 1,
        }
    }

    /// The requests that are outstanding at once.
    pub(crate) fn burst(self) -> u64 {
        RING as u64 * (1 + self.atomics())
    }

    /// The packets of a WRITE and of the atomic behind it.
    fn packets(self, path_mtu: usize) -> u64 {
        (MESSAGE / path_mtu) as u64 + self.atomics()
    }

    /// Returns request `index` of the stream, and writes its data.
    pub(crate) fn request(self, pair: &Pair<'_>, index: u64) -> SendWr {
        let (local, remote) = (&pair.requester.mr, &pair.responder.mr);
        let message = index / (1 + self.atomics());
        if index % (1 + self.atomics()) == 1 {
            let op = SendOp::FetchAdd { remote: remote.remote(COUNTER as u64), add: 1 };
            return SendWr::new(index, op, Data::sge(local.sge(COUNTER as u64, WORD as u32)));
        }
        let place = (message % RING as u64) * MESSAGE as u64;
        let path_mtu = pair.path_mtu.bytes();
        pair.requester.memory.write_at(place as usize, &payload(message * self.packets(path_mtu), path_mtu));
        let data = Data::sge(local.sge(place, MESSAGE as u32));
        SendWr::new(index, SendOp::Write(remote.remote(place)), data)
    }

    /// Reads all of the responder's memory that the stream changes.
    pub(crate) fn read(self, pair: &Pair<'_>) -> Vec<u64> {
        words(&pair.responder.memory, 0..MEMORY / WORD)
    }

    /// Reads the first and the last word of each packet. This takes so little time that the NIC has
    /// no time to change the memory before it is read.
    pub(crate) fn sample(self, pair: &Pair<'_>) -> Vec<u64> {
        let words_per_packet = pair.path_mtu.bytes() / WORD;
        let ends = (0..COUNTER / WORD).step_by(words_per_packet);
        let ends = ends.flat_map(|first| [first, first + words_per_packet - 1]);
        words(&pair.responder.memory, ends.chain([COUNTER / WORD]))
    }

    /// Compares memory with the number of packets that the PSN counts.
    pub(crate) fn compare(self, memory: &[u64], path_mtu: usize, counted: u64) -> Comparison {
        let mut comparison = Comparison { is_ahead: false, is_behind: false };
        for (word, &found) in memory.iter().enumerate() {
            let expected = match word * WORD {
                COUNTER => self.executed_atomics(counted, path_mtu),
                offset => self.last_number_at(offset / path_mtu, path_mtu, counted),
            };
            comparison.is_ahead |= found < expected;
            comparison.is_behind |= found > expected;
        }
        comparison
    }

    /// Returns the atomics among the first `executed` packets.
    fn executed_atomics(self, executed: u64, path_mtu: usize) -> u64 {
        executed / self.packets(path_mtu) * self.atomics()
    }

    /// Returns the number of the last of the first `executed` packets at a place of the ring, or 0.
    fn last_number_at(self, place: usize, path_mtu: usize, executed: u64) -> u64 {
        let (of_message, ring) = ((MESSAGE / path_mtu) as u64, RING as u64);
        let (slot, packet) = (place as u64 / of_message, place as u64 % of_message);
        let number = |message: u64| message * self.packets(path_mtu) + packet + 1;
        match executed.checked_sub(number(slot)) {
            Some(behind) => number(slot + behind / (ring * self.packets(path_mtu)) * ring),
            None => 0,
        }
    }

    /// Whether memory shows that the stream was cut off: a WRITE whose last packet is missing, or
    /// an atomic that was posted and not executed.
    pub(crate) fn is_cut_off(self, memory: &[u64], path_mtu: usize, posted: u64) -> bool {
        match self {
            Stream::Writes => {
                let last = memory.iter().copied().max().unwrap_or(0);
                last % self.packets(path_mtu) != 0
            }
            Stream::Atomics => memory.last().copied().unwrap_or(0) < posted / 2,
        }
    }
}

/// Returns the payload of a WRITE behind `before` packets.
fn payload(before: u64, path_mtu: usize) -> Vec<u8> {
    let mut data = vec![0; MESSAGE];
    for (packet, number) in data.chunks_exact_mut(path_mtu).zip(before + 1..) {
        packet.chunks_exact_mut(WORD).for_each(|word| word.copy_from_slice(&number.to_ne_bytes()));
    }
    data
}

fn words(memory: &Buffer, indices: impl Iterator<Item = usize>) -> Vec<u64> {
    indices.map(|index| memory.load(index * WORD)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: usize = 1024;
    const PACKETS: u64 = (MESSAGE / MTU) as u64;

    /// Memory after the first `executed` packets, executed one after the other.
    fn memory_after(stream: Stream, executed: u64) -> Vec<u64> {
        let mut memory = vec![0; MEMORY / WORD];
        let (mut number, mut message) = (0, 0);
        while number < executed {
            for packet in 0..PACKETS {
                number += 1;
                if number <= executed {
                    let first = (message % RING as u64 * PACKETS + packet) as usize * (MTU / WORD);
                    memory[first..first + MTU / WORD].fill(number);
                }
            }
            if stream == Stream::Atomics {
                number += 1;
                memory[COUNTER / WORD] += u64::from(number <= executed);
            }
            message += 1;
        }
        memory
    }

    fn compare(stream: Stream, memory: &[u64], counted: u64) -> (bool, bool) {
        let Comparison { is_ahead, is_behind } = stream.compare(memory, MTU, counted);
        (is_ahead, is_behind)
    }

    #[test]
    fn exact_number_is_told_from_one_packet_more_or_less() {
        for stream in [Stream::Writes, Stream::Atomics] {
            let packets = stream.packets(MTU);
            let ring = RING as u64 * packets;
            for executed in
                [0, 1, packets - 2, packets - 1, packets, packets + 1, ring - 1, ring, ring + 1, 3 * ring + 5]
            {
                let memory = memory_after(stream, executed);
                assert_eq!(compare(stream, &memory, executed), (false, false), "{stream:?} {executed}");
                assert_eq!(compare(stream, &memory, executed + 1), (true, false), "{stream:?} {executed}");
                if executed > 0 {
                    let fewer = compare(stream, &memory, executed - 1);
                    assert_eq!(fewer, (false, true), "{stream:?} {executed}");
                }
            }
        }
    }

    #[test]
    fn fence_in_a_message_or_before_an_atomic_cuts_off() {
        let is_cut_off = |stream: Stream, executed, posted| {
            stream.is_cut_off(&memory_after(stream, executed), MTU, posted)
        };
        assert!(!is_cut_off(Stream::Writes, 2 * PACKETS, 4));
        assert!(is_cut_off(Stream::Writes, 2 * PACKETS + 1, 4));
        assert!(is_cut_off(Stream::Atomics, 2 * PACKETS + 1, 4), "the second atomic is missing");
        assert!(!is_cut_off(Stream::Atomics, 2 * PACKETS + 2, 4));
    }

    #[test]
    fn one_word_of_a_packet_is_enough() {
        let (executed, word) = (70, 70 * MTU / WORD + 3);
        let mut memory = memory_after(Stream::Writes, executed);
        memory[word] = executed + 1;
        assert_eq!(compare(Stream::Writes, &memory, executed), (false, true));
        assert_eq!(compare(Stream::Writes, &memory, executed + 1), (true, false));
    }

    #[test]
    fn payload_has_the_numbers_of_its_packets() {
        let data = payload(2 * PACKETS, MTU);
        let number = |word: usize| u64::from_ne_bytes(data[word * 8..][..8].try_into().unwrap());
        assert_eq!(data.len(), MESSAGE);
        assert_eq!((number(0), number(MTU / WORD - 1)), (2 * PACKETS + 1, 2 * PACKETS + 1));
        assert_eq!(number(MTU / WORD), 2 * PACKETS + 2);
        assert_eq!(number(MESSAGE / WORD - 1), 3 * PACKETS);
    }
}
