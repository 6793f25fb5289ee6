//! The representation of a register that one process writes while others read it. Neither a write
//! nor a read of the register is atomic.
//!
//! A register has two slots, which successive writes use in turn, so that the previous value stays
//! readable during a write. Each slot has a checksum by which a reader detects that the slot is
//! torn, like the sub-slots of uBFT (ASPLOS 2023).

/// The size of a slot's header, in bytes: the sequence number (8), the length of the contents (4),
/// and the CRC-32 of both and of the contents (4).
const HEADER_BYTES: usize = 16;

/// Returns the size in bytes of a slot for contents of up to `capacity` bytes. The size is a
/// multiple of 8.
pub(crate) const fn slot_bytes(capacity: usize) -> usize {
    (HEADER_BYTES + capacity).next_multiple_of(8)
}

/// Returns the slot, 0 or 1, that the write with sequence number `seq` uses.
pub(crate) fn slot_of(seq: u64) -> usize {
    (seq % 2) as usize
}

pub(crate) fn encode_slot(seq: u64, contents: &[u8], out: &mut Vec<u8>) {
    let len = (contents.len() as u32).to_le_bytes();
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&len);
    out.extend_from_slice(&checksum(seq, contents).to_le_bytes());
    out.extend_from_slice(contents);
}

fn checksum(seq: u64, contents: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&seq.to_le_bytes());
    crc.update(&(contents.len() as u32).to_le_bytes());
    crc.update(contents);
    crc.finalize()
}

