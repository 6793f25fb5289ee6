//! What people read: tables, and the verdict.

use std::io::{self, Write};

use super::parent::Run;
use super::summary::Summary;
use super::workload::Kind;

pub(super) fn print(out: &mut impl Write, summary: &Summary, runs: &[Run]) -> io::Result<()> {
    let _ = runs;
    for (name, p) in &summary.policies {
        writeln!(out, "{name} {:?}", p.failover_us)?;
        for kind in Kind::ALL {
            writeln!(out, "{:?} {:?}", kind, p.kinds[kind.index()])?;
        }
    }
    writeln!(out, "{:?}", summary.verdict.failures)
}
