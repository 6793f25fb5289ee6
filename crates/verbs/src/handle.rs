use core::fmt;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

handle!(
    /// The handle of a protection domain, valid for one NIC.
    PdId
);
handle!(
    /// The handle of a memory region, valid for one NIC.
    MrId
);
handle!(
    /// The handle of a memory window, valid for one NIC.
    MwId
);
handle!(
    /// The handle of a completion queue, valid for one NIC.
    CqId
);
handle!(
    /// The handle of a shared receive queue, valid for one NIC.
    SrqId
);
handle!(
    /// The handle of an XRC domain, valid for one NIC.
    XrcdId
);
handle!(
    /// The handle of an address handle, valid for one NIC.
    AhId
);
handle!(
    /// The identifier of the buffer of a memory region. The transport's key table translates keys
    /// to such identifiers, and the driver finds the buffer by them.
    RegionId
);

/// A local or remote key: 32 bits that identify memory and grant access to it on one NIC.
///
/// The NIC chooses the upper 24 bits, from an index, a generation and random bits. The program
/// chooses the low 8 bits of the key of a type-2 window (IBTA volume 1, 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Key(pub u32);

impl Key {
    /// Returns the upper 24 bits of the key, which the NIC chose, with zeros in the low 8 bits.
    pub const fn index_part(self) -> u32 {
        self.0 & 0xffff_ff00
    }

    /// Returns the key with its low 8 bits replaced by `bits`.
    pub const fn with_consumer_bits(self, bits: u8) -> Key {
        Key(self.index_part() | bits as u32)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
