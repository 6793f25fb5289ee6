use core::fmt;

/// One of the two ends of a vQP. The cookies decide which is which.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// The end with the smaller cookie.
    Zero,
    /// The end with the larger cookie.
    One,
}

impl Role {
    /// The other end.
    pub fn peer(self) -> Role {
        match self {
            Role::Zero => Role::One,
            Role::One => Role::Zero,
        }
    }
}

/// The number of a binding of a vQP to a rail. Ballots are ordered by epoch and then by proposer,
/// as in Paxos, so the higher of two simultaneous proposals wins.
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

    /// `proposer`'s next ballot. `None` after the last epoch.
    pub fn next(self, proposer: Role) -> Option<Ballot> {
        Some(Ballot { epoch: self.epoch.checked_add(1)?, proposer })
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.proposer as u8)
    }
}
