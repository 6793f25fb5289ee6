//! The states of the memory nodes, as operators and clients are told.

use std::net::SocketAddr;

use mitra_consensus_rdma::MemoryState;

/// The states of all memory nodes.
#[derive(Debug)]
pub(crate) struct Memories {
    addresses: Vec<SocketAddr>,
    states: Vec<MemoryState>,
}

impl Memories {
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Memories {
        let states = vec![MemoryState::Connecting; addresses.len()];
        Memories { addresses, states }
    }

    pub(crate) fn update(&mut self, states: impl Iterator<Item = MemoryState>) {
        self.states.clear();
        self.states.extend(states);
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = (SocketAddr, MemoryState)> {
        self.addresses.iter().copied().zip(self.states.iter().copied())
    }

    pub(crate) fn lost(&self) -> impl Iterator<Item = SocketAddr> {
        let is_usable = |state| matches!(state, MemoryState::Connecting | MemoryState::Connected);
        self.states().filter(move |&(_, state)| !is_usable(state)).map(|(address, _)| address)
    }

    /// Returns why no request can be answered, or `None` if a majority of the memory nodes may be
    /// usable.
    pub(crate) fn majority_lost(&self) -> Option<String> {
        let (lost, all) = (self.lost().count(), self.states.len());
        // A majority is more than half.
        if 2 * (all - lost) > all {
            return None;
        }
        let names = self.lost().map(|address| address.to_string()).collect::<Vec<_>>().join(", ");
        Some(match lost {
            1 => format!("memory node {names} is lost, and {} of {all} are no majority", all - lost),
            _ => format!("memory nodes {names} are lost, and {} of {all} are no majority", all - lost),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majority_is_lost_with_half_of_the_memories() {
        use MemoryState::{Connected, Connecting, ContentsLost, Lost, OtherLayout};
        let reason = |states: &[MemoryState]| {
            let addresses = (7001..).take(states.len()).map(|port| ([127, 0, 0, 1], port).into()).collect();
            let mut memories = Memories::new(addresses);
            memories.update(states.iter().copied());
            memories.majority_lost()
        };
        assert_eq!(reason(&[Connected, Connected, Lost]), None);
        assert_eq!(reason(&[Connected, Connecting, Lost]), None);
        assert_eq!(
            reason(&[ContentsLost, Connected, Lost]).as_deref(),
            Some("memory nodes 127.0.0.1:7001, 127.0.0.1:7003 are lost, and 1 of 3 are no majority")
        );
        assert_eq!(
            reason(&[Connected, OtherLayout]).as_deref(),
            Some("memory node 127.0.0.1:7002 is lost, and 1 of 2 are no majority")
        );
        assert!(reason(&[Lost]).is_some());
    }
}
