//! A register as bytes that are written in more than one piece, and read while they are.
//!
//! It has two places, written in turn, so that what it held stays while the next is written; a checksum tells what is torn
//! (uBFT's sub-slots; agreement.md §8). Its one writer at a time writes a place only when its last write is acknowledged.

/// Bytes in front of a place's contents: a sequence number (8), the length (4), and the CRC-32 of both and of the contents (4).
const HEAD: usize = 16;

/// Bytes of a place with room for so many.
pub(crate) const fn place_len(room: usize) -> usize {
    (HEAD + room).next_multiple_of(8)
}

/// Which of the two places a write with this sequence number goes to.
pub(crate) fn place_of(seq: u64) -> usize {
    (seq % 2) as usize
}

/// Appends what a place is to hold.
pub(crate) fn seal(seq: u64, contents: &[u8], out: &mut Vec<u8>) {
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

/// What a place holds, and with which sequence number: 0 and nothing if it was never written. None if it is torn.
fn open(place: &[u8]) -> Option<(u64, &[u8])> {
    let (head, contents) = place.split_at_checked(HEAD)?;
    let seq = u64::from_le_bytes(head[..8].try_into().ok()?);
    let len = u32::from_le_bytes(head[8..12].try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(head[12..].try_into().ok()?);
    if (seq, len, crc) == (0, 0, 0) {
        return Some((0, &[]));
    }
    let contents = contents.get(..len)?;
    (crc == checksum(seq, contents)).then_some((seq, contents))
}

/// What a read of both places saw.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Seen<'a> {
    /// The register held this at some time during the read.
    Held(u64, &'a [u8]),
    /// One place is torn. The register held the other if the next read sees the same sequence number beside a torn place again:
    /// then that was there all the time, and what is torn is the write after it. Else it may be older than what was written before
    /// the read began.
    Half(u64, &'a [u8]),
    /// Both are torn: the writer is faster than the reader, or lies.
    Torn,
}

/// Looks at the two places of a register.
pub(crate) fn look(places: &[u8]) -> Seen<'_> {
    let (first, second) = places.split_at(places.len() / 2);
    match (open(first), open(second)) {
        (Some(a), Some(b)) => {
            let (seq, contents) = if a.0 > b.0 { a } else { b };
            Seen::Held(seq, contents)
        }
        (Some((seq, contents)), None) | (None, Some((seq, contents))) => Seen::Half(seq, contents),
        (None, None) => Seen::Torn,
    }
}

/// The sequence number of the last whole write, while nobody writes. What is torn there is the write after it; where both are, a writer lied,
/// and any number will do.
pub(crate) fn last(places: &[u8]) -> u64 {
    match look(places) {
        Seen::Held(seq, _) | Seen::Half(seq, _) => seq,
        Seen::Torn => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 21;

    fn write(places: &mut [u8], seq: u64, contents: &[u8], bytes: usize) {
        let mut sealed = Vec::new();
        seal(seq, contents, &mut sealed);
        let at = place_of(seq) * place_len(ROOM);
        let bytes = bytes.min(sealed.len());
        places[at..at + bytes].copy_from_slice(&sealed[..bytes]);
    }

    fn fresh() -> Vec<u8> {
        vec![0; 2 * place_len(ROOM)]
    }

    #[test]
    fn it_holds_what_was_written_last() {
        let mut places = fresh();
        assert_eq!(look(&places), Seen::Held(0, &[]));
        for seq in 1..6 {
            let contents = vec![seq as u8; seq as usize * 4];
            write(&mut places, seq, &contents, usize::MAX);
            assert_eq!(look(&places), Seen::Held(seq, &contents));
        }
        write(&mut places, 6, &[], usize::MAX);
        assert_eq!(look(&places), Seen::Held(6, &[]), "also when that is nothing");
    }

    /// However much of a write arrives, what was there before stays; and nothing between the two is seen.
    #[test]
    fn a_torn_write_shows_the_one_before_it() {
        for before in 0..4 {
            for bytes in 1..HEAD + ROOM {
                let mut places = fresh();
                (1..=before).for_each(|seq| write(&mut places, seq, &[seq as u8; ROOM], usize::MAX));
                write(&mut places, before + 1, &[0xEE; ROOM], bytes);
                let held = vec![before as u8; if before == 0 { 0 } else { ROOM }];
                assert_eq!(look(&places), Seen::Half(before, &held), "{bytes} bytes of write {}", before + 1);
                // The next writer writes where it is torn.
                write(&mut places, before + 1, b"new", usize::MAX);
                assert_eq!(look(&places), Seen::Held(before + 1, b"new"));
            }
        }
    }

    #[test]
    fn garbage_is_torn() {
        let mut places = fresh();
        places.fill(0xFF);
        assert_eq!(look(&places), Seen::Torn);
        // A length that would reach beyond the place.
        places[..HEAD].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F, 0, 0, 0, 0]);
        assert_eq!(look(&places), Seen::Torn);
    }
}
