//! The thread of a device with one rail. It delivers the NIC's asynchronous events to the program's
//! contexts, and answers peers with several rails.

use std::io;
use std::sync::Arc;

use mitra_os_util::thread;
use mitra_verbs::{AsyncEvent, Provider};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::rail_set::RailSet;
use super::rendezvous::OneRail;

/// The time between two checks of whether the NIC answers. A NIC that hangs reports no event.
/// Drivers of hardware NICs poll their NIC's health for the same reason.
const HEALTH_INTERVAL_MS: u16 = 1000;

/// Starts the thread. The thread runs as long as the process, and keeps the device open.
///
/// # Errors
/// The error of the operating system if the thread cannot be created.
pub(super) fn start(rails: &Arc<RailSet>) -> io::Result<()> {
    let rails = Arc::clone(rails);
    // Without queue pair 1, a peer with several rails waits for an answer until its timeout.
    let one_rail = OneRail::new(Arc::clone(rails.nic()) as Arc<dyn Provider>)
        .inspect_err(|error| tracing::debug!("queue pair 1 cannot be opened: {error}"))
        .ok()
        .map(Arc::new);
    if let Some(one_rail) = &one_rail {
        // The cell is empty, because this function is called once for a device.
        let _ = rails.one_rail.set(Arc::clone(one_rail));
    }
    thread::spawn("mitra-events", move || {
        let nic = rails.nic();
        let mut is_alive = true;
        loop {
            let mut ready = nic.async_event_fd().map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // After `DeviceFatal`, which is the last event, nothing is left to check. If a signal
            // interrupts the wait, the queue is empty, and the loop waits again.
            let interval = if is_alive { PollTimeout::from(HEALTH_INTERVAL_MS) } else { PollTimeout::NONE };
            let _ = poll(ready.as_mut_slice(), interval);
            while let Some(event) = nic.poll_async_event() {
                if let (AsyncEvent::GidChange, Some(one_rail)) = (event, &one_rail) {
                    one_rail.set_gid(nic.address().into());
                }
                let is_open = |qpn| rails.objects().qps.contains_key(&qpn);
                is_alive &= event != AsyncEvent::DeviceFatal;
                if !one_rail.as_ref().is_some_and(|one_rail| one_rail.handle(event, is_open)) {
                    rails.deliver(event);
                }
            }
            if is_alive && nic.query_port().is_err() {
                is_alive = false;
                rails.deliver(AsyncEvent::DeviceFatal);
            }
        }
    })?;
    Ok(())
}
