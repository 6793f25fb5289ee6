//! [`SoftNic`] and its implementation of [`Provider`].

use core::time::Duration;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use mitra_os_util::event_queue::EventQueue;
use mitra_transport::{IpPath, NicConfig};
use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, DeviceAttr, Error, Gid, Mr, MrId,
    Mtu, Mw, MwId, PdId, PortAttr, PostError, Provider, QpAttr, QpInitAttr, QpState, QpStatus, Qpn, RecvWr,
    Result, SavedResult, SendWr, SrqId, Srqn, Time, Wc, WindowType, XrcdId,
};

use crate::capture::Capture;
use crate::completion_channel::{MAX_EVENTS, SoftCompletionChannel};
use crate::engine::{Driver, Engine};
use crate::error::{OpenError, WithOperation};
use crate::fault_injection::RailFaults;
use crate::held_ports::{self, HeldPort};
use crate::interfaces::{interface_of, not_local};
use crate::progress_thread::SharedNic;
use crate::thread_cpu_clock::ThreadCpuClock;
use crate::udp_socket::RoceSocket;
use crate::{Config, clock};

/// The largest send window is the size of the receive buffer divided by this. The kernel charges a datagram outside a `UDP_GRO`
/// run with twice its length, and several senders share the buffer.
const SEND_WINDOW_DIVISOR: usize = 4;

/// A poll does not drive the NIC if a poll of another completion queue has driven it within this time. A caller that polls several
/// queues in turn then drives the NIC once per turn.
const MIN_DRIVE_INTERVAL: Duration = Duration::from_micros(1);

/// A software NIC: one address with its RoCE port, and one lock.
///
/// Dropping the last `Arc` closes the NIC immediately. Work requests that are in flight do not complete.
pub struct SoftNic {
    attr: DeviceAttr,
    /// Locked while the address changes.
    address: Mutex<IpAddr>,
    send_window: u32,
    receive_buffer_size: usize,
    shared: Arc<SharedNic>,
    async_events: Arc<EventQueue<AsyncEvent>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The port, after a reset.
    held_port: Mutex<Option<HeldPort>>,
}

