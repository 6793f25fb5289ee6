//! The verbs of a [`SoftNic`]: its implementation of [`Provider`].

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, PoisonError};
use std::thread;

use mitra_os_util::random::random_u64;
use mitra_transport::IpPath;
use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, DeviceAttr, Error, Gid, Mr, MrId, Mw,
    MwId, PdId, PortAttr, PostError, Provider, QpAttr, QpInitAttr, QpState, QpStatus, Qpn, RecvWr, Result,
    SavedResult, SendWr, SrqId, Srqn, Time, Wc, WindowType, XrcdId,
};

use super::SoftNic;
use crate::clock;
use crate::completion_channel::SoftCompletionChannel;
use crate::ports_of_reset_nics::HeldPort;
use crate::progress::Driver;

impl SoftNic {
    /// Posts send requests. If the application waits for data in memory, sends pending ACKs
    /// together with the requests.
    fn post_sends(
        &self,
        post: impl FnOnce(&mut mitra_transport::Nic, Time) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        self.host_call(|engine, now| {
            post(&mut engine.nic, now)?;
            if engine.progress.waits_in_memory(now) {
                engine.nic.flush_acks();
            }
            Ok(())
        })
    }
}

impl Provider for SoftNic {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn now(&self) -> Time {
        clock::now()
    }

    fn random_u64(&self) -> Result<u64> {
        random_u64().map_err(|e| Error::system("reading the system's random source", &e))
    }

    fn query_port(&self) -> Result<PortAttr> {
        self.host_call(|engine, _| Ok(engine.nic.query_port()))
    }

    fn counters(&self) -> Vec<Counter> {
        self.shared.lock().map(|engine| engine.counters()).unwrap_or_default()
    }

    fn port_refusals(&self, destination: Gid) -> u64 {
        self.shared.lock().map(|engine| engine.port_refusals.of(destination)).unwrap_or(0)
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.async_events.pop()
    }

