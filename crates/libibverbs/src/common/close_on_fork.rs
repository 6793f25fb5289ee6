//! The handler by which a child process gives up descriptors of its parent on `fork`: sockets of
//! this library and of its NICs.

use std::os::fd::{IntoRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

pub(crate) use mitra_os_util::close_on_fork::CloseOnFork;
use mitra_os_util::close_on_fork::take_descriptors_to_close_on_fork;
use mitra_os_util::fork_generation;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::high_descriptor::moved_up;

/// The null device, once the handler is installed.
static NULL: AtomicI32 = AtomicI32::new(-1);

/// Registers a descriptor, and installs the handler in the first call.
///
/// # Errors
/// `EMFILE` if the descriptor is beyond the table, or the errors of [`install_handler`].
pub(crate) fn close_on_fork(fd: RawFd) -> Result<CloseOnFork, Errno> {
    install_handler()?;
    CloseOnFork::new(fd).ok_or(Errno::EMFILE)
}

/// Installs the handler in the first call.
///
/// # Errors
/// The error of opening the null device.
pub(crate) fn install_handler() -> Result<(), Errno> {
    if NULL.load(Ordering::Acquire) >= 0 {
        return Ok(());
    }
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    let null = moved_up(null).into_raw_fd();
    if NULL.compare_exchange(-1, null, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // Another thread was faster. A thread that waited for another one would wait forever in the
        // child of a fork.
        return nix::unistd::close(null);
    }
    // A failure, which only a lack of memory causes, is ignored: children then share the parent's
    // sockets and identifiers, and a peer detects the parent's death only when the children have
    // ended, too.
    // SAFETY: the handler has the required signature and is async-signal-safe.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    Ok(())
}

/// Gives the child state of its own ([`PerProcess`](super::per_process::PerProcess)), and replaces
/// all registered descriptors by the null device. The numbers stay in use, because objects that the
/// child inherits own them. Async-signal-safe: atomics, `fstat` and `dup3` only.
extern "C" fn after_fork_in_child() {
    fork_generation::after_fork_in_child();
    let null = NULL.load(Ordering::Relaxed);
    let is_null = is_null_device(null);
    for fd in take_descriptors_to_close_on_fork().filter(|_| is_null) {
        // SAFETY: `dup3` accesses no memory of the process. The descriptor is the child's copy of a
        // socket that the child does not use.
        unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) };
    }
}

/// Whether the descriptor still is the null device. A program may have closed it, as daemons close
/// all descriptors, and then its number may be that of another file.
fn is_null_device(fd: RawFd) -> bool {
    // SAFETY: `stat` consists of integers, for which zeros are valid, and `fstat` writes one.
    let (result, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut stat), stat)
    };
    result == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == libc::makedev(1, 3)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use nix::sys::wait::waitpid;
    use nix::unistd::{ForkResult, fork};

    use super::*;

    /// The other end of a registered socket sees its end although a child lives, and that of
    /// another socket does not.
    #[test]
    fn child_keeps_no_registered_socket() {
        let pair = || UnixStream::pair().expect("a pair can be created");
        let ((own, mut peer), (kept, kept_peer), (gate, mut child_gate)) = (pair(), pair(), pair());
        let registration = close_on_fork(own.as_raw_fd()).expect("the number is small");
        drop(close_on_fork(kept.as_raw_fd()).expect("the number is small"));
        // SAFETY: the child makes only system calls that are async-signal-safe.
        let child = match unsafe { fork() }.expect("fork succeeds") {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                // Until the parent closes the gate.
                drop(gate);
                let _ = child_gate.read(&mut [0]);
                // SAFETY: `_exit` has no preconditions.
                unsafe { libc::_exit(0) }
            }
        };
        drop((registration, own, kept, child_gate));
        assert_eq!(peer.read(&mut [0]).expect("the socket is readable"), 0, "the child has no copy");
        kept_peer.set_nonblocking(true).expect("the flag can be set");
        assert!((&kept_peer).read(&mut [0]).is_err(), "the child keeps what is not registered");
        drop(gate);
        waitpid(child, None).expect("the child ends");
    }
}
