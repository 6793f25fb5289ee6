//! `--report FILE.html`: the results of the policies, and plots of the commit rate.

use std::time::Duration;

use mitra_page::{Cell, Table};

use super::cluster::Turn;
use super::evaluation::{KINDS, Measured, Outcome};
use crate::report::page::Page;
use crate::report::plot::{Arrangement, Plot};
use crate::report::{Report, Row, format_figure};

/// The bin widths of the plots: of the whole run, around a rail failure, around the kill.
const RUN_BIN: Duration = Duration::from_millis(100);
const FAILURE_BIN: Duration = Duration::from_millis(1);
const KILL_BIN: Duration = Duration::from_millis(10);
/// The window around the failure or the return of a rail. A vQP uses a returned rail after 100 ms.
const BEFORE_FAILURE: Duration = Duration::from_millis(25);
const AFTER_FAILURE: Duration = Duration::from_millis(175);
/// The plotted window around the kill of a coordinator: `BEFORE_KILL` before the kill, and the
/// takeover timeout plus `AFTER_TAKEOVER` after it.
const BEFORE_KILL: Duration = Duration::from_millis(250);
const AFTER_TAKEOVER: Duration = Duration::from_millis(1750);

/// The consistency conditions of TPC-C §3.3.2.
const CONDITIONS: [&str; 12] = [
    "a warehouse's W_YTD is the sum of its districts' D_YTD",
    "D_NEXT_O_ID - 1 is a district's highest O_ID and highest NO_O_ID",
    "the numbers of a district's new orders follow one another",
    "the sum of a district's O_OL_CNT is its number of order lines",
    "O_CARRIER_ID is null exactly for new orders",
    "O_OL_CNT is an order's number of order lines",
    "OL_DELIVERY_D is null exactly where O_CARRIER_ID is",
    "W_YTD is the sum of the payments in HISTORY",
    "D_YTD is the sum of the payments in HISTORY",
    "C_BALANCE is what was delivered less the payments in HISTORY",
    "the orders that are not new are those that were delivered",
    "C_BALANCE is what was delivered less C_YTD_PAYMENT",
];

/// The commit times of a policy's transactions.
pub(super) struct Timeline {
    measured: Measured,
    /// Sorted.
    told: Vec<u64>,
}

impl Timeline {
    pub(super) fn new(measured: Measured, told: impl Iterator<Item = u64>) -> Timeline {
        let mut told: Vec<u64> = told.collect();
        told.sort_unstable();
        Timeline { measured, told }
    }

    fn policy(&self) -> &'static str {
        self.measured.variant.name()
    }

    /// The committed transactions per second in each of `count` bins from `from` on.
    fn rates(&self, from: u64, bin: Duration, count: usize) -> impl Iterator<Item = f64> {
        let at = move |number: usize| from + (bin * number as u32).as_nanos() as u64;
        let before = move |at: u64| self.told.partition_point(|&told| told < at);
        (0..count).map(move |number| (before(at(number + 1)) - before(at(number))) as f64 / bin.as_secs_f64())
    }

    /// The mean rates around events, as (milliseconds from the event, rate). An event counts only
    /// if its whole window lies in one turn.
    fn around(&self, events: &[u64], bin: Duration, [before, after]: [Duration; 2]) -> Vec<(f64, f64)> {
        let [before_ns, after_ns] = [before, after].map(|time| time.as_nanos() as u64);
        let is_inside =
            |event: u64, turn: &Turn| turn.from + before_ns <= event && event + after_ns <= turn.to;
        let events: Vec<u64> = events
            .iter()
            .copied()
            .filter(|&event| self.measured.turns.iter().any(|turn| is_inside(event, turn)))
            .collect();
        let count = ((before + after).as_nanos() / bin.as_nanos()) as usize;
        let mut sums = vec![0.0; if events.is_empty() { 0 } else { count }];
        for event in &events {
            sums.iter_mut()
                .zip(self.rates(event - before_ns, bin, count))
                .for_each(|(sum, rate)| *sum += rate);
        }
        let time = |number: usize| (bin * number as u32).as_secs_f64() * 1e3 - before.as_secs_f64() * 1e3;
        sums.iter().enumerate().map(|(number, sum)| (time(number), sum / events.len() as f64)).collect()
    }

    /// Plots all turns one after the other, without the pauses between turns.
    fn whole(&self) -> Plot {
        let (mut points, mut marks) = (Vec::new(), Vec::new());
        let mut begin = 0.0;
        for turn in &self.measured.turns {
            let seconds = |at: u64| begin + (at - turn.from) as f64 / 1e9;
            let mark = |at: u64, text: &str| {
                (turn.from..turn.to).contains(&at).then(|| (seconds(at), text.to_owned()))
            };
            let count = ((turn.to - turn.from) / RUN_BIN.as_nanos() as u64) as usize;
            let times = (0..count).map(|number| begin + (RUN_BIN * number as u32).as_secs_f64());
            points.extend(times.zip(self.rates(turn.from, RUN_BIN, count)));
            marks.extend(self.measured.failures.iter().filter_map(|&at| mark(at, "")));
            marks.extend(self.measured.killed.and_then(|at| mark(at, "coordinator 1 is killed")));
            begin = seconds(turn.to);
        }
        let title = format!("Committed transactions under {}", self.policy());
        let caption =
            "In bins of 100 ms, over all turns of the policy. A dashed line is a failure of a rail.";
        Plot::lines((&title, caption), ("s", "/s"), &[self.policy()], &[points], &marks)
    }
}

