//! The streams of requests in whose middle the responder is fenced. From the responder's memory
//! alone, each stream knows which of its packets were executed.

use mitra_verbs::{Buffer, Data, SendOp, SendWr};

use crate::connection::{Pair, SEND_WRS};

/// The bytes of a WRITE.
const MESSAGE: usize = 64 << 10;

/// The WRITEs that are outstanding, and the places in memory that they take in turn.
const RING: usize = 4;

const WORD: usize = 8;

/// The memory that each end needs.
pub(crate) const MEMORY: usize = RING * MESSAGE;

/// A kind of stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// WRITEs of 64 KiB. Each word of a packet's payload is the number of the packet in the stream,
    /// counted from 1.
    Writes,
    /// Atomics that add 1 to one word.
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
    /// The requests that are outstanding at once.
    pub(crate) fn burst(self) -> u64 {
        match self {
            Stream::Writes => RING as u64,
            Stream::Atomics => u64::from(SEND_WRS) / 2,
        }
    }

    /// Returns request `index` of the stream, and writes its data.
    pub(crate) fn request(self, pair: &Pair<'_>, index: u64) -> SendWr {
        let (local, remote) = (&pair.requester.mr, &pair.responder.mr);
        match self {
            Stream::Writes => {
                let place = (index % RING as u64) * MESSAGE as u64;
                let data = message(index, pair.path_mtu.bytes());
                pair.requester.memory.write_at(place as usize, &data);
                let data = Data::sge(local.sge(place, MESSAGE as u32));
                SendWr::new(index, SendOp::Write(remote.remote(place)), data)
            }
            Stream::Atomics => {
                let result = (index % u64::from(SEND_WRS)) * WORD as u64;
                let op = SendOp::FetchAdd { remote: remote.remote(0), add: 1 };
                SendWr::new(index, op, Data::sge(local.sge(result, WORD as u32)))
            }
        }
    }

    /// Reads all of the responder's memory that the stream changes.
    pub(crate) fn read(self, pair: &Pair<'_>) -> Vec<u64> {
        match self {
            Stream::Writes => words(&pair.responder.memory, 0..MEMORY / WORD),
            Stream::Atomics => words(&pair.responder.memory, 0..1),
        }
    }

    /// Reads the first and the last word of each packet. This takes so little time that the NIC has
    /// no time to change the memory before it is read.
    pub(crate) fn sample(self, pair: &Pair<'_>) -> Vec<u64> {
        let words_per_packet = pair.path_mtu.bytes() / WORD;
        match self {
            Stream::Writes => {
                let ends = (0..MEMORY / WORD).step_by(words_per_packet);
                words(&pair.responder.memory, ends.flat_map(|first| [first, first + words_per_packet - 1]))
            }
            Stream::Atomics => self.read(pair),
        }
    }

    /// Compares memory with the number of packets that the PSN counts.
    pub(crate) fn compare(self, memory: &[u64], path_mtu: usize, counted: u64) -> Comparison {
        let expected = |word: usize| match self {
            Stream::Writes => last_number_at(word / (path_mtu / WORD), MEMORY / path_mtu, counted),
            Stream::Atomics => counted,
        };
        let mut comparison = Comparison { is_ahead: false, is_behind: false };
        for (word, &found) in memory.iter().enumerate() {
            comparison.is_ahead |= found < expected(word);
            comparison.is_behind |= found > expected(word);
        }
        comparison
    }

    /// Whether memory shows that the stream was cut off: a WRITE whose last packet is missing, or
    /// an atomic that was posted and not executed.
    pub(crate) fn is_cut_off(self, memory: &[u64], path_mtu: usize, posted: u64) -> bool {
        let last = memory.iter().copied().max().unwrap_or(0);
        match self {
            Stream::Writes => last % (MESSAGE / path_mtu) as u64 != 0,
            Stream::Atomics => last < posted,
        }
    }
}

