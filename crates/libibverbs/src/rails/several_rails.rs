//! A device with several rails. Connections are virtual queue pairs over a failover domain
//! ([`virtual_qps`](super::virtual_qps)).
//!
//! The program's protection domains, XRC domains, completion queues and shared receive queues are
//! in this process's memory, and [`object_number`] numbers them.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use mitra_control::Settings;
use mitra_failover::telemetry::Telemetry;
use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CqId, Error, Gid, Limits, Mr, Mw, Nic, PdId, QpInitAttr, QpType, Qpn,
    Result, SrqId, WindowType, XrcdId,
};

use super::cm_datagrams::OwnerSearch;
use super::cm_receiver::SharedReceiver;
use super::datagrams::queue_pair::{DatagramParams, MultiRailUd};
use super::device::{CompletionQueue, Device, QpParts, QueuePair, SharedReceives, XrcParts};
use super::multi_rail_qp::{CreateParams, MultiRailQp};
use super::object_table::ChannelEvents;
use super::protection_domain::MultiRailPd;
use super::rail_address::{Endpoints, RailAddress};
use super::rail_set::RailSet;
use super::virtual_cq::VirtualCq;
use super::virtual_qps::MultiRail;
use super::virtual_srq::VirtualSrq;
use super::virtual_xrc_domain::VirtualXrcDomain;
use super::{object_number, progress_thread};
use crate::common::errno::unless_dead;
use crate::common::event_queue::new_event_queue;
use crate::common::limit::check_limit;
use crate::common::lock::lock;

struct SeveralRails {
    multi_rail: Arc<MultiRail>,
    /// The NICs, and the tables of queues and contexts.
    rails: Weak<RailSet>,
    pds: Mutex<HashMap<PdId, Arc<MultiRailPd>>>,
    xrcds: Mutex<HashMap<XrcdId, Arc<VirtualXrcDomain>>>,
}

/// Opens the device over at least two NICs, and starts its thread.
///
/// # Errors
/// The errors of [`MultiRail::new`]; `DeviceFatal` if the NIC of rail 0 is dead, or `System` if the
/// thread cannot be started.
pub(super) fn open(nics: Vec<Arc<dyn Nic>>, settings: &Settings) -> Result<Arc<RailSet>> {
    let (first_gid, multi_rail) = (nics[0].query_port()?.gid, MultiRail::new(&nics, settings)?);
    let rails = Arc::new_cyclic(|rails| {
        let (multi_rail, rails) = (Arc::clone(&multi_rail), Weak::clone(rails));
        let device = SeveralRails { multi_rail, rails, pds: Mutex::default(), xrcds: Mutex::default() };
        RailSet::new(nics, first_gid, Box::new(device))
    });
    multi_rail.domain().failover.telemetry().sample_latency(settings.latency);
    progress_thread::start(&rails, &multi_rail).map_err(|e| Error::system("starting a thread", &e))?;
    Ok(rails)
}

/// Returns an object of the program as the type in which this device creates it.
///
/// # Errors
/// `Invalid` if the object belongs to another device.
fn own<T: Any + Send + Sync>(object: Arc<dyn Any + Send + Sync>) -> Result<Arc<T>> {
    object.downcast().map_err(|_| Error::Invalid("a queue is of another device; create all on this device"))
}

impl SeveralRails {
    /// Returns a function that reports an event of a virtual object to the program.
    fn event_sink(&self) -> Box<dyn Fn(AsyncEvent) + Send + Sync> {
        let rails = Weak::clone(&self.rails);
        Box::new(move |event| rails.upgrade().iter().for_each(|rails| rails.deliver(event)))
    }

    fn rails(&self) -> Result<Arc<RailSet>> {
        self.rails.upgrade().ok_or(Error::DeviceFatal)
    }

    /// Returns the number of a new object. `existing` is the number of objects of the same kind,
    /// and `limit` is its maximum.
    ///
    /// # Errors
    /// `DeviceFatal` if all NICs are dead; `Limit` if there are too many objects.
    fn number(&self, kind: &'static str, existing: usize, limit: u32) -> Result<u32> {
        if !self.rails()?.is_alive() {
            return Err(Error::DeviceFatal);
        }
        check_limit(kind, existing as u32 + 1, limit)?;
        Ok(object_number::next())
    }

    fn pd(&self, pd: PdId) -> Result<Arc<MultiRailPd>> {
        lock(&self.pds).get(&pd).cloned().ok_or(Error::NoSuchObject { kind: "protection domain", id: pd.0 })
    }

