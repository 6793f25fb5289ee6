use core::fmt;

/// One of the two ends of a vQP, distinguished by their cookies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// The end with the smaller cookie.
    Zero,
    /// The end with the larger cookie.
    One,
}

impl Role {
    /// Returns the role of the other end.
    pub fn peer(self) -> Role {
        match self {
            Role::Zero => Role::One,
            Role::One => Role::Zero,
        }
    }
}

/// The number of a binding of a vQP to a rail. Ballots are ordered by epoch and then by proposer,
/// as in Paxos. If both ends propose at the same time, the higher ballot wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ballot {
    /// The epoch: 1 for the initial binding. Each proposal takes the next epoch, even if the
    /// proposal is refused.
    pub epoch: u16,
    /// The end that proposed the binding.
    pub proposer: Role,
}

impl Ballot {
    /// The ballot of the initial binding to rail 0, which neither end proposes.
    pub const FIRST: Ballot = Ballot { epoch: 1, proposer: Role::Zero };

    /// Returns `proposer`'s next ballot, or `None` after the last epoch.
    pub fn next(self, proposer: Role) -> Option<Ballot> {
        Some(Ballot { epoch: self.epoch.checked_add(1)?, proposer })
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.proposer as u8)
    }
}
