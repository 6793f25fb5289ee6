//! The [`Provider`] that a software NIC is.

use core::time::Duration;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use mitra_transport::NicConfig;
use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, DeviceAttr, Error, Gid, Mr, MrId,
    Mtu, Mw, MwId, PdId, PortAttr, PostError, Provider, QpAttr, QpInitAttr, QpState, QpStatus, Qpn, RecvWr,
    Result, SavedResult, SendWr, SrqId, Time, Wc,
};

use crate::attention::Runner;
use crate::capture::Capture;
use crate::channel::{Channel, EventQueue};
use crate::engine::{Driver, Engine};
use crate::error::{OpenError, Tried};
use crate::faults::RailFaults;
use crate::progress::Shared;
use crate::socket::Socket;
use crate::{Config, clock, host};

/// Share of a receive buffer that one sender may fill. The kernel counts a datagram that is not part of a run at
/// twice its length, and other senders want room too.
const WINDOW_SHARE: usize = 4;

/// Who polls several completion queues in turn drives the NIC once: what another's poll found this long ago still holds.
const FRESH: Duration = Duration::from_micros(1);

/// A software NIC: one UDP socket, one address, one lock.
///
/// It lives until the last `Arc` of it is dropped; then it stops at once, as a NIC does whose process ended.
pub struct SoftNic {
    attr: DeviceAttr,
    address: IpAddr,
    send_window: u32,
    receive_buffer: usize,
    shared: Arc<Shared>,
    events: Arc<EventQueue<AsyncEvent>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SoftNic {
    /// Opens a NIC and starts its progress thread.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: Config) -> Result<Arc<SoftNic>, OpenError> {
        let socket = Socket::open(config.address)?;
        let ip = socket.address().ip();
        let max_mtu = port_mtu(ip, config.max_mtu)?;
        let name = config.name.unwrap_or_else(|| format!("mitra-{ip}"));
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).tried("reading the system's random source")?;
        let mut nic = NicConfig::new(&name, Gid::from(ip), seed);
        nic.max_mtu = max_mtu;
        nic.limits = config.limits;
        nic.capabilities.atomic_scope = config.atomic_scope;
        nic.capabilities.ack_after_placement = config.ack_after_placement;
        nic.tuning = config.tuning;
        let receive_buffer = socket.receive_buffer();
        let share = u32::try_from(receive_buffer / WINDOW_SHARE).unwrap_or(u32::MAX);
        let send_window = nic.tuning.send_window.min(share);
        nic.tuning.send_window = send_window;
        let capture = match config.capture {
            Some(path) => match Capture::create(&path) {
                Ok(capture) => Some(capture),
                Err(source) => return Err(OpenError::Capture { path, source }),
            },
            None => None,
        };
        let events = Arc::new(EventQueue::new().tried("making an eventfd")?);
        let engine = Engine::new(nic, Arc::new(socket), config.offload, capture, Arc::clone(&events));
        let attr = engine.nic.attr().clone();
        let shared = Arc::new(Shared::new(engine, Arc::clone(&events)).tried("making an eventfd")?);
        let thread = shared.start(&name).tried("starting the progress thread")?;
        Ok(Arc::new(SoftNic {
            attr,
            address: ip,
            send_window,
            receive_buffer,
            shared,
            events,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Faults on demand.
    pub fn faults(&self) -> RailFaults {
        RailFaults(Arc::clone(&self.shared))
    }

    /// Its address, also when it is dead.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// A descriptor that is readable while [`Provider::poll_async_event`] has an event.
    pub fn async_event_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Unacknowledged payload bytes that a queue pair lets be on the wire, after what the receive buffer holds.
    pub fn send_window(&self) -> u32 {
        self.send_window
    }

    /// Bytes that the kernel queues for this NIC, counted with their overhead.
    pub fn receive_buffer_size(&self) -> usize {
        self.receive_buffer
    }

    /// Sends the acknowledgements that it owes: for a process that is about to end without dropping its NIC. Does nothing if the
    /// NIC is busy, which its caller may have interrupted.
    pub fn flush_acks(&self) {
        if let Some(mut engine) = self.shared.try_lock() {
            engine.last_words(clock::now());
        }
    }

    /// Calls the NIC for the host, then sends and reports what came of it.
    fn call<T, E: From<Refused>>(
        &self,
        call: impl FnOnce(&mut Engine, Time) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut engine = self.shared.lock().map_err(Refused)?;
        engine.host_access().map_err(Refused)?;
        let now = clock::now();
        let result = call(&mut engine, now);
        engine.active = now;
        engine.called = now;
        engine.settle(now);
        self.shared.wake_if_due(&mut engine);
        result
    }

    /// Posts sends.
    fn post(
        &self,
        post: impl FnOnce(&mut mitra_transport::Nic, Time) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        self.call(|engine, now| {
            post(&mut engine.nic, now)?;
            if engine.lease.distrusts(now) {
                engine.nic.flush_acks();
            }
            Ok(())
        })
    }

    /// What is inside.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Has atomics wait at the barrier between their load and their store.
    #[cfg(test)]
    pub(crate) fn meet_in_atomics(&self, barrier: Option<Arc<std::sync::Barrier>>) {
        self.shared.lock().unwrap().memory.between = barrier;
    }

    /// Stops everything for good: on return nothing of the host's is touched any more, and the address is free.
    fn close(&self, last_words: bool) {
        if self.shared.is_inherited() {
            // Its thread and its lock are the parent's.
            return;
        }
        let (mut engine, sound) = self.shared.lock_to_close();
        if last_words && sound {
            engine.last_words(clock::now());
        }
        engine.close();
        drop(engine);
        self.shared.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // If it panicked, that was reported when it did.
            let _ = thread.join();
        }
    }
}

/// A call that did not reach the NIC.
struct Refused(Error);

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        refused.0
    }
}