impl SoftNic {
    /// Opens a NIC and starts its progress thread.
    ///
    /// # Errors
    /// [`OpenError`] if the address, its port, its interface or the capture file cannot be used, or a system call fails.
    pub fn open(config: Config) -> Result<Arc<SoftNic>, OpenError> {
        config.address.into_iter().for_each(held_ports::release);
        let socket = RoceSocket::open(config.address)?;
        let ip = socket.address().ip();
        let max_mtu = port_mtu(ip, config.max_mtu)?;
        let name = config.name.unwrap_or_else(|| format!("mitra-{ip}"));
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).with_operation("reading the system's random source")?;
        let mut nic = NicConfig::new(&name, Gid::from(ip), seed);
        nic.max_mtu = max_mtu;
        nic.limits = config.limits;
        nic.capabilities.atomic_scope = config.atomic_scope;
        nic.capabilities.ack_after_placement = config.ack_after_placement;
        nic.tuning = config.tuning;
        let receive_buffer_size = socket.receive_buffer_size();
        let share = u32::try_from(receive_buffer_size / SEND_WINDOW_DIVISOR).unwrap_or(u32::MAX);
        let send_window = nic.tuning.send_window.min(share);
        nic.tuning.send_window = send_window;
        let capture = match config.capture {
            Some(path) => match Capture::create(&path) {
                Ok(capture) => Some(capture),
                Err(source) => return Err(OpenError::Capture { path, source }),
            },
            None => None,
        };
        let async_events = Arc::new(EventQueue::new(MAX_EVENTS).with_operation("creating an eventfd")?);
        let engine = Engine::new(nic, Arc::new(socket), config.offload, capture, Arc::clone(&async_events));
        let attr = engine.nic.attr().clone();
        let shared = Arc::new(
            SharedNic::new(engine, Arc::clone(&async_events)).with_operation("creating an eventfd")?,
        );
        let thread = shared.start(&name).with_operation("starting the progress thread")?;
        Ok(Arc::new(SoftNic {
            attr,
            address: Mutex::new(ip),
            send_window,
            receive_buffer_size,
            shared,
            async_events,
            thread: Mutex::new(Some(thread)),
            held_port: Mutex::new(None),
        }))
    }

    /// Makes the NIC receive the traffic class of each datagram, which a UD queue pair shows in the GRH. It is 0 there before this call, because
    /// other queue pairs have no use for it, and it costs 0.15 µs per receive call.
    ///
    /// # Errors
    /// `DeviceFatal` if the NIC is dead.
    pub fn receive_traffic_classes(&self) -> Result<()> {
        self.host_call(|engine, _| {
            engine.receive_traffic_classes();
            Ok(())
        })
    }

    /// Returns a handle that injects faults into this NIC.
    pub fn faults(&self) -> RailFaults {
        RailFaults(Arc::clone(&self.shared))
    }

    /// Returns the IP address of the NIC. A dead NIC keeps its address.
    pub fn address(&self) -> IpAddr {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the NIC another address of the same family, as when its interface gets one by DHCP, and reports [`AsyncEvent::GidChange`].
    /// Queue pairs keep their state. Those that are connected are then of no use: their peers accept packets from the old address only. The
    /// NIC's name and the largest MTU of its port stay. The old address is released when the progress thread has noticed.
    ///
    /// # Errors
    /// [`OpenError`] if the address, its port or its interface cannot be used: an interface with a smaller MTU than the port's cannot. The
    /// NIC then keeps its address. Also if the NIC is dead.
    pub fn change_address(&self, address: IpAddr) -> Result<(), OpenError> {
        let mut current = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        if address == *current {
            return Ok(());
        }
        if address.is_ipv4() != current.is_ipv4() {
            let reason = "the NIC has an address of the other family; use one of the same family";
            return Err(OpenError::UnusableAddress { address, reason });
        }
        held_ports::release(address);
        let socket = RoceSocket::open(Some(address))?;
        let port = port_mtu(address, None)?;
        let changed = self.host_call(|engine, _| {
            if port < engine.nic.query_port().max_mtu {
                return Ok(Err(OpenError::UnusableAddress {
                    address,
                    reason: "its interface has a smaller MTU than the NIC's port; raise it",
                }));
            }
            engine.replace_socket(Arc::new(socket));
            Ok(Ok(()))
        });
        changed.map_err(|dead: Error| OpenError::System {
            operation: "changing the address",
            source: std::io::Error::other(dead.to_string()),
        })??;
        *current = address;
        self.shared.wake(); // the progress thread sleeps on the old socket
        Ok(())
    }

    /// Returns a descriptor that is readable while [`Provider::poll_async_event`] has an event.
    pub fn async_event_fd(&self) -> BorrowedFd<'_> {
        self.async_events.as_fd()
    }

    /// Returns the send window, which bounds the unacknowledged bytes of a queue pair ([`Tuning::send_window`](mitra_transport::Tuning)).
    /// It is at most a quarter of the receive buffer.
    pub fn send_window(&self) -> u32 {
        self.send_window
    }

    /// Returns the size of the socket's receive buffer (`SO_RCVBUF`), in bytes, which includes the kernel's overhead per datagram.
    pub fn receive_buffer_size(&self) -> usize {
        self.receive_buffer_size
    }

    /// Sends pending ACKs. A process that ends without dropping its NIC calls this, so that senders see their messages acknowledged. Does
    /// nothing if the NIC's lock is taken, because an exit handler or signal handler may run on the thread that holds the lock.
    pub fn flush_acks(&self) {
        if let Some(mut engine) = self.shared.try_lock() {
            engine.flush_acks(clock::now());
        }
    }

    /// Makes a verbs call on the NIC, then sends the packets and reports the events that it has caused.
    fn host_call<T, E: From<NoHostAccess>>(
        &self,
        call: impl FnOnce(&mut Engine, Time) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut engine = self.shared.lock().map_err(NoHostAccess)?;
        engine.host_access().map_err(NoHostAccess)?;
        let now = clock::now();
        let result = call(&mut engine, now);
        engine.last_active = now;
        engine.last_host_call = now;
        engine.flush_call(now);
        self.shared.wake_if_due(&mut engine);
        result
    }

    /// Posts send requests. If the application waits for data in memory, sends pending ACKs together with the requests.
    fn post_sends(
        &self,
        post: impl FnOnce(&mut mitra_transport::Nic, Time) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        self.host_call(|engine, now| {
            post(&mut engine.nic, now)?;
            if engine.lease.is_denied(now) {
                engine.nic.flush_acks();
            }
            Ok(())
        })
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<SharedNic> {
        Arc::clone(&self.shared)
    }

    /// Sets a barrier that atomics wait at between their load and their store.
    #[cfg(test)]
    pub(crate) fn set_atomic_barrier(&self, barrier: Option<Arc<std::sync::Barrier>>) {
        self.shared.lock().unwrap().memory.atomic_barrier = barrier;
    }

    /// Closes the NIC permanently. On return the NIC has released the registered memory, and its thread has ended. Returns the NIC's socket, if
    /// the NIC was not closed before.
    fn close(&self, flush_acks: bool) -> Option<Arc<RoceSocket>> {
        if self.shared.is_forked_child() {
            // The parent owns the thread, and the lock may be in any state.
            return None;
        }
        let (mut engine, is_consistent) = self.shared.lock_to_close();
        if flush_acks && is_consistent {
            engine.flush_acks(clock::now());
        }
        let socket = engine.close();
        drop(engine);
        self.shared.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread was reported as an event when it happened.
            let _ = thread.join();
        }
        socket
    }
}

