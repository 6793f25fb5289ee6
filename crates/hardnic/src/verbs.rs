//! The verbs of a [`HardNic`].

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, DeviceAttr, Error, Gid, Key, Mr,
    MrId, Mw, MwId, PdId, PortAttr, PostError, Provider, QpAttr, QpInitAttr, QpStatus, Qpn, RecvWr, Result,
    SavedResult, SendWr, SrqId, Time, Wc, WindowType, check_qp_cap, check_region_access,
};
use mitra_verbs_abi::*;
use nix::time::{ClockId, clock_gettime};

use crate::address_handle::AddressHandle;
use crate::channel::HardChannel;
use crate::gid_table::GidTable;
use crate::hard_nic::{HardNic, no_such_qp};
use crate::objects::{Cq, Pd, Region, Srq, Window};
use crate::qp::Qp;
use crate::qp_attributes::access_to;
use crate::work_ids::SharedIds;
use crate::{completions, post, sysfs};

/// The time that the destruction of all objects may take in a reset.
const RESET_WAIT: Duration = Duration::from_secs(1);

/// The operation of a registration. Its usual error is ENOMEM, by the limit.
const LOCKING: &str = "registering memory, which each NIC locks within RLIMIT_MEMLOCK (raise `ulimit -l`, or LimitMEMLOCK= of the service)";

fn use_once(users: &AtomicU32) {
    users.fetch_add(1, Ordering::AcqRel);
}

fn release(users: &AtomicU32) {
    users.fetch_sub(1, Ordering::AcqRel);
}

fn check_unused(users: &AtomicU32, kind: &'static str, id: u32, user: &'static str) -> Result<()> {
    match users.load(Ordering::Acquire) {
        0 => Ok(()),
        _ => Err(Error::Busy { kind, id, user }),
    }
}

fn check_limit(attribute: &'static str, requested: u32, limit: u32) -> Result<()> {
    if requested > limit {
        return Err(Error::Limit { attribute, requested: requested.into(), limit: limit.into() });
    }
    Ok(())
}

fn refuse_all(error: Error) -> PostError {
    PostError { index: 0, error }
}

impl HardNic {
    /// Returns the index of this NIC's GID now.
    fn gid_index(&self) -> Result<u8> {
        GidTable::read(&self.context)?.index_of(self.watched.port().gid)
    }

    fn pd(&self, pd: PdId) -> Result<Arc<Pd>> {
        self.context.check_alive()?;
        self.objects.pds.get(pd.0)
    }

    fn post(&self, qp: Qpn, wrs: &[SendWr], all: bool) -> Result<(), PostError> {
        self.context.check_alive().map_err(refuse_all)?;
        let qps = self.objects.qps.read().unwrap_or_else(PoisonError::into_inner);
        let qp = qps.get(&qp.value()).ok_or_else(|| refuse_all(no_such_qp(qp)))?;
        post::post_sends(&self.objects, &self.attr, qp, wrs, all)
    }

    /// Returns the channel of this NIC that a trait object refers to.
    fn find_channel(&self, channel: &Arc<dyn CompletionChannel>) -> Result<Arc<HardChannel>> {
        let wanted = Arc::as_ptr(channel).cast::<()>();
        let channels = self.objects.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let found = channels.iter().find(|known| std::ptr::eq(known.as_ptr().cast(), wanted));
        found
            .and_then(std::sync::Weak::upgrade)
            .ok_or(Error::Invalid("the completion channel belongs to another NIC; create one on this NIC"))
    }
}

impl Provider for HardNic {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn now(&self) -> Time {
        // The clock exists on every Linux.
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        Time::ZERO + now
    }

    fn random_u64(&self) -> Result<u64> {
        getrandom::u64().map_err(|error| Error::system("drawing random bits", &error))
    }

    fn query_port(&self) -> Result<PortAttr> {
        self.context.check_alive()?;
        Ok(self.watched.port())
    }

