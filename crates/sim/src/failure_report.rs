//! The report that a world prints to stderr when a test panics.

use crate::world_state::{WorldState, lock};
use crate::{World, seeds};

impl WorldState {
    /// Describes the state of hosts, NICs and packets.
    pub(crate) fn describe_state(&self) -> String {
        let mut out = format!(
            "at {} ns after {} events, {} to come, {} packets in flight",
            self.now.as_nanos(),
            self.events,
            self.queue.len(),
            self.in_flight
        );
        for host in &self.hosts {
            let paused = if host.paused { ", paused" } else { "" };
            out.push_str(&format!("\nhost {}: {} calls{paused}", host.name, host.activity));
        }
        for (n, nic) in self.nics.iter().enumerate() {
            let health = match (nic.detached, nic.dead, nic.hung) {
                (true, ..) => "reset",
                (_, true, _) => "dead",
                (.., true) => "hung",
                _ => "alive",
            };
            let link = if nic.link_up { "up" } else { "down" };
            out.push_str(&format!(
                "\nNIC {n} {}: {health}, link {link}, {} items on their way to memory, ",
                nic.name,
                nic.pipeline.len()
            ));
            out.push_str(&format!("{:?}", nic.stats));
            for counter in nic.nic.counters().iter().filter(|c| c.value > 0) {
                out.push_str(&format!(" {} {}", counter.name, counter.value));
            }
        }
        out
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let world = lock(&self.shared);
        eprintln!("--- the world of seed {} when the test failed: {}", world.seed, world.describe_state());
        eprintln!("--- {:?}", world.config);
        eprintln!(
            "--- the end of its trace ({} records, hash {:016x}):",
            world.trace.count(),
            world.trace.hash()
        );
        for line in world.trace.tail(usize::MAX) {
            eprintln!("{line}");
        }
        eprintln!("{}", seeds::reproduce_command(world.seed));
    }
}
