//! The thread that drives virtual queue pairs while the program does not poll.
//!
//! In each round the thread drives the queue pairs that have something to do, exchanges messages
//! about where UD queue pairs can be reached, answers the queries of peers, and reports events of
//! the port and of the NIC of rail 0. A round begins when a NIC reports a
//! completion, and at the latest [`INTERVAL_MS`] milliseconds after the last round.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use mitra_os_util::thread;
use mitra_verbs::{AsyncEvent, CompletionChannel, Gid};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::multi_rail_domain::LINGER;
use super::rail_set::RailSet;
use super::virtual_qps::MultiRail;

/// The maximum time between two rounds, in milliseconds. While the program does not poll, a
/// failover that the peer begins may be delayed by this time.
const INTERVAL_MS: u16 = 1;

/// The number of rounds from the death of the last NIC to `DeviceFatal`, the last event. In these
/// rounds, virtual queue pairs report the ends of their connections. A virtual queue pair with a
/// shared backup needs several rounds.
const ROUNDS_UNTIL_FATAL: u32 = 16;

/// Starts the thread. The thread ends when the device is closed.
///
/// # Errors
/// The error of the operating system if the thread cannot be created.
pub(super) fn start(rails: &Arc<RailSet>, multi_rail: &Arc<MultiRail>) -> io::Result<()> {
    let mut port = ReportedPort { up: true, alive: true, gid: rails.first_gid, rounds_until_fatal: None };
    multi_rail.domain().rendezvous.arm();
    let sockets = multi_rail.domain().rendezvous.sockets();
    let (rails, multi_rail) = (Arc::downgrade(rails), Arc::clone(multi_rail));
    thread::spawn("mitra-progress", move || while round(&rails, &multi_rail, &sockets, &mut port) {})?;
    Ok(())
}

/// The state of the device's port and of its NICs that was last reported to the program.
struct ReportedPort {
    /// Whether the port of at least one NIC was active.
    up: bool,
    /// Whether at least one NIC was alive.
    alive: bool,
    gid: Gid,
    /// The number of rounds until the death of the last NIC is reported. `None` if no report is
    /// due.
    rounds_until_fatal: Option<u32>,
}

impl ReportedPort {
    /// Reports an event if the port has gone down or come up, if the last NIC has died, or if rail
    /// 0 has a new address. A change that is reversed before the next round is not reported.
    fn update(&mut self, rails: &RailSet) {
        let up = rails.is_up();
        let alive = up || rails.is_alive();
        if std::mem::replace(&mut self.alive, alive) && !alive {
            self.rounds_until_fatal = Some(ROUNDS_UNTIL_FATAL);
        } else if self.up != up && alive {
            rails.deliver(if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
        self.up = up;
        let gid = rails.gid_of_rail_0();
        if std::mem::replace(&mut self.gid, gid) != gid {
            rails.deliver(AsyncEvent::GidChange);
        }
        match &mut self.rounds_until_fatal {
            Some(0) => {
                self.rounds_until_fatal = None;
                rails.deliver(AsyncEvent::DeviceFatal);
            }
            Some(rounds) => *rounds -= 1,
            None => {}
        }
    }
}

/// Waits until the next round is due, and runs it. Returns false if the device is closed.
fn round(
    rails: &Weak<RailSet>,
    multi_rail: &MultiRail,
    sockets: &[Arc<UdpSocket>],
    port: &mut ReportedPort,
) -> bool {
    let (failover, rendezvous) = (&multi_rail.domain().failover, &multi_rail.domain().rendezvous);
    let channels: Vec<(usize, &Arc<dyn CompletionChannel>)> = (failover.nics().iter().enumerate())
        .filter_map(|(rail, nic)| nic.channel.as_ref().map(|channel| (rail, channel)))
        .collect();
    let descriptors = channels
        .iter()
        .map(|(_, channel)| channel.as_fd())
        .chain(sockets.iter().map(|socket| socket.as_fd()));
    let mut ready: Vec<PollFd<'_>> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // If a signal interrupts the wait, the round only begins earlier.
    let _ = poll(&mut ready, PollTimeout::from(INTERVAL_MS));
    let Some(rails) = rails.upgrade() else { return false };
    multi_rail.notify_peers_at_exit();
    port.update(&rails);
    for (rail, channel) in channels {
        while let Ok(Some(cq)) = channel.next_event() {
            // The queries of peers are answered below, and all other queues belong to virtual queue
            // pairs, which are driven below.
            rendezvous.on_event(rail, cq);
        }
    }
    multi_rail.domain().drive_in_background();
    multi_rail.domain().rearm();
    multi_rail.drive_datagrams();
    multi_rail.answer_queries();
    multi_rail.close_ended(LINGER);
    true
}