    fn xrcd(&self, xrcd: XrcdId) -> Result<Arc<VirtualXrcDomain>> {
        lock(&self.xrcds).get(&xrcd).cloned().ok_or(Error::NoSuchObject { kind: "XRC domain", id: xrcd.0 })
    }
}

impl Device for SeveralRails {
    fn limits(&self) -> Limits {
        self.multi_rail.domain().limits()
    }

    fn gid(&self) -> Result<Gid> {
        Ok(self.rails()?.gid_of_rail_0())
    }

    fn create_channel(&self) -> Result<ChannelEvents> {
        Ok(ChannelEvents::Process(Arc::new(new_event_queue()?)))
    }

    fn alloc_pd(&self) -> Result<PdId> {
        let pd = self.multi_rail.with_room(|| self.multi_rail.domain().alloc_pd())?;
        let id = PdId(object_number::next());
        lock(&self.pds).insert(id, pd);
        Ok(id)
    }

    /// The domain exists on the NICs until its last object is gone. A queue pair is there for some
    /// time after the program has destroyed it.
    fn dealloc_pd(&self, pd: PdId) -> Result<()> {
        // The drop of the last reference calls the NICs. The lock is free then.
        let removed = lock(&self.pds).remove(&pd);
        drop(removed);
        Ok(())
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        let domain = self.pd(pd)?;
        self.multi_rail.domain().share_atomics(access)?;
        let mr = self.multi_rail.with_room(|| domain.register(&memory, access))?;
        Ok(Mr { pd, ..mr.primary() })
    }

    fn rereg_mr(&self, mr: &Mr, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        self.multi_rail.domain().share_atomics(access)?;
        let changed = self.pd(mr.pd)?.reregister(mr.rkey, &*self.pd(pd)?, &memory, access)?;
        Ok(Mr { pd, ..changed.primary() })
    }

    fn dereg_mr(&self, mr: &Mr) -> Result<()> {
        self.pd(mr.pd)?.deregister(mr.rkey)
    }

    fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw> {
        Ok(Mw { pd, ..self.pd(pd)?.alloc_mw(window_type)? })
    }

    fn dealloc_mw(&self, mw: &Mw) -> Result<()> {
        self.pd(mw.pd)?.dealloc_mw(mw.id)
    }

    fn prepare_bind(&self, qp_type: QpType, access: Access) -> Result<()> {
        if qp_type == QpType::XrcSend {
            return Err(Error::Unsupported(
                "memory windows on XRC with several rails; bind the window on an RC or UC queue pair, or run on one rail",
            ));
        }
        self.multi_rail.domain().share_atomics(access)
    }

