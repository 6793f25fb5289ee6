//! The findings of a verdict on a plan.

use super::Finding;
use mitra_sim::workload::Verdict;

pub(super) fn of_verdict(end: &str, verdict: &Verdict) -> Vec<Finding> {
    let total = verdict.total();
    let counts = [
        ("lost", total.lost),
        ("doubled", total.doubled),
        ("wrong", total.wrong_value),
        ("order", total.out_of_order),
        ("stray", verdict.strays),
    ];
    let violated = counts.into_iter().filter(|&(_, n)| n > 0);
    violated
        .map(|(checker, n)| Finding::violation(checker, format!("{n} operations of end {end}\n{verdict}")))
        .collect()
}
