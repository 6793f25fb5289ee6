use crate::{ModifyError, Qpn};

/// The result of a verbs call.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a verbs call failed. A failed call changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The NIC is dead or hung. Only [`crate::Provider::reset`] works.
    #[error("the NIC does not answer (device fatal); fail over, or reset it")]
    DeviceFatal,
    /// No object of that kind has that handle.
    #[error("no {kind} has the handle {id:#x}; it was destroyed, or belongs to another NIC")]
    NoSuchObject {
        /// The kind of object.
        kind: &'static str,
        /// The handle that the caller passed.
        id: u32,
    },
    /// The object is still in use.
    #[error("{kind} {id:#x} is still used by {user}; destroy that first")]
    Busy {
        /// The kind of object that was to be destroyed.
        kind: &'static str,
        /// The handle of the object.
        id: u32,
        /// The kind of object that still uses it.
        user: &'static str,
    },
    /// A limit of the device is exceeded (see [`crate::Limits`]).
    #[error("{attribute} is {requested}, this device's limit is {limit}")]
    Limit {
        /// The limited attribute.
        attribute: &'static str,
        /// The requested value.
        requested: u64,
        /// The limit.
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
    /// The device does not support the operation.
    #[error("this device does not support {0}")]
    Unsupported(&'static str),
    /// A call of the operating system failed.
    #[error("{operation}: {message}")]
    System {
        /// The operation that failed, as in "creating an eventfd".
        operation: &'static str,
        /// The operating system's error message.
        message: String,
    },
}

/// Error of posting a list of work requests: the request at `index` and all later ones were not posted, the earlier ones were.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {index}: {error}")]
pub struct PostError {
    /// The first request that was not posted.
    pub index: usize,
    /// Why the request was refused.
    #[source]
    pub error: Error,
}
