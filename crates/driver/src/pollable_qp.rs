use core::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use mitra_failover::{BuildError, Completion, VirtualQp, VirtualQpBuilder};
use mitra_verbs::{Result, Time};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::system;

/// The shortest time that arms a timer. A time of 0 would disarm it (timerfd_settime(2)).
const AT_ONCE_NANOS: u64 = 1;

/// A vQP with one descriptor for an event loop.
///
/// The descriptor is readable when there are completions, when the peer wants to move to another
/// rail, when a NIC reports an event, or when a timer of the vQP has expired. The event loop then
/// calls [`PollableQp::poll`], after which the descriptor is not readable until something else
/// happens. Level-triggered and edge-triggered loops both work.
///
/// The drop of a `PollableQp` closes the vQP.
#[derive(Debug)]
pub struct PollableQp {
    vqp: VirtualQp,
    /// Contains the descriptors of the completion channels, of the NICs' asynchronous events and of
    /// the timer.
    epoll: Epoll,
    timer: TimerFd,
    /// The time at which the timer expires. `None` while it is disarmed.
    deadline: Option<Time>,
}

impl PollableQp {
    /// Builds an unconnected vQP.
    ///
    /// # Errors
    /// The errors of [`VirtualQpBuilder::build`]; [`BuildError::Nic`] with `Unsupported` if a NIC
    /// has no completion channels, and with `System` if the process has no descriptor left.
    pub fn build(builder: VirtualQpBuilder) -> Result<PollableQp, BuildError> {
        let qp = PollableQp::build_beside_nics(builder)?;
        // A vQP does not take the events while it is unconnected or closed, and several vQPs wait
        // for the same events.
        for nic in qp.vqp.domain().nics() {
            if let Some(fd) = nic.provider.async_event_fd() {
                qp.watch(fd, EpollFlags::EPOLLIN | EpollFlags::EPOLLET)?;
            }
        }
        Ok(qp)
    }

    /// As [`PollableQp::build`], but the descriptor does not become readable for an asynchronous
    /// event of a NIC. The caller drives the vQP then.
    pub(crate) fn build_beside_nics(builder: VirtualQpBuilder) -> Result<PollableQp, BuildError> {
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system("creating an epoll instance"))?;
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(system("creating a timer"))?;
        let vqp = builder.own_channels(true).build()?;
        let mut qp = PollableQp { vqp, epoll, timer, deadline: None };
        qp.watch(qp.timer.as_fd(), EpollFlags::EPOLLIN)?;
        for channel in qp.vqp.event_channels() {
            qp.watch(channel.as_fd(), EpollFlags::EPOLLIN)?;
        }
        qp.drive()?; // arms the completion queues
        Ok(qp)
    }

    fn watch(&self, fd: BorrowedFd<'_>, flags: EpollFlags) -> Result<()> {
        self.epoll.add(fd, EpollEvent::new(flags, 0)).map_err(system("adding to an epoll instance"))
    }

    /// Drives the vQP, appends all its completions to `out` and returns their number.
    ///
    /// # Errors
    /// Any error of a NIC other than `DeviceFatal`, or of the operating system.
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize> {
        self.drive()?;
        Ok(self.vqp.take_completions(out))
    }

    /// Drives the vQP without taking completions.
    pub(crate) fn drive(&mut self) -> Result<()> {
        // Takes the edge-triggered events, which would otherwise leave the descriptor readable.
        let mut events = [EpollEvent::empty(); 16];
        let _ = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        self.vqp.handle_events()?;
        self.set_timer(self.vqp.event_timeout())
    }

    /// Sets the timer if it would expire too late, or has expired.
    fn set_timer(&mut self, due: Option<Time>) -> Result<()> {
        if self.deadline.is_none() && due.is_none() {
            return Ok(());
        }
        let now = self.vqp.domain().nics()[0].provider.now();
        let is_expired = self.deadline.is_some_and(|deadline| deadline <= now);
        let is_early_enough = self.deadline.is_some_and(|deadline| due.is_none_or(|due| deadline <= due));
        if is_early_enough && !is_expired {
            return Ok(());
        }
        // Setting the timer also takes its expiration.
        let set = match due {
            Some(due) => {
                let nanos = due.saturating_since(now).as_nanos().max(AT_ONCE_NANOS.into());
                let after = TimeSpec::nanoseconds(i64::try_from(nanos).unwrap_or(i64::MAX));
                self.timer.set(Expiration::OneShot(after), TimerSetTimeFlags::empty())
            }
            None => self.timer.unset(),
        };
        self.deadline = due;
        set.map_err(system("setting a timer"))
    }

    /// Sets the timer after a call on the vQP. The call may have begun a failover.
    pub(crate) fn update_timer(&mut self, wake_for_completions: bool) {
        let due = if wake_for_completions && self.vqp.has_completions() {
            Some(self.vqp.domain().nics()[0].provider.now())
        } else {
            self.vqp.event_timeout()
        };
        // timerfd_settime(2) fails only for invalid arguments.
        let _ = self.set_timer(due);
    }

    /// Returns the vQP, to read its state.
    pub fn vqp(&self) -> &VirtualQp {
        &self.vqp
    }

    pub(crate) fn vqp_unguarded(&mut self) -> &mut VirtualQp {
        &mut self.vqp
    }

    /// Returns the vQP, to connect it and to post requests. The descriptor takes account of the
    /// changes when the guard is dropped.
    pub fn vqp_mut(&mut self) -> PollableQpGuard<'_> {
        PollableQpGuard(self)
    }
}

impl AsFd for PollableQp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl AsRawFd for PollableQp {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for PollableQp {
    fn drop(&mut self) {
        // A NIC that does not confirm is dead or hung, and the caller cannot do more.
        let _ = self.vqp.close();
    }
}

/// The vQP of a [`PollableQp`].
#[derive(Debug)]
pub struct PollableQpGuard<'a>(&'a mut PollableQp);

impl Deref for PollableQpGuard<'_> {
    type Target = VirtualQp;

    fn deref(&self) -> &VirtualQp {
        &self.0.vqp
    }
}

impl DerefMut for PollableQpGuard<'_> {
    fn deref_mut(&mut self) -> &mut VirtualQp {
        &mut self.0.vqp
    }
}

impl Drop for PollableQpGuard<'_> {
    fn drop(&mut self) {
        self.0.update_timer(true);
    }
}
