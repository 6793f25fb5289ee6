//! Where datagrams go and where they come from: addresses with their ICRC paths, and how far a sender's IPv4
//! identifications are foreseen.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use mitra_verbs::Gid;
use mitra_wire::{IcrcPath, ROCE_PORT, Verdict};
use nix::sys::socket::SockaddrStorage;

use crate::socket::MAX_SEGMENTS;

/// Paths to remember; when more are in use, all are learnt anew.
const BOUND: usize = 4096;
/// Packets in a row with unforeseen identifications that a sender needs to be believed.
const CHANGE_OF_HABIT: u8 = 3;

/// All paths of one socket.
pub(crate) struct Paths {
    local: SocketAddr,
    to: Recent<Gid, Destination>,
    /// By the sender and what it sent to: the socket's own address, or a multicast group.
    from: Recent<(SocketAddr, SocketAddr), Source>,
}

/// A bounded map that finds the entry it found last without hashing.
struct Recent<K, V> {
    index: HashMap<K, usize>,
    entries: Vec<(K, V)>,
    last: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    fn new() -> Recent<K, V> {
        Recent { index: HashMap::new(), entries: Vec::new(), last: 0 }
    }

    fn get_or(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if self.entries.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = match self.index.get(&key) {
                Some(&at) => at,
                None => self.add(key, make()),
            };
        }
        &mut self.entries[self.last].1
    }

    fn add(&mut self, key: K, value: V) -> usize {
        if self.entries.len() >= BOUND {
            self.index.clear();
            self.entries.clear();
        }
        self.index.insert(key, self.entries.len());
        self.entries.push((key, value));
        self.entries.len() - 1
    }
}

/// One to send on.
pub(crate) struct Destination {
    pub(crate) socket_address: SockaddrStorage,
    pub(crate) address: SocketAddr,
    pub(crate) icrc: IcrcPath,
}

/// One to receive on.
pub(crate) struct Source {
    pub(crate) gid: Gid,
    icrc: IcrcPath,
    /// The sender's last identification.
    last: u16,
    /// It uses 0, or the index in a run of segments: what a Linux socket that forbids fragments sends.
    steady: bool,
    /// Packets in a row that would be right under unforeseen identifications.
    surprises: u8,
}

/// What the ICRC of an arrived datagram says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Check {
    /// It is right under this identification.
    Good { ident: u16, solved: bool },
    /// It is wrong, or right only by a coincidence.
    Bad,
    /// There is none.
    TooShort,
}

impl Paths {
    pub(crate) fn new(local: SocketAddr) -> Paths {
        Paths { local, to: Recent::new(), from: Recent::new() }
    }

    /// The path to a NIC.
    pub(crate) fn to(&mut self, gid: Gid) -> &Destination {
        let local = self.local;
        self.to.get_or(gid, || {
            let address = SocketAddr::new(IpAddr::from(gid), ROCE_PORT);
            let icrc = IcrcPath::new(local, address);
            Destination { socket_address: address.into(), address, icrc }
        })
    }

    /// The path from a sender.
    pub(crate) fn from(&mut self, address: SocketAddr, to: SocketAddr) -> &mut Source {
        self.from.get_or((address, to), || Source::new(address, to))
    }
}

impl Source {
    fn new(address: SocketAddr, local: SocketAddr) -> Source {
        Source {
            gid: Gid::from(address.ip()),
            icrc: IcrcPath::new(address, local),
            last: 0,
            steady: false,
            surprises: 0,
        }
    }

