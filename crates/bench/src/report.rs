//! The result of a benchmark: rows, printed as a table or as JSON, with a description of the
//! machine.

pub(crate) mod page;
pub(crate) mod plot;

use std::fs;
use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::{Serialize, Serializer};

#[derive(Serialize)]
pub(crate) struct Report {
    /// The name of the benchmark in JSON.
    pub(crate) name: &'static str,
    /// The unit of most rows. Each row states its unit, which may differ.
    pub(crate) unit: &'static str,
    pub(crate) machine: Machine,
    /// The options of the run and derived values.
    pub(crate) settings: serde_json::Value,
    pub(crate) rows: Vec<Row>,
    /// Claims of a paper beside the figures of this run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) claims: Vec<Claim>,
    /// Warnings and explanations for the reader.
    pub(crate) notes: Vec<String>,
}

/// A figure of this run beside the paper's claim and this project's target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Claim {
    /// The name of the figure. It is stable.
    pub(crate) name: String,
    pub(crate) paper: &'static str,
    pub(crate) target: &'static str,
    #[serde(serialize_with = "rounded")]
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// Whether the figure reaches the target.
    pub(crate) met: bool,
}

/// One measured value.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    /// The row name. It is stable, because scripts search for it.
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    #[serde(serialize_with = "rounded")]
    pub(crate) median: f64,
    /// The 99th percentile, or the 1st if a higher value is better.
    #[serde(serialize_with = "rounded")]
    pub(crate) p99: f64,
    /// The lowest and the highest median of a block.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "rounded_pair")]
    pub(crate) spread: Option<(f64, f64)>,
    /// The median of each block, in the order of the rounds.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "rounded_list")]
    pub(crate) blocks: Vec<f64>,
    /// The name of the baseline row, measured in the same rounds. JSON calls it `floor`.
    #[serde(rename = "floor", skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<String>,
    /// The median of the baseline row.
    #[serde(
        rename = "floor_median",
        skip_serializing_if = "Option::is_none",
        serialize_with = "rounded_some"
    )]
    pub(crate) baseline_median: Option<f64>,
    /// The ratio of this row's block to the baseline's block of the same round: the median over all
    /// rounds.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "rounded_some")]
    pub(crate) ratio: Option<f64>,
    /// The A/A ratio: `ratio` for two identical variants. Its distance from 1 is the noise of the
    /// measurement.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "rounded_some")]
    pub(crate) aa_ratio: Option<f64>,
}

/// Serializes a number rounded to four decimals, because the clocks are not more precise.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn rounded<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(round(*value))
}

fn rounded_some<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    value.map(round).serialize(to)
}

fn rounded_pair<S: Serializer>(value: &Option<(f64, f64)>, to: S) -> Result<S::Ok, S::Error> {
    value.map(|(low, high)| (round(low), round(high))).serialize(to)
}

fn rounded_list<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().copied().map(round))
}

/// The machine, as far as it affects the figures.
#[derive(Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
    /// The one-minute load average when the benchmark began.
    pub(crate) load: f64,
    pub(crate) rmem_max: Option<u64>,
}

impl Machine {
    pub(crate) fn detect() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu =
            cpuinfo.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()));
        let first = |file: &str| -> Option<f64> {
            fs::read_to_string(file).ok()?.split_ascii_whitespace().next()?.parse().ok()
        };
        Machine {
            cpu: cpu.unwrap_or("unknown").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            load: first("/proc/loadavg").unwrap_or(0.0),
            rmem_max: first("/proc/sys/net/core/rmem_max").map(|bytes| bytes as u64),
        }
    }

    /// Returns a warning for each property of this machine that makes the figures unreliable.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut list = Vec::new();
        if self.cpus < 2 {
            list.push("two processes busy-poll on one CPU: latencies are those of the scheduler".to_owned());
        }
        if self.load > 0.5 * self.cpus as f64 {
            list.push(format!(
                "the machine is busy (load {:.1} on {} CPUs): run the benchmark again when it is idle",
                self.load, self.cpus
            ));
        }
        if cfg!(debug_assertions) {
            list.push("this is a debug build: use cargo run --release".to_owned());
        }
        list
    }
}

