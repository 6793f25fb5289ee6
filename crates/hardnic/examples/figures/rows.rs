//! The printed result.

use serde::Serialize;

/// A figure. The ratio is the median over the rounds of the row's block beside that of the baseline
/// in the same round.
#[derive(Serialize)]
struct Row {
    name: String,
    unit: &'static str,
    median: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    blocks: usize,
}

#[derive(Default)]
pub struct Rows(Vec<Row>);

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get(sorted.len() / 2), sorted.len() % 2) {
        (Some(upper), 0) => f64::midpoint(sorted[sorted.len() / 2 - 1], *upper),
        (Some(middle), _) => *middle,
        (None, _) => f64::NAN,
    }
}

impl Rows {
    /// Adds a figure without a baseline.
    pub fn add(&mut self, name: String, unit: &'static str, blocks: &[f64]) {
        let median = median(blocks);
        self.0.push(Row { name, unit, median, beside: None, ratio: None, blocks: blocks.len() });
    }

    /// Adds variants that were measured in turn, the baseline first.
    pub fn add_variants(&mut self, prefix: &str, unit: &'static str, variants: &[(&str, Vec<f64>)]) {
        let Some((base, base_blocks)) = variants.first() else { return };
        for (name, blocks) in variants {
            self.add(format!("{prefix}/{name}"), unit, blocks);
            let ratios: Vec<f64> = blocks.iter().zip(base_blocks).map(|(block, base)| block / base).collect();
            if let Some(row) = self.0.last_mut().filter(|_| name != base) {
                row.beside = Some(format!("{prefix}/{base}"));
                row.ratio = Some(median(&ratios));
            }
        }
    }

    pub fn print(&self, is_json: bool) {
        if is_json {
            println!("{}", serde_json::to_string(&self.0).expect("the rows have only texts and numbers"));
            return;
        }
        for row in &self.0 {
            let beside = row.beside.as_ref().zip(row.ratio);
            let beside = beside.map(|(name, ratio)| format!("  {ratio:6.3} × {name}")).unwrap_or_default();
            println!(
                "{:<44} {:>10.2} {:<6} {:>3} blocks{beside}",
                row.name, row.median, row.unit, row.blocks
            );
        }
    }
}
