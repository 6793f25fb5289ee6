//! `--coverage`: a table of the operations and points of recovery at which failures happened.

use std::io::{self, Write};

use mitra_sim::{Coverage, CoverageCell, Operation, RecoveryPoint, Stage};
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::cli::text_table;

#[derive(Default)]
pub(super) struct CoverageTable(Coverage);

#[derive(Serialize)]
struct JsonCell {
    stage: u8,
    failure: &'static str,
    operation: &'static str,
    recovery: &'static str,
    count: u64,
}

impl CoverageTable {
    pub(super) fn add(&mut self, coverage: &Coverage) {
        self.0.add(coverage);
    }

    /// Returns whether every cell that can exist has a count.
    pub(super) fn is_full(&self) -> bool {
        self.0.empty_cells().is_empty()
    }

    /// Prints a row for each stage, failure and point of a recovery, with a column for each
    /// operation, and then the empty cells.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let names = Operation::ALL.map(|operation| operation.name().to_owned());
        let [a, b, c, d, e, f] = names;
        let head = ["stage", "failure", "recovery"].map(str::to_owned);
        let [stage, failure, recovery] = head;
        let mut rows = vec![[stage, failure, recovery, a, b, c, d, e, f]];
        for stage in Stage::ALL {
            for failure in CoverageCell::FAILURES {
                for point in RecoveryPoint::ALL {
                    let count = |operation| {
                        let cell = CoverageCell { stage, failure, operation, point };
                        if cell.can_exist() { self.0.get(cell).to_string() } else { "-".to_owned() }
                    };
                    let [a, b, c, d, e, f] = Operation::ALL.map(count);
                    let (failure, point) = (failure.name().to_owned(), point.name().to_owned());
                    rows.push([stage.to_string(), failure, point, a, b, c, d, e, f]);
                }
            }
        }
        let lines = text_table::layout(0, &[3, 4, 5, 6, 7, 8], rows);
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        let (all, empty) = (CoverageCell::all().count(), self.0.empty_cells());
        writeln!(out, "{} of {all} cells are empty", empty.len())?;
        empty.iter().try_for_each(|cell| writeln!(out, "  empty: {cell}"))
    }
}

impl Serialize for CoverageTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let cells = CoverageCell::all().map(|cell| JsonCell {
            stage: cell.stage.number(),
            failure: cell.failure.name(),
            operation: cell.operation.name(),
            recovery: cell.point.name(),
            count: self.0.get(cell),
        });
        let mut table = serializer.serialize_struct("CoverageTable", 2)?;
        table.serialize_field("cells", &cells.collect::<Vec<_>>())?;
        table.serialize_field("empty_cells", &self.0.empty_cells().len())?;
        table.end()
    }
}
