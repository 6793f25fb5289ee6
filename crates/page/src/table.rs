//! Tables of a page.

use std::fmt::{Display, Formatter, Result};

use crate::Escaped;

/// A table. Its display is HTML. The first cell of a row is its name.
#[derive(Default)]
pub struct Table {
    /// The name of the table, above it in bold.
    pub title: String,
    /// What follows the name.
    pub note: String,
    /// The names of the columns.
    pub header: Vec<Cell>,
    /// The rows, with as many cells as the header.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell, with its class in the style sheet.
pub struct Cell {
    /// What the cell shows.
    pub text: String,
    /// The class, or an empty text.
    pub class: &'static str,
}

impl Cell {
    /// Creates a cell without a class.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), class: "" }
    }

    /// Creates a cell of the class `number`.
    pub fn number(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), class: "number" }
    }

    /// Creates a cell of the class `good` or `bad`, with the text for it.
    pub fn verdict(is_good: bool, good: &str, bad: &str) -> Cell {
        let (text, class) = if is_good { (good, "good") } else { (bad, "bad") };
        Cell { text: text.to_owned(), class }
    }

    fn write(&self, element: &str, f: &mut Formatter<'_>) -> Result {
        match self.class {
            "" => write!(f, "<{element}>")?,
            class => write!(f, "<{element} class=\"{class}\">")?,
        }
        write!(f, "{}</{element}>", Escaped(&self.text))
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("<table>")?;
        if !self.title.is_empty() {
            write!(f, "<caption><b>{}</b> {}</caption>", Escaped(&self.title), Escaped(&self.note))?;
        }
        f.write_str("<thead><tr>")?;
        self.header.iter().try_for_each(|cell| cell.write("th", f))?;
        f.write_str("</tr></thead><tbody>\n")?;
        for row in &self.rows {
            f.write_str("<tr>")?;
            for (at, cell) in row.iter().enumerate() {
                cell.write(if at == 0 { "th" } else { "td" }, f)?;
            }
            f.write_str("</tr>\n")?;
        }
        f.write_str("</tbody></table>")
    }
}
