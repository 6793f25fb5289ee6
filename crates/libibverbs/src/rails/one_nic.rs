//! A device with one rail. The program's objects are objects of the NIC.

use std::os::fd::AsFd;
use std::sync::Arc;

use mitra_os_util::thread;
use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CqId, Error, Gid, Limits, Mr, Mw, Nic, PdId, PostError, Provider,
    QpAttr, QpInitAttr, QpStatus, QpType, Qpn, RecvWr, Result, SendWr, SrqId, Srqn, Wc, WindowType, XrcdId,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::cm_receiver::SharedReceiver;
use super::device::{CompletionQueue, Device, QpParts, QueuePair, SharedReceives, XrcParts};
use super::object_table::ChannelEvents;
use super::rail_address::{Endpoints, RailAddress};
use super::rail_set::RailSet;
use super::rendezvous::{OneRail, limits_of_program};
use super::unanswered;
use crate::common::errno::unless_dead;

/// The time between two checks of whether the NIC answers. A NIC that hangs reports no event.
/// Drivers of hardware NICs poll their NIC's health for the same reason.
const HEALTH_INTERVAL_MS: u16 = 1000;

struct OneNic {
    nic: Arc<dyn Nic>,
    /// `None` if the control port cannot be opened. Then no datagram of a peer's library arrives.
    gsi: Option<Arc<OneRail>>,
    /// The limits of the program.
    limits: Limits,
}

/// Opens the device, and starts its thread. The thread runs as long as the process, and keeps the
/// device open.
///
/// # Errors
/// `DeviceFatal` if the NIC is dead, or `System` if the thread cannot be started.
pub(super) fn open(nic: Arc<dyn Nic>) -> Result<Arc<RailSet>> {
    let first_gid = nic.query_port()?.gid;
    // Without the control port, a peer with several rails waits for an answer until its timeout.
    let gsi = OneRail::new(Arc::clone(&nic) as Arc<dyn Provider>)
        .inspect_err(|error| tracing::debug!("the control port cannot be opened: {error}"))
        .ok()
        .map(Arc::new);
    let has_queue_pair_1 = gsi.as_ref().is_some_and(|gsi| gsi.endpoints().has_queue_pair_1);
    let limits = limits_of_program(nic.attr().limits, has_queue_pair_1);
    let device = OneNic { nic: Arc::clone(&nic), gsi: gsi.clone(), limits };
    let rails = Arc::new(RailSet::new(vec![nic], first_gid, Box::new(device)));
    let opened = Arc::clone(&rails);
    thread::spawn("mitra-events", move || deliver_events(&opened, gsi.as_deref()))
        .map_err(|e| Error::system("starting a thread", &e))?;
    Ok(rails)
}

/// Delivers the NIC's asynchronous events to the program's contexts, and answers peers with several
/// rails.
fn deliver_events(rails: &RailSet, gsi: Option<&OneRail>) -> ! {
    let nic = &rails.nics[0];
    let mut is_alive = true;
    let sockets = gsi.map(OneRail::sockets).unwrap_or_default();
    let is_open = |qpn| rails.objects().qps.contains_key(&qpn);
    loop {
        let descriptors = nic.async_event_fd().into_iter().chain(sockets.iter().map(|socket| socket.as_fd()));
        let mut ready: Vec<PollFd<'_>> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // After `DeviceFatal`, which is the last event, nothing is left to check. If a signal
        // interrupts the wait, the queue is empty, and the loop waits again.
        let interval = if is_alive { PollTimeout::from(HEALTH_INTERVAL_MS) } else { PollTimeout::NONE };
        let _ = poll(&mut ready, interval);
        if let (Some(gsi), false) = (gsi, sockets.is_empty()) {
            gsi.answer(is_open);
        }
        while let Some(event) = nic.poll_async_event() {
            if let (AsyncEvent::GidChange, Some(gsi)) = (event, gsi) {
                gsi.set_gid(nic.address().into());
            }
            is_alive &= event != AsyncEvent::DeviceFatal;
            match gsi.filter(|gsi| gsi.is_concerned(event)) {
                Some(gsi) => gsi.answer(is_open),
                None => rails.deliver(event),
            }
        }
        if is_alive && nic.query_port().is_err() {
            is_alive = false;
            rails.deliver(AsyncEvent::DeviceFatal);
        }
    }
}

impl OneNic {
    fn object<I>(&self, id: I) -> Arc<Object<I>> {
        Arc::new(Object { nic: Arc::clone(&self.nic), id })
    }
}

impl Device for OneNic {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn gid(&self) -> Result<Gid> {
        self.nic.query_port().map(|_| self.nic.address().into())
    }

    fn reports_each_port_change(&self) -> bool {
        true
    }

    fn create_channel(&self) -> Result<ChannelEvents> {
        self.nic.create_completion_channel().map(ChannelEvents::Nic)
    }

