//! `--report FILE.html`: one page that draws every operation across the failures.

mod axis;
mod phases;
mod timeline;

use anyhow::Context;
use askama::Template;
use mitra_page::{Cell, Table};

use super::checker::Counts;
use super::fault_plan::ROUNDS;
use super::json::{FailoverTimes, PolicySummary, Summary};
use super::rounds::{PolicyRun, RoundResult};
use super::text::{format_count, format_operations, format_time, policy_summary, result_sentence};
use super::workload::{Kind, verb_name};
use phases::phase_chart;
use timeline::{TimeWindow, timeline};

#[derive(Template)]
#[template(path = "demo/report/report.html")]
struct ReportPage<'a> {
    in_flight: String,
    /// How often the rail fails.
    times: String,
    verdicts: Vec<VerdictLine>,
    failures: &'a [String],
    rails: Vec<String>,
    cards: Vec<Card>,
    example: Option<RoundSection<'a>>,
    /// The counts of each policy over all rounds.
    tables: Vec<Table>,
    phase_charts: Vec<String>,
    rounds: Vec<RoundSection<'a>>,
    not_drawn: usize,
    command: String,
    version: &'static str,
}

/// The result of one policy in one sentence.
struct VerdictLine {
    class: &'static str,
    mark: &'static str,
    text: String,
}

/// A large number with an explanation.
struct Card {
    class: &'static str,
    number: String,
    text: &'static str,
}

/// One round under every policy, at one scale.
struct RoundSection<'a> {
    /// The number of the round, from 1.
    number: usize,
    fault: String,
    /// One figure per policy; empty if no policy had a failover.
    figures: Vec<RoundFigure<'a>>,
}

/// One round under one policy.
struct RoundFigure<'a> {
    policy: &'a str,
    summary: &'static str,
    counts: String,
    class: &'static str,
    result: String,
    timeline: Option<String>,
}

pub(super) fn page(summary: &Summary, runs: &[PolicyRun]) -> anyhow::Result<String> {
    let count = runs.first().map_or(0, |run| run.rounds.len());
    // The report draws the first pass through the fault sequence only, so that the page stays
    // small.
    let drawn = if count < 2 { 0 } else { count.min(ROUNDS) };
    let page = ReportPage {
        in_flight: format_operations(summary.in_flight),
        times: if summary.rounds == 1 { "once".to_owned() } else { format!("{} times", summary.rounds) },
        verdicts: summary.policies.iter().map(|(name, policy)| VerdictLine::new(name, policy)).collect(),
        failures: &summary.verdict.failures,
        rails: rails(runs),
        cards: cards(summary),
        example: (count > 0).then(|| RoundSection::new(runs, most_instructive_round(runs))),
        tables: summary.policies.iter().map(|(name, policy)| policy_table(name, policy)).collect(),
        phase_charts: runs.iter().filter(|run| run.policy == "exact").filter_map(phase_chart).collect(),
        rounds: (0..drawn).map(|number| RoundSection::new(runs, number)).collect(),
        not_drawn: if count < 2 { 0 } else { count - drawn },
        command: command(summary),
        version: env!("CARGO_PKG_VERSION"),
    };
    let body = page.render().context("cannot render the report")?;
    let title = "mitra demo: a rail fails with operations in flight";
    Ok(mitra_page::page(title, include_str!("style.css"), &body))
}

/// Returns the addresses of each rail in the first round.
fn rails(runs: &[PolicyRun]) -> Vec<String> {
    let Some(round) = runs.first().and_then(|run| run.rounds.first()) else { return Vec::new() };
    let [client, server] = &round.addresses;
    let pairs = client.iter().zip(server).enumerate();
    pairs.map(|(rail, (client, server))| format!("rail {rail}: {client} ⇄ {server}")).collect()
}

/// Returns the command that repeats the run.
fn command(summary: &Summary) -> String {
    let policies: Vec<&str> = summary.policies.iter().map(|(name, _)| name.as_str()).collect();
    format!(
        "mitra demo --seed {} --rounds {} --ops {} --in-flight {} --policy {}{}",
        summary.seed,
        summary.rounds,
        summary.ops_per_round,
        summary.in_flight,
        policies.join(","),
        if summary.log { " --log" } else { "" }
    )
}

impl VerdictLine {
    fn new(name: &str, policy: &PolicySummary) -> VerdictLine {
        let (class, mark) = if policy.totals.corrupted() == 0 { ("good", "✓") } else { ("bad", "✗") };
        VerdictLine { class, mark, text: result_sentence(name, &policy.totals) }
    }
}

