//! The metric families: their names, types and descriptions, and how their samples follow from a
//! snapshot. A test compares the families with the table in docs/observability.md.

use std::collections::HashSet;

use mitra_failover::telemetry::DurationHistogram;

use crate::openmetrics::Samples;
use crate::snapshot::{CountsSnapshot, HistogramSnapshot, RailSnapshot, RailState, Snapshot, VqpState};

/// A metric family of OpenMetrics.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The name, without the suffix of a sample.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The labels, separated by commas.
    pub labels: &'static str,
    /// The description.
    pub help: &'static str,
    pub(crate) samples: fn(&Snapshot, &mut Samples<'_>),
}

impl Family {
    /// Returns the name of the family's samples, with the suffix of its type. The samples of a
    /// histogram have the further suffixes `_bucket`, `_count` and `_sum`.
    pub fn sample_name(&self) -> String {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("{}{suffix}", self.name)
    }

    /// Returns the unit, with which the name ends.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| self.name.ends_with(&format!("_{unit}")))
    }
}

/// The type of a metric family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A number that only rises, named with `_total`.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// Counts of durations in buckets, named with `_bucket`, `_count` and `_sum`.
    Histogram,
    /// Facts as labels, named with `_info`.
    Info,
}

impl Kind {
    /// Returns the name of the type in OpenMetrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        }
    }
}

/// Returns the family of a NIC counter, and the suffix of the counter's name that is the value of a
/// label.
fn nic_counter_family(counter: &str) -> (&'static str, &str) {
    let dedicated = [
        ("rx_bytes", "mitra_rail_received_bytes"),
        ("tx_bytes", "mitra_rail_transmitted_bytes"),
        ("packets_received", "mitra_rail_received_packets"),
        ("packets_sent", "mitra_rail_transmitted_packets"),
        ("retransmitted_packets", "mitra_rail_retransmitted_packets"),
        ("timeouts", "mitra_rail_timeouts"),
    ];
    if let Some((_, family)) = dedicated.iter().find(|(name, _)| *name == counter) {
        (family, "")
    } else if let Some(reason) = counter.strip_prefix("drop_") {
        ("mitra_rail_dropped_packets", reason)
    } else if let Some(kind) = counter.strip_prefix("fault_") {
        ("mitra_rail_injected_faults", kind)
    } else {
        ("mitra_rail_nic_events", counter)
    }
}

/// Adds the NIC counters of a family. `label` is the name of the label besides `rail`, or empty.
fn nic_counters(s: &Snapshot, out: &mut Samples<'_>, label: &'static str) {
    let family = out.family();
    for (rail, snapshot) in s.rails.iter().enumerate() {
        for (counter, &value) in &snapshot.counters {
            let (of, suffix) = nic_counter_family(counter);
            if of != family {
                continue;
            }
            match label {
                "" => out.add(&[("rail", &rail.to_string())], value),
                label => out.add(&[("rail", &rail.to_string()), (label, suffix)], value),
            }
        }
    }
}

fn per_rail(s: &Snapshot, out: &mut Samples<'_>, value: fn(&RailSnapshot) -> u64) {
    for (rail, snapshot) in s.rails.iter().enumerate() {
        out.add(&[("rail", &rail.to_string())], value(snapshot));
    }
}

fn counts(s: &Snapshot, out: &mut Samples<'_>, value: fn(&CountsSnapshot) -> u64) {
    for (rail, snapshot) in s.rails.iter().enumerate() {
        out.add(&[("rail", &rail.to_string())], value(&snapshot.failover));
    }
}

/// Adds a sample for each open vQP. A vQP that was reset may share its number with its replacement,
/// so a number has one sample.
fn per_vqp(s: &Snapshot, out: &mut Samples<'_>, value: fn(&VqpState) -> f64) {
    let mut numbers = HashSet::new();
    for vqp in s.vqps.iter().filter(|vqp| vqp.phase != "closed") {
        if numbers.insert(vqp.vqp) {
            out.add_float(&[("vqp", &vqp.vqp.to_string())], value(vqp));
        }
    }
}

fn histogram(out: &mut Samples<'_>, labels: &[(&str, &str)], histogram: &HistogramSnapshot) {
    let mut below = 0;
    let bounds = DurationHistogram::bounds().map(|bound| bound.as_secs_f64().to_string());
    for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&histogram.buckets) {
        below += count;
        let mut labels = labels.to_vec();
        labels.push(("le", &bound));
        out.add_suffixed("_bucket", &labels, below as f64);
    }
    out.add_suffixed("_count", labels, histogram.count as f64);
    out.add_suffixed("_sum", labels, histogram.sum_ns as f64 / 1e9);
}

