//! The device as the C interface knows it, whatever the number of its rails.
//!
//! [`one_nic`](super::one_nic) implements the traits over the NIC of a device with one rail: an
//! object of the program is an object of the NIC, with the NIC's number.
//! [`several_rails`](super::several_rails) implements them over a failover domain. A queue or queue
//! pair that a method gets must be of the same device.

use std::any::Any;
use std::sync::Arc;

use mitra_failover::telemetry::Telemetry;
use mitra_verbs::{
    Access, AhId, Buffer, CqId, Error, Gid, Limits, Mr, Mw, PdId, PostError, QpAttr, QpInitAttr, QpStatus,
    QpType, Qpn, RecvWr, Result, SendWr, SrqId, Srqn, Wc, WindowType, XrcdId,
};

use super::cm_datagrams::OwnerSearch;
use super::cm_receiver::SharedReceiver;
use super::object_table::ChannelEvents;
use super::rail_address::{Endpoints, RailAddress};

/// A method that creates an object returns `Limit` if a limit of the device or of a NIC forbids it,
/// and `DeviceFatal` if all NICs are dead. A dead NIC is no error of a method that ends an object.
pub(crate) trait Device: Send + Sync {
    /// The limits of the program. Takes no lock.
    fn limits(&self) -> Limits;

    /// Returns the device's GID, which is the present GID of rail 0.
    ///
    /// # Errors
    /// `DeviceFatal` if the device has one rail and its NIC is dead. With several rails the GID
    /// outlives rail 0.
    fn gid(&self) -> Result<Gid>;

    /// Whether each change of the port is an event, also a change that is reversed at once.
    fn reports_each_port_change(&self) -> bool {
        false
    }

    /// # Errors
    /// `System` if the process has no free descriptor.
    fn create_channel(&self) -> Result<ChannelEvents>;

    /// # Errors
    /// See the trait.
    fn alloc_pd(&self) -> Result<PdId>;

    /// # Errors
    /// The error of the NIC.
    fn dealloc_pd(&self, pd: PdId) -> Result<()>;

    /// Registers memory with every live NIC.
    ///
    /// # Errors
    /// See the trait; otherwise the error of the first live NIC that refuses.
    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;