    fn alloc_pd(&self) -> Result<PdId> {
        self.nic.alloc_pd()
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<()> {
        unless_dead(self.nic.dealloc_pd(pd))
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        self.nic.reg_mr(pd, memory, access)
    }

    fn rereg_mr(&self, mr: &Mr, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        self.nic.rereg_mr(mr.id, pd, memory, access)
    }

    fn dereg_mr(&self, mr: &Mr) -> Result<()> {
        match self.nic.dereg_mr(mr.id) {
            // The NIC may be hung and still access memory. A reset ends its access.
            Err(Error::DeviceFatal) => self.nic.reset(),
            other => other,
        }
    }

    fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw> {
        self.nic.alloc_mw(pd, window_type)
    }

    fn dealloc_mw(&self, mw: &Mw) -> Result<()> {
        unless_dead(self.nic.dealloc_mw(mw.id))
    }

    fn create_ah(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId> {
        self.nic.create_ah_with_traffic_class(pd, destination, traffic_class)
    }

    fn destroy_ah(&self, ah: AhId) -> Result<()> {
        unless_dead(self.nic.destroy_ah(ah))
    }

    fn create_cq(&self, depth: u32, channel: Option<&ChannelEvents>) -> Result<Arc<dyn CompletionQueue>> {
        let channel = if let Some(ChannelEvents::Nic(channel)) = channel { Some(channel) } else { None };
        Ok(self.object(self.nic.create_cq(depth, channel)?))
    }

    fn create_srq(&self, pd: PdId, depth: u32, xrc: Option<XrcParts<'_>>) -> Result<Arc<dyn SharedReceives>> {
        let id = match xrc {
            None => self.nic.create_srq(pd, depth)?,
            Some((xrcd, cq)) => self.nic.create_xrc_srq(pd, xrcd, cq.id(), depth)?,
        };
        // The program can read the number after the NIC has died.
        let number = xrc.map(|_| self.nic.srq_number(id)).transpose()?;
        Ok(self.object((id, number)))
    }

    fn destroy_srq(&self, srq: &Arc<dyn SharedReceives>) -> Result<()> {
        unless_dead(self.nic.destroy_srq(srq.id()))
    }

    fn alloc_xrcd(&self) -> Result<XrcdId> {
        self.nic.alloc_xrcd()
    }

    fn dealloc_xrcd(&self, xrcd: XrcdId) -> Result<()> {
        unless_dead(self.nic.dealloc_xrcd(xrcd))
    }

    fn create_qp(&self, init: QpInitAttr, _: Option<QpParts<'_>>) -> Result<Arc<dyn QueuePair>> {
        if init.qp_type == QpType::Ud {
            self.nic.receive_traffic_classes()?;
        }
        Ok(self.object(self.nic.create_qp(&init)?))
    }

    fn xrc_recv_qp(&self, qpn: Qpn) -> Option<Arc<dyn QueuePair>> {
        Some(self.object(qpn))
    }

    fn destroy_qp(&self, qp: &Arc<dyn QueuePair>) -> Result<()> {
        unless_dead(self.nic.destroy_qp(qp.qpn()))
    }

    fn cm_receiver(&self) -> Option<&SharedReceiver> {
        self.gsi.as_ref().map(|gsi| &gsi.cm_receiver)
    }

    fn send_cm(&self, to: RailAddress, bytes: &[u8]) {
        self.gsi.iter().for_each(|gsi| gsi.send(to, bytes));
    }

    fn socket_refusals(&self, at: RailAddress) -> Option<u64> {
        self.gsi.as_ref().and_then(|gsi| gsi.refusals(at))
    }

    fn endpoints(&self) -> Endpoints {
        let none = Endpoints { has_queue_pair_1: false, port: None };
        self.gsi.as_ref().map_or(none, |gsi| gsi.endpoints())
    }
}

/// A queue or a queue pair of the NIC.
struct Object<I> {
    nic: Arc<dyn Nic>,
    id: I,
}

impl CompletionQueue for Object<CqId> {
    fn id(&self) -> CqId {
        self.id
    }

    fn poll(&self, max: usize, out: &mut Vec<Wc>) -> Result<()> {
        // An asynchronous event reports a dead NIC, so the poll does not fail.
        unless_dead(self.nic.poll_cq(self.id, max, out).map(drop))?;
        unanswered::explain(&*self.nic, out);
        Ok(())
    }

    fn arm(&self, solicited_only: bool) -> Result<()> {
        self.nic.req_notify_cq(self.id, solicited_only)
    }

    fn resize(&self, depth: u32) -> Result<()> {
        self.nic.resize_cq(self.id, depth)
    }

    fn destroy(&self) -> Result<()> {
        unless_dead(self.nic.destroy_cq(self.id))
    }
}

impl SharedReceives for Object<(SrqId, Option<Srqn>)> {
    fn id(&self) -> SrqId {
        self.id.0
    }

    fn number(&self) -> Result<Srqn> {
        self.id.1.map_or_else(|| self.nic.srq_number(self.id.0), Ok)
    }

    fn post(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.nic.post_srq_recv(self.id.0, wrs)
    }

    fn resize(&self, depth: u32) -> Result<()> {
        self.nic.resize_srq(self.id.0, depth)
    }

    fn arm(&self, limit: u32) -> Result<()> {
        self.nic.arm_srq(self.id.0, limit)
    }
}

impl QueuePair for Object<Qpn> {
    fn qpn(&self) -> Qpn {
        self.id
    }

    fn post_send(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        self.nic.post_send(self.id, wrs)
    }

    fn post_send_all(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        self.nic.post_send_all(self.id, wrs)
    }

    fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.nic.post_recv(self.id, wrs)
    }

    fn modify(&self, attr: &QpAttr) -> Result<()> {
        self.nic.modify_qp(self.id, attr)
    }

    fn query(&self) -> Result<QpStatus> {
        self.nic.query_qp(self.id)
    }

    fn attach_mcast(&self, group: Gid, loopback: bool) -> Result<()> {
        self.nic.attach_mcast(self.id, group, loopback)
    }

    fn detach_mcast(&self, group: Gid) -> Result<()> {
        self.nic.detach_mcast(self.id, group)
    }
}