fn cards(summary: &Summary) -> Vec<Card> {
    let mut cards = Vec::new();
    let mut card = |number: String, text: &'static str, class: &'static str| {
        cards.push(Card { class, number, text });
    };
    if let Some(exact) = summary.policy("exact") {
        let t = exact.totals;
        card(
            format_count(t.executed_before_failure),
            "operations executed, but not acknowledged, when the rail failed",
            "",
        );
        card(
            format_count(t.recovered),
            "operations in flight recovered from evidence, not sent again",
            "good",
        );
        card(format_count(t.replayed), "replayed, because they had not been executed (or were READs)", "");
        if let Some(us) = exact.failover_us {
            card(format_time(us), "from detection to the last completion, median", "");
        }
    }
    if let Some(blanket) = summary.policy("blanket") {
        card(format_count(blanket.totals.corrupted()), "corruptions when everything is sent again", "bad");
    }
    cards
}

/// Returns the number of the round that shows most. The score of a round is the number of kinds of
/// operation that were corrupted or recovered, over all policies. Among the rounds with the highest
/// score or one less, the round with the shortest failover is drawn at the largest scale.
fn most_instructive_round(runs: &[PolicyRun]) -> usize {
    let score = |number: usize| -> usize {
        let rounds = || runs.iter().map(|run| &run.rounds[number]);
        if rounds().any(|round| FailoverTimes::of(round).is_none()) {
            return 0;
        }
        let kinds = rounds().flat_map(|round| round.check.kinds);
        kinds.map(|c| usize::from(c.corrupted() > 0) + usize::from(c.recovered > 0)).sum()
    };
    let duration = |number: usize| {
        let windows = runs.iter().filter_map(|run| TimeWindow::of(&run.rounds[number]));
        windows.map(|window| window.after).max().unwrap_or(u64::MAX)
    };
    let best = (0..runs[0].rounds.len()).map(score).max().unwrap_or(0);
    let candidates = (0..runs[0].rounds.len()).filter(|&number| score(number) + 1 >= best);
    candidates.min_by_key(|&number| duration(number)).unwrap_or(0)
}

impl<'a> RoundSection<'a> {
    fn new(runs: &'a [PolicyRun], number: usize) -> RoundSection<'a> {
        let windows = runs.iter().filter_map(|run| TimeWindow::of(&run.rounds[number]));
        let figures = match windows.reduce(TimeWindow::union) {
            Some(window) => runs.iter().map(|run| RoundFigure::new(run, number, window)).collect(),
            None => Vec::new(),
        };
        RoundSection { number: number + 1, fault: runs[0].rounds[number].describe_fault(), figures }
    }
}

impl<'a> RoundFigure<'a> {
    fn new(run: &'a PolicyRun, number: usize, window: TimeWindow) -> RoundFigure<'a> {
        let round: &RoundResult = &run.rounds[number];
        let mut t = Counts::default();
        for counts in round.check.kinds {
            t += counts;
        }
        let (class, result) = if t.corrupted() > 0 {
            ("bad", format!("{} executed twice, {} wrong values, {} lost", t.doubled, t.wrong_value, t.lost))
        } else {
            ("good", "nothing lost, doubled or wrong".to_owned())
        };
        RoundFigure {
            policy: &run.policy,
            summary: policy_summary(&run.policy),
            counts: format!(
                "{} in flight, {} of them executed before; {} recovered, {} sent again",
                t.in_flight, t.executed_before_failure, t.recovered, t.replayed
            ),
            class,
            result,
            timeline: timeline(round, window, run.policy == "exact"),
        }
    }
}

fn policy_table(name: &str, policy: &PolicySummary) -> Table {
    let row = |(name, c): (&str, Counts)| {
        let counts =
            [c.posted, c.in_flight, c.executed_before_failure, c.recovered, c.replayed, c.not_completed()];
        let violation = |count: u64| {
            let text = format_count(count);
            Cell::verdict(count == 0, &text, &text)
        };
        let violations = [c.lost, c.doubled, c.wrong_value].map(violation);
        let counts = counts.map(|count| Cell::text(format_count(count)));
        [Cell::text(name)].into_iter().chain(counts).chain(violations).collect()
    };
    let kinds = Kind::ALL.map(|kind| (verb_name(kind), policy.kinds[kind.index()]));
    let columns = "|posted|in flight|executed before|recovered|replayed|errors|lost|doubled|wrong";
    Table {
        title: name.to_owned(),
        note: policy_summary(name).to_owned(),
        header: columns.split('|').map(Cell::text).collect(),
        rows: kinds.into_iter().chain([("all", policy.totals)]).map(row).collect(),
    }
}