/// Returns the page.
///
/// # Errors
/// The template fails.
pub(super) fn render(
    report: &Report,
    outcomes: &[Outcome],
    timelines: &[Timeline],
) -> anyhow::Result<String> {
    let is_right = outcomes.iter().all(Outcome::is_right);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let (committed, failures) = (sum(|outcome| outcome.committed), sum(|outcome| outcome.failures));
    let heading = if is_right {
        format!("{committed} transactions and {failures} failures of rails: the data is right")
    } else {
        "A condition, the serial order or a table was violated".to_owned()
    };
    let page = Page {
        heading,
        about: "Software NICs of separate processes on loopback. Without keying and think times, so new orders a minute are no tpmC.",
        tables: vec![kept(outcomes), conditions(outcomes)],
        plots: plots(report, outcomes, timelines),
    };
    page.render(report)
}

fn header(first: &str, outcomes: &[Outcome]) -> Vec<Cell> {
    let policies = outcomes.iter().map(|outcome| Cell::text(outcome.policy));
    std::iter::once(Cell::text(first)).chain(policies).collect()
}

fn kept(outcomes: &[Outcome]) -> Table {
    let row = |name: &str, cell: &dyn Fn(&Outcome) -> Cell| {
        std::iter::once(Cell::text(name)).chain(outcomes.iter().map(cell)).collect::<Vec<_>>()
    };
    let count = |of: fn(&Outcome) -> u64| move |outcome: &Outcome| Cell::text(of(outcome).to_string());
    let none = |of: fn(&Outcome) -> u64| {
        move |outcome: &Outcome| Cell::verdict(of(outcome) == 0, "none", &of(outcome).to_string())
    };
    Table {
        title: "What each policy did and kept".to_owned(),
        header: header("", outcomes),
        rows: vec![
            row("committed", &count(|outcome| outcome.committed)),
            row("new orders a minute", &|outcome| Cell::text(format_figure(outcome.new_orders_per_minute))),
            row("attempts without an effect", &count(|outcome| outcome.aborted)),
            row("of them because of failures", &count(|outcome| outcome.aborted_by_failures)),
            row("failures of rails", &count(|outcome| outcome.failures)),
            row("failovers of connections", &count(|outcome| outcome.failovers)),
            row("lives ended", &count(|outcome| outcome.ended_lives.len() as u64)),
            row("coordinators recovered", &count(|outcome| outcome.recovered_coordinators)),
            row("conditions that hold", &|outcome| {
                let hold = outcome.consistency.values().filter(|holds| **holds).count();
                Cell::verdict(hold == 12, "all 12", &format!("{hold} of 12"))
            }),
            row("serial order in real time", &|outcome| Cell::verdict(outcome.cycles == 0, "exists", "NONE")),
            row("stuck locks", &none(|outcome| outcome.stuck_locks)),
            row("damaged records", &none(|outcome| outcome.corrupt)),
            row("copies and index", &|outcome| Cell::verdict(outcome.is_clean, "right", "WRONG")),
        ],
        ..Table::default()
    }
}

fn conditions(outcomes: &[Outcome]) -> Table {
    let row = |(number, words): (usize, &&str)| {
        let holds = |outcome: &Outcome| outcome.consistency.get(&format!("c{number}")) == Some(&true);
        let verdicts = outcomes.iter().map(|outcome| Cell::verdict(holds(outcome), "holds", "VIOLATED"));
        std::iter::once(Cell::text(format!("{number}. {words}"))).chain(verdicts).collect()
    };
    Table {
        title: "The twelve consistency conditions, in the middle and at the end".to_owned(),
        header: header("TPC-C 3.3.2", outcomes),
        rows: (1..).zip(&CONDITIONS).map(row).collect(),
        ..Table::default()
    }
}

