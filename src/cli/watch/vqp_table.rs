//! The table of virtual queue pairs.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use mitra_metrics::{Snapshot, VqpState};

use super::view::{age, scaled, total};
use crate::cli::text_table;

/// The order of the virtual queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Order {
    /// Most failovers first
    Failovers,
    /// Most operations per second first
    Rate,
    /// Most outstanding operations first
    Outstanding,
    /// By number
    Number,
}

struct Row<'a> {
    vqp: &'a VqpState,
    /// Operations completed per second. `None` at the first look.
    rate: Option<f64>,
}

impl Row<'_> {
    fn outstanding(&self) -> u64 {
        self.vqp.posted.saturating_sub(self.vqp.completed)
    }

    fn is_failing_over(&self) -> bool {
        matches!(&*self.vqp.phase, "recovering" | "replaying")
    }
}

/// Returns the table, not longer than `rows` lines. A last line says how many queue pairs are not
/// shown.
pub(super) fn lines(
    snapshot: &Snapshot,
    previous: Option<&Snapshot>,
    elapsed: Duration,
    order: Order,
    rows: usize,
) -> Vec<String> {
    let before: HashMap<u32, u64> =
        previous.iter().flat_map(|previous| &previous.vqps).map(|vqp| (vqp.vqp, vqp.completed)).collect();
    let mut table: Vec<Row<'_>> = snapshot
        .vqps
        .iter()
        .map(|vqp| {
            let completed = before.get(&vqp.vqp).and_then(|&before| vqp.completed.checked_sub(before));
            Row { vqp, rate: completed.map(|n| n as f64 / elapsed.as_secs_f64().max(1e-3)) }
        })
        .collect();
    match order {
        Order::Failovers => table.sort_by_key(|row| Reverse(row.vqp.failover.failovers)),
        Order::Rate => table.sort_by(|a, b| b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0))),
        Order::Outstanding => table.sort_by_key(|row| Reverse(row.outstanding())),
        Order::Number => table.sort_by_key(|row| row.vqp.vqp),
    }
    table.sort_by_key(|row| !row.is_failing_over()); // keeps the order of the others
    // Two lines are no rows: the heading, and the line about the hidden queue pairs.
    let shown = if table.len() < rows && snapshot.vqp_count == table.len() {
        table.len()
    } else {
        table.len().min(rows.saturating_sub(2))
    };
    // With the longest phases, the table is at most 80 columns wide.
    let heading = ["vqp", "phase", "rail", "ops/s", "queue", "moved", "back", "replay", "failed", "polled"];
    let text = |row: &Row<'_>| {
        let (vqp, counts) = (row.vqp, &row.vqp.failover);
        [
            format!("{:#08x}", vqp.vqp),
            vqp.phase.clone(),
            vqp.active_rail.to_string(),
            row.rate.map_or_else(|| "-".to_owned(), |rate| scaled(rate, &["", "k", "M", "G"])),
            row.outstanding().to_string(),
            counts.failovers.to_string(),
            counts.failbacks.to_string(),
            counts.replayed.to_string(),
            counts.failed.to_string(),
            age(Duration::from_nanos(vqp.unpolled_ns)),
        ]
    };
    let cells = [heading.map(str::to_owned)].into_iter().chain(table[..shown].iter().map(text));
    let mut lines = text_table::layout(2, &[2, 3, 4, 5, 6, 7, 8, 9], cells);
    let hidden = snapshot.vqp_count.saturating_sub(shown);
    if hidden > 0 {
        let pending = total(table[shown..].iter().map(Row::outstanding));
        let rate: f64 = table[shown..].iter().filter_map(|row| row.rate).sum();
        let rate = scaled(rate, &["", "k", "M", "G"]);
        lines.push(format!("  {hidden} more: {rate} ops/s, {pending} in the queue"));
    }
    lines.truncate(rows);
    lines
}
