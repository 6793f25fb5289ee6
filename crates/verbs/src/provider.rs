use core::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::{
    Access, AhId, AsyncEvent, Buffer, Counter, CqId, DeviceAttr, Error, Gid, Mr, MrId, Mw, MwId, PdId,
    PortAttr, PostError, Psn, QpAttr, QpInitAttr, QpStatus, Qpn, RecvWr, Result, SendWr, SrqId, Srqn, Time,
    Wc, WindowType, XrcdId,
};

/// An open NIC, which may be a software NIC, a simulated NIC, or several NICs with failover.
///
/// No call sleeps unless its documentation says so. Any thread may call any method. A handle is
/// valid only for the NIC that returned it.
///
/// On a dead or hung NIC all calls return [`DeviceFatal`](crate::Error::DeviceFatal), except
/// [`Provider::poll_cq`], [`Provider::poll_async_event`], [`Provider::counters`],
/// [`Provider::attr`], [`Provider::now`], [`Provider::random_u64`] and [`Provider::reset`].
/// Completions that the NIC wrote before it failed can still be polled, because the completion
/// queue is host memory. A call with a handle of no object returns
/// [`NoSuchObject`](crate::Error::NoSuchObject). The sections "Errors" of the methods do not repeat
/// these two errors.
///
/// The trait declares no `unsafe` functions, because programs pass memory as [`Buffer`]s, which are
/// valid as long as they exist.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Returns the name, the limits and the capabilities of the NIC.
    fn attr(&self) -> &DeviceAttr;

    /// Returns the time of the NIC's clock. Timeouts of the NIC's users should use this clock.
    fn now(&self) -> Time;

    /// Returns 64 random bits that no peer can predict. A NIC in software draws them from the
    /// operating system, a simulated NIC from its seed.
    ///
    /// # Errors
    /// `System`.
    fn random_u64(&self) -> Result<u64>;

    /// Returns the state, the maximum MTU and the address of the port. The address may change
    /// ([`AsyncEvent::GidChange`]).
    ///
    /// # Errors
    /// See the trait.
    fn query_port(&self) -> Result<PortAttr>;

    /// Returns the NIC's counters.
    fn counters(&self) -> Vec<Counter>;

    /// Returns a number that changes whenever the host at `destination` reports, in answer to a
    /// packet of this NIC, that no process has opened its RoCE port (ICMP "port unreachable"). By
    /// this report a software NIC learns that the peer's process has ended. The number is 0 before
    /// the first report. It is always 0 for a hardware NIC, whose port outlives the process. The
    /// report has no authentication.
    fn port_refusals(&self, _destination: Gid) -> u64 {
        0
    }

    /// Removes and returns the oldest asynchronous event. Returns `None` if there is no event.
    fn poll_async_event(&self) -> Option<AsyncEvent>;

    /// Returns a number that changes when [`Provider::poll_async_event`] has another event, and
    /// when [`Provider::query_port`] answers otherwise. While a caller finds the same number as
    /// before its last calls of both, it need not call them again. `None` if the NIC does not
    /// count.
    fn generation(&self) -> Option<u64> {
        None
    }

    /// Lets queue pairs connect to peers that are not reached at present, as a virtual queue pair
    /// does with its other rails: their requests fail as on a path that loses them, and datagrams
    /// are lost. Without this call, the change to RTR and the creation of an address handle may
    /// fail there. Most NICs do not ask whether a peer is reached.
    fn connect_unreached_peers(&self) {}

    /// Returns a descriptor that is readable while [`Provider::poll_async_event`] would return an
    /// event. `None` if the NIC has none, as in the simulator. The descriptor is valid as long as
    /// the NIC.
    fn async_event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

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
    /// `Limit`, and `Invalid` if `access` contains remote write or atomic access without local
    /// write (IBTA volume 1, 11.2.8.2).
    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;

    /// Deregisters a region. After the call returns, the NIC no longer accesses the memory, even
    /// for packets in flight.
    ///
    /// # Errors
    /// `Busy` while a window is bound to the region.
    fn dereg_mr(&self, mr: MrId) -> Result<()>;

    /// Replaces the protection domain, the memory and the access rights of a region in one step.
    /// Its handle and its keys stay. After the call returns, the NIC no longer accesses the earlier
    /// memory, even for packets in flight.
    ///
    /// # Errors
    /// The errors of [`Provider::reg_mr`], and `Busy` while a window is bound to the region. The
    /// region is then unchanged.
    fn rereg_mr(&self, mr: MrId, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;

    /// Allocates an unbound memory window.
    ///
    /// # Errors
    /// `Limit`, and `Unsupported` unless [`crate::Capabilities::windows`].
    fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw>;

    /// Deallocates a window. After the call returns, its key grants no access, even to packets in
    /// flight.
    ///
    /// # Errors
    /// See the trait.
    fn dealloc_mw(&self, mw: MwId) -> Result<()>;

    /// Creates an address handle.
    ///
    /// # Errors
    /// `Limit`.
    fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId>;

    /// Creates an address handle for datagrams with a traffic class: the type of service of an IPv4
    /// header, or the traffic class of an IPv6 header.
    ///
    /// # Errors
    /// `Limit`, and `Unsupported` if the class is not 0 and the NIC cannot set it, as in the
    /// simulator.
    fn create_ah_with_traffic_class(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId> {
        match traffic_class {
            0 => self.create_ah(pd, destination),
            _ => Err(Error::Unsupported("traffic classes of address handles")),
        }
    }

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

    /// Creates a completion queue of at least `depth` entries. Its events go to `channel` when it
    /// is armed.
    ///
    /// # Errors
    /// `Limit`.
    fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId>;

    /// Changes the number of entries of a completion queue to at least `depth`.
    ///
    /// # Errors
    /// `Limit`, and `Invalid` if `depth` is 0 or less than the number of completions in the queue.
    fn resize_cq(&self, cq: CqId, depth: u32) -> Result<()>;

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// `Busy` while a queue pair uses it.
    fn destroy_cq(&self, cq: CqId) -> Result<()>;

    /// Appends up to `max` completions to `out`, oldest first, and returns their number. Also
    /// drives the progress of the NIC.
    ///
    /// # Errors
    /// See the trait.
    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize>;

    /// Arms the queue: the next completion causes one event. If `solicited_only` is set, only a
    /// solicited completion or an error causes the event. Completions that are already in the queue
    /// cause no event, so the caller must poll once more after this call.
    ///
    /// # Errors
    /// See the trait.
    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()>;

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// `Limit`.
    fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId>;

    /// Allocates an XRC domain.
    ///
    /// # Errors
    /// `Limit`, and `Unsupported` if the NIC has no XRC.
    fn alloc_xrcd(&self) -> Result<XrcdId> {
        Err(Error::Unsupported("XRC"))
    }

    /// Deallocates an XRC domain.
    ///
    /// # Errors
    /// `Busy` while a queue pair or a shared receive queue belongs to the domain.
    fn dealloc_xrcd(&self, _xrcd: XrcdId) -> Result<()> {
        Err(Error::Unsupported("XRC"))
    }

    /// Creates a shared receive queue in an XRC domain. Its receives complete in `cq`.
    ///
    /// # Errors
    /// `Limit`, and `Unsupported` if the NIC has no XRC.
    fn create_xrc_srq(&self, _pd: PdId, _xrcd: XrcdId, _cq: CqId, _depth: u32) -> Result<SrqId> {
        Err(Error::Unsupported("XRC"))
    }

    /// Returns the number of an XRC shared receive queue, by which peers name it.
    ///
    /// # Errors
    /// `Invalid` if the queue is in no XRC domain.
    fn srq_number(&self, _srq: SrqId) -> Result<Srqn> {
        Err(Error::Unsupported("XRC"))
    }

    /// Arms [`AsyncEvent::SrqLimitReached`], which is reported once when fewer than `limit`
    /// receives are left.
    ///
    /// # Errors
    /// `Limit` if `limit` exceeds the depth of the queue.
    fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()>;

    /// Changes the number of entries of a shared receive queue. Its receives stay.
    ///
    /// # Errors
    /// `Limit` if `depth` exceeds the limit of the device. `Invalid` if `depth` is 0, or is less
    /// than the number of posted receives or than the armed limit.
    fn resize_srq(&self, srq: SrqId, depth: u32) -> Result<()>;

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// `Busy` while a queue pair uses it.
    fn destroy_srq(&self, srq: SrqId) -> Result<()>;

    /// Posts receives to a shared receive queue, in order.
    ///
    /// # Errors
    /// `QueueFull` and `Limit`, with the index of the first receive that was not posted. The
    /// receives before it remain posted.
    fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError>;

    /// Creates a queue pair in the state RESET.
    ///
    /// # Errors
    /// `Limit`, and `Invalid` for attributes that contradict each other.
    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn>;

    /// Changes the state or the attributes of a queue pair by the rules of [`crate::check_modify`].
    ///
    /// A change to ERR is no fence by its return: the NIC may finish packets that it has begun, and
    /// then access memory (soft-RoCE does). The NIC then flushes the posted requests. ERR and the
    /// flushed *markers* are a fence. A marker is a request that was posted behind all others,
    /// before or after the change:
    ///
    /// - When a receive marker has completed, the queue pair executes no request of the peer any
    ///   more, and earlier ones are complete in memory.
    /// - When a send marker has completed, no response changes local memory any more.
    ///
    /// A queue pair that takes its receives from a shared receive queue of the NIC gets no receive
    /// marker. There, and where a marker does not complete, [`Provider::destroy_qp`],
    /// [`Provider::dereg_mr`] and [`Provider::dealloc_mw`] are fences by their return.
    ///
    /// # Errors
    /// `Modify` for a change that the rules forbid, and `Limit`.
    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()>;

    /// Returns the state and attributes of a queue pair. After a change to ERR, the PSN that the
    /// responder expects ([`QpStatus::rq_psn`]) is final only when the receive marker has completed
    /// ([`Provider::modify_qp`]).
    ///
    /// # Errors
    /// See the trait.
    fn query_qp(&self, qp: Qpn) -> Result<QpStatus>;

    /// Attaches a UD queue pair to a multicast group. The queue pair then receives a copy of each
    /// message to the group. It receives messages that it sent itself only if `loopback` is set.
    /// Does nothing if the queue pair is attached already.
    ///
    /// # Errors
    /// `Invalid` if the GID is not a multicast group that this NIC can reach, and `Limit`.
    fn attach_mcast(&self, qp: Qpn, group: Gid, loopback: bool) -> Result<()>;

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// `Invalid` if the queue pair is not attached.
    fn detach_mcast(&self, qp: Qpn, group: Gid) -> Result<()>;

    /// Destroys a queue pair. Its outstanding requests get no completion, and completions that the
    /// NIC has written stay in their queue. After the call returns,
    /// the queue pair no longer accesses memory, even for packets in flight. The NIC does not
    /// assign the number of the queue pair again until the maximum packet lifetime is over.
    ///
    /// # Errors
    /// `Busy` while the queue pair is attached to a multicast group.
    fn destroy_qp(&self, qp: Qpn) -> Result<()>;

    /// Posts sends, in order.
    ///
    /// # Errors
    /// `WrongState`, `QueueFull`, `Limit` and `Invalid`, with the index of the first request that
    /// was not posted. The requests before it remain posted.
    fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;

    /// Posts all sends or, if one of them is refused, none.
    ///
    /// # Errors
    /// As for [`Provider::post_send`], but no request is posted.
    fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;

    /// Posts receives, in order.
    ///
    /// # Errors
    /// `WrongState`, `QueueFull` and `Limit`, with the index of the first receive that was not
    /// posted. The receives before it remain posted.
    fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError>;

    /// Returns the saved results of atomics, oldest first, with which the responder answers
    /// duplicate requests. The call also works in ERR.
    ///
    /// # Errors
    /// `Unsupported` unless [`crate::Capabilities::saved_results`].
    fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>>;

    /// Resets the NIC and destroys all its objects. When the call returns, the NIC no longer
    /// accesses host memory. Completions that the NIC wrote before can still be polled. The call
    /// also works on a hung or dead NIC. This `Provider` remains unusable after the call, and the
    /// program must open the NIC again.
    ///
    /// # Errors
    /// `Unsupported` unless [`crate::Capabilities::reset`].
    fn reset(&self) -> Result<()>;
}

/// The saved result of an atomic that the responder executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SavedResult {
    /// The PSN of the request.
    pub psn: Psn,
    /// The value of the word before the operation.
    pub value: u64,
}

/// A completion channel, which delivers the events of completion queues. Its file descriptor is
/// readable while the channel holds an event, so any event loop can wait for the channel.
pub trait CompletionChannel: AsFd + Send + Sync + fmt::Debug {
    /// Removes the oldest event and returns its completion queue. Returns `None`, without blocking,
    /// if there is no event.
    ///
    /// # Errors
    /// `System`, and `DeviceFatal` if the channel is closed and holds no event.
    fn next_event(&self) -> Result<Option<CqId>>;

    /// Prepares the caller to sleep until there is an event, for a thread that does not wait for
    /// the descriptor. Returns a futex (private to the process, `futex(2)`) and its value, or
    /// `None` if the channel holds an event or is closed. The next event, or the end of the
    /// channel, changes the value and wakes every sleeper.
    fn begin_wait(&self) -> Option<(&AtomicU32, u32)>;

    /// Ends the channel, whose NIC is dead: later events are dropped, the descriptor stays
    /// readable, and waiting threads wake.
    fn close(&self);
}
