//! The thread that watches a device: its asynchronous events, the events of its network interfaces,
//! and the state of its port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use mitra_os_util::event_queue::EventQueue;
use mitra_verbs::{AsyncEvent, CqId, PortAttr, PortState, Qpn, SrqId};
use mitra_verbs_abi::*;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use smallvec::SmallVec;

use crate::context::Context;
use crate::interface_events::{Change, InterfaceEvents};
use crate::port::{self, Port};

/// The largest number of events that wait to be taken.
const MAX_EVENTS: usize = 1 << 16;

/// How often the state of the port is read without an event, in milliseconds. Not every driver
/// reports each change (soft-RoCE of Linux 6.1: the removal of a device).
const PORT_CHECK_MS: u16 = 1000;

/// When the port is read again after an event of its network interface, in milliseconds. The kernel
/// announces the event before the device's table of addresses has changed, so the time doubles
/// until it is [`PORT_CHECK_MS`].
const FIRST_CHECK_MS: u16 = 1;

/// What the watch thread has found.
#[derive(Debug)]
pub(crate) struct Watched {
    context: Arc<Context>,
    pub(crate) events: EventQueue<AsyncEvent>,
    state: Mutex<State>,
    /// Whether the death of the device was reported.
    is_dead: AtomicBool,
    /// The number of events and of changes of the port.
    generation: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// The port as it was read last.
    port: Port,
    /// The port is reported down.
    is_held_down: bool,
}

impl State {
    /// Returns the attributes that are reported.
    fn attr(&self) -> PortAttr {
        let state = if self.is_held_down { PortState::Down } else { self.port.attr.state };
        PortAttr { state, ..self.port.attr }
    }
}

