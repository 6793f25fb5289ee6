use core::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::{
    Access, AhId, AsyncEvent, Buffer, Counter, CqId, DeviceAttr, Gid, Mr, MrId, Mw, MwId, PdId, PortAttr,
    PostError, Psn, QpAttr, QpInitAttr, QpStatus, Qpn, RecvWr, Result, SendWr, SrqId, Time, Wc,
};

/// An open NIC: the interface of software, simulated and failover NICs.
///
/// No call sleeps unless its documentation says so. Calls may come from any thread; a NIC has one lock. A handle is valid only for
/// the NIC that returned it.
///
/// On a dead or hung NIC all calls return [`DeviceFatal`](crate::Error::DeviceFatal), except [`Provider::poll_cq`],
/// [`Provider::poll_async_event`], [`Provider::attr`], [`Provider::now`] and [`Provider::reset`]. Completions that were written
/// before can still be polled, because the completion queue is host memory. A handle that does not exist is refused with
/// [`NoSuchObject`](crate::Error::NoSuchObject).
///
/// The trait declares no `unsafe` functions, because memory is passed as [`Buffer`]s.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Returns name, limits and capabilities.
    fn attr(&self) -> &DeviceAttr;

    /// Returns the time of the NIC's clock. Timeouts of the NIC's users should use this clock.
    fn now(&self) -> Time;

    /// Returns the port's state, MTU and address.
    ///
    /// # Errors
    /// See the trait.
    fn query_port(&self) -> Result<PortAttr>;

    /// Returns the counters since the NIC was created.
    fn counters(&self) -> Vec<Counter>;

    /// Removes and returns the oldest asynchronous event.
    fn poll_async_event(&self) -> Option<AsyncEvent>;

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// `Limit`.
    fn alloc_pd(&self) -> Result<PdId>;

    /// Deallocates a protection domain.
    ///
    /// # Errors
    /// `Busy` while an object belongs to the protection domain.
    fn dealloc_pd(&self, pd: PdId) -> Result<()>;

    /// Registers memory. The NIC keeps the buffer alive until [`Provider::dereg_mr`].
    ///
    /// # Errors
    /// `Limit`, and `Invalid` for remote write or atomic access without local write (IBTA volume 1, 11.2.8.2).
    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;

    /// Deregisters a region. After the call returns, the NIC no longer accesses the memory, even for packets in flight.
    ///
    /// # Errors
    /// `Busy` while a window is bound to the region.
    fn dereg_mr(&self, mr: MrId) -> Result<()>;

    /// Allocates an unbound type-2 memory window.
    ///
    /// # Errors
    /// `Limit`, and `Unsupported` unless [`crate::Capabilities::windows`].
    fn alloc_mw(&self, pd: PdId) -> Result<Mw>;

    /// Deallocates a window. After the call returns, its key grants no access, even to packets in flight.
    ///
    /// # Errors
    /// See the trait.
    fn dealloc_mw(&self, mw: MwId) -> Result<()>;

    /// Creates an address handle.
    ///
    /// # Errors
    /// `Limit`.
    fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId>;

    /// Destroys an address handle.
    ///
    /// # Errors
    /// See the trait.
    fn destroy_ah(&self, ah: AhId) -> Result<()>;

    /// Creates a completion channel.
    ///
    /// # Errors
    /// `System`, and `Unsupported` in the simulator, where no thread waits.
    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>>;

    /// Creates a completion queue of at least `depth` entries. Its events go to `channel` when it is armed.
    ///
    /// # Errors
    /// `Limit`.
    fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId>;

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// `Busy` while a queue pair uses it.
    fn destroy_cq(&self, cq: CqId) -> Result<()>;

    /// Appends up to `max` completions to `out`, oldest first, and returns their number. Also drives the progress of the NIC.
    ///
    /// # Errors
    /// See the trait.
    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize>;

    /// Arms the queue for one event at the next completion, or at the next completion that is solicited or an error. Completions
    /// that are already in the queue cause no event, so the caller polls once more after arming.
    ///
    /// # Errors
    /// See the trait.
    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()>;

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// `Limit`.
    fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId>;

    /// Arms [`AsyncEvent::SrqLimitReached`], which is reported once when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// `Limit` if `limit` exceeds the depth of the queue.
    fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()>;

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// `Busy` while a queue pair uses it.
    fn destroy_srq(&self, srq: SrqId) -> Result<()>;

    /// Posts receives to a shared receive queue, in order.
    ///
    /// # Errors
    /// `QueueFull` and `Limit`, with the index of the first receive that was not posted.
    fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError>;

    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// `Limit`, and `Invalid` for attributes that contradict each other.
    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn>;

    /// Changes the state or attributes of a queue pair; [`crate::check_modify`] has the rules. A change to ERR is a fence: after the
    /// call returns, no packet of this queue pair accesses memory, and all earlier placements are complete.
    ///
    /// # Errors
    /// `Modify` for a change that the rules forbid, and `Limit`.
    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()>;

    /// Returns the state and attributes of a queue pair.
    ///
    /// # Errors
    /// See the trait.
    fn query_qp(&self, qp: Qpn) -> Result<QpStatus>;

    /// Attaches a UD queue pair to a multicast group. The queue pair then receives a copy of each message to the group; of its own
    /// messages only if `loopback` is set. Does nothing if the queue pair is attached already.
    ///
    /// # Errors
    /// `Invalid` unless the GID is that of a multicast group that this NIC can reach, and `Limit`.
    fn attach_mcast(&self, qp: Qpn, group: Gid, loopback: bool) -> Result<()>;

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// `Invalid` if the queue pair is not attached.
    fn detach_mcast(&self, qp: Qpn, group: Gid) -> Result<()>;

    /// Destroys a queue pair. Its outstanding requests get no completion. The NIC does not reuse its number for the maximum packet
    /// lifetime.
    ///
    /// # Errors
    /// `Busy` while the queue pair is attached to a multicast group.
    fn destroy_qp(&self, qp: Qpn) -> Result<()>;

    /// Posts sends, in order, and starts them.
    ///
    /// # Errors
    /// `WrongState`, `QueueFull`, `Limit` and `Invalid`, with the index of the first request that was not posted. Earlier requests
    /// stay posted.
    fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;

    /// Posts all sends or, if one of them is refused, none.
    ///
    /// # Errors
    /// As for [`Provider::post_send`], but no request is posted.
    fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;

    /// Posts receives, in order.
    ///
    /// # Errors
    /// `WrongState`, `QueueFull` and `Limit`, with the index of the first receive that was not posted.
    fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError>;

    /// Returns the responder's saved results of atomics, oldest first, from which it answers duplicate requests. Works in ERR.
    ///
    /// # Errors
    /// `Unsupported` unless [`crate::Capabilities::saved_results`].
    fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>>;

    /// Resets the NIC and destroys all its objects. After the call returns, the NIC no longer accesses host memory. Completions that
    /// were written before can still be polled. The call also works on a hung NIC, and on a dead NIC, where it confirms that the NIC
    /// is dead. The NIC remains unusable; the program opens it again.
    ///
    /// # Errors
    /// `Unsupported` unless [`crate::Capabilities::reset`].
    fn reset(&self) -> Result<()>;
}

/// The saved result of an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SavedResult {
    /// The PSN of the request.
    pub psn: Psn,
    /// The value of the word before the operation.
    pub value: u64,
}

/// Delivers the events of completion queues. Its file descriptor is readable while an event waits, so the channel can be used in any
/// event loop.
pub trait CompletionChannel: AsFd + Send + Sync + fmt::Debug {
    /// Removes the oldest event without blocking and returns its completion queue.
    ///
    /// # Errors
    /// `System`.
    fn next_event(&self) -> Result<Option<CqId>>;
}