/// Defines a family in one line.
macro_rules! families {
    ($($kind:ident $name:literal [$labels:literal] $help:literal => |$s:ident, $out:ident| $samples:expr;)*) => {
        /// All families, in the order in which they are encoded.
        pub const FAMILIES: &[Family] = &[$(Family {
            name: $name,
            kind: Kind::$kind,
            labels: $labels,
            help: $help,
            samples: |$s, $out| $samples,
        },)*];
    };
}

families! {
    Info "mitra_build" ["version"] "The version of Mitra." =>
        |_s, out| out.add_suffixed("_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    Info "mitra_rail" ["rail, address, device"] "The address of the rail's local NIC, and the kernel's name of it; empty for a software NIC." =>
        |s, out| for (rail, snapshot) in s.rails.iter().enumerate() {
            let (rail, address) = (rail.to_string(), snapshot.status.address.to_string());
            // Samples of a family have the same labels, and an empty label counts as absent.
            let device = snapshot.status.device.as_deref().unwrap_or_default();
            out.add_suffixed("_info", &[("rail", &rail), ("address", &address), ("device", device)], 1.0);
        };
    Gauge "mitra_rail_up" ["rail"] "Whether the rail's local link and NIC work: 1 or 0." =>
        |s, out| per_rail(s, out, |rail| (rail.status.state == RailState::Up).into());
    Gauge "mitra_rail_nic_alive" ["rail"] "Whether the rail's local NIC works: 1 or 0." =>
        |s, out| per_rail(s, out, |rail| (rail.status.state != RailState::Failed).into());
    Counter "mitra_rail_received_bytes" ["rail"] "UDP payload bytes received, with the RoCE headers and the ICRC." =>
        |s, out| nic_counters(s, out, "");
    Counter "mitra_rail_transmitted_bytes" ["rail"] "UDP payload bytes sent, with the RoCE headers and the ICRC." =>
        |s, out| nic_counters(s, out, "");
    Counter "mitra_rail_received_packets" ["rail"] "RoCE packets received." => |s, out| nic_counters(s, out, "");
    Counter "mitra_rail_transmitted_packets" ["rail"] "RoCE packets sent." => |s, out| nic_counters(s, out, "");
    Counter "mitra_rail_retransmitted_packets" ["rail"] "Request packets sent again on the same rail." =>
        |s, out| nic_counters(s, out, "");
    Counter "mitra_rail_timeouts" ["rail"] "Expirations of the retransmission timer." => |s, out| nic_counters(s, out, "");
    Counter "mitra_rail_dropped_packets" ["rail, reason"] "Packets that the NIC dropped." =>
        |s, out| nic_counters(s, out, "reason");
    Counter "mitra_rail_injected_faults" ["rail, kind"] "Packets that fault injection changed." =>
        |s, out| nic_counters(s, out, "kind");
    Counter "mitra_rail_nic_events" ["rail, event"] "The NIC's other counters, under their names in `mitra devices`." =>
        |s, out| nic_counters(s, out, "event");
    Counter "mitra_rail_failures_detected" ["rail, detector"] "Failures of the active rail that a virtual queue pair detected, or learned of from the peer." =>
        |s, out| for (rail, snapshot) in s.rails.iter().enumerate() {
            for (detector, &count) in &snapshot.failover.detected {
                out.add(&[("rail", &rail.to_string()), ("detector", detector)], count);
            }
        };
    Counter "mitra_rail_failures_without_move" ["rail"] "Failures after which the virtual queue pair stayed, because the rail worked again." =>
        |s, out| counts(s, out, |c| c.stayed);
    Counter "mitra_rail_fences" ["rail"] "Fences of the rail." => |s, out| counts(s, out, |c| c.fenced);
    Counter "mitra_rail_failovers" ["rail"] "Virtual queue pairs that left the rail, each time one did." =>
        |s, out| counts(s, out, |c| c.failovers);
    Counter "mitra_rail_failbacks" ["rail"] "Virtual queue pairs that moved to the rail and had left it before." =>
        |s, out| counts(s, out, |c| c.failbacks);
    Counter "mitra_rail_recoveries" ["rail"] "Failovers from the rail after which every operation that was in flight has completed." =>
        |s, out| counts(s, out, |c| c.recovered);
    Counter "mitra_rail_inflight_operations" ["rail"] "Operations in flight on the rail at a failover." =>
        |s, out| counts(s, out, |c| c.in_flight);
    Counter "mitra_rail_executed_operations" ["rail"] "Of these, operations that the peer had executed, by the evidence." =>
        |s, out| counts(s, out, |c| c.executed);
    Counter "mitra_rail_torn_operations" ["rail"] "Of these, operations that the peer had executed in part." =>
        |s, out| counts(s, out, |c| c.torn);
    Counter "mitra_rail_ambiguous_operations" ["rail"] "Of these, operations that the evidence did not decide." =>
        |s, out| counts(s, out, |c| c.ambiguous);
    Counter "mitra_rail_replayed_operations" ["rail"] "Of these, operations that were sent again on another rail." =>
        |s, out| counts(s, out, |c| c.replayed);
    Counter "mitra_rail_failed_operations" ["rail"] "Of these, operations that ended in an error." =>
        |s, out| counts(s, out, |c| c.failed);
    Counter "mitra_rail_inflight_bytes" ["rail"] "Payload bytes of the operations in flight at a failover." =>
        |s, out| counts(s, out, |c| c.bytes_in_flight);
    Counter "mitra_rail_replayed_bytes" ["rail"] "Payload bytes that were sent or requested again." =>
        |s, out| counts(s, out, |c| c.bytes_replayed);
    Histogram "mitra_failover_duration_seconds" ["phase, le"] "Durations of failovers: negotiate, fence, decide, replay and their total." =>
        |s, out| s.durations.iter().for_each(|(phase, h)| histogram(out, &[("phase", phase)], h));
    Histogram "mitra_operation_latency_seconds" ["le"] "Sampled latencies from the post of a send to the poll of its completion. Absent unless sampled." =>
        |s, out| s.latency.iter().for_each(|h| histogram(out, &[], h));
    Gauge "mitra_queue_pairs" [""] "Open queue pairs; over several rails, virtual ones." => |s, out| out.add(&[], s.queue_pairs as u64);
    Gauge "mitra_vqps" [""] "Virtual queue pairs." => |s, out| out.add(&[], s.vqp_count as u64);
    Gauge "mitra_vqps_recovering" [""] "Virtual queue pairs with a failover in progress." => |s, out| out.add(&[], s.recovering as u64);
    Counter "mitra_vqps_closed" ["reason"] "Virtual queue pairs that closed." =>
        |s, out| s.closed.iter().for_each(|(reason, &count)| out.add(&[("reason", reason)], count));
    Gauge "mitra_vqp_active" ["vqp"] "Whether the virtual queue pair moves data: 1, or 0 during a failover, before it is connected, or halted." =>
        |s, out| per_vqp(s, out, |vqp| if vqp.phase == "active" { 1.0 } else { 0.0 });
    Gauge "mitra_vqp_active_rail" ["vqp"] "The rail that carries the virtual queue pair." => |s, out| per_vqp(s, out, |vqp| vqp.active_rail as f64);
    Gauge "mitra_vqp_outstanding_operations" ["vqp"] "Sends that have not completed." =>
        |s, out| per_vqp(s, out, |vqp| vqp.posted.saturating_sub(vqp.completed) as f64);
    Gauge "mitra_vqp_unpolled_seconds" ["vqp"] "The time since the application last drove the virtual queue pair." =>
        |s, out| per_vqp(s, out, |vqp| vqp.unpolled_ns as f64 / 1e9);
    Counter "mitra_vqp_posted_operations" ["vqp"] "Sends posted." => |s, out| per_vqp(s, out, |vqp| vqp.posted as f64);
    Counter "mitra_vqp_completed_operations" ["vqp"] "Sends completed." => |s, out| per_vqp(s, out, |vqp| vqp.completed as f64);
    Counter "mitra_vqp_failovers" ["vqp"] "Moves to another rail." => |s, out| per_vqp(s, out, |vqp| vqp.failover.failovers as f64);
    Counter "mitra_vqp_replayed_operations" ["vqp"] "Operations that were sent again after a move." =>
        |s, out| per_vqp(s, out, |vqp| vqp.failover.replayed as f64);
    Counter "mitra_vqp_failed_operations" ["vqp"] "Operations that ended in an error at a move." =>
        |s, out| per_vqp(s, out, |vqp| vqp.failover.failed as f64);
    Counter "mitra_vqp_rejected_messages" ["vqp"] "Control datagrams that were malformed or not from the peer." =>
        |s, out| per_vqp(s, out, |vqp| vqp.rejected_messages as f64);
}
