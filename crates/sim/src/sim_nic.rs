use core::fmt;
use std::sync::Arc;

use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, DeviceAttr, Error, Gid, Mr, MrId, Mw,
    MwId, PdId, PortAttr, PostError, Provider, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr,
    Result, SavedResult, SendWr, SrqId, Time, Wc, WindowType,
};

use crate::nic::NicState;
use crate::world_state::{Shared, WorldState, lock};

/// A NIC of a simulated world.
pub struct SimNic {
    shared: Shared,
    number: usize,
    attr: DeviceAttr,
}

impl SimNic {
    pub(crate) fn new(shared: Shared, number: usize) -> SimNic {
        let attr = lock(&shared).nics[number].nic.attr().clone();
        SimNic { shared, number, attr }
    }

    /// Returns the id of the NIC in its world.
    pub fn id(&self) -> crate::NicId {
        crate::NicId(self.number)
    }

    /// Returns whether the NIC hangs, and still executes requests of a connected peer.
    pub fn hangs_and_executes(&self) -> bool {
        let nic = &lock(&self.shared).nics[self.number];
        let executes = |qp: QpStatus| {
            qp.init.qp_type == QpType::Rc && matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
        };
        nic.is_running() && nic.check_access().is_err() && nic.nic.queue_pairs().any(executes)
    }

    /// Returns the next completion queue that reports its requested event (`req_notify_cq`). The
    /// simulator has no completion channels.
    pub fn poll_cq_event(&self) -> Option<CqId> {
        lock(&self.shared).nics[self.number].cq_events.pop_front()
    }

    /// Performs a verb that only reads the NIC's state.
    fn query<T>(&self, f: impl FnOnce(&NicState) -> Result<T>) -> Result<T> {
        let mut world = lock(&self.shared);
        world.count_call(self.number);
        let nic = &world.nics[self.number];
        nic.check_access()?;
        f(nic)
    }

    /// Performs a verb that changes the NIC's state.
    fn call<T>(&self, f: impl FnOnce(&mut WorldState, usize, Time) -> Result<T>) -> Result<T> {
        let mut world = lock(&self.shared);
        let n = self.number;
        world.count_call(n);
        world.nics[n].check_access()?;
        world.drive_starved(n);
        let local = world.nics[n].local(world.now);
        let result = f(&mut world, n, local)?;
        world.count_activity(n);
        world.ring_doorbell(n);
        world.reschedule(n);
        Ok(result)
    }

    /// Performs a verb that revokes access to memory. Unless `revoke_waits` is off, earlier
    /// requests do not access the memory after the verb.
    fn revoke<T>(&self, f: impl FnOnce(&mut WorldState, usize, Time) -> Result<T>) -> Result<T> {
        self.call(|world, n, local| {
            let result = f(world, n, local)?;
            world.revoke(n);
            Ok(result)
        })
    }

    fn post(&self, f: impl FnOnce(&mut NicState, Time) -> Result<(), PostError>) -> Result<(), PostError> {
        let mut world = lock(&self.shared);
        let n = self.number;
        world.count_call(n);
        world.nics[n].check_access().map_err(|error| PostError { index: 0, error })?;
        world.drive_starved(n);
        let local = world.nics[n].local(world.now);
        let result = f(&mut world.nics[n], local);
        // A failed post may have posted some of its requests. The NIC executes them, but they do
        // not make the turn active.
        if result.is_ok() {
            world.count_activity(n);
        }
        world.ring_doorbell(n);
        world.reschedule(n);
        result
    }
}

impl fmt::Debug for SimNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimNic({})", self.attr.name)
    }
}

impl Provider for SimNic {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn now(&self) -> Time {
        let mut world = lock(&self.shared);
        let now = world.now;
        world.nics[self.number].read_clock(now)
    }

    fn random_u64(&self) -> Result<u64> {
        Ok(lock(&self.shared).nics[self.number].secret_rng.bits())
    }

    fn query_port(&self) -> Result<PortAttr> {
        self.query(|nic| Ok(nic.nic.query_port()))
    }

    fn counters(&self) -> Vec<Counter> {
        lock(&self.shared).nics[self.number].nic.counters()
    }

    fn port_refusals(&self, destination: Gid) -> u64 {
        let world = lock(&self.shared);
        world.nics[self.number].port_refusals.get(&destination).copied().unwrap_or(0)
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        let mut world = lock(&self.shared);
        let event = world.nics[self.number].async_events.pop_front();
        if event.is_some() {
            world.count_activity(self.number);
        }
        event
    }