fn plots(report: &Report, outcomes: &[Outcome], timelines: &[Timeline]) -> Vec<Plot> {
    let policies: Vec<&str> = timelines.iter().map(Timeline::policy).collect();
    let mut plots: Vec<Plot> = timelines.iter().map(Timeline::whole).collect();
    let window = [BEFORE_FAILURE, AFTER_FAILURE];
    let around = |events: fn(&Measured) -> &[u64], title: &str, caption: &str, mark: &str| {
        let series: Vec<_> = timelines
            .iter()
            .map(|timeline| timeline.around(events(&timeline.measured), FAILURE_BIN, window))
            .collect();
        let marks = [(0.0, mark.to_owned())];
        let has_points = series.iter().any(|points| !points.is_empty());
        has_points.then(|| Plot::lines((title, caption), ("ms", "/s"), &policies, &series, &marks))
    };
    plots.extend(around(
        |measured| &measured.failures,
        "Committed transactions around a failure of a rail",
        "The mean over all failures, in bins of 1 ms.",
        "a rail fails",
    ));
    plots.extend(around(
        |measured| &measured.returns,
        "Committed transactions around the return of a rail",
        "The mean over all returns, in bins of 1 ms. Connections use their preferred rail again after 100 ms.",
        "a rail returns",
    ));
    plots.extend(kill(&policies, timelines));
    plots.extend(timelines.iter().filter_map(|timeline| latency(timeline.policy(), &report.rows)));
    plots.extend(aborts(&policies, outcomes));
    plots
}

fn kill(policies: &[&str], timelines: &[Timeline]) -> Option<Plot> {
    let series: Vec<_> = timelines
        .iter()
        .map(|Timeline { measured, .. }| measured)
        .zip(timelines)
        .map(|(measured, timeline)| {
            let killed = measured.killed.unwrap_or_default();
            let turn = measured.turns.iter().find(|turn| (turn.from..turn.to).contains(&killed));
            let rest = Duration::from_nanos(turn.map_or(0, |turn| turn.to - killed));
            let after = rest.min(measured.timeout + AFTER_TAKEOVER);
            timeline.around(measured.killed.as_slice(), KILL_BIN, [BEFORE_KILL, after])
        })
        .collect();
    let timeout = timelines.first()?.measured.timeout.as_secs_f64() * 1e3;
    let marks = [(0.0, "coordinator 1 is killed".to_owned()), (timeout, "time-out".to_owned())];
    let caption = "In bins of 10 ms. The others free the locks of the killed coordinator after the time-out; it is started again a second later.";
    let title = "Committed transactions around the kill of a coordinator";
    let has_points = series.iter().any(|points| !points.is_empty());
    has_points.then(|| Plot::lines((title, caption), ("ms", "/s"), policies, &series, &marks))
}

fn latency(policy: &str, rows: &[Row]) -> Option<Plot> {
    let group = |(_, name): &(_, &str)| {
        let row = rows.iter().find(|row| row.name == format!("{policy}/latency/{name}"))?;
        Some((name.replace('_', " "), vec![row.baseline_median?, row.median, row.p99]))
    };
    let groups: Vec<_> = KINDS.iter().filter_map(group).collect();
    let title = format!("Latency under {policy}");
    let caption = "From the call to the return of a committed transaction, with its repeated attempts; the axis is logarithmic. The floor is the \
                   number of its round trips times the time of one READ on an idle store.";
    let legend = ["floor", "median", "99th percentile"];
    (!groups.is_empty())
        .then(|| Plot::bars((&title, caption), "µs", &legend, &groups, Arrangement::BesideLogarithmic))
}

fn aborts(policies: &[&str], outcomes: &[Outcome]) -> Option<Plot> {
    let reasons: std::collections::BTreeSet<&String> =
        outcomes.iter().flat_map(|outcome| outcome.aborts.keys()).collect();
    let group = |reason: &String| {
        let counts = outcomes.iter().map(|outcome| outcome.aborts.get(reason).copied().unwrap_or(0) as f64);
        (reason.replace('_', " "), counts.collect::<Vec<_>>())
    };
    let groups: Vec<_> = reasons.into_iter().map(group).collect();
    let caption = "An attempt that met a lock or a changed record runs again; rolled back is what the workload asks for.";
    let title = "Attempts without an effect, by reason";
    (!groups.is_empty()).then(|| Plot::bars((title, caption), "", policies, &groups, Arrangement::Beside))
}
