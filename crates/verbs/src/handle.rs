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
    /// Names a protection domain of one NIC.
    PdId
);
handle!(
    /// Names a memory region of one NIC.
    MrId
);
handle!(
    /// Names a memory window of one NIC.
    MwId
);
handle!(
    /// Names a completion queue of one NIC.
    CqId
);
handle!(
    /// Names a shared receive queue of one NIC.
    SrqId
);
handle!(
    /// Names an address handle of one NIC.
    AhId
);
handle!(
    /// Names registered memory to a NIC's driver: what a NIC's key tables point at.
    RegionId
);

/// A local or remote key: 32 bits that name memory and the right to use it on one NIC.
///
/// The low 8 bits of a type-2 window's key belong to the consumer (IBTA volume 1, 10.6.7.2); index, generation
/// and randomness live in the upper 24.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Key(pub u32);

impl Key {
    /// The part that the NIC chose.
    pub const fn index_part(self) -> u32 {
        self.0 & 0xffff_ff00
    }

    /// The same key with the consumer's 8 bits replaced.
    pub const fn with_consumer_bits(self, bits: u8) -> Key {
        Key(self.index_part() | bits as u32)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