impl Report {
    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            self.table(&mut out)?;
        }
        Ok(out.flush()?)
    }

    fn claims_table(&self, out: &mut impl Write) -> io::Result<()> {
        if self.claims.is_empty() {
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).add_row(vec!["figure", "paper", "target", "here", "unit", ""]);
        for claim in &self.claims {
            let met = if claim.met { "met" } else { "MISSED" };
            let here = format_figure(claim.value);
            table.add_row(vec![&claim.name, claim.paper, claim.target, &here, claim.unit, met]);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        writeln!(out, "\n{}", table.trim_fmt())
    }

    fn table(&self, out: &mut impl Write) -> io::Result<()> {
        const HEADER: [&str; 7] = ["", "unit", "median", "p99", "beside", "its median", "ratio"];
        const NUMBERS: [usize; 3] = [2, 3, 5];
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .add_row(HEADER.to_vec())
            .add_rows(self.rows.iter().map(Row::cells));
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if NUMBERS.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(out, "{}", table.trim_fmt())?;
        self.claims_table(out)?;
        let machine = &self.machine;
        writeln!(out, "\n{}, {} CPUs, Linux {}", machine.cpu, machine.cpus, machine.kernel)?;
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        Ok(())
    }
}

/// Formats a number with three significant digits and at most three decimals.
pub(crate) fn format_figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == v.trunc() => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Returns the median, or 0 for an empty slice.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Returns the quantile `q` between 0 and 1, rounded to an element. The median of an even number of
/// values is the mean of the middle two.
pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q * last as f64;
    if q == 0.5 {
        (sorted[at.floor() as usize] + sorted[at.ceil() as usize]) / 2.0
    } else {
        sorted[at.round() as usize]
    }
}

/// The blocks of one row, one per round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    pub(crate) medians: Vec<f64>,
    pub(crate) p99s: Vec<f64>,
}

impl Blocks {
    pub(crate) fn push(&mut self, median: f64, p99: f64) {
        self.medians.push(median);
        self.p99s.push(p99);
    }

    /// Returns the ratio of this variant's block to the block of `other` of the same round: the
    /// median over all rounds.
    pub(crate) fn ratio_to(&self, other: &Blocks) -> f64 {
        let ratios: Vec<f64> = self.medians.iter().zip(&other.medians).map(|(a, b)| a / b).collect();
        median(&ratios)
    }

    pub(crate) fn row(&self, name: String, unit: &'static str) -> Row {
        let low = self.medians.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.medians.iter().copied().fold(0.0, f64::max);
        Row {
            name,
            unit,
            median: median(&self.medians),
            p99: median(&self.p99s),
            spread: Some((low, high)),
            blocks: self.medians.clone(),
            ..Row::default()
        }
    }
}

/// Returns a row of single values, without blocks. `spread` is the lowest and the highest value.
pub(crate) fn row(name: &str, unit: &'static str, values: &[f64]) -> Row {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min).min(f64::MAX);
    let high = values.iter().copied().fold(0.0, f64::max);
    Row {
        name: name.to_owned(),
        unit,
        median: median(values),
        p99: quantile(values, 0.99),
        spread: Some((low, high)),
        ..Row::default()
    }
}

impl Row {
    pub(crate) fn cells(&self) -> [String; 7] {
        let ratio = match (self.ratio, self.aa_ratio) {
            (Some(ratio), Some(aa)) => format!("{ratio:.3} (A/A {aa:.3})"),
            (Some(ratio), None) => format!("{ratio:.3}"),
            _ => String::new(),
        };
        [
            self.name.clone(),
            self.unit.to_owned(),
            format_figure(self.median),
            format_figure(self.p99),
            self.baseline.clone().unwrap_or_default(),
            self.baseline_median.map(format_figure).unwrap_or_default(),
            ratio,
        ]
    }

    /// Adds the baseline that was measured in the same rounds.
    pub(crate) fn with_baseline(mut self, blocks: &Blocks, name: String, baseline: &Blocks) -> Row {
        self.ratio = Some(blocks.ratio_to(baseline));
        self.baseline_median = Some(median(&baseline.medians));
        self.baseline = Some(name);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        let hundred: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.99), 99.0);
    }

    #[test]
    fn ratio_compares_blocks_of_the_same_round() {
        // The machine slows down by half after two rounds; the ratio does not change.
        let slow = |f: f64| Blocks { medians: vec![f, f, 2.0 * f, 2.0 * f, 2.0 * f], p99s: vec![f; 5] };
        assert_eq!(slow(3.0).ratio_to(&slow(2.0)), 1.5);
    }

    #[test]
    fn figures_have_three_significant_digits() {
        assert_eq!(
            [1234.5, 12.345, 1.2345, 0.12345, 0.0].map(format_figure),
            ["1234", "12.3", "1.23", "0.123", "0"]
        );
    }
}
