use crate::{ModifyError, Qpn};

/// The result of a verbs call.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a verbs call was refused. Nothing was changed by a refused call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The NIC is dead or hung; only [`crate::Provider::reset`] helps.
    #[error("the NIC does not answer (device fatal); fail over, or reset it")]
    DeviceFatal,
    /// No object of that kind has that handle.
    #[error("no {kind} has the handle {id:#x}; it was destroyed, or belongs to another NIC")]
    NoSuchObject {
        /// What was looked for.
        kind: &'static str,
        /// The handle that was given.
        id: u32,
    },
    /// The object is still in use.
    #[error("{kind} {id:#x} is still used by {user}; destroy that first")]
    Busy {
        /// What was to be destroyed.
        kind: &'static str,
        /// Its handle.
        id: u32,
        /// What still uses it.
        user: &'static str,
    },
    /// A limit of the device is exceeded ([`crate::Limits`] has them all).
    #[error("{attribute} is {requested}, this device's limit is {limit}")]
    Limit {
        /// The attribute.
        attribute: &'static str,
        /// What was asked for.
        requested: u64,
        /// What there is.
        limit: u64,
    },
    /// A queue has no room.
    #[error("{queue} of {qpn} is full ({depth} entries); poll its CQ, or create it larger")]
    QueueFull {
        /// "send queue" or "receive queue".
        queue: &'static str,
        /// The queue pair.
        qpn: Qpn,
        /// Its depth.
        depth: u32,
    },
    /// The call is not allowed in the queue pair's state.
    #[error("{call} on {qpn} needs state {needs}, it is in {state:?}")]
    WrongState {
        /// The verb.
        call: &'static str,
        /// The queue pair.
        qpn: Qpn,
        /// The states in which it works.
        needs: &'static str,
        /// The state it is in.
        state: crate::QpState,
    },
    /// A queue-pair transition was refused.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The request breaks a rule of the verbs.
    #[error("{0}")]
    Invalid(&'static str),
    /// The device does not have this.
    #[error("this device does not support {0}")]
    Unsupported(&'static str),
    /// The operating system refused.
    #[error("{operation}: {message}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The system's word.
        message: String,
    },
}

/// A list of work requests was refused from `index` on; those before it were posted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {index}: {error}")]
pub struct PostError {
    /// The first request that was not posted.
    pub index: usize,
    /// Why.
    #[source]
    pub error: Error,
}
