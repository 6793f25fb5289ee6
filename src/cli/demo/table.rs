//! What people read: who met whom, a table for each policy, the verdict. Colours only on a terminal.

use std::io::{self, IsTerminal, Write};

use super::coordinator::Run;
use super::oracle::Counts;
use super::summary::{PolicySummary, Spread, Summary};
use super::workload::Kind;

/// What a policy does, in a line.
pub(super) fn motto(policy: &str) -> &'static str {
    match policy {
        "exact" => "fence the old rail, read the evidence, replay only what was not executed",
        "transparent" => "no fence, no evidence: send WRITE, READ and SEND again, refuse atomics",
        "blanket" => "send everything that was in flight again",
        _ => "the queue pair dies with its rail",
    }
}

/// A kind as the specification writes it.
pub(super) fn title(kind: Kind) -> &'static str {
    ["WRITE", "READ", "SEND", "CAS", "FAA"][kind.index()]
}

/// A number with its thousands apart.
pub(super) fn grouped(n: u64) -> String {
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

/// So many operations.
pub(super) fn operations(n: u32) -> String {
    if n == 1 { "one operation".to_owned() } else { format!("{} operations", grouped(n.into())) }
}

/// A time given in µs.
pub(super) fn time(us: f64) -> String {
    if us < 10_000.0 { format!("{} µs", grouped(us.round() as u64)) } else { format!("{:.1} ms", us / 1e3) }
}

/// Escape sequences, or none.
#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn for_stdout() -> Paint {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint(io::stdout().is_terminal() && !set("NO_COLOR") && !dumb)
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

pub(super) fn print(out: &mut impl Write, summary: &Summary, runs: &[Run]) -> io::Result<()> {
    let paint = Paint::for_stdout();
    rails(out, paint, summary, runs)?;
    for (name, policy) in &summary.policies {
        writeln!(out)?;
        writeln!(out, "  {}  {}", paint.bold(name), paint.dim(motto(name)))?;
        counts(out, paint, policy)?;
        times(out, paint, policy)?;
    }
    writeln!(out)?;
    verdict(out, paint, summary)
}

fn rails(out: &mut impl Write, paint: Paint, summary: &Summary, runs: &[Run]) -> io::Result<()> {
    let Some(round) = runs.first().and_then(|run| run.rounds.first()) else { return Ok(()) };
    let times = if summary.rounds == 1 { "once".to_owned() } else { format!("{} times", summary.rounds) };
    writeln!(
        out,
        "Two processes, two rails, {} in flight; rail 0 dies in mid-stream, {times}.",
        operations(summary.in_flight)
    )?;
    writeln!(out)?;
    let [client, server] = &round.addresses;
    for (rail, (from, to)) in client.iter().zip(server).enumerate() {
        let line = if rail == 0 {
            format!("════{}════", paint.bad("╳"))
        } else {
            "─────────".to_owned()
        };
        let (left, right) = if rail == 0 { ("client", "server") } else { ("", "") };
        writeln!(
            out,
            "  {left:6} {from:>15} {line} {to:15} {right:6}  {}",
            paint.dim(&format!("rail {rail}"))
        )?;
    }
    Ok(())
}

fn counts(out: &mut impl Write, paint: Paint, policy: &PolicySummary) -> io::Result<()> {
    let errors = policy.totals.not_completed() > 0;
    let above = "                     in flight   executed";
    let head =
        "           posted   at failure     before  recovered   replayed       lost    doubled      wrong";
    writeln!(out, "{}", paint.dim(above))?;
    writeln!(out, "{}", paint.dim(&format!("{head}{}", if errors { "     errors" } else { "" })))?;
    for kind in Kind::ALL {
        row(out, paint, title(kind), &policy.kinds[kind.index()], errors)?;
    }
    row(out, paint, "all", &policy.totals, errors)
}

fn row(out: &mut impl Write, paint: Paint, name: &str, c: &Counts, errors: bool) -> io::Result<()> {
    let judged = |n: u64, width: usize| {
        let text = format!("{:>width$}", grouped(n));
        if n == 0 { paint.good(&text) } else { paint.bad(&text) }
    };
    write!(
        out,
        "    {}{:>7} {:>12} {:>10} {:>10} {:>10} {} {} {}",
        paint.bold(&format!("{name:6}")),
        grouped(c.posted),
        grouped(c.in_flight),
        grouped(c.executed_before_failure),
        grouped(c.recovered),
        grouped(c.replayed),
        judged(c.lost, 10),
        judged(c.doubled, 10),
        judged(c.wrong_value, 10)
    )?;
    if errors {
        write!(out, " {:>10}", grouped(c.not_completed()))?;
    }
    writeln!(out)
}

fn times(out: &mut impl Write, paint: Paint, policy: &PolicySummary) -> io::Result<()> {
    let Some(all) = policy.failover.detection_to_done_us else { return Ok(()) };
    let range = |s: Spread| format!("{} ({} to {})", time(s.median), time(s.min), time(s.max));
    let mut line = format!("from detection to the last completion {}", range(all));
    if let Some(detection) = policy.failover.fault_to_detection_us {
        line.push_str(&format!("; detected after {}", time(detection.median)));
    }
    let how: Vec<String> = policy.failover.detectors.iter().map(|(how, n)| format!("{how} × {n}")).collect();
    writeln!(out, "    {}", paint.dim(&format!("{line} by {}", how.join(", "))))?;
    let sent = format!(
        "sent again {} of the {} bytes that were in flight",
        grouped(policy.bytes_replayed),
        grouped(policy.bytes_in_flight)
    );
    writeln!(out, "    {}", paint.dim(&sent))
}

fn verdict(out: &mut impl Write, paint: Paint, summary: &Summary) -> io::Result<()> {
    for (name, policy) in &summary.policies {
        let mark = match (policy.totals.corrupted(), policy.totals.not_completed()) {
            (0, 0) => paint.good("✓"),
            (0, _) => paint.dim("·"),
            _ => paint.bad("✗"),
        };
        writeln!(out, "  {mark} {}", paint.bold(&sentence(name, &policy.totals)))?;
    }
    for failure in &summary.verdict.failures {
        writeln!(out, "  {} {failure}", paint.bad("not shown:"))?;
    }
    let again = format!("{:.1} s; again with --seed {}", summary.elapsed_ms as f64 / 1e3, summary.seed);
    writeln!(out, "  {}", paint.dim(&again))
}

/// What became of all operations under a policy.
pub(super) fn sentence(policy: &str, t: &Counts) -> String {
    let posted = grouped(t.posted);
    if t.corrupted() > 0 {
        let parts = [(t.lost, "lost"), (t.doubled, "executed twice"), (t.wrong_value, "wrong values")];
        let parts: Vec<String> =
            parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", grouped(*n))).collect();
        return format!("{policy}: of {posted} operations {}", parts.join(", "));
    }
    match t.not_completed() {
        0 => format!("{policy}: {posted} operations, every one exactly once, every value right"),
        n => format!(
            "{policy}: of {posted} operations none was lost, doubled or wrong, and {} did not complete",
            grouped(n)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_sentence_names_what_happened_only() {
        let clean = Counts { posted: 10, completed: 10, ..Counts::default() };
        assert!(sentence("exact", &clean).contains("exactly once"));
        let doubled = Counts { doubled: 2, ..clean };
        assert_eq!(sentence("blanket", &doubled), "blanket: of 10 operations 2 executed twice");
    }
}