    /// Replaces the memory, the access rights and the domain of a region. The keys stay.
    ///
    /// # Errors
    /// The error of the first live NIC that refuses. The region is then unchanged on every NIC that
    /// works.
    fn rereg_mr(&self, mr: &Mr, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;

    /// Revokes a registration. After `Ok`, no NIC accesses the memory.
    ///
    /// # Errors
    /// `Busy` if a window is bound to the region. Otherwise the error of a NIC that does not
    /// confirm the revocation, and may still access the memory.
    fn dereg_mr(&self, mr: &Mr) -> Result<()>;

    /// # Errors
    /// See the trait.
    fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw>;

    /// Unbinds and removes a window.
    ///
    /// # Errors
    /// The error of a NIC that does not confirm the removal.
    fn dealloc_mw(&self, mw: &Mw) -> Result<()>;

    /// Prepares for the bind of a window on a queue pair of this type. The window will give the
    /// peer the rights `access`.
    ///
    /// # Errors
    /// `Unsupported` for an XRC queue pair on a device with several rails, or the error of
    /// [`MultiRailDomain::share_atomics`](super::multi_rail_domain::MultiRailDomain::share_atomics).
    fn prepare_bind(&self, _qp_type: QpType, _access: Access) -> Result<()> {
        Ok(())
    }

    /// # Errors
    /// See the trait. On a device with several rails, dead NICs are no error.
    fn create_ah(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId>;

    /// # Errors
    /// `NoSuchObject` if there is no such address handle.
    fn destroy_ah(&self, ah: AhId) -> Result<()>;

    /// Creates a queue of `depth` completions, whose events `channel` delivers.
    ///
    /// # Errors
    /// See the trait.
    fn create_cq(&self, depth: u32, channel: Option<&ChannelEvents>) -> Result<Arc<dyn CompletionQueue>>;

    /// Creates a queue of `depth` receives.
    ///
    /// # Errors
    /// See the trait; `Unsupported` if an XRC domain over several rails has queues in another
    /// protection domain.
    fn create_srq(&self, pd: PdId, depth: u32, xrc: Option<XrcParts<'_>>) -> Result<Arc<dyn SharedReceives>>;

    /// # Errors
    /// `Busy` if a queue pair takes receives from this queue only.
    fn destroy_srq(&self, srq: &Arc<dyn SharedReceives>) -> Result<()>;

    /// # Errors
    /// See the trait.
    fn alloc_xrcd(&self) -> Result<XrcdId>;

    /// # Errors
    /// The error of the NIC.
    fn dealloc_xrcd(&self, xrcd: XrcdId) -> Result<()>;

    /// Creates a queue pair in RESET. `init` names the objects in `parts`, which an XRC receive
    /// queue pair does not have. The caller has checked the capacities.
    ///
    /// # Errors
    /// See the trait; otherwise the error of the first live NIC that refuses.
    fn create_qp(&self, init: QpInitAttr, parts: Option<QpParts<'_>>) -> Result<Arc<dyn QueuePair>>;

    /// Returns an existing XRC receive queue pair, or `None` if it is being destroyed.
    fn xrc_recv_qp(&self, qpn: Qpn) -> Option<Arc<dyn QueuePair>>;

    /// # Errors
    /// `Busy` while the queue pair is attached to a multicast group.
    fn destroy_qp(&self, qp: &Arc<dyn QueuePair>) -> Result<()>;

    /// The cell with the receiver of the connection manager's datagrams, or `None` if no datagram
    /// can arrive.
    fn cm_receiver(&self) -> Option<&SharedReceiver>;

    /// Sends a datagram of the connection manager to queue pair 1 at `to`. A datagram that the rail
    /// cannot send is lost.
    fn send_cm(&self, to: RailAddress, bytes: &[u8]);

    /// Returns a number that changes when the host at an address says that no process has the
    /// socket there. `None` if the endpoint is none of a socket.
    fn socket_refusals(&self, at: RailAddress) -> Option<u64>;

    /// Returns the endpoints by which peers reach this device at its GID.
    fn endpoints(&self) -> Endpoints;

    /// Asks on all rails but the first which device has the GID of the search.
    fn find_owner(&self, _search: &OwnerSearch) {}

    /// The number of failovers of the open queue pairs.
    fn failovers(&self) -> u64 {
        0
    }

    /// The counts of the virtual queue pairs, if there are any.
    fn telemetry(&self) -> Option<&Telemetry> {
        None
    }

    /// Tells the peers that the process exits, for at most 100 ms.
    fn shut_down_at_exit(&self) {}
}

/// The XRC domain of an XRC shared receive queue, and the completion queue of its receives.
pub(crate) type XrcParts<'a> = (XrcdId, &'a Arc<dyn CompletionQueue>);

/// The parts of a queue pair that is being created.
pub(crate) struct QpParts<'a> {
    pub(crate) send_cq: &'a Arc<dyn CompletionQueue>,
    pub(crate) recv_cq: &'a Arc<dyn CompletionQueue>,
    pub(crate) srq: Option<&'a Arc<dyn SharedReceives>>,
}

pub(crate) trait CompletionQueue: Any + Send + Sync {
    fn id(&self) -> CqId;

    /// Appends up to `max` completions to `out`.
    ///
    /// # Errors
    /// The error of the NIC. A dead NIC has no completions, and is not an error.
    fn poll(&self, max: usize, out: &mut Vec<Wc>) -> Result<()>;

    /// Requests an event at the next completion, or with `solicited_only` at the next completion
    /// that is solicited or failed.
    ///
    /// # Errors
    /// The error of a NIC. On a device with several rails, a dead NIC is not an error.
    fn arm(&self, solicited_only: bool) -> Result<()>;

    /// # Errors
    /// `Invalid` if `depth` is 0 or the queue holds more completions, `Limit`, or the error of the
    /// NIC.
    fn resize(&self, depth: u32) -> Result<()>;

    /// # Errors
    /// `Busy` if a queue pair or an XRC shared receive queue uses the queue. A dead NIC is no
    /// error.
    fn destroy(&self) -> Result<()>;
}

/// A shared receive queue.
pub(crate) trait SharedReceives: Any + Send + Sync {
    fn id(&self) -> SrqId;

    /// # Errors
    /// `Invalid` if this is no XRC shared receive queue.
    fn number(&self) -> Result<Srqn>;

    /// # Errors
    /// The index and the error of the first receive that is refused. The receives before it are
    /// posted.
    fn post(&self, wrs: &[RecvWr]) -> Result<(), PostError>;

    /// # Errors
    /// `Invalid` if the queue holds more receives, or if the armed limit is higher.
    fn resize(&self, depth: u32) -> Result<()>;

    /// Requests one event, for when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// `Limit` if `limit` exceeds the depth.
    fn arm(&self, limit: u32) -> Result<()>;
}

const NOT_UD: Error =
    Error::Invalid("only UD queue pairs can be attached to a multicast group; create one with IBV_QPT_UD");

pub(crate) trait QueuePair: Any + Send + Sync {
    fn qpn(&self) -> Qpn;

    /// Posts sends in order, as `ibv_post_send(3)` does.
    ///
    /// # Errors
    /// The index and the error of the first send that is refused. The sends before it are posted.
    fn post_send(&self, wrs: &[SendWr]) -> Result<(), PostError>;

    /// Posts all sends or, if one of them is refused, none.
    ///
    /// # Errors
    /// The index and the error of the first send that is refused.
    fn post_send_all(&self, wrs: &[SendWr]) -> Result<(), PostError>;

    /// # Errors
    /// The index and the error of the first receive that is refused. The receives before it are
    /// posted.
    fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError>;

    /// # Errors
    /// `Modify` for a change that the rules forbid, or the error of a NIC.
    fn modify(&self, attr: &QpAttr) -> Result<()>;

    /// # Errors
    /// `DeviceFatal` if the device has one rail and its NIC is dead.
    fn query(&self) -> Result<QpStatus>;

    /// With `loopback`, the queue pair receives its own datagrams to the group.
    ///
    /// # Errors
    /// `Invalid` if this is no UD queue pair, or the error of a NIC.
    fn attach_mcast(&self, _group: Gid, _loopback: bool) -> Result<()> {
        Err(NOT_UD)
    }

    /// # Errors
    /// `Invalid` if the queue pair is not attached.
    fn detach_mcast(&self, _group: Gid) -> Result<()> {
        Err(NOT_UD)
    }
}