    fn alloc_pd(&self) -> Result<PdId> {
        self.call(|world, n, _| world.nics[n].nic.alloc_pd())
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<()> {
        self.call(|world, n, _| world.nics[n].nic.dealloc_pd(pd))
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        self.call(|world, n, local| {
            let len = memory.len() as u64;
            let (region, address) = world.add_region(n, memory);
            let nic = &mut world.nics[n];
            nic.nic.reg_mr(local, pd, region, address, len, access).inspect_err(|_| nic.drop_region(region))
        })
    }

    fn dereg_mr(&self, mr: MrId) -> Result<()> {
        self.revoke(|world, n, local| {
            let region = world.nics[n].nic.dereg_mr(local, mr)?;
            world.nics[n].drop_region(region);
            Ok(())
        })
    }

    fn rereg_mr(&self, mr: MrId, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        self.revoke(|world, n, _| {
            let len = memory.len() as u64;
            let (region, address) = world.add_region(n, memory);
            let nic = &mut world.nics[n];
            let changed = nic.nic.rereg_mr(mr, pd, region, address, len, access);
            let (mr, earlier) = changed.inspect_err(|_| nic.drop_region(region))?;
            nic.drop_region(earlier);
            Ok(mr)
        })
    }

    fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw> {
        self.call(|world, n, local| world.nics[n].nic.alloc_mw(local, pd, window_type))
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<()> {
        self.revoke(|world, n, local| world.nics[n].nic.dealloc_mw(local, mw))
    }

    fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId> {
        self.call(|world, n, _| world.nics[n].nic.create_ah(pd, destination))
    }

    fn destroy_ah(&self, ah: AhId) -> Result<()> {
        self.call(|world, n, _| world.nics[n].nic.destroy_ah(ah))
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        Err(Error::Unsupported("completion channels: the simulator has no blocking waits"))
    }

    fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId> {
        if channel.is_some() {
            return Err(Error::Unsupported("completion channels: the simulator has no blocking waits"));
        }
        self.call(|world, n, _| {
            let cq = world.nics[n].nic.create_cq(depth)?;
            world.nics[n].cqs.insert(cq, Default::default());
            Ok(cq)
        })
    }

    fn resize_cq(&self, cq: CqId, depth: u32) -> Result<()> {
        self.call(|world, n, _| world.nics[n].nic.resize_cq(cq, depth, 0))
    }

    fn destroy_cq(&self, cq: CqId) -> Result<()> {
        self.call(|world, n, _| {
            world.nics[n].nic.destroy_cq(cq)?;
            world.nics[n].cqs.remove(&cq);
            Ok(())
        })
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let mut world = lock(&self.shared);
        world.drive_starved(self.number);
        let now = world.now;
        let n = world.nics[self.number].poll_cq(now, cq, max, out)?;
        if n > 0 {
            world.count_activity(self.number);
            world.ring_doorbell(self.number);
        }
        Ok(n)
    }

    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        self.call(|world, n, _| world.nics[n].nic.req_notify_cq(cq, solicited_only))
    }

    fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId> {
        self.call(|world, n, _| world.nics[n].nic.create_srq(pd, depth))
    }

    fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()> {
        self.call(|world, n, _| world.nics[n].nic.arm_srq(srq, limit))
    }

    fn resize_srq(&self, srq: SrqId, depth: u32) -> Result<()> {
        self.call(|world, n, _| world.nics[n].nic.resize_srq(srq, depth))
    }

    fn destroy_srq(&self, srq: SrqId) -> Result<()> {
        self.call(|world, n, _| world.nics[n].nic.destroy_srq(srq))
    }

    fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.post(|nic, _| nic.nic.post_srq_recv(srq, wrs))
    }

    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn> {
        self.call(|world, n, local| world.nics[n].nic.create_qp(local, init))
    }

    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()> {
        let revokes = matches!(attr.state, Some(QpState::Err | QpState::Reset));
        if revokes {
            lock(&self.shared).cover_fence(self.number);
        }
        self.call(|world, n, local| {
            let is_error = attr.state == Some(QpState::Err);
            let flushes_later = if *attr == QpAttr::to(QpState::Err) {
                world.begin_error(n, qp)?
            } else {
                world.nics[n].nic.modify_qp(local, qp, attr)?;
                if revokes {
                    world.nics[n].forget_unflushed(qp);
                }
                false
            };
            if revokes {
                world.nics[n].on_revoked(world.now, qp, is_error);
            }
            if revokes && !flushes_later {
                world.revoke(n);
            }
            Ok(())
        })
    }

    fn attach_mcast(&self, _: Qpn, _: Gid, _: bool) -> Result<()> {
        Err(Error::Unsupported("multicast: the simulated network delivers to one NIC only"))
    }

    fn detach_mcast(&self, _: Qpn, _: Gid) -> Result<()> {
        Err(Error::Invalid("the queue pair is not attached to this multicast group; attach it first"))
    }

    fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        let mut status = self.query(|nic| nic.nic.query_qp(qp))?;
        if !self.attr.capabilities.psn_query {
            // As if packets counted before they are in memory. A vQP that decided by the number
            // would lose operations.
            status.rq_psn = status.rq_psn.add(3);
        }
        Ok(status)
    }

    fn destroy_qp(&self, qp: Qpn) -> Result<()> {
        self.revoke(|world, n, local| {
            let (now, nic) = (world.now, &mut world.nics[n]);
            nic.nic.destroy_qp(local, qp)?;
            nic.forget_unflushed(qp);
            nic.on_revoked(now, qp, false);
            Ok(())
        })
    }

    fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post(|nic, local| nic.nic.post_send(local, qp, wrs))
    }

    fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post(|nic, local| nic.nic.post_send_all(local, qp, wrs))
    }

    fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.post(|nic, _| nic.nic.post_recv(qp, wrs))
    }

    fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>> {
        self.query(|nic| nic.nic.saved_results(qp))
    }

    fn reset(&self) -> Result<()> {
        let mut world = lock(&self.shared);
        world.cover_fence(self.number);
        world.reset_nic(self.number)
    }
}
