//! The text format of OpenMetrics 1.0, which Prometheus reads.

use std::fmt::Write;

use crate::families::{FAMILIES, Kind};
use crate::snapshot::Snapshot;

/// The content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encodes a snapshot. A family without samples is left out.
pub fn encode(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for family in FAMILIES {
        let mut lines = String::new();
        (family.samples)(
            snapshot,
            &mut Samples { family: family.name, kind: family.kind, lines: &mut lines },
        );
        if lines.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# TYPE {} {}", family.name, family.kind.name());
        if let Some(unit) = family.unit() {
            let _ = writeln!(text, "# UNIT {} {unit}", family.name);
        }
        let _ = writeln!(text, "# HELP {} {}", family.name, escape(family.help));
        text.push_str(&lines);
    }
    text.push_str("# EOF\n");
    text
}

pub(crate) struct Samples<'a> {
    family: &'static str,
    kind: Kind,
    lines: &'a mut String,
}

impl Samples<'_> {
    pub(crate) fn family(&self) -> &'static str {
        self.family
    }

    /// Adds a sample of a counter or a gauge.
    pub(crate) fn add(&mut self, labels: &[(&str, &str)], value: u64) {
        self.add_line(self.suffix(), labels, format_args!("{value}"));
    }

    pub(crate) fn add_float(&mut self, labels: &[(&str, &str)], value: f64) {
        self.add_line(self.suffix(), labels, format_args!("{value}"));
    }

    pub(crate) fn add_suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.add_line(suffix, labels, format_args!("{value}"));
    }

    fn suffix(&self) -> &'static str {
        if self.kind == Kind::Counter { "_total" } else { "" }
    }

    fn add_line(&mut self, suffix: &str, labels: &[(&str, &str)], value: std::fmt::Arguments<'_>) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.lines, "{}{suffix}{labels} {value}", self.family);
    }
}

/// Escapes backslashes, double quotes and line feeds, as OpenMetrics requires.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
