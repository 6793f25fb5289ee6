//! Things that take turns, block by block, and the rows that come of it.

use super::bench_qp::Op;
use super::endpoint::Variant;
use super::report::{Blocks, Row};

/// Measures each variant once a round, `rounds` times. `measure` gives a block's median and 99th percentile.
pub(crate) fn alternate(
    variants: &[Variant],
    rounds: u32,
    mut measure: impl FnMut(Variant) -> anyhow::Result<(f64, f64)>,
) -> anyhow::Result<Vec<Blocks>> {
    let mut results = vec![Blocks::default(); variants.len()];
    for round in 0..rounds as usize {
        for at in 0..variants.len() {
            // Each begins a round equally often.
            let at = (at + round) % variants.len();
            let (median, p99) = measure(variants[at])?;
            results[at].push(median, p99);
        }
    }
    Ok(results)
}

/// A row for each variant: the bare queue pair beside the plain socket, the others beside the bare queue pair.
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
        let floor = match variant {
            Variant::UdpBaseline => return row,
            Variant::Qp => Variant::UdpBaseline,
            Variant::Aa | Variant::Vqp | Variant::VqpLog => Variant::Qp,
        };
        let aa_ratio = aa.filter(|_| matches!(variant, Variant::Vqp | Variant::VqpLog));
        match of(floor) {
            Some(beside) => Row { aa_ratio, ..row.beside(blocks, name(floor), beside) },
            None => row,
        }
    };
    variants.iter().zip(results).map(row).collect()
}
