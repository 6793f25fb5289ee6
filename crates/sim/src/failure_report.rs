//! The report that a world prints to stderr when a test panics.

use crate::World;
use crate::world_state::{WorldState, lock};

impl WorldState {
    pub(crate) fn describe_state(&self) -> String {
        let mut out = format!(
            "at {} ns after {} events, {} to come, {} packets in flight",
            self.now.as_nanos(),
            self.events,
            self.queue.len(),
            self.in_flight
        );
        for (number, host) in self.hosts.iter().enumerate() {
            let paused = if host.paused { ", paused" } else { "" };
            out.push_str(&format!("\nhost {}: {} calls{paused}", host.name, host.activity));
            for (n, app) in self.apps.iter().enumerate().filter(|(_, app)| app.host == number) {
                let turn = match (app.exited, host.paused) {
                    (true, _) => "has ended".to_owned(),
                    (_, true) => "has its next turn when the host wakes".to_owned(),
                    _ => format!("has its next turn at {} ns", app.next_at.as_nanos()),
                };
                out.push_str(&format!("\n  application {n} {turn}"));
                if !app.last_trace.is_empty() {
                    out.push_str(&format!("; its last line: {}", app.last_trace));
                }
            }
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
        let world = lock(&self.shared);
        // A run over many seeds reports its panics itself, and its worlds keep no records.
        if !std::thread::panicking() || !world.trace.is_kept() {
            return;
        }
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
        eprintln!("{}", mitra_prng::reproduce_command(world.seed));
    }
}
