use crate::{CqId, Qpn, SrqId};

/// An asynchronous event, by which a NIC reports what is not the result of a work request (IBTA
/// volume 1, 11.6.3; `ibv_get_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The link went down.
    PortError,
    /// The link came up.
    PortActive,
    /// The address of the port has changed ([`query_port`](crate::Provider::query_port)). Connected
    /// queue pairs stay connected to their peers, but the peers drop packets from the new address.
    GidChange,
    /// The NIC died: host access fails, and the NIC writes no further completion.
    DeviceFatal,
    /// A queue pair had an error that no completion could report.
    QpFatal(Qpn),
    /// The peer of this queue pair sent a request that was malformed or violated a rule of the
    /// transport.
    QpRequestError(Qpn),
    /// The peer of this queue pair requested a memory access with an invalid key, outside the
    /// bounds or without the right.
    QpAccessError(Qpn),
    /// A send queue in SQD has drained.
    SqDrained(Qpn),
    /// The first packet arrived on a queue pair in RTR.
    CommunicationEstablished(Qpn),
    /// A completion queue overflowed. Completions are lost, and the queue pairs that use the queue
    /// are in ERR.
    CqError(CqId),
    /// The number of receives in a shared receive queue fell below the armed limit
    /// ([`arm_srq`](crate::Provider::arm_srq)).
    SrqLimitReached(SrqId),
    /// This queue pair is in ERR and will consume no further receive of its shared receive queue.
    LastWqeReached(Qpn),
}
