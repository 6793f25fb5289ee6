//! Caches of the paths to and from peers. A path has the peer's address and the ICRC state. A
//! receive path also has the state of the peer's IPv4 identifications.

use std::net::{IpAddr, SocketAddr};

use mitra_verbs::Gid;
use mitra_wire::{IcrcPath, ROCE_PORT, Verdict};
use nix::sys::socket::SockaddrStorage;

use crate::last_hit_cache::LastHitCache;
use crate::udp_socket::MAX_GSO_SEGMENTS;

/// The number of consecutive packets with unexpected identifications after which the NIC no longer
/// treats a sender as predictable. The NIC accepts the last of these packets and drops the others.
const ACCEPT_AFTER: u8 = 3;

pub(crate) struct PathCache {
    local: SocketAddr,
    tx: LastHitCache<Gid, TxPath>,
    /// The key is the sender and the destination, which is the NIC's own address or a multicast
    /// group.
    rx: LastHitCache<(SocketAddr, SocketAddr), RxPath>,
}

pub(crate) struct TxPath {
    pub(crate) socket_address: SockaddrStorage,
    pub(crate) address: SocketAddr,
    pub(crate) icrc: IcrcPath,
}

pub(crate) struct RxPath {
    icrc: IcrcPath,
    /// The identification of the last accepted packet.
    last_ident: u16,
    /// Whether the sender uses identification 0, or the index of the segment in a GSO run, as a
    /// Linux socket that forbids fragmentation does.
    is_predictable: bool,
    /// The number of consecutive packets whose ICRC is right only for an unexpected identification.
    unexpected: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IcrcCheck {
    /// The ICRC is right for this identification. `solved` is true if the identification was
    /// computed from the ICRC and is neither small nor the successor of the last one.
    Good { ident: u16, solved: bool },
    /// The ICRC is wrong, or is right only for an implausible identification.
    Bad,
    /// The datagram is too short for an ICRC.
    TooShort,
}

impl PathCache {
    pub(crate) fn new(local: SocketAddr) -> PathCache {
        PathCache { local, tx: LastHitCache::new(), rx: LastHitCache::new() }
    }

    /// Returns the path to a peer or a multicast group.
    pub(crate) fn tx(&mut self, gid: Gid) -> &TxPath {
        let local = self.local;
        self.tx.get_or_insert_with(gid, || {
            let address = SocketAddr::new(IpAddr::from(gid), ROCE_PORT);
            let icrc = IcrcPath::new(local, address);
            TxPath { socket_address: address.into(), address, icrc }
        })
    }

    /// Returns the path from a sender to one of the NIC's addresses.
    pub(crate) fn rx(&mut self, from: SocketAddr, to: SocketAddr) -> &mut RxPath {
        self.rx.get_or_insert_with((from, to), || RxPath::new(from, to))
    }
}

impl RxPath {
    /// Sets the ICRC of a datagram that came without one.
    pub(crate) fn seal(&self, datagram: &mut [u8]) {
        self.icrc.seal(datagram, 0);
    }

    fn new(from: SocketAddr, to: SocketAddr) -> RxPath {
        RxPath { icrc: IcrcPath::new(from, to), last_ident: 0, is_predictable: false, unexpected: 0 }
    }

