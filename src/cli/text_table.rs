//! Tables without borders, for text output.

use comfy_table::{CellAlignment, Table, presets};

/// Lays out rows of cells: `indent` spaces before the first column, two spaces between columns, and
/// no trailing spaces. The columns in `right_aligned` are aligned to the right.
pub(crate) fn layout<const N: usize>(
    indent: u16,
    right_aligned: &[usize],
    rows: impl IntoIterator<Item = [String; N]>,
) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { indent } else { 0 }, 2));
        if right_aligned.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["rail0", "8", "up"], ["r1", "1000", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(layout(2, &[1], rows), ["  rail0     8  up", "  r1     1000"]);
        assert!(layout::<1>(0, &[], []).is_empty());
    }
}
