//! READs of many places in few requests, because a NIC limits the outstanding READs and atomics of
//! a queue pair.

use crate::place::Copies;
use crate::request::{Outcome, Request};

/// The longest gap between two places that one READ covers, in bytes. A longer gap costs about as
/// much as a second READ.
const MAX_GAP_BYTES: u64 = 512;
/// The longest READ of several places, in bytes: the payload of one packet.
const MAX_BYTES: u64 = 4096;

/// READs of the beginnings of places. Nearby places of one partition share a request.
#[derive(Debug)]
pub(crate) struct JoinedReads {
    requests: Vec<Request>,
    /// For each place, its request and its part of the result.
    parts: Vec<Part>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Part {
    request: usize,
    offset: usize,
    bytes: usize,
}

/// The outcome of the READ of one place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadOutcome<'a> {
    /// The result of the READ, if it is known.
    pub(crate) bytes: Option<&'a [u8]>,
    pub(crate) is_dead: bool,
}

impl JoinedReads {
    /// Creates the READs of these places, each with the number of bytes that are needed.
    pub(crate) fn new<'a>(places: impl Iterator<Item = (&'a Copies, u32)>) -> JoinedReads {
        let places: Vec<_> = places.collect();
        let partition = |copies: &Copies| (copies.place.table, copies.place.partition, copies.place.kind);
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|&index| {
            let (copies, _) = places[index];
            (partition(copies), copies.primary.node, copies.primary.at)
        });
        let mut parts = vec![Part::default(); places.len()];
        // For each READ: the index of its first place, its begin and its end.
        let mut reads: Vec<(usize, u64, u64)> = Vec::new();
        for index in order {
            let (copies, bytes) = places[index];
            let at = copies.primary.at;
            let end = at + u64::from(bytes);
            let is_near = reads.last().is_some_and(|&(first, begin, last_end)| {
                let first = places[first].0;
                partition(first) == partition(copies)
                    && first.primary.node == copies.primary.node
                    && at <= last_end + MAX_GAP_BYTES
                    && end <= begin + MAX_BYTES
            });
            match reads.last_mut().filter(|_| is_near) {
                Some((_, _, last_end)) => *last_end = end.max(*last_end),
                None => reads.push((index, at, end)),
            }
            let begin = reads.last().map_or(at, |read| read.1);
            let offset = (at - begin) as usize;
            parts[index] = Part { request: reads.len() - 1, offset, bytes: bytes as usize };
        }
        let request = |(first, begin, end): (usize, u64, u64)| {
            Request::read(places[first].0.primary, (end - begin) as u32)
        };
        JoinedReads { requests: reads.into_iter().map(request).collect(), parts }
    }

    pub(crate) fn into_requests(self) -> Vec<Request> {
        self.requests
    }

    /// Returns the outcome of each place, in the order of the places. `outcomes` begins with the
    /// outcomes of the requests.
    pub(crate) fn outcomes<'a>(
        &self,
        mut outcomes: impl Iterator<Item = &'a Outcome>,
    ) -> Vec<ReadOutcome<'a>> {
        let all: Vec<&Outcome> =
            self.requests.iter().map(|_| outcomes.next().unwrap_or(&Outcome::Unknown)).collect();
        let outcome = |part: &Part| ReadOutcome {
            bytes: all[part.request]
                .bytes()
                .and_then(|bytes| bytes.get(part.offset..part.offset + part.bytes)),
            is_dead: *all[part.request] == Outcome::NodeDead,
        };
        self.parts.iter().map(outcome).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{Location, Place, PlaceKind};
    use crate::request::{NodeId, Op};
    use crate::transaction::TableId;

    fn copies(table: u16, node: u16, at: u64) -> Copies {
        let place = Place { table: TableId(table), partition: 0, kind: PlaceKind::Record, index: 0 };
        Copies { place, primary: Location { node: NodeId(node), at }, backups: Vec::new(), bytes: 64 }
    }

    #[test]
    fn near_places_are_read_together_and_each_gets_its_bytes() {
        let (near, far, other_table, other_node) =
            (copies(0, 0, 256), copies(0, 0, 8192), copies(1, 0, 320), copies(0, 1, 320));
        let places = [&near, &far, &copies(0, 0, 128), &other_table, &other_node];
        let reads = JoinedReads::new(places.iter().map(|&copies| (copies, 16)));
        let lens = |request: &Request| match request.op {
            Op::Read(bytes) => (request.node.0, request.at, bytes),
            _ => panic!("{request:?}"),
        };
        let posted: Vec<_> = reads.requests.iter().map(lens).collect();
        assert_eq!(posted, [(0, 128, 144), (0, 8192, 16), (1, 320, 16), (0, 320, 16)]);
        let content = |&(_, at, bytes): &(u16, u64, u32)| {
            Outcome::Executed((at..at + u64::from(bytes)).map(|at| (at / 16) as u8).collect())
        };
        let mut outcomes: Vec<Outcome> = posted.iter().map(content).collect();
        outcomes[3] = Outcome::NodeDead;
        let found = reads.outcomes(outcomes.iter());
        for (copies, outcome) in places.iter().zip(&found).take(3) {
            assert_eq!(outcome.bytes, Some(&[(copies.primary.at / 16) as u8; 16][..]));
        }
        assert!(found[3].is_dead && found[3].bytes.is_none() && !found[4].is_dead);
        assert!(reads.outcomes([].iter()).iter().all(|outcome| outcome.bytes.is_none()));
    }

    #[test]
    fn joined_read_fits_one_packet() {
        let places: Vec<_> = (0..100).map(|number| copies(0, 0, number * 64)).collect();
        let reads = JoinedReads::new(places.iter().map(|copies| (copies, 64)));
        let lens: Vec<_> = reads.requests.iter().map(|request| request.op.clone()).collect();
        assert_eq!(lens, [Op::Read(4096), Op::Read(36 * 64)]);
    }
}