    fn counters(&self) -> Vec<Counter> {
        sysfs::counters(&self.attr.name)
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.watched.events.pop()
    }

    fn generation(&self) -> Option<u64> {
        Some(self.watched.generation())
    }

    fn connect_unreached_peers(&self) {
        self.context.connect_unreached_peers();
    }

    fn async_event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watched.events.as_fd())
    }

    fn alloc_pd(&self) -> Result<PdId> {
        self.context.check_alive()?;
        let pd = self.objects.pds.insert_with(|_| {
            // SAFETY: the context is open.
            let raw = unsafe { (self.context.lib.alloc_pd)(self.context.raw) };
            let raw = self.context.check_ptr("allocating a protection domain", raw)?;
            Ok(Arc::new(Pd { raw, users: AtomicU32::new(0), context: Arc::clone(&self.context) }))
        });
        pd.map(PdId)
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<()> {
        self.context.check_alive()?;
        let is_free =
            |object: &Arc<Pd>| check_unused(&object.users, "protection domain", pd.0, "an object in it");
        self.objects.pds.remove_if(pd.0, is_free).map(drop)
    }

    fn reg_mr(&self, pd_id: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        check_region_access(access)?;
        let pd = self.pd(pd_id)?;
        let (addr, len) = (memory.addr(), memory.len());
        let process_addr =
            memory.process_addr().ok_or(Error::Unsupported("memory without an address in this process"))?;
        let (mut lkey, mut rkey) = (Key(0), Key(0));
        let id = self.objects.mrs.insert_with(|_| {
            // SAFETY: the memory belongs to the buffer, which the region keeps until it is
            // deregistered. The buffer's words are atomic, so the device may write them.
            let raw = unsafe {
                let start = std::ptr::with_exposed_provenance_mut(process_addr);
                (self.context.lib.reg_mr_iova2)(pd.raw, start, len, addr, access_to(access))
            };
            let raw = self.context.check_ptr(LOCKING, raw)?;
            // SAFETY: the call has returned a region.
            (lkey, rkey) = unsafe { (Key((*raw).lkey), Key((*raw).rkey)) };
            use_once(&pd.users);
            Ok(Arc::new(Region { raw, pd: Arc::clone(&pd), memory: Mutex::new(Some(memory)) }))
        })?;
        Ok(Mr { id: MrId(id), pd: pd_id, addr, len: len as u64, lkey, rkey })
    }

    fn dereg_mr(&self, mr: MrId) -> Result<()> {
        self.context.check_alive()?;
        let region = self.objects.mrs.remove_if(mr.0, |region| {
            region.deregister().map_err(|error| match error {
                Error::Busy { kind, user, .. } => Error::Busy { kind, id: mr.0, user },
                error => error,
            })
        })?;
        release(&region.pd.users);
        Ok(())
    }

    fn rereg_mr(&self, _mr: MrId, _pd: PdId, _memory: Arc<Buffer>, _access: Access) -> Result<Mr> {
        // Drivers change a region by a new registration, and soft-RoCE does not change its rights.
        Err(Error::Unsupported("a change of a region in place; register another region"))
    }

    fn alloc_mw(&self, pd_id: PdId, window_type: WindowType) -> Result<Mw> {
        if window_type != WindowType::Type2 || !self.attr.capabilities.windows {
            return Err(Error::Unsupported("memory windows of this type; type 2 may exist"));
        }
        let pd = self.pd(pd_id)?;
        let mut rkey = Key(0);
        let id = self.objects.mws.insert_with(|_| {
            // SAFETY: the context is open.
            let ops = unsafe { &(*self.context.raw).ops };
            let (Some(alloc), Some(dealloc)) = (ops.alloc_mw, ops.dealloc_mw) else {
                return Err(Error::Unsupported("memory windows"));
            };
            // SAFETY: the domain exists.
            let raw = unsafe { alloc(pd.raw, IBV_MW_TYPE_2) };
            let raw = self.context.check_ptr("allocating a memory window", raw)?;
            // The header's inline function sets the type's fields after the driver's call.
            // SAFETY: the call has returned a window.
            rkey = Key(unsafe { (*raw).rkey });
            use_once(&pd.users);
            Ok(Arc::new(Window { raw, dealloc, pd: Arc::clone(&pd) }))
        })?;
        Ok(Mw { id: MwId(id), pd: pd_id, rkey })
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<()> {
        self.context.check_alive()?;
        let window = self.objects.mws.remove_if(mw.0, |_| Ok(()))?;
        release(&window.pd.users);
        Ok(())
    }

    fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId> {
        self.create_ah_with_traffic_class(pd, destination, 0)
    }

    fn create_ah_with_traffic_class(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId> {
        let pd = self.pd(pd)?;
        let ah = AddressHandle::new(Arc::clone(&pd), destination, traffic_class)?;
        use_once(&pd.users);
        let ah = Arc::new(ah);
        self.objects.ahs.insert_with(|_| Ok(ah)).map(AhId)
    }

    fn destroy_ah(&self, ah: AhId) -> Result<()> {
        self.context.check_alive()?;
        let handle = self.objects.ahs.remove_if(ah.0, |_| Ok(()))?;
        release(&handle.pd.users);
        Ok(())
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        self.context.check_alive()?;
        let channel = Arc::new(HardChannel::new(&self.context)?);
        let mut channels = self.objects.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.retain(|known| known.strong_count() > 0);
        channels.push(Arc::downgrade(&channel));
        Ok(channel)
    }

    fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId> {
        self.context.check_alive()?;
        check_limit("completion queue entries", depth, self.attr.limits.cqe)?;
        if depth == 0 {
            return Err(Error::Invalid("a completion queue needs at least one entry"));
        }
        let channel = channel.map(|channel| self.find_channel(channel)).transpose()?;
        let cq = self.objects.cqs.insert_with(|handle| {
            let raw_channel = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.raw);
            // SAFETY: the context is open, and the channel lives as long as the queue.
            let raw = unsafe {
                let handle = std::ptr::without_provenance_mut(handle as usize);
                (self.context.lib.create_cq)(self.context.raw, depth as c_int, handle, raw_channel, 0)
            };
            let raw = self.context.check_ptr("creating a completion queue", raw)?;
            let (users, context) = (AtomicU32::new(0), Arc::clone(&self.context));
            let (kept, has_kept) = Default::default();
            Ok(Arc::new(Cq { raw, users, kept, has_kept, context, _channel: channel }))
        });
        cq.map(CqId)
    }

    fn resize_cq(&self, cq: CqId, depth: u32) -> Result<()> {
        self.context.check_alive()?;
        check_limit("completion queue entries", depth, self.attr.limits.cqe)?;
        if depth == 0 {
            return Err(Error::Invalid("a completion queue needs at least one entry"));
        }
        let cq = self.objects.cqs.get(cq.0)?;
        // SAFETY: the queue exists.
        let result = unsafe { (self.context.lib.resize_cq)(cq.raw, depth as c_int) };
        self.context.check("changing the size of a completion queue", result)
    }

    fn destroy_cq(&self, cq: CqId) -> Result<()> {
        self.context.check_alive()?;
        let is_free =
            |object: &Arc<Cq>| check_unused(&object.users, "completion queue", cq.0, "a queue pair");
        self.objects.cqs.remove_if(cq.0, is_free).map(drop)
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let cqs = self.objects.cqs.read();
        let queue = cqs.get(cq.0).ok_or_else(|| self.objects.cqs.no_such_object(cq.0))?;
        let qps = self.objects.qps.read().unwrap_or_else(PoisonError::into_inner);
        completions::poll(&qps, queue, self.is_rxe(), max, out)
    }

    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        self.context.check_alive()?;
        let cqs = self.objects.cqs.read();
        let queue = cqs.get(cq.0).ok_or_else(|| self.objects.cqs.no_such_object(cq.0))?;
        // SAFETY: the queue exists, and its context is open.
        let result = unsafe {
            match (*self.context.raw).ops.req_notify_cq {
                Some(notify) => notify(queue.raw, c_int::from(solicited_only)),
                None => -(nix::errno::Errno::EOPNOTSUPP as c_int),
            }
        };
        self.context.check("arming a completion queue", result)
    }

    fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId> {
        check_limit("shared receive queue entries", depth, self.extras.srq_wrs)?;
        let pd = self.pd(pd)?;
        let srq = self.objects.srqs.insert_with(|handle| {
            let mut init = ibv_srq_init_attr {
                srq_context: std::ptr::without_provenance_mut(handle as usize),
                attr: ibv_srq_attr { max_wr: depth, max_sge: self.extras.srq_sges, srq_limit: 0 },
            };
            // SAFETY: the domain exists.
            let raw = unsafe { (self.context.lib.create_srq)(pd.raw, &raw mut init) };
            let raw = self.context.check_ptr("creating a shared receive queue", raw)?;
            use_once(&pd.users);
            let posted = Mutex::new(SharedIds::new(depth));
            Ok(Arc::new(Srq { raw, users: AtomicU32::new(0), pd: Arc::clone(&pd), posted }))
        });
        srq.map(SrqId)
    }

    fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()> {
        self.context.check_alive()?;
        let srq = self.objects.srqs.get(srq.0)?;
        let depth = srq.posted.lock().unwrap_or_else(PoisonError::into_inner).depth;
        check_limit("limit of a shared receive queue", limit, depth)?;
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        // SAFETY: the queue exists.
        let result = unsafe { (self.context.lib.modify_srq)(srq.raw, &raw mut attr, IBV_SRQ_LIMIT as c_int) };
        self.context.check("arming a shared receive queue", result)
    }

    fn resize_srq(&self, srq: SrqId, depth: u32) -> Result<()> {
        self.context.check_alive()?;
        check_limit("shared receive queue entries", depth, self.extras.srq_wrs)?;
        if depth == 0 {
            return Err(Error::Invalid("a shared receive queue needs at least one entry"));
        }
        let srq = self.objects.srqs.get(srq.0)?;
        let mut posted = srq.posted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut attr = ibv_srq_attr { max_wr: depth, max_sge: 0, srq_limit: 0 };
        // SAFETY: the queue exists.
        let result =
            unsafe { (self.context.lib.modify_srq)(srq.raw, &raw mut attr, IBV_SRQ_MAX_WR as c_int) };
        self.context.check("changing the size of a shared receive queue", result)?;
        posted.depth = depth;
        Ok(())
    }

    fn destroy_srq(&self, srq: SrqId) -> Result<()> {
        self.context.check_alive()?;
        let is_free =
            |object: &Arc<Srq>| check_unused(&object.users, "shared receive queue", srq.0, "a queue pair");
        let srq = self.objects.srqs.remove_if(srq.0, is_free)?;
        release(&srq.pd.users);
        Ok(())
    }

    fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.context.check_alive().map_err(refuse_all)?;
        let srqs = self.objects.srqs.read();
        let queue = srqs.get(srq.0).ok_or_else(|| refuse_all(self.objects.srqs.no_such_object(srq.0)))?;
        post::post_shared_receives(queue, wrs, self.extras.srq_sges)
    }

    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn> {
        check_qp_cap(&init.cap, &self.attr.limits)?;
        let pd = self.pd(init.pd)?;
        let cqs = (self.objects.cqs.get(init.send_cq.0)?, self.objects.cqs.get(init.recv_cq.0)?);
        let srq = init.srq.map(|srq| self.objects.srqs.get(srq.0)).transpose()?;
        let qp = Arc::new(Qp::create(init, pd, cqs, srq, self.next_epoch())?);
        for users in qp.users() {
            use_once(users);
        }
        let qpn = qp.qpn;
        self.objects.qps.write().unwrap_or_else(PoisonError::into_inner).insert(qpn.value(), qp);
        Ok(qpn)
    }

    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()> {
        self.context.check_alive()?;
        let limit = self.attr.limits.rd_atomic;
        for requested in [attr.max_rd_atomic, attr.max_dest_rd_atomic].into_iter().flatten() {
            check_limit("READs and atomics in flight", requested.into(), limit.into())?;
        }
        if let Some(mtu) = attr.path_mtu {
            let limit = self.watched.port().max_mtu.bytes() as u32;
            check_limit("path MTU", mtu.bytes() as u32, limit)?;
        }
        self.qp(qp)?.modify(attr, || self.gid_index())
    }

    fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        self.context.check_alive()?;
        self.qp(qp)?.query()
    }

    /// The kernel joins a group only for a program of rdma_cm, and without it the packets of the
    /// group do not reach the device.
    fn attach_mcast(&self, _qp: Qpn, _group: Gid, _loopback: bool) -> Result<()> {
        Err(Error::Unsupported("multicast, which needs rdma_cm"))
    }

    fn detach_mcast(&self, _qp: Qpn, _group: Gid) -> Result<()> {
        Err(Error::Unsupported("multicast, which needs rdma_cm"))
    }

    fn destroy_qp(&self, qp: Qpn) -> Result<()> {
        self.context.check_alive()?;
        let removed = {
            let mut qps = self.objects.qps.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(destroyed) = qps.get(&qp.value()) {
                for cq in [&destroyed.send_cq, &destroyed.recv_cq] {
                    completions::keep(&qps, cq, self.is_rxe());
                }
            }
            qps.remove(&qp.value()).ok_or_else(|| no_such_qp(qp))?
        };
        let is_ended = removed.end();
        for users in removed.users() {
            release(users);
        }
        if is_ended {
            self.reaper.take(removed);
        } else {
            // The return of this call is a fence, so it waits for the destruction.
            drop(removed);
        }
        Ok(())
    }

    fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post(qp, wrs, false)
    }

    /// Posts all sends or none. If the driver refuses a send after it has taken others, the queue
    /// pair goes to ERR.
    fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post(qp, wrs, true)
    }

    fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.context.check_alive().map_err(refuse_all)?;
        let qps = self.objects.qps.read().unwrap_or_else(PoisonError::into_inner);
        let qp = qps.get(&qp.value()).ok_or_else(|| refuse_all(no_such_qp(qp)))?;
        post::post_receives(qp, wrs)
    }

    fn saved_results(&self, _qp: Qpn) -> Result<Vec<SavedResult>> {
        Err(Error::Unsupported("saved results of atomics"))
    }

    /// Ends the accesses of every queue pair and deregisters all memory. A device cannot be reset
    /// for one program, and the close of its context is no fence: traffic of mapped queues goes on.
    ///
    /// Sleeps for at most one second.
    fn reset(&self) -> Result<()> {
        self.context.set_dead();
        let qps: Vec<_> = {
            let qps = self.objects.qps.read().unwrap_or_else(PoisonError::into_inner);
            qps.values().cloned().collect()
        };
        let regions = self.objects.mrs.drain();
        let (sender, receiver) = channel();
        let end_all = move || {
            let mut result = Ok(());
            for qp in &qps {
                if !qp.end() {
                    result = Err(Error::Unsupported("ending a queue pair that does not go to RESET"));
                }
            }
            for region in &regions {
                let deregistered = region.deregister();
                result = result.and(deregistered);
            }
            // Without a receiver, the caller has given up.
            let _ = sender.send(result);
        };
        let failed = |error: &(dyn std::error::Error + 'static)| Error::system("resetting the NIC", error);
        mitra_os_util::thread::spawn("mitra-reset", end_all).map_err(|error| failed(&error))?;
        receiver.recv_timeout(RESET_WAIT).map_err(|error| failed(&error))?
    }
}
