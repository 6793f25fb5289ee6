//! The thread that drives virtual queue pairs while the program does not poll.
//!
//! Every [`INTERVAL_MS`] milliseconds, or when a NIC reports a completion, it takes part in recoveries, posts sends whose
//! region keys have arrived, answers peers that connect, and signals completion channels.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use mitra_os_util::thread;
use mitra_verbs::{AsyncEvent, CompletionChannel, Provider};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::rail_set::RailSet;
use super::virtual_qps::MultiRail;

/// Time between two rounds, in milliseconds. It bounds the delay of a peer's failover while the program does not poll.
const INTERVAL_MS: u16 = 1;

/// Starts the thread. It ends when the device is closed.
pub(super) fn start(rails: &Arc<RailSet>, multi_rail: &Arc<MultiRail>) -> io::Result<()> {
    let (rails, multi_rail) = (Arc::downgrade(rails), Arc::clone(multi_rail));
    let mut port = ReportedPort { up: true, alive: true };
    thread::spawn("mitra-progress", move || while round(&rails, &multi_rail, &mut port) {})?;
    Ok(())
}

/// The state of the device's port as the program knows it.
struct ReportedPort {
    up: bool,
    alive: bool,
}

impl ReportedPort {
    /// Reports the loss of the last rail, and the return of the first. A loss that is shorter than a round goes unreported.
    fn update(&mut self, rails: &RailSet) {
        let up = rails.is_up();
        let alive = up || rails.nics().iter().any(|nic| nic.query_port().is_ok());
        if std::mem::replace(&mut self.alive, alive) && !alive {
            rails.deliver(AsyncEvent::DeviceFatal);
        } else if self.up != up && alive {
            rails.deliver(if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
        self.up = up;
    }
}

/// Runs one round. Returns false when the device is closed.
fn round(rails: &Weak<RailSet>, multi_rail: &MultiRail, port: &mut ReportedPort) -> bool {
    let nics = multi_rail.domain().nics();
    let channels: Vec<&Arc<dyn CompletionChannel>> =
        nics.iter().filter_map(|nic| nic.channel.as_ref()).collect();
    let mut ready: Vec<PollFd<'_>> =
        channels.iter().map(|channel| PollFd::new(channel.as_fd(), PollFlags::POLLIN)).collect();
    // An interrupted wait only makes the round come earlier.
    let _ = poll(&mut ready, PollTimeout::from(INTERVAL_MS));
    let Some(rails) = rails.upgrade() else { return false };
    multi_rail.notify_peers_at_exit();
    port.update(&rails);
    let qps = multi_rail.qps();
    for (rail, channel) in channels.into_iter().enumerate() {
        while let Ok(Some(id)) = channel.next_event() {
            // The event is about a queue of the program, which rail 0 has, or about a queue of a virtual queue pair, which the
            // loop below polls.
            if rail == 0
                && let Some(cq) = rails.objects().cqs.get(&id)
                && let Some(virtual_cq) = &cq.virtual_cq
            {
                virtual_cq.notify();
            }
        }
    }
    for qp in &qps {
        qp.make_progress();
        qp.rearm();
    }
    multi_rail.answer_queries(&qps);
    multi_rail.close_lingering();
    true
}
