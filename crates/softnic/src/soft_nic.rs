//! [`SoftNic`]: opening and closing a NIC, and its lock. Its verbs are in `soft_nic/verbs.rs`.

mod nic;
mod verbs;

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use mitra_os_util::event_queue::EventQueue;
use mitra_os_util::interfaces::interface_of;
use mitra_transport::NicConfig;
use mitra_verbs::{AsyncEvent, DeviceAttr, Error, Gid, Mtu, PostError, Result, Time};

use crate::capture::Capture;
use crate::completion_channel::MAX_EVENTS;
use crate::engine::Engine;
use crate::error::{OpenError, WithOperation, not_local};
use crate::fault_injection::RailFaults;
use crate::ports_of_reset_nics::{self, HeldPort};
use crate::progress_thread::SharedNic;
use crate::shared_memory::SharedMemoryLinks;
use crate::udp_socket::RoceSocket;
use crate::{Config, clock};

/// The largest send window is the size of the receive buffer divided by this. The kernel charges a
/// datagram outside a `UDP_GRO` run with twice its length, and several senders share the buffer.
const SEND_WINDOW_DIVISOR: usize = 4;

/// A software NIC: one address with its RoCE port, and one lock.
///
/// Dropping the last `Arc` closes the NIC immediately. Work requests that are in flight do not
/// complete.
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
    /// [`OpenError`] if the address, its port, its interface or the capture file cannot be used, or
    /// a system call fails.
    pub fn open(config: Config) -> Result<Arc<SoftNic>, OpenError> {
        config.address.into_iter().for_each(ports_of_reset_nics::release);
        let socket = RoceSocket::open(config.address)?;
        let ip = socket.address().ip();
        let links = SharedMemoryLinks::open(ip.into(), config.links)
            .with_operation("listening for links through shared memory")?;
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
        let engine =
            Engine::new(nic, Arc::new(socket), config.offload, links, capture, Arc::clone(&async_events));
        let attr = engine.nic.attr().clone();
        let shared = Arc::new(
            SharedNic::new(engine, Arc::clone(&async_events)).with_operation("creating an eventfd")?,
        );
        shared.read_interface(false);
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

    /// Returns a handle that injects faults into this NIC.
    pub fn faults(&self) -> RailFaults {
        RailFaults(Arc::clone(&self.shared))
    }

    /// Returns why the NIC uses no shared memory, although [`Config::links`] allows it. Another
    /// process listens under the name of its links (`AddrInUse`), which any user may take before.
    pub fn link_failure(&self) -> Option<std::io::ErrorKind> {
        self.shared.lock().ok()?.links.failure()
    }

    /// Returns the IP address of the NIC. A dead NIC keeps its address.
    pub fn address(&self) -> IpAddr {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the NIC another address of the same family, as when its interface gets one by DHCP,
    /// and reports [`AsyncEvent::GidChange`]. `None` selects a free loopback address for a NIC that
    /// has a loopback address (IPv4). The NIC's name and the largest MTU of its port stay. Queue
    /// pairs keep their state, but a connected queue pair is of no further use: its peer accepts
    /// packets from the old address only. The progress thread releases the old address when it next
    /// wakes.
    ///
    /// # Errors
    /// [`OpenError`] if the NIC is dead, or if the address, its port or its interface cannot be
    /// used. An interface with a smaller MTU than the port cannot be used. After an error the NIC
    /// keeps its address.
    pub fn change_address(&self, address: impl Into<Option<IpAddr>>) -> Result<(), OpenError> {
        let address = address.into();
        let mut current = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let unusable = |address, reason| Err(OpenError::UnusableAddress { address, reason });
        match address {
            Some(address) if address == *current => return Ok(()),
            Some(address) if address.is_ipv4() != current.is_ipv4() => {
                let reason = "the NIC has an address of the other family; use one of the same family";
                return unusable(address, reason);
            }
            Some(address) => ports_of_reset_nics::release(address),
            None if !(current.is_ipv4() && current.is_loopback()) => {
                let reason = "the NIC has this address, and free addresses are loopback addresses of IPv4; name the new address";
                return unusable(*current, reason);
            }
            None => {}
        }
        let socket = RoceSocket::open(address)?;
        let address = socket.address().ip();
        let port = port_mtu(address, None)?;
        let setting = self.shared.lock().map(|engine| engine.links.setting());
        let links = SharedMemoryLinks::open(address.into(), setting.unwrap_or_default())
            .with_operation("listening for links through shared memory")?;
        let changed = self.host_call(|engine, _| {
            if port < engine.nic.query_port().max_mtu {
                return Ok(Err(OpenError::UnusableAddress {
                    address,
                    reason: "its interface has a smaller MTU than the NIC's port; raise it",
                }));
            }
            engine.replace_socket(Arc::new(socket), links);
            Ok(Ok(()))
        });
        changed.map_err(|dead: Error| OpenError::System {
            operation: "changing the address",
            source: std::io::Error::other(dead.to_string()),
        })??;
        *current = address;
        self.shared.read_interface(false);
        self.shared.wake(); // the progress thread sleeps on the old socket
        Ok(())
    }

    /// Returns a descriptor that is readable while
    /// [`Provider::poll_async_event`](mitra_verbs::Provider::poll_async_event) has an event.
    pub fn async_event_fd(&self) -> BorrowedFd<'_> {
        self.async_events.as_fd()
    }

    /// Returns the send window, which bounds the unacknowledged bytes of a queue pair
    /// ([`Tuning::send_window`](mitra_transport::Tuning)). It is at most a quarter of the receive
    /// buffer.
    pub fn send_window(&self) -> u32 {
        self.send_window
    }

    /// Returns the size of the socket's receive buffer (`SO_RCVBUF`), in bytes, which includes the
    /// kernel's overhead per datagram.
    pub fn receive_buffer_size(&self) -> usize {
        self.receive_buffer_size
    }

    /// Makes a verbs call on the NIC, then sends the packets and reports the events that the call
    /// has caused.
    fn host_call<T, E: From<NoHostAccess>>(
        &self,
        call: impl FnOnce(&mut Engine, Time) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut engine = self.shared.lock().map_err(NoHostAccess)?;
        engine.host_access().map_err(NoHostAccess)?;
        let now = clock::now();
        let result = call(&mut engine, now);
        engine.progress.record_call(now);
        engine.flush_call(now);
        self.shared.wake_if_due(&mut engine);
        result
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<SharedNic> {
        Arc::clone(&self.shared)
    }

    #[cfg(test)]
    pub(crate) fn set_atomic_barrier(&self, barrier: Option<Arc<std::sync::Barrier>>) {
        self.shared.lock().unwrap().memory.atomic_barrier = barrier;
    }

    /// Closes the NIC permanently. On return the NIC has released the registered memory, and its
    /// thread has ended. Returns the NIC's socket, or `None` if the NIC was closed before. The
    /// caller closes or holds the socket, and then closes the links ([`SoftNic::close_links`]).
    fn close(&self, settles: bool) -> Option<Arc<RoceSocket>> {
        if self.shared.is_forked_child() {
            // The parent owns the thread, and the lock may be in any state.
            return None;
        }
        let (mut engine, is_consistent) = self.shared.lock_to_close();
        if settles && is_consistent {
            engine.settle(clock::now());
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

    /// Closes the links of a closed NIC. Their peers ask the port whether the process has ended as
    /// soon as a link closes, so the port must be closed, or held, before.
    fn close_links(&self) {
        self.shared.lock_to_close().0.links.close_all();
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

impl Drop for SoftNic {
    fn drop(&mut self) {
        let socket = self.close(true);
        if socket.is_some() {
            drop(socket);
            self.close_links();
        }
    }
}

impl fmt::Debug for SoftNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftNic({})", self.attr.name)
    }
}