/// The payload of a WRITE.
fn message(index: u64, path_mtu: usize) -> Vec<u8> {
    let packets = (MESSAGE / path_mtu) as u64;
    let mut data = vec![0; MESSAGE];
    for (packet, number) in data.chunks_exact_mut(path_mtu).zip(index * packets + 1..) {
        packet.chunks_exact_mut(WORD).for_each(|word| word.copy_from_slice(&number.to_ne_bytes()));
    }
    data
}

/// Returns the number of the last of the first `executed` packets at a place of the ring, or 0.
fn last_number_at(place: usize, places: usize, executed: u64) -> u64 {
    let (place, places) = (place as u64, places as u64);
    match executed.checked_sub(place + 1) {
        Some(behind) => place + 1 + behind / places * places,
        None => 0,
    }
}

fn words(memory: &Buffer, indices: impl Iterator<Item = usize>) -> Vec<u64> {
    indices.map(|index| memory.load(index * WORD)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: usize = 1024;
    const PACKETS: u64 = (MESSAGE / MTU) as u64;

    /// Memory after the first `executed` packets, written one after the other.
    fn memory_after(executed: u64) -> Vec<u64> {
        let mut memory = vec![0; MEMORY / WORD];
        for packet in 0..executed as usize {
            let first = packet % (MEMORY / MTU) * (MTU / WORD);
            memory[first..first + MTU / WORD].fill(packet as u64 + 1);
        }
        memory
    }

    fn compare(memory: &[u64], counted: u64) -> (bool, bool) {
        let Comparison { is_ahead, is_behind } = Stream::Writes.compare(memory, MTU, counted);
        (is_ahead, is_behind)
    }

    #[test]
    fn exact_number_is_told_from_one_packet_more_or_less() {
        let ring = RING as u64 * PACKETS;
        for executed in [0, 1, PACKETS - 1, PACKETS, ring - 1, ring, ring + 1, 3 * ring + 5] {
            let memory = memory_after(executed);
            assert_eq!(compare(&memory, executed), (false, false), "{executed}");
            assert_eq!(compare(&memory, executed + 1), (true, false), "{executed}");
            if executed > 0 {
                assert_eq!(compare(&memory, executed - 1), (false, true), "{executed}");
            }
            assert_eq!(Stream::Writes.is_cut_off(&memory, MTU, 0), executed % PACKETS != 0);
        }
    }

    #[test]
    fn one_word_of_a_packet_is_enough() {
        let (executed, word) = (70, 70 * MTU / WORD + 3);
        let mut memory = memory_after(executed);
        memory[word] = executed + 1;
        assert_eq!(compare(&memory, executed), (false, true));
        assert_eq!(compare(&memory, executed + 1), (true, false));
    }

    #[test]
    fn message_has_the_numbers_of_its_packets() {
        let data = message(2, MTU);
        let number = |word: usize| u64::from_ne_bytes(data[word * 8..][..8].try_into().unwrap());
        assert_eq!(data.len(), MESSAGE);
        assert_eq!((number(0), number(MTU / WORD - 1)), (2 * PACKETS + 1, 2 * PACKETS + 1));
        assert_eq!(number(MTU / WORD), 2 * PACKETS + 2);
        assert_eq!(number(MESSAGE / WORD - 1), 3 * PACKETS);
    }

    #[test]
    fn atomics_are_counted_by_their_word() {
        assert_eq!(Stream::Atomics.compare(&[7], MTU, 7), Comparison { is_ahead: false, is_behind: false });
        assert_eq!(Stream::Atomics.compare(&[7], MTU, 8), Comparison { is_ahead: true, is_behind: false });
        assert_eq!(Stream::Atomics.compare(&[7], MTU, 6), Comparison { is_ahead: false, is_behind: true });
        assert!(Stream::Atomics.is_cut_off(&[7], MTU, 8) && !Stream::Atomics.is_cut_off(&[7], MTU, 7));
    }
}