    fn create_ah(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId> {
        self.multi_rail.datagrams().address_handles.create(&self.pd(pd)?, destination, traffic_class)
    }

    fn destroy_ah(&self, ah: AhId) -> Result<()> {
        self.multi_rail.datagrams().address_handles.destroy(ah)
    }

    fn create_cq(&self, depth: u32, channel: Option<&ChannelEvents>) -> Result<Arc<dyn CompletionQueue>> {
        let (limits, existing) = (self.limits(), self.rails()?.objects().cqs.len());
        check_limit("completion queue entries", depth, limits.cqe)?;
        let id = CqId(self.number("completion queues", existing, limits.cqs)?);
        let events = if let Some(ChannelEvents::Process(events)) = channel { Some(events) } else { None };
        let deliver = self.event_sink();
        let on_overflow = move || deliver(AsyncEvent::CqError(id));
        Ok(VirtualCq::new(self.multi_rail.domain(), id, depth, events.cloned(), on_overflow))
    }

    fn create_srq(&self, pd: PdId, depth: u32, xrc: Option<XrcParts<'_>>) -> Result<Arc<dyn SharedReceives>> {
        let (pd, existing) = (self.pd(pd)?, self.rails()?.objects().srqs.len());
        let id = SrqId(self.number("shared receive queues", existing, self.limits().srqs)?);
        let deliver = self.event_sink();
        let on_limit = move || deliver(AsyncEvent::SrqLimitReached(id));
        let Some((xrcd, cq)) = xrc else { return Ok(VirtualSrq::new(&pd, id, None, depth, on_limit)) };
        let (domain, cq) = (self.xrcd(xrcd)?, own(cq.clone())?);
        let number = domain.unused_number()?;
        let srq = VirtualSrq::new(&pd, id, Some((xrcd, number)), depth, on_limit);
        domain.add_srq(number, &pd, &srq, &cq)?;
        Ok(srq)
    }

    fn destroy_srq(&self, srq: &Arc<dyn SharedReceives>) -> Result<()> {
        let srq = own::<VirtualSrq>(srq.clone())?;
        if let Some((xrcd, number)) = srq.xrc {
            // XRC queue pairs belong to the XRC domain, and keep no single queue in use.
            self.xrcd(xrcd)?.remove_srq(number);
        } else if !srq.users.is_empty() {
            return Err(Error::Busy { kind: "shared receive queue", id: srq.id().0, user: "a queue pair" });
        }
        Ok(())
    }

    fn alloc_xrcd(&self) -> Result<XrcdId> {
        let mut xrcds = lock(&self.xrcds);
        let id = XrcdId(self.number("XRC domains", xrcds.len(), self.limits().pds)?);
        xrcds.insert(id, Arc::default());
        Ok(id)
    }

    fn dealloc_xrcd(&self, xrcd: XrcdId) -> Result<()> {
        lock(&self.xrcds).remove(&xrcd);
        Ok(())
    }

    fn create_qp(&self, init: QpInitAttr, parts: Option<QpParts<'_>>) -> Result<Arc<dyn QueuePair>> {
        let (device, on_event) = (&self.multi_rail, self.event_sink());
        let Some(QpParts { send_cq, recv_cq, srq }) = parts else {
            let xrc = if let QpType::XrcRecv(xrcd) = init.qp_type { Some(self.xrcd(xrcd)?) } else { None };
            let none = VirtualCq::new(device.domain(), CqId(0), 1, None, || {});
            let (send_cq, recv_cq) = (Arc::clone(&none), none);
            let params = CreateParams { on_event, init, pd: None, send_cq, recv_cq, srq: None, xrc };
            return Ok(device.create_qp(params)?);
        };
        let (pd, send_cq, recv_cq) = (self.pd(init.pd)?, own(send_cq.clone())?, own(recv_cq.clone())?);
        let srq = srq.map(|srq| own(srq.clone())).transpose()?;
        if init.qp_type != QpType::Ud {
            let params = CreateParams { on_event, init, pd: Some(pd), send_cq, recv_cq, srq, xrc: None };
            return Ok(device.create_qp(params)?);
        }
        for nic in &self.rails()?.nics {
            unless_dead(nic.receive_traffic_classes())?;
        }
        let (on_event, network) = (on_event.into(), Arc::clone(device.datagrams()));
        let params = DatagramParams { on_event, init, pd, send_cq, recv_cq, srq, network };
        Ok(device.create_datagram_qp(&params)?)
    }

    fn xrc_recv_qp(&self, qpn: Qpn) -> Option<Arc<dyn QueuePair>> {
        Some(self.multi_rail.qp(qpn)?)
    }

    fn destroy_qp(&self, qp: &Arc<dyn QueuePair>) -> Result<()> {
        let qp: Arc<dyn Any + Send + Sync> = qp.clone();
        match qp.downcast::<MultiRailQp>() {
            Ok(qp) => self.multi_rail.destroy_qp(qp),
            Err(qp) => self.multi_rail.destroy_datagram_qp(&*own::<MultiRailUd>(qp)?)?,
        }
        Ok(())
    }

    fn cm_receiver(&self) -> Option<&SharedReceiver> {
        Some(&self.multi_rail.domain().rendezvous.cm_receiver)
    }

    fn send_cm(&self, to: RailAddress, bytes: &[u8]) {
        self.multi_rail.domain().rendezvous.send(to, bytes);
    }

    fn socket_refusals(&self, at: RailAddress) -> Option<u64> {
        self.multi_rail.domain().rendezvous.refusals(at)
    }

    fn endpoints(&self) -> Endpoints {
        self.multi_rail.domain().rendezvous.endpoints()
    }

    fn find_owner(&self, search: &OwnerSearch) {
        self.multi_rail.domain().rendezvous.ask_group(search);
    }

    fn failovers(&self) -> u64 {
        self.multi_rail.qps().iter().map(|qp| qp.failovers()).sum()
    }

    fn telemetry(&self) -> Option<&Telemetry> {
        Some(self.multi_rail.domain().failover.telemetry())
    }

    fn shut_down_at_exit(&self) {
        self.multi_rail.shut_down_at_exit();
    }
}
