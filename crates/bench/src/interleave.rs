//! Interleaved measurement of variants, block by block, and the rows that result.

use super::bench_qp::Op;
use super::endpoint::Variant;
use super::report::{Blocks, Row};

/// Measures one block of each variant in each of `rounds` rounds. `measure` measures a block, and
/// returns its median and 99th percentile.
pub(crate) fn interleave_blocks(
    variants: &[Variant],
    rounds: u32,
    mut measure: impl FnMut(Variant) -> anyhow::Result<(f64, f64)>,
) -> anyhow::Result<Vec<Blocks>> {
    let mut results = vec![Blocks::default(); variants.len()];
    for round in 0..rounds as usize {
        for at in 0..variants.len() {
            // The first variant rotates, so that each variant begins equally often.
            let at = (at + round) % variants.len();
            let (median, p99) = measure(variants[at])?;
            results[at].push(median, p99);
        }
    }
    Ok(results)
}

/// Returns a row for each variant. The UDP socket is the baseline of the RC queue pair. The RC
/// queue pair is the baseline of the other queue pairs.
pub(crate) fn rows(
    op: Op,
    len: usize,
    unit: &'static str,
    variants: &[Variant],
    results: &[Blocks],
) -> Vec<Row> {
    let of = |wanted| variants.iter().position(|&v| v == wanted).map(|at| &results[at]);
    let name = |variant: Variant| format!("{}/{len}/{}", op.name(), variant.name());
    let aa = of(Variant::Aa).zip(of(Variant::Qp)).map(|(aa, qp)| aa.ratio_to(qp));
    let row = |(&variant, blocks): (&Variant, &Blocks)| {
        let row = blocks.row(name(variant), unit);
        let baseline = match variant {
            Variant::UdpBaseline => return row,
            Variant::Qp => Variant::UdpBaseline,
            Variant::Aa | Variant::Vqp | Variant::VqpNone | Variant::VqpLog | Variant::VqpLog4 => Variant::Qp,
        };
        let aa_ratio = aa.filter(|_| !matches!(variant, Variant::UdpBaseline | Variant::Qp | Variant::Aa));
        match of(baseline) {
            Some(baseline_blocks) => {
                Row { aa_ratio, ..row.with_baseline(blocks, name(baseline), baseline_blocks) }
            }
            None => row,
        }
    };
    variants.iter().zip(results).map(row).collect()
}
