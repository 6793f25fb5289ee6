//! `fork` and killed peers. The test has a process of its own, because the child of a process with
//! other threads may call only few functions.
#![allow(unsafe_code)]

mod cm_wrapper;

use std::thread;
use std::time::Duration;

use cm_wrapper::*;
use mitra_verbs_abi::*;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Runs `act` in a child process, which exits with the returned code.
fn child(act: impl FnOnce() -> i32) -> Pid {
    // SAFETY: the other threads of this process are blocked and hold no lock that the child needs.
    match unsafe { fork() }.expect("fork succeeds") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let code = act();
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(code) }
        }
    }
}

#[test]
fn child_has_no_identifiers_and_killed_peer_is_reported() {
    let channel = Channel::new();
    let (listener, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);

    // The child's manager does not know the parent's identifiers, and the child can create its own.
    let new_process = child(|| {
        let refused = listener.destroy() == Some(libc::EINVAL);
        let (own_channel, mut event) = (Channel::new(), std::ptr::null_mut());
        // SAFETY: the pointer for the result is valid.
        let read = error_of(unsafe { rdma_get_cm_event(channel.0, &raw mut event) });
        let own = Id::routed(&own_channel, RDMA_PS_TCP, port);
        i32::from(!(refused && read == Some(libc::EINVAL) && own.destroy().is_none()))
    });
    assert_eq!(waitpid(new_process, None), Ok(WaitStatus::Exited(new_process, 0)));

    // The peer has a child, which survives the peer.
    let (from_peer, to_test) = nix::unistd::pipe().expect("a pipe can be created");
    let peer = child(|| {
        let channel = Channel::new();
        let active = Id::routed(&channel, RDMA_PS_TCP, port);
        if active.connect(1, b"").is_some() {
            return 1;
        }
        channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
        if active.establish().is_some() {
            return 1;
        }
        let grandchild = child(|| {
            thread::sleep(Duration::from_secs(60));
            0
        });
        nix::unistd::write(&to_test, &grandchild.as_raw().to_ne_bytes()).expect("the pipe is open");
        thread::sleep(Duration::from_secs(60));
        0
    });
    let passive = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(passive.accept(2, b""), None);
    assert_eq!(channel.expect(RDMA_CM_EVENT_ESTABLISHED).id, passive);
    let mut grandchild = [0; 4];
    assert_eq!(nix::unistd::read(&from_peer, &mut grandchild), Ok(4));
    let grandchild = Pid::from_raw(i32::from_ne_bytes(grandchild));

    kill(peer, Signal::SIGKILL).expect("the process is a descendant");
    assert_eq!(channel.expect(RDMA_CM_EVENT_DISCONNECTED).id, passive);
    assert_eq!(kill(grandchild, None), Ok(()), "the surviving child does not keep the connection open");
    kill(grandchild, Signal::SIGKILL).expect("the process is a descendant");
    waitpid(peer, None).expect("the process is a descendant");
    assert_eq!(passive.destroy(), None);
    assert_eq!(listener.destroy(), None);
}
