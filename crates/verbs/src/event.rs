use crate::{CqId, Qpn, SrqId};

/// An asynchronous event, which a NIC reports besides completions (IBTA volume 1, 11.6.3; `ibv_get_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The link went down.
    PortError,
    /// The link came up.
    PortActive,
    /// The NIC died: host access fails, and the NIC writes no further completion.
    DeviceFatal,
    /// A queue pair hit an error that no completion can carry.
    QpFatal(Qpn),
    /// A request on this queue pair was malformed or broke a rule of the transport.
    QpRequestError(Qpn),
    /// A remote request named a wrong key, bound or right on this queue pair.
    QpAccessError(Qpn),
    /// A send queue in SQD has drained.
    SqDrained(Qpn),
    /// The first packet arrived on a queue pair still in RTR.
    CommunicationEstablished(Qpn),
    /// A completion queue overflowed: completions are lost, and the queue pairs that use it are in ERR.
    CqError(CqId),
    /// A shared receive queue fell below its limit.
    SrqLimitReached(SrqId),
    /// This queue pair, which is in ERR, will consume no further receives of its shared receive queue.
    LastWqeReached(Qpn),
}