    fn async_event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.async_events.as_fd())
    }

    fn alloc_pd(&self) -> Result<PdId> {
        self.host_call(|engine, _| engine.nic.alloc_pd())
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<()> {
        self.host_call(|engine, _| engine.nic.dealloc_pd(pd))
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        self.host_call(|engine, now| {
            let (addr, len) = (memory.addr(), memory.len() as u64);
            let region = engine.memory.insert(memory);
            let mr = engine.nic.reg_mr(now, pd, region, addr, len, access);
            if mr.is_err() {
                engine.memory.remove(region);
            }
            mr
        })
    }

    fn dereg_mr(&self, mr: MrId) -> Result<()> {
        self.host_call(|engine, now| {
            let region = engine.nic.dereg_mr(now, mr)?;
            engine.memory.remove(region);
            Ok(())
        })
    }

    fn rereg_mr(&self, mr: MrId, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        self.host_call(|engine, _| {
            let (addr, len) = (memory.addr(), memory.len() as u64);
            let region = engine.memory.insert(memory);
            let (mr, unused) = match engine.nic.rereg_mr(mr, pd, region, addr, len, access) {
                Ok((mr, earlier)) => (Ok(mr), earlier),
                Err(error) => (Err(error), region),
            };
            engine.memory.remove(unused);
            mr
        })
    }

    fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw> {
        self.host_call(|engine, now| engine.nic.alloc_mw(now, pd, window_type))
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<()> {
        self.host_call(|engine, now| engine.nic.dealloc_mw(now, mw))
    }

    fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId> {
        self.host_call(|engine, _| engine.nic.create_ah(pd, destination))
    }

    fn create_ah_with_traffic_class(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId> {
        let path = IpPath { address: destination, traffic_class };
        self.host_call(|engine, _| engine.nic.create_ah(pd, path))
    }

    fn destroy_ah(&self, ah: AhId) -> Result<()> {
        self.host_call(|engine, _| engine.nic.destroy_ah(ah))
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        self.host_call(|engine, _| {
            let channel =
                SoftCompletionChannel::new().map_err(|e| Error::system("creating an eventfd", &e))?;
            let channel = Arc::new(channel);
            engine.completion_queues.add_channel(&channel);
            Ok(channel as Arc<dyn CompletionChannel>)
        })
    }

    fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId> {
        self.host_call(|engine, _| {
            let channel =
                channel.map(|channel| engine.completion_queues.find_channel(channel)).transpose()?;
            let cq = engine.nic.create_cq(depth)?;
            engine.completion_queues.add(cq, channel);
            Ok(cq)
        })
    }

    fn resize_cq(&self, cq: CqId, depth: u32) -> Result<()> {
        self.host_call(|engine, _| {
            let written = engine.completion_queues.written(cq);
            engine.nic.resize_cq(cq, depth, written)
        })
    }

    fn destroy_cq(&self, cq: CqId) -> Result<()> {
        self.host_call(|engine, _| {
            engine.nic.destroy_cq(cq)?;
            engine.completion_queues.remove(cq);
            Ok(())
        })
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let mut engine = self.shared.lock()?;
        let count = engine.poll_cq(cq, max, out)?;
        if count > 0 || max == 0 {
            engine.progress.record_poll();
            engine.completion_queues.record_poll();
            return Ok(count);
        }
        if engine.host_access().is_err() {
            return Ok(0);
        }
        let now = clock::now();
        if !engine.progress.begin_poll(cq, now) {
            engine.completion_queues.record_empty_poll(cq, now);
            return Ok(0);
        }
        engine.drive(now, Driver::Poller);
        let count = engine.poll_cq(cq, max, out)?;
        match count {
            0 => engine.completion_queues.record_empty_poll(cq, now),
            _ => engine.completion_queues.record_poll(),
        }
        if !engine.completion_queues.has_sleepers(now) && engine.progress.end_poll(now) {
            self.shared.wake();
        }
        self.shared.wake_if_due(&mut engine);
        if count == 0 && (engine.tx_queue.is_stalled() || engine.links.is_connecting(now)) {
            // The receiver of a full ring, or a progress thread that makes a link, may need this
            // processor.
            drop(engine);
            thread::yield_now();
        }
        Ok(count)
    }

    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        self.host_call(|engine, now| {
            engine.nic.req_notify_cq(cq, solicited_only)?;
            if engine.completion_queues.arm(cq, now) && engine.progress.release_lease() {
                self.shared.wake();
            }
            Ok(())
        })
    }

    fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId> {
        self.host_call(|engine, _| engine.nic.create_srq(pd, depth))
    }

    fn alloc_xrcd(&self) -> Result<XrcdId> {
        self.host_call(|engine, _| engine.nic.alloc_xrcd())
    }

    fn dealloc_xrcd(&self, xrcd: XrcdId) -> Result<()> {
        self.host_call(|engine, _| engine.nic.dealloc_xrcd(xrcd))
    }

    fn create_xrc_srq(&self, pd: PdId, xrcd: XrcdId, cq: CqId, depth: u32) -> Result<SrqId> {
        self.host_call(|engine, _| engine.nic.create_xrc_srq(pd, xrcd, cq, depth))
    }

    fn srq_number(&self, srq: SrqId) -> Result<Srqn> {
        self.host_call(|engine, _| engine.nic.srq_number(srq))
    }

    fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()> {
        self.host_call(|engine, _| engine.nic.arm_srq(srq, limit))
    }

    fn resize_srq(&self, srq: SrqId, depth: u32) -> Result<()> {
        self.host_call(|engine, _| engine.nic.resize_srq(srq, depth))
    }

    fn destroy_srq(&self, srq: SrqId) -> Result<()> {
        self.host_call(|engine, _| engine.nic.destroy_srq(srq))
    }

    fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.host_call(|engine, _| engine.nic.post_srq_recv(srq, wrs))
    }

    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn> {
        self.host_call(|engine, now| engine.nic.create_qp(now, init))
    }

    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()> {
        self.host_call(|engine, now| {
            if matches!(attr.state, Some(QpState::Err | QpState::Reset)) {
                engine.settle(now);
            }
            engine.nic.modify_qp(now, qp, attr)?;
            if attr.state == Some(QpState::Err) {
                engine.fence();
            }
            if let Some(peer) = attr.dest_gid.filter(|_| attr.state == Some(QpState::Rtr)) {
                // The link is often there before the first packet.
                engine.links.route(peer, now);
            }
            Ok(())
        })
    }

    fn attach_mcast(&self, qp: Qpn, group: Gid, own: bool) -> Result<()> {
        self.host_call(|engine, _| engine.attach_mcast(qp, group, own))?;
        // The progress thread must add the group's socket to those it sleeps on.
        self.shared.wake();
        Ok(())
    }

    fn detach_mcast(&self, qp: Qpn, group: Gid) -> Result<()> {
        self.host_call(|engine, _| engine.detach_mcast(qp, group))?;
        // The progress thread must release the group's socket.
        self.shared.wake();
        Ok(())
    }

    fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        self.host_call(|engine, _| engine.nic.query_qp(qp))
    }

    fn destroy_qp(&self, qp: Qpn) -> Result<()> {
        self.host_call(|engine, now| {
            engine.settle(now);
            engine.nic.destroy_qp(now, qp)
        })
    }

    fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post_sends(|nic, now| nic.post_send(now, qp, wrs))
    }

    fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post_sends(|nic, now| nic.post_send_all(now, qp, wrs))
    }

    fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.host_call(|engine, _| engine.nic.post_recv(qp, wrs))
    }

    fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>> {
        self.host_call(|engine, _| engine.nic.saved_results(qp))
    }

    fn reset(&self) -> Result<()> {
        if let Some(socket) = self.close(false) {
            *self.held_port.lock().unwrap_or_else(PoisonError::into_inner) = Some(HeldPort::new(socket));
            self.close_links();
        }
        Ok(())
    }
}