    /// Checks the datagram that came as number `index` of a run.
    ///
    /// A UDP socket does not see the identification that the ICRC covers, so it is guessed, or solved for; the latter
    /// leaves only 16 bits of check. A sender that was always foreseen is therefore not believed when it suddenly is
    /// not: such packets are more likely damaged, and a lost packet is sent again.
    pub(crate) fn check(&mut self, datagram: &[u8], index: u16) -> Check {
        let (ident, solved) = match self.icrc.verify(datagram, index) {
            Verdict::Good { ident, solved } => (ident, solved),
            Verdict::Bad => return Check::Bad,
            Verdict::TooShort => return Check::TooShort,
        };
        // The identifications of a sender of our kind stay below the number of segments in a run.
        let small = |ident: u16| usize::from(ident) < MAX_SEGMENTS;
        let counts_on = ident == self.last.wrapping_add(1);
        if small(ident) || counts_on {
            let counter = counts_on && !(small(self.last) && small(ident));
            self.steady = !counter && (self.steady || !solved);
            self.surprises = 0;
            self.last = ident;
            return Check::Good { ident, solved: false };
        }
        if self.steady {
            self.surprises += 1;
            if self.surprises < CHANGE_OF_HABIT {
                return Check::Bad;
            }
            self.steady = false;
        }
        self.last = ident;
        Check::Good { ident, solved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64;

    fn pair() -> (IcrcPath, Source) {
        let (a, b) = ("127.1.0.1:4791".parse().unwrap(), "127.1.0.2:4791".parse().unwrap());
        (IcrcPath::new(a, b), Source::new(a, b))
    }

    fn sealed(path: &IcrcPath, ident: u16) -> [u8; LEN] {
        let mut datagram = [0x5a; LEN];
        path.seal(&mut datagram, ident);
        datagram
    }

    #[test]
    fn a_sender_of_our_own_kind_is_foreseen() {
        let (path, mut source) = pair();
        for index in [0, 0, 1, 2, 15, 0] {
            let check = source.check(&sealed(&path, index), index);
            assert_eq!(check, Check::Good { ident: index, solved: false });
        }
        // A run that the receiving kernel took apart.
        for index in [0, 1, 2, 7] {
            assert!(matches!(source.check(&sealed(&path, index), 0), Check::Good { solved: false, .. }));
        }
    }

    #[test]
    fn a_sender_with_changing_identifications_is_believed_from_the_first() {
        let (path, mut source) = pair();
        assert_eq!(source.check(&sealed(&path, 700), 0), Check::Good { ident: 700, solved: true });
        assert_eq!(source.check(&sealed(&path, 701), 0), Check::Good { ident: 701, solved: false });
        assert_eq!(source.check(&sealed(&path, 9000), 0), Check::Good { ident: 9000, solved: true });
        // Its count wraps: that must not look like a habit.
        for ident in [u16::MAX, 0, 1, 500] {
            assert!(matches!(source.check(&sealed(&path, ident), 0), Check::Good { .. }), "{ident}");
        }
    }

    #[test]
    fn a_steady_sender_is_not_believed_at_once_when_it_changes() {
        let (path, mut source) = pair();
        source.check(&sealed(&path, 0), 0);
        assert_eq!(source.check(&sealed(&path, 700), 0), Check::Bad);
        assert!(matches!(source.check(&sealed(&path, 0), 0), Check::Good { .. }));
        assert_eq!(source.check(&sealed(&path, 700), 0), Check::Bad);
        assert_eq!(source.check(&sealed(&path, 701), 0), Check::Bad);
        assert_eq!(source.check(&sealed(&path, 702), 0), Check::Good { ident: 702, solved: true });
        assert_eq!(source.check(&sealed(&path, 703), 0), Check::Good { ident: 703, solved: false });
    }

    #[test]
    fn damage_is_seen() {
        let (path, mut source) = pair();
        let mut datagram = sealed(&path, 0);
        datagram[20] ^= 4;
        assert_eq!(source.check(&datagram, 0), Check::Bad);
        assert_eq!(source.check(&datagram[..15], 0), Check::TooShort);
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let mut paths = Paths::new("127.1.0.2:4791".parse().unwrap());
        for port in 1..=u16::MAX {
            let local = paths.local;
            paths.from(SocketAddr::new(IpAddr::from([127, 1, 0, 1]), port), local);
            assert!(paths.from.entries.len() <= BOUND && paths.from.index.len() <= BOUND);
        }
    }
}
