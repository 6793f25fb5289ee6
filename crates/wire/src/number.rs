//! placeholder until the wire room lands
#![allow(missing_docs)]
macro_rules! n {
    ($n:ident) => {
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
        pub struct $n(u32);
        impl $n {
            pub const fn new(v: u32) -> Self {
                Self(v & 0xff_ffff)
            }
            pub const fn value(self) -> u32 {
                self.0
            }
        }
        impl core::fmt::Display for $n {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}
n!(Psn);
n!(Qpn);
