use core::fmt;
use std::sync::Arc;

use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, DeviceAttr, Error, Gid, Mr, MrId, Mw,
    MwId, PdId, PortAttr, PostError, Provider, QpAttr, QpInitAttr, QpState, QpStatus, Qpn, RecvWr, Result,
    SavedResult, SendWr, SrqId, Time, Wc,
};

use crate::fabric::{Core, Shared, lock};
use crate::nic::NicState;

/// A NIC of a simulated world: a [`Provider`] like any other.
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

    /// Its number in the world.
    pub fn id(&self) -> crate::NicId {
        crate::NicId(self.number)
    }

    /// The next armed completion queue that got a completion: what a completion channel would deliver.
    pub fn poll_cq_event(&self) -> Option<CqId> {
        lock(&self.shared).nics[self.number].cq_events.pop_front()
    }

    /// A call that asks.
    fn ask<T>(&self, f: impl FnOnce(&NicState) -> Result<T>) -> Result<T> {
        let core = lock(&self.shared);
        let nic = &core.nics[self.number];
        nic.check_access()?;
        f(nic)
    }

    /// A call that changes something.
    fn call<T>(&self, f: impl FnOnce(&mut Core, usize, Time) -> Result<T>) -> Result<T> {
        let mut core = lock(&self.shared);
        let n = self.number;
        core.nics[n].check_access()?;
        let local = core.nics[n].local(core.now);
        let done = f(&mut core, n, local)?;
        let host = core.nics[n].host;
        core.hosts[host].activity += 1;
        core.ring(n);
        core.settle(n);
        Ok(done)
    }

    /// The same, and on return nothing earlier touches memory any more.
    fn revoke<T>(&self, f: impl FnOnce(&mut Core, usize, Time) -> Result<T>) -> Result<T> {
        self.call(|core, n, local| {
            let result = f(core, n, local)?;
            core.revoke(n);
            Ok(result)
        })
    }

    fn post(&self, f: impl FnOnce(&mut NicState, Time) -> Result<(), PostError>) -> Result<(), PostError> {
        let mut core = lock(&self.shared);
        let n = self.number;
        core.nics[n].check_access().map_err(|error| PostError { index: 0, error })?;
        let local = core.nics[n].local(core.now);
        let result = f(&mut core.nics[n], local);
        // One that was refused may have posted some; what it started goes on, but it does not count as work.
        let host = core.nics[n].host;
        core.hosts[host].activity += u64::from(result.is_ok());
        core.ring(n);
        core.settle(n);
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
        let mut core = lock(&self.shared);
        let now = core.now;
        core.nics[self.number].read_clock(now)
    }

    fn query_port(&self) -> Result<PortAttr> {
        self.ask(|nic| Ok(nic.nic.query_port()))
    }

    fn counters(&self) -> Vec<Counter> {
        lock(&self.shared).nics[self.number].nic.counters()
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        let mut core = lock(&self.shared);
        let nic = &mut core.nics[self.number];
        let event = nic.async_events.pop_front();
        if event.is_some() {
            let host = nic.host;
            core.hosts[host].activity += 1;
        }
        event
    }

    fn alloc_pd(&self) -> Result<PdId> {
        self.call(|core, n, _| core.nics[n].nic.alloc_pd())
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<()> {
        self.call(|core, n, _| core.nics[n].nic.dealloc_pd(pd))
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        self.call(|core, n, local| {
            let host = core.nics[n].host;
            let address = core.hosts[host].address_of(&memory);
            let nic = &mut core.nics[n];
            let len = memory.len() as u64;
            let region = nic.add_region(memory);
            nic.nic.reg_mr(local, pd, region, address, len, access).inspect_err(|_| nic.drop_region(region))
        })
    }

    fn dereg_mr(&self, mr: MrId) -> Result<()> {
        self.revoke(|core, n, local| {
            let region = core.nics[n].nic.dereg_mr(local, mr)?;
            core.nics[n].drop_region(region);
            Ok(())
        })
    }

    fn alloc_mw(&self, pd: PdId) -> Result<Mw> {
        self.call(|core, n, local| core.nics[n].nic.alloc_mw(local, pd))
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<()> {
        self.revoke(|core, n, local| core.nics[n].nic.dealloc_mw(local, mw))
    }

    fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId> {
        self.call(|core, n, _| core.nics[n].nic.create_ah(pd, destination))
    }

    fn destroy_ah(&self, ah: AhId) -> Result<()> {
        self.call(|core, n, _| core.nics[n].nic.destroy_ah(ah))
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        Err(Error::Unsupported("completion channels: in the simulator no thread ever waits"))
    }

    fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId> {
        if channel.is_some() {
            return Err(Error::Unsupported("completion channels: in the simulator no thread ever waits"));
        }
        self.call(|core, n, _| {
            let cq = core.nics[n].nic.create_cq(depth)?;
            core.nics[n].cqs.insert(cq, Default::default());
            Ok(cq)
        })
    }

    fn destroy_cq(&self, cq: CqId) -> Result<()> {
        self.call(|core, n, _| {
            core.nics[n].nic.destroy_cq(cq)?;
            core.nics[n].cqs.remove(&cq);
            Ok(())
        })
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let mut core = lock(&self.shared);
        let nic = &mut core.nics[self.number];
        let visible = nic.cqs.get(&cq).map_or(0, |view| view.visible);
        let n = nic.nic.poll_cq(cq, max.min(visible), out)?;
        if n > 0 {
            if let Some(view) = nic.cqs.get_mut(&cq) {
                view.visible -= n;
                view.written -= n;
            }
            let host = nic.host;
            core.hosts[host].activity += 1;
            core.ring(self.number);
        }
        Ok(n)
    }

    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        self.call(|core, n, _| core.nics[n].nic.req_notify_cq(cq, solicited_only))
    }

    fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId> {
        self.call(|core, n, _| core.nics[n].nic.create_srq(pd, depth))
    }

    fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()> {
        self.call(|core, n, _| core.nics[n].nic.arm_srq(srq, limit))
    }

    fn destroy_srq(&self, srq: SrqId) -> Result<()> {
        self.call(|core, n, _| core.nics[n].nic.destroy_srq(srq))
    }

    fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.post(|nic, _| nic.nic.post_srq_recv(srq, wrs))
    }

    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn> {
        self.call(|core, n, local| core.nics[n].nic.create_qp(local, init))
    }

    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()> {
        let fences = matches!(attr.state, Some(QpState::Err | QpState::Reset));
        let modify = |core: &mut Core, n: usize, local| core.nics[n].nic.modify_qp(local, qp, attr);
        if fences { self.revoke(modify) } else { self.call(modify) }
    }

    fn attach_mcast(&self, _: Qpn, _: Gid, _: bool) -> Result<()> {
        Err(Error::Unsupported("multicast: the simulated fabric leads from one NIC to one other"))
    }

    fn detach_mcast(&self, _: Qpn, _: Gid) -> Result<()> {
        Err(Error::Invalid("the queue pair is not attached to this multicast group"))
    }

    fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        self.ask(|nic| nic.nic.query_qp(qp))
    }

    fn destroy_qp(&self, qp: Qpn) -> Result<()> {
        self.revoke(|core, n, local| core.nics[n].nic.destroy_qp(local, qp))
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
        self.ask(|nic| nic.nic.saved_results(qp))
    }

    fn reset(&self) -> Result<()> {
        let mut core = lock(&self.shared);
        core.reset_nic(self.number)
    }
}
