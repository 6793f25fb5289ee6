//! Completion channels.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use mitra_verbs::{CompletionChannel, CqId, Error, Result};
use mitra_verbs_abi::*;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::context::{Context, shared_by_threads};

/// A completion channel of a device. Its descriptor is an epoll instance of the device's channel
/// and of an eventfd, by which [`CompletionChannel::close`] makes it readable for good.
#[derive(Debug)]
pub(crate) struct HardChannel {
    pub(crate) raw: *mut ibv_comp_channel,
    context: Arc<Context>,
    epoll: Epoll,
    end: EventFd,
    is_closed: AtomicBool,
}

shared_by_threads!(HardChannel);

impl HardChannel {
    pub(crate) fn new(context: &Arc<Context>) -> Result<HardChannel> {
        let system = |errno: Errno| context.error("creating a completion channel", errno);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system)?;
        let end = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(system)?;
        // SAFETY: the context is open.
        let raw = unsafe { (context.lib.create_comp_channel)(context.raw) };
        let raw = context.check_ptr("creating a completion channel", raw)?;
        let context = Arc::clone(context);
        let channel = HardChannel { raw, context, epoll, end, is_closed: AtomicBool::new(false) };
        let fd = channel.device_fd();
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(system)?;
        let event = || EpollEvent::new(EpollFlags::EPOLLIN, 0);
        channel.epoll.add(fd, event()).map_err(system)?;
        channel.epoll.add(&channel.end, event()).map_err(system)?;
        Ok(channel)
    }

    fn device_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists, and its descriptor is open as long as it does.
        unsafe { BorrowedFd::borrow_raw((*self.raw).fd) }
    }
}

impl AsFd for HardChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl CompletionChannel for HardChannel {
    fn next_event(&self) -> Result<Option<CqId>> {
        let (mut cq, mut handle) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel exists, and both results are valid for writing.
        let result = unsafe { (self.context.lib.get_cq_event)(self.raw, &raw mut cq, &raw mut handle) };
        if result == 0 {
            // Acknowledged at once: the destruction of the queue waits for it.
            // SAFETY: the queue exists until its event is acknowledged.
            unsafe { (self.context.lib.ack_cq_events)(cq, 1) };
            return Ok(Some(CqId(handle.addr() as u32)));
        }
        match self.context.lib.last_errno() {
            _ if self.is_closed.load(Ordering::Acquire) => Err(Error::DeviceFatal),
            Errno::EAGAIN | Errno::EINTR => Ok(None),
            errno => Err(self.context.error("reading a completion channel", errno)),
        }
    }

    /// Returns `None`: only the kernel knows when there is an event.
    fn begin_wait(&self) -> Option<(&AtomicU32, u32)> {
        None
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let _ = self.end.write(1); // EAGAIN means that it is readable already.
    }
}

impl Drop for HardChannel {
    fn drop(&mut self) {
        // SAFETY: the channel exists, and the queues that use it, which hold an `Arc` of it, do
        // not.
        unsafe { (self.context.lib.destroy_comp_channel)(self.raw) };
    }
}
