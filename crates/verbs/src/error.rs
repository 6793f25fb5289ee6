use crate::{ModifyError, Qpn};

/// The result of a verbs call.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a verbs call failed. A failed call changes nothing, except that a list of work requests may
/// have been posted in part ([`PostError`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The NIC is dead or hung. [`Provider`](crate::Provider) lists the calls that still work.
    #[error("the NIC does not answer (device fatal); fail over, or reset it")]
    DeviceFatal,
    /// No object of the required kind has the handle that the caller passed.
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
    #[error("{attribute}: {requested} exceeds this device's limit; use at most {limit}")]
    Limit {
        /// The limited attribute.
        attribute: &'static str,
        /// The requested value.
        requested: u64,
        /// The limit.
        limit: u64,
    },
    /// A queue has no free entry.
    #[error("{queue} of {qpn} is full ({depth} entries); poll its CQ, or create it larger")]
    QueueFull {
        /// "send queue" or "receive queue".
        queue: &'static str,
        /// The queue pair.
        qpn: Qpn,
        /// The number of entries of the queue.
        depth: u32,
    },
    /// A shared receive queue has no free entry.
    #[error("the shared receive queue is full ({depth} entries); create it larger")]
    SrqFull {
        /// The number of entries of the queue.
        depth: u32,
    },
    /// The call is not allowed in the queue pair's state.
    #[error("{call} on {qpn} needs state {needs}, and it is in {state}; modify the queue pair first")]
    WrongState {
        /// The verb.
        call: &'static str,
        /// The queue pair.
        qpn: Qpn,
        /// The states in which the call is allowed.
        needs: &'static str,
        /// The state of the queue pair.
        state: crate::QpState,
    },
    /// A change of a queue pair's state or attributes was refused.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// Memory that is to be registered is not mapped, or not with the right that its registration
    /// needs.
    #[error("the memory at {addr:#x} is not mapped for {right}; map it before it is registered")]
    Inaccessible {
        /// The first address without the right.
        addr: u64,
        /// "reading" or "writing".
        right: &'static str,
    },
    /// The caller lacks the permission for the call.
    #[error("{0} is not permitted")]
    NotPermitted(&'static str),
    /// A region is larger than the memory that can be registered.
    #[error(
        "a region of {len} bytes does not fit in the {limit} bytes that can be registered; register a part"
    )]
    TooLarge {
        /// The length of the region.
        len: u64,
        /// The largest possible length.
        limit: u64,
    },
    /// The request breaks a rule of the verbs.
    #[error("{0}")]
    Invalid(&'static str),
    /// The two ends of a connection have different settings.
    #[error("this end has {local} and the other end has {peer}; give both ends the same")]
    Mismatch {
        /// The settings of this end that differ from the other end's.
        local: String,
        /// The same settings of the other end.
        peer: String,
    },
    /// The device does not support the operation.
    #[error("this device does not support {0}")]
    Unsupported(&'static str),
    /// A call of the operating system failed.
    #[error("{operation}: {message}")]
    System {
        /// The operation that failed, such as "creating an eventfd".
        operation: &'static str,
        /// The operating system's error message.
        message: String,
        /// The operating system's error number, if it gave one.
        errno: Option<i32>,
    },
}

impl Error {
    /// Returns [`Error::System`] for an error of the operating system, or for an error that has
    /// such an error among its sources.
    pub fn system(operation: &'static str, error: &(dyn std::error::Error + 'static)) -> Error {
        let errno = std::iter::successors(Some(error), |error| error.source())
            .find_map(|error| error.downcast_ref::<std::io::Error>()?.raw_os_error());
        Error::System { operation, message: error.to_string(), errno }
    }
}

/// The error of posting a list of work requests. The request at `index` was refused, and the
/// requests after it were not posted. The requests before it were posted, except by
/// [`post_send_all`](crate::Provider::post_send_all), which then posts none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {index}: {error}")]
pub struct PostError {
    /// The index in the list of the request that was refused.
    pub index: usize,
    /// Why the request was refused.
    #[source]
    pub error: Error,
}
