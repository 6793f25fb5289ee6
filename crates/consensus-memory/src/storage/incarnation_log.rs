//! The incarnation log: a file with a record of each incarnation of a process that has connected.

use mitra_consensus::ProcessId;
use mitra_mutants::Mutant;

pub(super) const NAME: &str = "lives";
/// The size of a record, in bytes: the process (1), its incarnation (8), and the CRC-32 of both
/// (4).
pub(super) const RECORD_BYTES: usize = 13;

pub(super) fn encode_record(p: ProcessId, incarnation: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[0] = p.0;
    record[1..9].copy_from_slice(&incarnation.to_le_bytes());
    let checksum = crc32fast::hash(&record[..9]);
    record[9..].copy_from_slice(&checksum.to_le_bytes());
    record
}

/// Returns the records of a log, or `None` if a record before the last record is damaged.
///
/// A crash may leave a torn record at the end. The process of that record was not accepted, and the
/// next record overwrites it.
pub(super) fn decode(log: &[u8]) -> Option<Vec<(ProcessId, u64)>> {
    let records = log.as_chunks::<RECORD_BYTES>().0;
    let decoded: Vec<_> = records.iter().map_while(decode_record).collect();
    let is_whole = decoded.len() + 1 >= records.len();
    is_whole.then_some(decoded)
}

/// Returns `None` for a torn record.
fn decode_record(record: &[u8; RECORD_BYTES]) -> Option<(ProcessId, u64)> {
    let incarnation = record[1..9].try_into().expect("a record has 8 bytes after the process");
    let (p, incarnation) = (ProcessId(record[0]), u64::from_le_bytes(incarnation));
    let is_whole = encode_record(p, incarnation) == *record || Mutant::TornRecordUsed.is_on();
    is_whole.then_some((p, incarnation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_record_is_ignored_only_at_the_end() {
        let records = [(ProcessId(0), 5), (ProcessId(1), 6), (ProcessId(0), 7)];
        let log: Vec<u8> =
            records.iter().flat_map(|&(p, incarnation)| encode_record(p, incarnation)).collect();
        assert_eq!(decode(&log).as_deref(), Some(&records[..]));
        for at in 0..log.len() {
            let mut damaged = log.clone();
            damaged[at] ^= 1;
            let read = decode(&damaged);
            match at / RECORD_BYTES {
                2 => assert_eq!(read.as_deref(), Some(&records[..2]), "byte {at}"),
                _ => assert_eq!(read, None, "byte {at}"),
            }
            let cut = decode(&log[..at]);
            assert_eq!(cut.as_deref(), Some(&records[..at / RECORD_BYTES]), "cut at byte {at}");
        }
    }
}
