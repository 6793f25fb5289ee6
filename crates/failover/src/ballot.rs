use core::fmt;

/// Which end of a vQP: the one whose cookie is smaller is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// The end with the smaller cookie.
    Zero,
    /// The other end.
    One,
}

/// One binding of a vQP to a rail. Ordered by epoch, then by proposer, so that of two ends that propose at the same
/// time one wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ballot {
    /// Counts the bindings; the first is 1.
    pub epoch: u16,
    /// Who proposed it.
    pub proposer: Role,
}

impl Ballot {
    /// The ballot that both ends start with, on rail 0.
    pub const FIRST: Ballot = Ballot { epoch: 1, proposer: Role::Zero };

    /// The next ballot of `proposer`; `None` when the epochs are used up.
    pub fn next(self, proposer: Role) -> Option<Ballot> {
        Some(Ballot { epoch: self.epoch.checked_add(1)?, proposer })
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.proposer as u8)
    }
}
