//! The text output: the rails, a table for each policy, and the verdict. Colours appear only on a
//! terminal.

use std::io::{self, IsTerminal, Write};

use super::checker::Counts;
use crate::cli::text_table;

use super::json::{PolicySummary, Spread, Summary};
use super::rounds::PolicyRun;
use super::workload::{Kind, verb_name};

pub(super) fn policy_summary(policy: &str) -> &'static str {
    match policy {
        "exact" => "fence the old rail, read the evidence, replay only what was not executed",
        "transparent" => "no fence, no evidence: send WRITE, READ and SEND again, refuse atomics",
        "blanket" => "send everything that was in flight again",
        _ => "the queue pair fails with its rail",
    }
}

/// Formats a number with thousands separators.
pub(super) fn format_count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

pub(super) fn format_operations(n: u32) -> String {
    if n == 1 { "one operation".to_owned() } else { format!("{} operations", format_count(n.into())) }
}

pub(super) fn format_time(us: f64) -> String {
    if us < 10_000.0 {
        format!("{} µs", format_count(us.round() as u64))
    } else {
        format!("{:.1} ms", us / 1e3)
    }
}

/// Whether to emit ANSI escape sequences.
#[derive(Clone, Copy)]
struct AnsiStyle(bool);

impl AnsiStyle {
    fn for_stdout() -> AnsiStyle {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        AnsiStyle(io::stdout().is_terminal() && !set("NO_COLOR") && !dumb)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    fn bad(self, text: &str) -> String {
        self.with("1;31", text)
    }
}

pub(super) fn print(out: &mut impl Write, summary: &Summary, runs: &[PolicyRun]) -> io::Result<()> {
    let style = AnsiStyle::for_stdout();
    rails(out, style, summary, runs)?;
    for (name, policy) in &summary.policies {
        writeln!(out)?;
        writeln!(out, "  {}  {}", style.bold(name), style.dim(policy_summary(name)))?;
        counts(out, style, policy)?;
        times(out, style, policy)?;
    }
    writeln!(out)?;
    verdict(out, style, summary)
}

fn rails(out: &mut impl Write, style: AnsiStyle, summary: &Summary, runs: &[PolicyRun]) -> io::Result<()> {
    let Some(round) = runs.first().and_then(|run| run.rounds.first()) else { return Ok(()) };
    let times = if summary.rounds == 1 { "once".to_owned() } else { format!("{} times", summary.rounds) };
    writeln!(
        out,
        "Two processes, two rails, {} in flight; rail 0 fails in mid-stream, {times}.",
        format_operations(summary.in_flight)
    )?;
    writeln!(out)?;
    let [client, server] = &round.addresses;
    for (rail, (from, to)) in client.iter().zip(server).enumerate() {
        let line = if rail == 0 {
            format!("════{}════", style.bad("╳"))
        } else {
            "─────────".to_owned()
        };
        let (left, right) = if rail == 0 { ("client", "server") } else { ("", "") };
        writeln!(
            out,
            "  {left:6} {from:>15} {line} {to:15} {right:6}  {}",
            style.dim(&format!("rail {rail}"))
        )?;
    }
    Ok(())
}

fn counts(out: &mut impl Write, style: AnsiStyle, policy: &PolicySummary) -> io::Result<()> {
    const HEADER: [[&str; 10]; 2] = [
        ["", "", "in flight", "executed", "", "", "", "", "", ""],
        ["", "posted", "at failure", "before", "recovered", "replayed", "lost", "doubled", "wrong", "errors"],
    ];
    let show_errors = policy.totals.not_completed() > 0;
    let kinds = Kind::ALL.map(|kind| (verb_name(kind), policy.kinds[kind.index()]));
    let rows = kinds.into_iter().chain([("all", policy.totals)]).map(|(name, counts)| cells(name, &counts));
    let rows = HEADER.map(|row| row.map(str::to_owned)).into_iter().chain(rows);
    let rows = rows.map(|mut row| {
        if !show_errors {
            row[9].clear();
        }
        row
    });
    let numbers: Vec<usize> = (1..10).collect();
    for (i, line) in text_table::layout(4, &numbers, rows).iter().enumerate() {
        if i < HEADER.len() {
            writeln!(out, "{}", style.dim(line))?;
        } else {
            writeln!(out, "{}", style_words(line, |column, word| style_cell(style, column, word)))?;
        }
    }
    Ok(())
}

fn cells(name: &str, c: &Counts) -> [String; 10] {
    let [posted, in_flight, before, recovered, replayed, lost, doubled, wrong, errors] = [
        c.posted,
        c.in_flight,
        c.executed_before_failure,
        c.recovered,
        c.replayed,
        c.lost,
        c.doubled,
        c.wrong_value,
        c.not_completed(),
    ]
    .map(format_count);
    [name.to_owned(), posted, in_flight, before, recovered, replayed, lost, doubled, wrong, errors]
}

fn style_cell(style: AnsiStyle, column: usize, text: &str) -> String {
    match (column, text) {
        (0, _) => style.bold(text),
        (6..=8, "0") => style.good(text),
        (6..=8, _) => style.bad(text),
        _ => text.to_owned(),
    }
}

/// Replaces each word of a line by its styled form. The line is laid out already, because the
/// layout would count escape sequences as characters.
fn style_words(line: &str, style: impl Fn(usize, &str) -> String) -> String {
    let mut out = String::new();
    let mut index = 0;
    for part in line.split_inclusive(' ') {
        let word = part.trim_end_matches(' ');
        if !word.is_empty() {
            out.push_str(&style(index, word));
            index += 1;
        }
        out.push_str(&part[word.len()..]);
    }
    out
}

fn times(out: &mut impl Write, style: AnsiStyle, policy: &PolicySummary) -> io::Result<()> {
    let Some(all) = policy.failover.detection_to_done_us else { return Ok(()) };
    let range =
        |s: Spread| format!("{} ({} to {})", format_time(s.median), format_time(s.min), format_time(s.max));
    let mut line = format!("from detection to the last completion {}", range(all));
    if let Some(detection) = policy.failover.fault_to_detection_us {
        line.push_str(&format!("; detected after {}", format_time(detection.median)));
    }
    let how: Vec<String> = policy.failover.detectors.iter().map(|(how, n)| format!("{how} × {n}")).collect();
    writeln!(out, "    {}", style.dim(&format!("{line} by {}", how.join(", "))))?;
    let sent = format!(
        "sent again {} of the {} bytes that were in flight",
        format_count(policy.bytes_replayed),
        format_count(policy.bytes_in_flight)
    );
    writeln!(out, "    {}", style.dim(&sent))
}

fn verdict(out: &mut impl Write, style: AnsiStyle, summary: &Summary) -> io::Result<()> {
    for (name, policy) in &summary.policies {
        let mark = match (policy.totals.corrupted(), policy.totals.not_completed()) {
            (0, 0) => style.good("✓"),
            (0, _) => style.dim("·"),
            _ => style.bad("✗"),
        };
        writeln!(out, "  {mark} {}", style.bold(&result_sentence(name, &policy.totals)))?;
    }
    for failure in &summary.verdict.failures {
        writeln!(out, "  {} {failure}", style.bad("not shown:"))?;
    }
    let again = format!("{:.1} s; repeat with --seed {}", summary.elapsed_ms as f64 / 1e3, summary.seed);
    writeln!(out, "  {}", style.dim(&again))
}

pub(super) fn result_sentence(policy: &str, t: &Counts) -> String {
    let posted = format_count(t.posted);
    if t.corrupted() > 0 {
        let parts = [(t.lost, "lost"), (t.doubled, "executed twice"), (t.wrong_value, "wrong values")];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{} {what}", format_count(*n)))
            .collect();
        return format!("{policy}: of {posted} operations {}", parts.join(", "));
    }
    match t.not_completed() {
        0 => format!("{policy}: {posted} operations, every one exactly once, every value right"),
        n => format!(
            "{policy}: of {posted} operations none was lost, doubled or wrong, and {} did not complete",
            format_count(n)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_separators() {
        assert_eq!([0, 999, 1000, 1_234_567].map(format_count), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn result_sentence_names_only_violations_that_occurred() {
        let clean = Counts { posted: 10, completed: 10, ..Counts::default() };
        assert!(result_sentence("exact", &clean).contains("exactly once"));
        let doubled = Counts { doubled: 2, ..clean };
        assert_eq!(result_sentence("blanket", &doubled), "blanket: of 10 operations 2 executed twice");
    }
}
