//! A world of a queue pair with a shared backup: the steps, the size, and the rules of the driver
//! that a test can leave out.

/// A step of the world. `end` is 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SharedBackupStep {
    /// The application connects the queue pair.
    Start {
        /// The end.
        end: u8,
    },
    /// The backup moves to the next epoch, which no end knows yet.
    Move,
    /// An end learns an epoch.
    Learn {
        /// The end.
        end: u8,
        /// The epoch.
        epoch: u16,
    },
    /// The oldest message arrives.
    Deliver {
        /// The receiver.
        end: u8,
    },
    /// The driver executes the next request of the state machine.
    Drive {
        /// The end.
        end: u8,
    },
    /// The driver posts the next operation.
    Post {
        /// The requester.
        end: u8,
    },
    /// The peer's own queue pair executes the next operation.
    Execute {
        /// The requester.
        end: u8,
        /// The epoch in which the operation was posted.
        epoch: u16,
    },
    /// An operation on the own queue pair completes.
    Complete {
        /// The requester.
        end: u8,
    },
    /// The backup executes its next operation.
    ExecuteOnBackup {
        /// The requester.
        end: u8,
    },
    /// An operation on the backup completes.
    CompleteOnBackup {
        /// The requester.
        end: u8,
    },
    /// The application closes the queue pair.
    Close {
        /// The end.
        end: u8,
    },
}

/// The size of a world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SharedBackupLimits {
    /// The number of operations of each end.
    pub operations: [u8; 2],
    /// The number of times that the backup moves.
    pub moves: u16,
    /// The number of ends that the application closes.
    pub closes: u8,
}

/// A rule of the driver that a test may leave out, to show that the checked properties detect the
/// omission.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SharedBackupRule {
    /// A queue pair is fenced before its evidence is given.
    Fence,
    /// The evidence is read after the fence.
    EvidenceAfterFence,
    /// The operations in flight are decided by the peer's evidence.
    PeerEvidence,
    /// An end posts on its queue pair only when the peer's queue pair is connected.
    PeerConnected,
    /// An end posts on its queue pair only when no operation is in flight on the backup.
    EmptyBackup,
    /// An offer of an earlier epoch is not used.
    OfferOfThisEpoch,
}