    /// Checks the ICRC of the datagram at position `index` of a `UDP_GRO` run.
    ///
    /// The ICRC covers the IPv4 identification, which a UDP socket cannot see. `IcrcPath::verify`
    /// guesses the identification, or computes it from the ICRC, which leaves a check of 16 bits.
    /// If the identifications of a sender have been predictable, a computed identification more
    /// likely means a damaged packet than a changed sender. The first packets with a computed
    /// identification are therefore dropped, and the sender retransmits them.
    pub(crate) fn check(&mut self, datagram: &[u8], index: u16) -> IcrcCheck {
        let (ident, solved) = match self.icrc.verify(datagram, index) {
            Verdict::Good { ident, solved } => (ident, solved),
            Verdict::Bad => return IcrcCheck::Bad,
            Verdict::TooShort => return IcrcCheck::TooShort,
        };
        // A Linux sender that forbids fragmentation uses identifications below the number of
        // segments of a GSO run.
        let is_small = |ident: u16| usize::from(ident) < MAX_GSO_SEGMENTS;
        let is_next = ident == self.last_ident.wrapping_add(1);
        if is_small(ident) || is_next {
            let is_counter = is_next && !(is_small(self.last_ident) && is_small(ident));
            self.is_predictable = !is_counter && (self.is_predictable || !solved);
            self.unexpected = 0;
            self.last_ident = ident;
            return IcrcCheck::Good { ident, solved: false };
        }
        if self.is_predictable {
            self.unexpected += 1;
            if self.unexpected < ACCEPT_AFTER {
                return IcrcCheck::Bad;
            }
            self.is_predictable = false;
        }
        self.last_ident = ident;
        IcrcCheck::Good { ident, solved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64;

    fn sender_and_receiver() -> (IcrcPath, RxPath) {
        let (a, b) = ("127.1.0.1:4791".parse().unwrap(), "127.1.0.2:4791".parse().unwrap());
        (IcrcPath::new(a, b), RxPath::new(a, b))
    }

    fn sealed(sender: &IcrcPath, ident: u16) -> [u8; LEN] {
        let mut datagram = [0x5a; LEN];
        sender.seal(&mut datagram, ident);
        datagram
    }

    #[test]
    fn idents_of_gso_sender_are_predicted() {
        let (sender, mut path) = sender_and_receiver();
        for index in [0, 0, 1, 2, 15, 0] {
            let check = path.check(&sealed(&sender, index), index);
            assert_eq!(check, IcrcCheck::Good { ident: index, solved: false });
        }
        // A GSO run that the receiving kernel has split.
        for index in [0, 1, 2, 7] {
            assert!(matches!(path.check(&sealed(&sender, index), 0), IcrcCheck::Good { solved: false, .. }));
        }
    }

    #[test]
    fn sender_with_changing_idents_is_accepted_from_first_packet() {
        let (sender, mut path) = sender_and_receiver();
        assert_eq!(path.check(&sealed(&sender, 700), 0), IcrcCheck::Good { ident: 700, solved: true });
        assert_eq!(path.check(&sealed(&sender, 701), 0), IcrcCheck::Good { ident: 701, solved: false });
        assert_eq!(path.check(&sealed(&sender, 9000), 0), IcrcCheck::Good { ident: 9000, solved: true });
        // The sender's counter wraps around. The small identifications after that must not make the
        // sender predictable.
        for ident in [u16::MAX, 0, 1, 500] {
            assert!(matches!(path.check(&sealed(&sender, ident), 0), IcrcCheck::Good { .. }), "{ident}");
        }
    }

    #[test]
    fn predictable_sender_is_accepted_after_three_unexpected_idents() {
        let (sender, mut path) = sender_and_receiver();
        path.check(&sealed(&sender, 0), 0);
        assert_eq!(path.check(&sealed(&sender, 700), 0), IcrcCheck::Bad);
        assert!(matches!(path.check(&sealed(&sender, 0), 0), IcrcCheck::Good { .. }));
        assert_eq!(path.check(&sealed(&sender, 700), 0), IcrcCheck::Bad);
        assert_eq!(path.check(&sealed(&sender, 701), 0), IcrcCheck::Bad);
        assert_eq!(path.check(&sealed(&sender, 702), 0), IcrcCheck::Good { ident: 702, solved: true });
        assert_eq!(path.check(&sealed(&sender, 703), 0), IcrcCheck::Good { ident: 703, solved: false });
    }

    #[test]
    fn damaged_and_truncated_datagrams_are_detected() {
        let (sender, mut path) = sender_and_receiver();
        let mut datagram = sealed(&sender, 0);
        datagram[20] ^= 4;
        assert_eq!(path.check(&datagram, 0), IcrcCheck::Bad);
        assert_eq!(path.check(&datagram[..15], 0), IcrcCheck::TooShort);
    }
}