impl From<Refused> for PostError {
    fn from(refused: Refused) -> PostError {
        PostError { index: 0, error: refused.0 }
    }
}

/// The largest MTU that the address's interface carries, within a bound.
fn port_mtu(ip: IpAddr, bound: Option<Mtu>) -> Result<Mtu, OpenError> {
    let interface = host::interface_of(ip).tried("listing the interfaces")?;
    let Some(interface) = interface else {
        return Err(OpenError::AddressNotLocal { address: ip, local: host::local_addresses() });
    };
    let largest = Mtu::for_interface(interface.mtu, ip.is_ipv6())
        .ok_or(OpenError::MtuTooSmall { interface: interface.name, mtu: interface.mtu })?;
    Ok(bound.map_or(largest, |bound| bound.min(largest)))
}

impl Provider for SoftNic {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn now(&self) -> Time {
        clock::now()
    }

    fn query_port(&self) -> Result<PortAttr> {
        self.call(|engine, _| Ok(engine.nic.query_port()))
    }

    fn counters(&self) -> Vec<Counter> {
        self.shared.lock().map(|engine| engine.counters()).unwrap_or_default()
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.events.pop()
    }

    fn alloc_pd(&self) -> Result<PdId> {
        self.call(|engine, _| engine.nic.alloc_pd())
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<()> {
        self.call(|engine, _| engine.nic.dealloc_pd(pd))
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        self.call(|engine, now| {
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
        self.call(|engine, now| {
            let region = engine.nic.dereg_mr(now, mr)?;
            engine.memory.remove(region);
            Ok(())
        })
    }

    fn alloc_mw(&self, pd: PdId) -> Result<Mw> {
        self.call(|engine, now| engine.nic.alloc_mw(now, pd))
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<()> {
        self.call(|engine, now| engine.nic.dealloc_mw(now, mw))
    }

    fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId> {
        self.call(|engine, _| engine.nic.create_ah(pd, destination))
    }

    fn destroy_ah(&self, ah: AhId) -> Result<()> {
        self.call(|engine, _| engine.nic.destroy_ah(ah))
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        self.call(|engine, _| {
            let channel = Channel::new()
                .map_err(|e| Error::System { operation: "making an eventfd", message: e.to_string() })?;
            let channel = Arc::new(channel);
            engine.completions.add_channel(&channel);
            Ok(channel as Arc<dyn CompletionChannel>)
        })
    }

    fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId> {
        self.call(|engine, _| {
            let channel = channel.map(|channel| engine.completions.own_channel(channel)).transpose()?;
            let cq = engine.nic.create_cq(depth)?;
            engine.completions.add(cq, channel);
            Ok(cq)
        })
    }

    fn destroy_cq(&self, cq: CqId) -> Result<()> {
        self.call(|engine, _| {
            engine.nic.destroy_cq(cq)?;
            engine.completions.remove(cq);
            Ok(())
        })
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let mut engine = self.shared.lock()?;
        let found = engine.poll_cq(cq, max, out)?;
        if found > 0 || max == 0 {
            engine.lease.polled();
            return Ok(found);
        }
        if engine.host_access().is_err() {
            return Ok(0);
        }
        let now = clock::now();
        if engine.driven.is_some_and(|(other, at)| other != cq && now - at < FRESH) {
            engine.completions.polled_in_vain(cq);
            engine.lease.polled();
            return Ok(0);
        }
        engine.driven = Some((cq, now));
        engine.called = now;
        engine.poller = Some(Runner::this());
        engine.drive(now, Driver::Poller);
        let found = engine.poll_cq(cq, max, out)?;
        if found == 0 {
            engine.completions.polled_in_vain(cq);
        }
        if !engine.completions.awaited() && engine.lease.drove(now) {
            // The thread sleeps on the socket; from here on it shall not.
            self.shared.wake();
        }
        self.shared.wake_if_due(&mut engine);
        Ok(found)
    }

    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        self.call(|engine, _| {
            engine.nic.req_notify_cq(cq, solicited_only)?;
            if engine.completions.arm(cq) && engine.lease.end() {
                self.shared.wake();
            }
            Ok(())
        })
    }

    fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId> {
        self.call(|engine, _| engine.nic.create_srq(pd, depth))
    }

    fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()> {
        self.call(|engine, _| engine.nic.arm_srq(srq, limit))
    }

    fn destroy_srq(&self, srq: SrqId) -> Result<()> {
        self.call(|engine, _| engine.nic.destroy_srq(srq))
    }

    fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.call(|engine, _| engine.nic.post_srq_recv(srq, wrs))
    }

    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn> {
        self.call(|engine, now| engine.nic.create_qp(now, init))
    }

    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()> {
        self.call(|engine, now| {
            if matches!(attr.state, Some(QpState::Err | QpState::Reset)) {
                engine.last_words(now);
            }
            engine.nic.modify_qp(now, qp, attr)?;
            if attr.state == Some(QpState::Err) {
                engine.fence();
            }
            Ok(())
        })
    }

    fn attach_mcast(&self, qp: Qpn, group: Gid, own: bool) -> Result<()> {
        self.call(|engine, _| engine.attach_mcast(qp, group, own))?;
        // The thread is to sleep on the group's socket too.
        self.shared.wake();
        Ok(())
    }

    fn detach_mcast(&self, qp: Qpn, group: Gid) -> Result<()> {
        self.call(|engine, _| engine.detach_mcast(qp, group))?;
        // ... and to let go of it.
        self.shared.wake();
        Ok(())
    }

    fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        self.call(|engine, _| engine.nic.query_qp(qp))
    }

    fn destroy_qp(&self, qp: Qpn) -> Result<()> {
        self.call(|engine, now| {
            engine.last_words(now);
            engine.nic.destroy_qp(now, qp)
        })
    }

    fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post(|nic, now| nic.post_send(now, qp, wrs))
    }

    fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post(|nic, now| nic.post_send_all(now, qp, wrs))
    }

    fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.call(|engine, _| engine.nic.post_recv(qp, wrs))
    }

    fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>> {
        self.call(|engine, _| engine.nic.saved_results(qp))
    }

    fn reset(&self) -> Result<()> {
        self.close(false);
        Ok(())
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        self.close(true);
    }
}

impl fmt::Debug for SoftNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftNic({})", self.attr.name)
    }
}
