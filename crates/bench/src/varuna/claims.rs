//! The claims of the paper and the targets of this project, which stand beside the figures of a
//! run. The paper's figures are from its abstract (Varuna: Enabling Failure-Type Aware RDMA
//! Failover, arXiv 2603.28001), measured on hardware NICs.

use crate::report::{Claim, Row};

const OVERHEAD: &str = "0.6 to 10 % of latency";
const RETRANSMISSION: &str = "65 % less retransmission time";
/// The throughput after a failure, compared with the throughput before it. If it is far above, the
/// throughput before the failure was disturbed, and the comparison says nothing about the failure.
const RETURN: &str = "−2 to +50 % of before";

/// Returns the claims for which the run has figures.
pub(super) fn of(rows: &[Row]) -> Vec<Claim> {
    let find = |name: &str| rows.iter().find(|row| row.name == name);
    let mut claims = Vec::new();
    let mut add = |name: String, paper, target, value: Option<f64>, unit, met: &dyn Fn(f64) -> bool| {
        if let Some(value) = value {
            claims.push(Claim { name, paper, target, value, unit, met: met(value) });
        }
    };
    for (op, len) in [("write", 8), ("read", 8), ("send", 8), ("faa", 8)] {
        for (evidence, target, limit) in
            [("psn", "≤ 3 %", 3.0), ("log", "≤ 10 %", 10.0), ("log4", "≤ 10 %", 10.0)]
        {
            let name = format!("overhead/{op}/{len}/{evidence}");
            let value = find(&name).and_then(|row| percent_above(row.ratio));
            add(name, OVERHEAD, target, value, "%", &|value| value <= limit);
        }
    }
    for op in ["write", "read", "send"] {
        for len in [4096, 65536, 1_048_576] {
            for evidence in ["psn", "log", "log4"] {
                let name = format!("overhead/{op}/{len}/{evidence}");
                let value = find(&name).and_then(|row| percent_above(row.ratio));
                add(name, OVERHEAD, "≤ 1 %", value, "%", &|value| value <= 1.0);
            }
        }
    }
    for mix in ["read-heavy", "write-heavy", "atomic-heavy"] {
        let bytes = format!("resent/exact/{mix}");
        let value = find(&bytes).and_then(|row| percent_above(row.ratio));
        add(bytes, RETRANSMISSION, "−80 % of bytes", value, "%", &|value| value <= -80.0);
        let time = format!("resent/exact/{mix}/recovery");
        let blanket = find(&format!("resent/blanket/{mix}/recovery"));
        let value = find(&time).zip(blanket).and_then(|(exact, other)| {
            percent_above((other.median > 0.0).then(|| exact.median / other.median))
        });
        add(time, RETRANSMISSION, "−65 % of time", value, "%", &|value| value <= -65.0);
        let name = format!("resent/exact/{mix}/post_failure");
        let most = find(&name).and_then(|row| row.spread).map(|(_, most)| most);
        add(name, "none resent", "0", most, "ops", &|value| value == 0.0);
    }
    for name in ["failover/total", "failover/small/total"] {
        let total = find(name).and_then(|row| row.ratio);
        add(name.to_owned(), "µs", "≤ 20 round trips", total, "rtt", &|value| value <= 20.0);
    }
    // The paper's backups are shared, so its claims concern only the rows of shared backups.
    let is_shared = |row: &&Row| row.name.starts_with("vqps/") && !row.name.contains("/own/");
    for row in rows.iter().filter(is_shared) {
        if row.name.ends_with("/last") {
            let ms = row.median / 1e3;
            add(row.name.clone(), "no rebuild", "≤ 50 ms", Some(ms), "ms", &|value| value <= 50.0);
        }
        if row.name.ends_with("/standby") {
            add(
                row.name.clone(),
                "negligible",
                "≤ 256 B beyond the shared one",
                Some(row.median),
                "B",
                &|value| value <= 256.0,
            );
        }
    }
    for phase in ["after_failover", "after_failback"] {
        let name = format!("timeline/{phase}");
        let value = find(&name).and_then(|row| percent_above(row.ratio));
        add(name, "returns", RETURN, value, "%", &|value| (-2.0..=50.0).contains(&value));
    }
    claims
}

/// Returns by how many percent a ratio is above 1.
fn percent_above(ratio: Option<f64>) -> Option<f64> {
    ratio.map(|ratio| (ratio - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, median: f64, ratio: Option<f64>) -> Row {
        Row { name: name.to_owned(), median, ratio, spread: Some((0.0, median)), ..Row::default() }
    }

    fn met(rows: &[Row]) -> Vec<(String, bool)> {
        of(rows).into_iter().map(|claim| (claim.name, claim.met)).collect()
    }

    #[test]
    fn overhead_has_the_target_of_its_evidence_and_size() {
        let rows = [
            row("overhead/write/8/psn", 1.0, Some(1.029)),
            row("overhead/write/8/log", 1.0, Some(1.101)),
            row("overhead/write/4096/log", 1.0, Some(1.02)),
        ];
        let expected = [
            ("overhead/write/8/psn".to_owned(), true),
            ("overhead/write/8/log".to_owned(), false),
            ("overhead/write/4096/log".to_owned(), false),
        ];
        assert_eq!(met(&rows), expected);
    }

    #[test]
    fn a_single_resent_post_failure_operation_misses() {
        let name = "resent/exact/write-heavy/post_failure";
        assert_eq!(met(&[row(name, 0.0, None)]), [(name.to_owned(), true)]);
        let once = Row { spread: Some((0.0, 1.0)), ..row(name, 0.0, None) };
        assert_eq!(met(&[once]), [(name.to_owned(), false)]);
    }

    #[test]
    fn recovery_time_is_compared_with_blanket() {
        let exact = row("resent/exact/read-heavy/recovery", 30.0, None);
        assert!(met(std::slice::from_ref(&exact)).is_empty());
        let blanket = row("resent/blanket/read-heavy/recovery", 100.0, None);
        assert_eq!(met(&[exact, blanket]), [("resent/exact/read-heavy/recovery".to_owned(), true)]);
    }

    #[test]
    fn throughput_far_from_that_before_is_missed() {
        let name = "timeline/after_failback";
        for (ratio, is_met) in [(0.97, false), (0.99, true), (1.0, true), (1.3, true), (26.27, false)] {
            let claims = of(&[row(name, 1.0, Some(ratio))]);
            let [claim] = &claims[..] else { panic!("one figure has one claim") };
            assert_eq!((claim.target, claim.met), ("−2 to +50 % of before", is_met), "{ratio}");
        }
    }
}