/// A verbs call failed because the host cannot access the NIC.
struct NoHostAccess(Error);

impl From<NoHostAccess> for Error {
    fn from(failure: NoHostAccess) -> Error {
        failure.0
    }
}

impl From<NoHostAccess> for PostError {
    fn from(failure: NoHostAccess) -> PostError {
        PostError { index: 0, error: failure.0 }
    }
}

/// Returns the largest path MTU that the interface of an address can carry, up to a bound.
fn port_mtu(ip: IpAddr, bound: Option<Mtu>) -> Result<Mtu, OpenError> {
    let interface = interface_of(ip).with_operation("listing the interfaces")?;
    let Some(interface) = interface else {
        return Err(not_local(ip));
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

    fn random_u64(&self) -> Result<u64> {
        getrandom::u64().map_err(|e| Error::System {
            operation: "reading the system's random source",
            message: e.to_string(),
        })
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
            let channel = SoftCompletionChannel::new()
                .map_err(|e| Error::System { operation: "creating an eventfd", message: e.to_string() })?;
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
            engine.lease.record_poll();
            return Ok(count);
        }
        if engine.host_access().is_err() {
            return Ok(0);
        }
        let now = clock::now();
        if engine.last_poll_drive.is_some_and(|(other, at)| other != cq && now - at < MIN_DRIVE_INTERVAL) {
            engine.completion_queues.record_empty_poll(cq);
            engine.lease.record_poll();
            return Ok(0);
        }
        engine.last_poll_drive = Some((cq, now));
        engine.last_host_call = now;
        engine.poller = Some(ThreadCpuClock::current());
        engine.drive(now, Driver::Poller);
        let count = engine.poll_cq(cq, max, out)?;
        if count == 0 {
            engine.completion_queues.record_empty_poll(cq);
        }
        if !engine.completion_queues.has_sleepers() && engine.lease.record_drive(now) {
            // The progress thread sleeps on the socket, and must sleep on a timer from now on.
            self.shared.wake();
        }
        self.shared.wake_if_due(&mut engine);
        Ok(count)
    }

    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        self.host_call(|engine, _| {
            engine.nic.req_notify_cq(cq, solicited_only)?;
            if engine.completion_queues.arm(cq) && engine.lease.release() {
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
                engine.flush_acks(now);
            }
            engine.nic.modify_qp(now, qp, attr)?;
            if attr.state == Some(QpState::Err) {
                engine.fence();
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
            engine.flush_acks(now);
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
        }
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
