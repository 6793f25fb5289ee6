use core::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::{
    Access, AhId, AsyncEvent, Buffer, Counter, CqId, DeviceAttr, Gid, Mr, MrId, Mw, MwId, PdId, PortAttr,
    PostError, Psn, QpAttr, QpInitAttr, QpStatus, Qpn, RecvWr, Result, SendWr, SrqId, Time, Wc,
};

/// A NIC, opened: what software NICs, real ones and simulated ones have in common.
///
/// Every call is bounded and never sleeps, except where it says so. Handles belong to the NIC that gave them.
/// All calls may come from any thread; a NIC has one lock. On a NIC that is dead or hung, all calls but
/// [`Provider::poll_cq`] (the queue is host memory: what was already written can be read),
/// [`Provider::poll_async_event`], [`Provider::attr`], [`Provider::now`] and [`Provider::reset`] give
/// [`crate::Error::DeviceFatal`].
///
/// The trait declares no `unsafe`: memory is handed over as [`Buffer`]s.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Name, limits and capabilities.
    fn attr(&self) -> &DeviceAttr;

    /// The NIC's clock, which all time-outs of users should be measured by.
    fn now(&self) -> Time;

    /// The port's state, MTU and address.
    fn query_port(&self) -> Result<PortAttr>;

    /// Counts since the NIC was made.
    fn counters(&self) -> Vec<Counter>;

    /// The next asynchronous event, if there is one.
    fn poll_async_event(&self) -> Option<AsyncEvent>;

    /// Makes a protection domain.
    fn alloc_pd(&self) -> Result<PdId>;

    /// Removes a protection domain. Busy while anything belongs to it.
    fn dealloc_pd(&self, pd: PdId) -> Result<()>;

    /// Registers memory. The NIC keeps the buffer alive until [`Provider::dereg_mr`].
    ///
    /// # Errors
    /// Remote write or atomic access without local write is refused (IBTA volume 1, 11.2.8.2).
    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;

    /// Revokes a region. On return the NIC will touch its memory no more, whatever packets are in flight.
    /// Busy while a window is bound to it.
    fn dereg_mr(&self, mr: MrId) -> Result<()>;

    /// Makes an unbound type-2 memory window.
    fn alloc_mw(&self, pd: PdId) -> Result<Mw>;

    /// Revokes and removes a window; as final as [`Provider::dereg_mr`].
    fn dealloc_mw(&self, mw: MwId) -> Result<()>;

    /// Makes an address handle.
    fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId>;

    /// Removes an address handle.
    fn destroy_ah(&self, ah: AhId) -> Result<()>;

    /// Makes a completion channel.
    ///
    /// # Errors
    /// `Unsupported` in the simulator, where no thread ever waits.
    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>>;

    /// Makes a completion queue of at least `depth` entries, whose events go to `channel` when armed.
    fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId>;

    /// Removes a completion queue. Busy while a queue pair uses it.
    fn destroy_cq(&self, cq: CqId) -> Result<()>;

    /// Appends up to `max` completions to `out`, oldest first, and says how many. Drives the NIC.
    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize>;

    /// Arms the queue: one event at the next completion (or the next solicited one or error).
    /// Completions already there give no event: poll once more after arming.
    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()>;

    /// Makes a shared receive queue.
    fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId>;

    /// Arms [`AsyncEvent::SrqLimitReached`]: given once when fewer than `limit` receives are left.
    fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()>;

    /// Removes a shared receive queue. Busy while a queue pair uses it.
    fn destroy_srq(&self, srq: SrqId) -> Result<()>;

    /// Posts receives to a shared receive queue, in order.
    fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError>;

    /// Makes a queue pair in RESET.
    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn>;

    /// Changes state or attributes ([`crate::check_modify`] says which may go where). A change to ERR is a
    /// fence: on return no packet of this queue pair touches memory any more and earlier placements are done.
    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()>;

    /// State and attributes.
    fn query_qp(&self, qp: Qpn) -> Result<QpStatus>;

    /// Attaches a UD queue pair to a multicast group: it gets a copy of each message that is sent to it, of its `own`
    /// messages only if asked. It may be attached before; that changes nothing.
    ///
    /// # Errors
    /// The GID is not of a multicast group that this NIC reaches ([`Limits`](crate::Limits) says how many it can be in).
    fn attach_mcast(&self, qp: Qpn, group: Gid, own: bool) -> Result<()>;

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// It is not attached.
    fn detach_mcast(&self, qp: Qpn, group: Gid) -> Result<()>;

    /// Removes a queue pair; its outstanding requests vanish without completion. Its number is not used again
    /// for the maximum packet lifetime. Busy while it is attached to a multicast group.
    fn destroy_qp(&self, qp: Qpn) -> Result<()>;

    /// Posts sends, in order. Starts them. What was posted before an error stays posted.
    fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;

    /// The same, but all or none: where one is refused, nothing is posted.
    fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;

    /// Posts receives, in order.
    fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError>;

    /// The responder's saved atomic results, oldest first: what it would answer to a duplicate. Works in ERR.
    ///
    /// # Errors
    /// `Unsupported` unless [`crate::Capabilities::saved_results`].
    fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>>;

    /// Resets the NIC: every object is gone but the completions that were written before, which can still be polled; and
    /// on return the NIC touches host memory no more. Works on a hung
    /// NIC, and on a dead one (where it confirms the death). The NIC stays unusable: open it anew.
    ///
    /// # Errors
    /// `Unsupported` unless [`crate::Capabilities::reset`].
    fn reset(&self) -> Result<()>;
}

/// A saved atomic result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SavedResult {
    /// PSN of the atomic's request.
    pub psn: Psn,
    /// The word's old value.
    pub value: u64,
}

/// Delivers the events of completion queues. A file descriptor: readable while an event waits, so it can stand in
/// any event loop.
pub trait CompletionChannel: AsFd + Send + Sync + fmt::Debug {
    /// Takes the oldest event without blocking: the queue that it is about.
    fn next_event(&self) -> Result<Option<CqId>>;
}
