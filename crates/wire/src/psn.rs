//! The 24-bit numbers of packets: packet sequence number, queue pair number and shared receive
//! queue number.

use std::cmp::Ordering;
use std::fmt;

const MASK: u32 = 0x00ff_ffff;
const HALF: u32 = 1 << 23;

/// A packet sequence number, which has 24 bits and wraps around (IBTA 9.2).
///
/// The type does not implement `Ord`, because numbers that wrap around have no total order.
/// [`cmp_serial`](Self::cmp_serial) compares two numbers by their distance modulo 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Creates a sequence number from the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Psn(value & MASK)
    }

    /// Returns the number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the sequence number of the packet `n` packets after this one.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Psn(self.0.wrapping_add(n) & MASK)
    }

    /// Returns the sequence number of the packet `n` packets before this one.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Psn(self.0.wrapping_sub(n) & MASK)
    }

    /// Returns the sequence number of the next packet.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// Returns the distance from `from` in packets: (self − from) mod 2^24.
    pub const fn distance(self, from: Psn) -> u32 {
        self.0.wrapping_sub(from.0) & MASK
    }

    /// Compares two sequence numbers. `self` is the greater one if its [`distance`](Self::distance)
    /// from `other` is 1 to 2^23 − 1, and the lesser one if that distance is above 2^23. At a
    /// distance of exactly 2^23, the numbers have no order and the method returns `None`.
    pub const fn cmp_serial(self, other: Psn) -> Option<Ordering> {
        match self.distance(other) {
            0 => Some(Ordering::Equal),
            1..HALF => Some(Ordering::Greater),
            HALF => None,
            _ => Some(Ordering::Less),
        }
    }

    /// Whether this number is 1 to 2^23 − 1 packets before `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        matches!(self.cmp_serial(other), Some(Ordering::Less))
    }

    /// Whether this number is 1 to 2^23 − 1 packets after `other`.
    pub const fn is_after(self, other: Psn) -> bool {
        matches!(self.cmp_serial(other), Some(Ordering::Greater))
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({})", self.0)
    }
}

/// A queue pair number, which has 24 bits (IBTA 9.2). Numbers 0 and 1 are the management queue
/// pairs. Multicast packets are sent to number 0xffffff.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// Creates a queue pair number from the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Qpn(value & MASK)
    }

    /// Returns the number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({self})")
    }
}

/// The number of an XRC shared receive queue, which has 24 bits (IBTA volume 1, annex A14, XRCETH).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Srqn(u32);

impl Srqn {
    /// Creates a number from the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Srqn(value & MASK)
    }

    /// Returns the number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srqn({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_24_bits() {
        assert_eq!(Psn::new(0xff00_0001).value(), 1);
        assert_eq!(Psn::new(0xff_ffff).add(2), Psn::new(1));
        assert_eq!(Psn::new(1).sub(2), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0xff_ffff).next().value(), 0);
        assert_eq!(Psn::new(5).add(u32::MAX), Psn::new(4));
        assert_eq!(Qpn::new(0x0100_0011).value(), 0x11);
        assert_eq!(Qpn::new(0x11).to_string(), "0x000011");
        assert_eq!(Srqn::new(0x0100_0011), Srqn::new(0x11));
    }

    #[test]
    fn comparison_wraps_around() {
        let (last, first) = (Psn::new(0xff_ffff), Psn::new(0));
        assert_eq!(first.distance(last), 1);
        assert_eq!(last.distance(first), 0xff_ffff);
        assert!(last.is_before(first) && first.is_after(last));
        assert!(!first.is_before(first) && !first.is_after(first));
        assert_eq!(first.cmp_serial(first), Some(Ordering::Equal));

        let farthest = first.add(HALF - 1);
        assert!(first.is_before(farthest) && farthest.is_after(first));
        let opposite = first.add(HALF);
        assert_eq!(first.cmp_serial(opposite), None);
        assert!(!first.is_before(opposite) && !first.is_after(opposite));
        assert!(first.is_after(first.add(HALF + 1)));
    }
}
