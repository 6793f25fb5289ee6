//! The thread that watches a device: its asynchronous events, and the state of its port.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use mitra_os_util::event_queue::EventQueue;
use mitra_verbs::{AsyncEvent, CqId, PortAttr, PortState, Qpn, SrqId};
use mitra_verbs_abi::*;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::context::Context;
use crate::port;

/// The largest number of events that wait to be taken.
const MAX_EVENTS: usize = 1 << 16;

/// How often the state of the port is read without an event, in milliseconds. Not every driver
/// reports each change (spec of soft-RoCE 6.1: the removal of a device).
const PORT_CHECK_MS: u16 = 1000;

/// What the watch thread has found.
#[derive(Debug)]
pub(crate) struct Watched {
    context: Arc<Context>,
    pub(crate) events: EventQueue<AsyncEvent>,
    port: Mutex<Port>,
}

#[derive(Clone, Copy, Debug)]
struct Port {
    attr: PortAttr,
    /// The index of the NIC's address in the device's table.
    gid_index: Option<u8>,
}

/// The watch thread of a device. The drop ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    end: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    pub(crate) fn new(
        context: Arc<Context>,
        (attr, gid_index): (PortAttr, Option<u8>),
    ) -> io::Result<Watched> {
        let port = Mutex::new(Port { attr, gid_index });
        Ok(Watched { context, events: EventQueue::new(MAX_EVENTS)?, port })
    }

    /// Returns the port's attributes as they were read last.
    pub(crate) fn port(&self) -> PortAttr {
        self.lock().attr
    }

    /// Makes the device dead, and says so once.
    pub(crate) fn die(&self) {
        self.context.set_dead();
        if std::mem::replace(&mut self.lock().attr.state, PortState::Down) == PortState::Active {
            self.events.push(AsyncEvent::PortError);
        }
        self.events.push(AsyncEvent::DeviceFatal);
    }

    fn lock(&self) -> MutexGuard<'_, Port> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state of the port, and reports what has changed and no event has reported.
    fn check_port(&self) {
        let Ok((attr, gid_index)) = port::read(&self.context, self.port().gid) else { return };
        let old = std::mem::replace(&mut *self.lock(), Port { attr, gid_index });
        // An address that was removed and added again has another index. The queue pairs that are
        // connected use the old one, and are dead.
        let has_moved = gid_index.is_some() && old.gid_index.is_some() && old.gid_index != gid_index;
        let was_active = old.attr.state == PortState::Active;
        let is_active = attr.state == PortState::Active;
        if was_active && (!is_active || has_moved) {
            self.events.push(AsyncEvent::PortError);
        }
        if is_active && (!was_active || has_moved) {
            self.events.push(AsyncEvent::PortActive);
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
                    self.lock().attr.state = PortState::Down;
                    self.events.push(AsyncEvent::PortError);
                    self.check_port();
                }
                Some(AsyncEvent::PortActive | AsyncEvent::GidChange) => self.check_port(),
                Some(AsyncEvent::DeviceFatal) => {
                    self.context.set_dead();
                }
                Some(event) => self.events.push(event),
                None => {}
            }
        }
    }

    fn run(&self, end: &EventFd) {
        // SAFETY: the context, and so its descriptor, is open as long as `self`.
        let device = unsafe { BorrowedFd::borrow_raw((*self.context.raw).async_fd) };
        let mut is_reported = false;
        loop {
            use std::os::fd::AsFd;
            let mut fds =
                [PollFd::new(device, PollFlags::POLLIN), PollFd::new(end.as_fd(), PollFlags::POLLIN)];
            // After an error such as EINTR the state is read early, which is harmless.
            let _ = poll(&mut fds, PollTimeout::from(PORT_CHECK_MS));
            if fds[1].any().unwrap_or(true) {
                return;
            }
            if !self.context.is_dead() {
                self.take_events();
                self.check_port();
            }
            if self.context.is_dead() && !is_reported {
                is_reported = true;
                self.die();
            }
            if is_reported {
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
