//! What `fork` shares, and what a killed peer leaves. Alone in its process, since a child of a process with threads may do
//! little.
#![allow(unsafe_code)]

#[path = "rdmacm/ends.rs"]
mod ends;

use std::thread;
use std::time::Duration;

use ends::*;
use mitra_libibverbs::abi::*;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Runs `act` in a child, which ends with what it returns.
fn child(act: impl FnOnce() -> i32) -> Pid {
    // SAFETY: the other threads of this process wait, and hold no lock that the child needs.
    match unsafe { fork() }.expect("can fork") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let code = act();
            // SAFETY: ends the process.
            unsafe { libc::_exit(code) }
        }
    }
}

#[test]
fn a_child_is_another_and_a_killed_peer_is_noticed() {
    let channel = Channel::new();
    let (listener, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);

    // A child knows nothing of its parent's identifiers, and can make its own.
    let stranger = child(|| {
        let refused = listener.destroy() == Some(libc::EINVAL);
        let (own_channel, mut event) = (Channel::new(), std::ptr::null_mut());
        // SAFETY: a place for the answer.
        let read = error_of(unsafe { rdma_get_cm_event(channel.0, &raw mut event) });
        let own = Id::routed(&own_channel, RDMA_PS_TCP, port);
        i32::from(!(refused && read == Some(libc::EINVAL) && own.destroy().is_none()))
    });
    assert_eq!(waitpid(stranger, None), Ok(WaitStatus::Exited(stranger, 0)));

    // A peer that has a child of its own, which lives on.
    let (from_peer, to_test) = nix::unistd::pipe().expect("can make a pipe");
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
        nix::unistd::write(&to_test, &grandchild.as_raw().to_ne_bytes()).expect("can write");
        thread::sleep(Duration::from_secs(60));
        0
    });
    let passive = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(passive.accept(2, b""), None);
    assert_eq!(channel.expect(RDMA_CM_EVENT_ESTABLISHED).id, passive);
    let mut grandchild = [0; 4];
    assert_eq!(nix::unistd::read(&from_peer, &mut grandchild), Ok(4));
    let grandchild = Pid::from_raw(i32::from_ne_bytes(grandchild));

    kill(peer, Signal::SIGKILL).expect("it is ours");
    assert_eq!(channel.expect(RDMA_CM_EVENT_DISCONNECTED).id, passive);
    assert_eq!(kill(grandchild, None), Ok(()), "its child lives on, and keeps nothing open");
    kill(grandchild, Signal::SIGKILL).expect("it is ours");
    waitpid(peer, None).expect("it is ours");
    assert_eq!(passive.destroy(), None);
    assert_eq!(listener.destroy(), None);
}
