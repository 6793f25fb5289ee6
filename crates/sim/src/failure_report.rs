//! The report that a world prints when a test panics. It goes to stderr, where `cargo test` shows it with the
//! failure.

use crate::fabric::{Fabric, lock};
use crate::{World, seeds};

impl Fabric {
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
        if !std::thread::panicking() || self.expects_panic.get() {
            return;
        }
        let fabric = lock(&self.shared);
        eprintln!("--- the world of seed {} when the test failed: {}", fabric.seed, fabric.describe_state());
        eprintln!("--- {:?}", fabric.config);
        eprintln!(
            "--- the end of its trace ({} records, hash {:016x}):",
            fabric.trace.count(),
            fabric.trace.hash()
        );
        for line in fabric.trace.tail(usize::MAX) {
            eprintln!("{line}");
        }
        eprintln!("{}", seeds::reproduce_command(fabric.seed));
    }
}
