//! The thread that delivers a single NIC's asynchronous events to the program's contexts.

use std::io;
use std::sync::Arc;

use mitra_os_util::thread;
use mitra_verbs::Provider;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::rail_set::RailSet;

/// Starts the thread. It runs as long as the process, and keeps the device open.
pub(super) fn start(rails: &Arc<RailSet>) -> io::Result<()> {
    let rails = Arc::clone(rails);
    thread::spawn("mitra-events", move || {
        let nic = rails.nic();
        loop {
            let mut ready = [PollFd::new(nic.async_event_fd(), PollFlags::POLLIN)];
            // An interrupted wait only causes one more look at the queue.
            let _ = poll(&mut ready, PollTimeout::NONE);
            while let Some(event) = nic.poll_async_event() {
                rails.deliver(event);
            }
        }
    })?;
    Ok(())
}