/// Decodes a slot into its sequence number and contents. A slot that was never written decodes to 0
/// and empty contents. Returns `None` if the slot is torn.
fn decode_slot(slot: &[u8]) -> Option<(u64, &[u8])> {
    let (head, contents) = slot.split_at_checked(HEADER_BYTES)?;
    let seq = u64::from_le_bytes(head[..8].try_into().ok()?);
    let len = u32::from_le_bytes(head[8..12].try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(head[12..].try_into().ok()?);
    if (seq, len, crc) == (0, 0, 0) {
        return Some((0, &[]));
    }
    let contents = contents.get(..len)?;
    (crc == checksum(seq, contents)).then_some((seq, contents))
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum RegisterRead<'a> {
    /// Both slots are whole. At some time during the READ, the register held this value with this
    /// sequence number.
    Stable(u64, &'a [u8]),
    /// One slot is torn. The fields are the sequence number and the value of the whole slot. After
    /// a single READ, the value may be older than a write that ended before the READ began. If the
    /// next READ finds the same sequence number beside a torn slot, the value was current between
    /// the two READs, and the torn slot belongs to the next write.
    OneTorn(u64, &'a [u8]),
    /// Both slots are torn: the writer is faster than the reader, or Byzantine.
    BothTorn,
}

pub(crate) fn read_slots(slots: &[u8]) -> RegisterRead<'_> {
    let (first, second) = slots.split_at(slots.len() / 2);
    match (decode_slot(first), decode_slot(second)) {
        (Some(a), Some(b)) => {
            let (seq, contents) = if a.0 > b.0 { a } else { b };
            RegisterRead::Stable(seq, contents)
        }
        (Some((seq, contents)), None) | (None, Some((seq, contents))) => RegisterRead::OneTorn(seq, contents),
        (None, None) => RegisterRead::BothTorn,
    }
}

/// Returns the slot of an incomplete write, and a sequence number that no write uses. A new writer
/// stores this number in the header of the slot. Returns `None` unless one slot is torn. No process
/// may write the register during the call.
///
/// The slot may hold any part of the incomplete writes since the last complete write. The next
/// write may contain the missing bytes of an incomplete write, and would then complete a write that
/// was refused long ago. The stored number prevents this completion, because all incomplete writes
/// have smaller numbers and the next write has a greater number.
pub(crate) fn unused_seq(slots: &[u8]) -> Option<(usize, u64)> {
    let RegisterRead::OneTorn(last, _) = read_slots(slots) else { return None };
    let slot = slot_of(last.wrapping_add(1));
    let header =
        slots[slot * slots.len() / 2..].first_chunk().map_or(0, |header| u64::from_le_bytes(*header));
    // The incomplete writes have numbers up to the header's number plus 2, because the header of
    // the last incomplete write has possibly not arrived.
    let unused = header.max(last.wrapping_add(1)).wrapping_add(4);
    Some((slot, if slot_of(unused) == slot { unused } else { unused.wrapping_add(1) }))
}

/// Returns the sequence number of the last complete write. No process may write the register during
/// the call. A torn slot then belongs to an incomplete write after the last complete write. Both
/// slots are torn only if the writer is Byzantine. In this case, the function returns 0, because
/// any number will do.
pub(crate) fn last_seq(slots: &[u8]) -> u64 {
    match read_slots(slots) {
        RegisterRead::Stable(seq, _) | RegisterRead::OneTorn(seq, _) => seq,
        RegisterRead::BothTorn => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 21;

    fn write(slots: &mut [u8], seq: u64, contents: &[u8], bytes: usize) {
        let mut encoded = Vec::new();
        encode_slot(seq, contents, &mut encoded);
        let offset = slot_of(seq) * slot_bytes(CAPACITY);
        let bytes = bytes.min(encoded.len());
        slots[offset..offset + bytes].copy_from_slice(&encoded[..bytes]);
    }

    fn fresh() -> Vec<u8> {
        vec![0; 2 * slot_bytes(CAPACITY)]
    }

    #[test]
    fn last_write_is_read_back() {
        let mut slots = fresh();
        assert_eq!(read_slots(&slots), RegisterRead::Stable(0, &[]));
        for seq in 1..6 {
            let contents = vec![seq as u8; seq as usize * 4];
            write(&mut slots, seq, &contents, usize::MAX);
            assert_eq!(read_slots(&slots), RegisterRead::Stable(seq, &contents));
        }
        write(&mut slots, 6, &[], usize::MAX);
        assert_eq!(
            read_slots(&slots),
            RegisterRead::Stable(6, &[]),
            "empty contents replace the previous value"
        );
    }

    /// After a write that is cut off at any byte, the previous value is readable, and no mixture of
    /// the two values is returned.
    #[test]
    fn torn_write_leaves_previous_value_readable() {
        for before in 0..4 {
            for bytes in 1..HEADER_BYTES + CAPACITY {
                let mut slots = fresh();
                (1..=before).for_each(|seq| write(&mut slots, seq, &[seq as u8; CAPACITY], usize::MAX));
                write(&mut slots, before + 1, &[0xEE; CAPACITY], bytes);
                let held = vec![before as u8; if before == 0 { 0 } else { CAPACITY }];
                assert_eq!(
                    read_slots(&slots),
                    RegisterRead::OneTorn(before, &held),
                    "{bytes} bytes of write {}",
                    before + 1
                );
                // The next writer overwrites the torn slot.
                write(&mut slots, before + 1, b"new", usize::MAX);
                assert_eq!(read_slots(&slots), RegisterRead::Stable(before + 1, b"new"));
            }
        }
    }

    /// Three writes are cut off in turn, each after any subset of its 8-byte parts. The last two
    /// writes have the same contents. No part of a later write completes an earlier write.
    #[test]
    fn later_write_completes_no_earlier_one() {
        let parts = slot_bytes(CAPACITY) / 8;
        for cuts in 0..1u32 << (3 * parts) {
            let (mut slots, mut seq) = (fresh(), 0);
            for (attempt, contents) in [[1; CAPACITY], [2; CAPACITY], [2; CAPACITY]].iter().enumerate() {
                let mut encoded = Vec::new();
                encode_slot(seq + 1, contents, &mut encoded);
                encoded.resize(slot_bytes(CAPACITY), 0);
                let moved = (cuts >> (attempt * parts)) as usize % (1 << parts);
                for part in (0..parts).filter(|part| moved >> part & 1 == 1) {
                    let offset = slot_of(seq + 1) * slot_bytes(CAPACITY) + 8 * part;
                    slots[offset..offset + 8].copy_from_slice(&encoded[8 * part..8 * part + 8]);
                    if let RegisterRead::Stable(read, _) = read_slots(&slots) {
                        assert!([0, seq + 1].contains(&read), "cuts {cuts:b}, attempt {attempt}");
                    }
                }
                if moved + 1 == 1 << parts {
                    break;
                }
                seq = last_seq(&slots);
                if let Some((slot, unused)) = unused_seq(&slots) {
                    let offset = slot * slot_bytes(CAPACITY);
                    slots[offset..offset + 8].copy_from_slice(&unused.to_le_bytes());
                    seq = unused + 1;
                }
            }
        }
    }

    #[test]
    fn garbage_reads_as_torn() {
        let mut slots = fresh();
        slots.fill(0xFF);
        assert_eq!(read_slots(&slots), RegisterRead::BothTorn);
        // A length field that points beyond the slot.
        slots[..HEADER_BYTES].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F, 0, 0, 0, 0]);
        assert_eq!(read_slots(&slots), RegisterRead::BothTorn);
    }
}