/// The watch thread of a device. The drop ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    end: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    pub(crate) fn new(context: Arc<Context>, port: Port) -> io::Result<Watched> {
        let state = Mutex::new(State { port, is_held_down: false });
        let (events, is_dead) = (EventQueue::new(MAX_EVENTS)?, AtomicBool::new(false));
        Ok(Watched { context, events, state, is_dead, generation: AtomicU64::new(0) })
    }

    /// See [`Provider::generation`](mitra_verbs::Provider::generation). The first bit is that of a
    /// dead device, which any call may find.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire) | u64::from(self.context.is_dead()) << 63
    }

    /// Adds an event. Whoever finds the new generation finds the event, too.
    fn push(&self, event: AsyncEvent) {
        self.events.push(event);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the port's attributes as they were read last.
    pub(crate) fn port(&self) -> PortAttr {
        self.lock().attr()
    }

    /// Makes the device dead, and says so once.
    pub(crate) fn die(&self) {
        self.context.set_dead();
        if self.is_dead.swap(true, Ordering::AcqRel) {
            return;
        }
        let was_active = {
            let mut state = self.lock();
            let was_active = state.attr().state == PortState::Active;
            state.port.attr.state = PortState::Down;
            was_active
        };
        if was_active {
            self.push(AsyncEvent::PortError);
        }
        self.push(AsyncEvent::DeviceFatal);
    }

    /// Reports the port down whatever the device says, or ends that.
    pub(crate) fn hold_down(&self, is_held_down: bool) {
        let (old, new) = {
            let mut state = self.lock();
            let old = state.attr();
            state.is_held_down = is_held_down;
            (old, state.attr())
        };
        self.report_change(old, new, false);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state of the port, and reports what has changed and no event has reported.
    fn check_port(&self) {
        let Ok(mut new) = port::read(&self.context, self.port().gid) else { return };
        let (old, old_index, attr) = {
            let mut state = self.lock();
            let (old, old_index) = (state.attr(), state.port.gid_index);
            if new.interfaces.is_empty() {
                // The interface that has lost its addresses may get them back.
                new.interfaces.clone_from(&state.port.interfaces);
            }
            state.port = new.clone();
            (old, old_index, state.attr())
        };
        // An address that was removed and added again has another index. The queue pairs that are
        // connected use the old one, and are dead.
        let has_moved = new.gid_index.is_some() && old_index.is_some() && old_index != new.gid_index;
        self.report_change(old, attr, has_moved);
    }

    fn report_change(&self, old: PortAttr, new: PortAttr, has_moved: bool) {
        if new != old {
            self.generation.fetch_add(1, Ordering::Release);
        }
        let was_active = old.state == PortState::Active;
        let is_active = new.state == PortState::Active;
        if was_active && (!is_active || has_moved) {
            self.push(AsyncEvent::PortError);
        }
        if is_active && (!was_active || has_moved) {
            self.push(AsyncEvent::PortActive);
        }
    }

    /// Takes the device's events.
    fn take_events(&self) {
        let mut event = ibv_async_event {
            element: ibv_async_event_element { port_num: 0 },
            event_type: IBV_EVENT_CQ_ERR,
        };
        // SAFETY: the context is open, and the event is valid for writing.
        while unsafe { (self.context.lib.get_async_event)(self.context.raw, &raw mut event) } == 0 {
            // SAFETY: the object of the event exists until the event is acknowledged below.
            let translated = unsafe { translate(&event) };
            // SAFETY: the event was just read.
            unsafe { (self.context.lib.ack_async_event)(&raw mut event) };
            match translated {
                Some(AsyncEvent::PortError) => {
                    // The port may be up again by now. Its users still have to hear of this.
                    let is_known = {
                        let mut state = self.lock();
                        state.port.attr.state = PortState::Down;
                        state.is_held_down
                    };
                    if !is_known {
                        self.push(AsyncEvent::PortError);
                    }
                    self.check_port();
                }
                Some(AsyncEvent::PortActive | AsyncEvent::GidChange) => self.check_port(),
                Some(AsyncEvent::DeviceFatal) => {
                    self.context.set_dead();
                }
                Some(event) => self.push(event),
                None => {}
            }
        }
    }

    fn run(&self, end: &EventFd) {
        // SAFETY: the context, and so its descriptor, is open as long as `self`.
        let device = unsafe { BorrowedFd::borrow_raw((*self.context.raw).async_fd) };
        let interface_events = InterfaceEvents::open();
        let mut check_ms = PORT_CHECK_MS;
        loop {
            let mut fds: SmallVec<[PollFd<'_>; 3]> = [end.as_fd(), device]
                .into_iter()
                .chain(interface_events.as_ref().map(AsFd::as_fd))
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            // After an error such as EINTR the state is read early, which is harmless.
            let _ = poll(&mut fds, PollTimeout::from(check_ms));
            if fds[0].any().unwrap_or(true) {
                return;
            }
            check_ms = check_ms.saturating_mul(2).min(PORT_CHECK_MS);
            if let Some(events) = &interface_events {
                let interfaces = self.lock().port.interfaces.clone();
                if events.take(&interfaces) == Change::Possible {
                    check_ms = FIRST_CHECK_MS;
                }
            }
            if !self.context.is_dead() {
                self.take_events();
                self.check_port();
            }
            if self.context.is_dead() {
                self.die();
                // A dead device's descriptor may be readable for ever.
                let _ = poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
                return;
            }
        }
    }
}

/// # Safety
/// The event was read and is not acknowledged.
unsafe fn translate(event: &ibv_async_event) -> Option<AsyncEvent> {
    // SAFETY: the type of the event says which element it has, which exists until the event is
    // acknowledged. The contexts of queues are their handles.
    let (qp, cq, srq) = unsafe {
        (
            || Qpn::new((*event.element.qp).qp_num),
            || CqId((*event.element.cq).cq_context.addr() as u32),
            || SrqId((*event.element.srq).srq_context.addr() as u32),
        )
    };
    Some(match event.event_type {
        IBV_EVENT_CQ_ERR => AsyncEvent::CqError(cq()),
        IBV_EVENT_QP_FATAL => AsyncEvent::QpFatal(qp()),
        IBV_EVENT_QP_REQ_ERR => AsyncEvent::QpRequestError(qp()),
        IBV_EVENT_QP_ACCESS_ERR => AsyncEvent::QpAccessError(qp()),
        IBV_EVENT_COMM_EST => AsyncEvent::CommunicationEstablished(qp()),
        IBV_EVENT_SQ_DRAINED => AsyncEvent::SqDrained(qp()),
        IBV_EVENT_QP_LAST_WQE_REACHED => AsyncEvent::LastWqeReached(qp()),
        IBV_EVENT_SRQ_LIMIT_REACHED => AsyncEvent::SrqLimitReached(srq()),
        IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        IBV_EVENT_PORT_ERR => AsyncEvent::PortError,
        IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive,
        IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange,
        _ => return None,
    })
}

impl Watch {
    pub(crate) fn start(watched: &Arc<Watched>) -> io::Result<Watch> {
        // SAFETY: the context, and so its descriptor, is open as long as `watched`.
        let device = unsafe { BorrowedFd::borrow_raw((*watched.context.raw).async_fd) };
        fcntl(device, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let end = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (watched, ended) = (Arc::clone(watched), Arc::clone(&end));
        let thread = mitra_os_util::thread::spawn("mitra-watch", move || watched.run(&ended))?;
        Ok(Watch { end, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.end.write(1); // the counter is 0, so the write succeeds
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics only if the library does
        }
    }
}
