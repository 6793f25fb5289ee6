//! `--report FILE.html`: what happened, drawn.

mod axis;
mod phases;
mod timeline;

use super::coordinator::{Played, Run};
use super::oracle::Counts;
use super::plan::ROUNDS;
use super::summary::{Moments, PolicySummary, Summary};
use super::table::{grouped, motto, operations, sentence, time, title};
use super::workload::Kind;
use crate::cli::page::{self, escape};
use timeline::Window;

const STYLE: &str = include_str!("style.css");
const TERMS: &str = include_str!("terms.html");

/// The whole page.
pub(super) fn page(summary: &Summary, runs: &[Run]) -> String {
    let mut out = head(summary, runs);
    out.push_str(&cards(summary));
    out.push_str(&drawings(runs));
    out.push_str(&table(summary));
    for run in runs.iter().filter(|run| run.policy == "exact") {
        if let Some(drawing) = phases::draw(run) {
            out.push_str(&format!(
                "<section><h2>How long it took</h2>\n<p>Under <code>exact</code>, from the death of the rail to the last \
                 completion of an operation that was in flight, failure by failure. Two processes that \
                 poll share the processors of this machine with all else that runs: in a long bar, one of them was waiting \
                 for its turn.</p>\n{drawing}</section>\n"
            ));
        }
    }
    out.push_str(&all_rounds(runs));
    out.push_str(TERMS);
    out.push_str(&foot(summary));
    page::page("mitra demo: a rail dies in mid-stream", STYLE, &out)
}

fn head(summary: &Summary, runs: &[Run]) -> String {
    let times = if summary.rounds == 1 { "once".to_owned() } else { format!("{} times", summary.rounds) };
    let mut out = format!(
        "<header><p class=\"brand\">mitra demo</p>\n<h1>A rail dies with {} in flight</h1>\n\
         <p class=\"lead\">Two processes, each with two software NICs, exchange WRITEs, READs, SENDs, compare-and-swaps and \
         fetch-and-adds. Rail 0 dies in mid-stream, {times}. A judge that shares no state with the queue pair reads the \
         memory, the received messages and the returned values, and counts.</p>\n",
        operations(summary.in_flight)
    );
    for (name, policy) in &summary.policies {
        let class = if policy.totals.corrupted() == 0 { "good" } else { "bad" };
        let mark = if policy.totals.corrupted() == 0 { "✓" } else { "✗" };
        out.push_str(&format!(
            "<p class=\"verdict {class}\"><span>{mark}</span> {}</p>\n",
            sentence(name, &policy.totals)
        ));
    }
    for failure in &summary.verdict.failures {
        out.push_str(&format!("<p class=\"verdict bad\">Not shown: {}</p>\n", escape(failure)));
    }
    if let Some(round) = runs.first().and_then(|run| run.rounds.first()) {
        let [client, server] = &round.addresses;
        let pairs: Vec<String> = client
            .iter()
            .zip(server)
            .enumerate()
            .map(|(rail, (c, s))| format!("rail {rail}: {c} ⇄ {s}"))
            .collect();
        out.push_str(&format!("<p class=\"quiet\">First round: {}.</p>\n", pairs.join(", ")));
    }
    out.push_str("</header>\n");
    out
}

fn cards(summary: &Summary) -> String {
    let mut out = String::from("<section class=\"cards\">\n");
    let mut card = |number: String, what: &str, class: &str| {
        out.push_str(&format!("<div class=\"card {class}\"><b>{number}</b><span>{what}</span></div>\n"));
    };
    if let Some(exact) = summary.policy("exact") {
        let t = exact.totals;
        card(
            grouped(t.executed_before_failure),
            "operations executed, but not acknowledged, when the rail died",
            "",
        );
        card(grouped(t.recovered), "of what was in flight recovered from evidence, not sent again", "good");
        card(grouped(t.replayed), "replayed, because they had not been executed (or only read)", "");
        if let Some(us) = exact.failover_us {
            card(time(us), "from detection to the last completion, median", "");
        }
    }
    if let Some(blanket) = summary.policy("blanket") {
        card(grouped(blanket.totals.corrupted()), "corruptions when everything is sent again", "bad");
    }
    out.push_str("</section>\n");
    out
}

/// The round that shows most: where `blanket` corrupts many kinds, and of those the quickest, which is drawn largest.
fn best_round(runs: &[Run]) -> usize {
    let shows = |number: usize| -> usize {
        let rounds = || runs.iter().map(|run| &run.rounds[number]);
        if rounds().any(|round| Moments::of(round).is_none()) {
            return 0;
        }
        let kinds = rounds().flat_map(|round| round.judgement.kinds);
        kinds.map(|c| usize::from(c.corrupted() > 0) + usize::from(c.recovered > 0)).sum()
    };
    let lasts = |number: usize| {
        let windows = runs.iter().filter_map(|run| Window::of(&run.rounds[number]));
        windows.map(|window| window.after).max().unwrap_or(u64::MAX)
    };
    let most = (0..runs[0].rounds.len()).map(shows).max().unwrap_or(0);
    let good = (0..runs[0].rounds.len()).filter(|&number| shows(number) + 1 >= most);
    good.min_by_key(|&number| lasts(number)).unwrap_or(0)
}

fn drawings(runs: &[Run]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let number = best_round(runs);
    let round = &runs[0].rounds[number];
    format!(
        "<section><h2>One failure, operation by operation</h2>\n<p>Failure {}: {}. Each bar is an operation, from its post \
         to its completion; a dot is where the server’s processor saw it executed (READ and FAA leave nothing to see one by one). Point at a \
         bar to learn more.</p>\n{LEGEND}{}</section>\n",
        number + 1,
        round.fault(),
        round_drawings(runs, number)
    )
}

const LEGEND: &str = "<p class=\"legend\"><span><i class=\"direct\"></i>completed by the rail it was posted on</span>\
    <span><i class=\"recovered\"></i>recovered: had been executed</span>\
    <span><i class=\"replayed\"></i>sent again</span>\
    <span><i class=\"error\"></i>ended in an error</span>\
    <span><i class=\"dot\"></i>executed</span><span><i class=\"dot again\"></i>executed again</span>\
    <span><i class=\"corrupted\"></i>corrupted</span><span><i class=\"gap\"></i>no rail in use</span></p>\n";

/// One round under every policy, at one scale.
fn round_drawings(runs: &[Run], number: usize) -> String {
    let windows = runs.iter().filter_map(|run| Window::of(&run.rounds[number]));
    let Some(window) = windows.reduce(Window::union) else {
        return "<p>No failover took place in this round.</p>\n".to_owned();
    };
    let mut out = String::new();
    for run in runs {
        let round = &run.rounds[number];
        out.push_str(&format!(
            "<figure><figcaption><b>{}</b> {}. {}</figcaption>\n",
            run.policy,
            motto(&run.policy),
            in_short(round)
        ));
        out.push_str(
            &timeline::draw(round, window, run.policy == "exact")
                .unwrap_or_else(|| "<p>No failover took place.</p>\n".to_owned()),
        );
        out.push_str("</figure>\n");
    }
    out
}

fn in_short(round: &Played) -> String {
    let mut t = Counts::default();
    for counts in round.judgement.kinds {
        t += counts;
    }
    let class = if t.corrupted() > 0 { "bad" } else { "good" };
    let result = if t.corrupted() > 0 {
        format!("{} executed twice, {} wrong values, {} lost", t.doubled, t.wrong_value, t.lost)
    } else {
        "nothing lost, doubled or wrong".to_owned()
    };
    format!(
        "{} in flight, {} of them executed before; {} recovered, {} sent again: <span class=\"{class}\">{result}</span>.",
        t.in_flight, t.executed_before_failure, t.recovered, t.replayed
    )
}

fn all_rounds(runs: &[Run]) -> String {
    let count = runs.first().map_or(0, |run| run.rounds.len());
    if count < 2 {
        return String::new();
    }
    // A page that stays small: the first course of failures.
    let shown = count.min(ROUNDS);
    let mut out = String::from("<section><h2>Every failure</h2>\n");
    for number in 0..shown {
        out.push_str(&format!(
            "<details><summary>{}: {}</summary>\n{LEGEND}{}</details>\n",
            number + 1,
            runs[0].rounds[number].fault(),
            round_drawings(runs, number)
        ));
    }
    if shown < count {
        out.push_str(&format!(
            "<p class=\"quiet\">And {} more, which are counted but not drawn.</p>\n",
            count - shown
        ));
    }
    out.push_str("</section>\n");
    out
}

fn table(summary: &Summary) -> String {
    let mut out = String::from("<section><h2>All failures together</h2>\n<div class=\"tables\">\n");
    for (name, policy) in &summary.policies {
        out.push_str(&format!(
            "<table><caption><b>{name}</b> {}</caption>\n<thead><tr><th></th><th>posted</th><th>in flight</th>\
             <th>executed before</th><th>recovered</th><th>replayed</th><th>errors</th><th>lost</th><th>doubled</th>\
             <th>wrong</th></tr></thead>\n<tbody>\n",
            motto(name)
        ));
        out.push_str(&rows(policy));
        out.push_str("</tbody></table>\n");
    }
    out.push_str("</div></section>\n");
    out
}

fn rows(policy: &PolicySummary) -> String {
    let kinds = Kind::ALL.map(|kind| (title(kind), policy.kinds[kind.index()], ""));
    let mut out = String::new();
    for (name, c, class) in kinds.into_iter().chain([("all", policy.totals, " class=\"all\"")]) {
        out.push_str(&format!("<tr{class}><th>{name}</th>"));
        let plain =
            [c.posted, c.in_flight, c.executed_before_failure, c.recovered, c.replayed, c.not_completed()];
        for n in plain {
            out.push_str(&format!("<td>{}</td>", grouped(n)));
        }
        for n in [c.lost, c.doubled, c.wrong_value] {
            let class = if n == 0 { "good" } else { "bad" };
            out.push_str(&format!("<td class=\"{class}\">{}</td>", grouped(n)));
        }
        out.push_str("</tr>\n");
    }
    out
}

fn foot(summary: &Summary) -> String {
    let policies: Vec<&str> = summary.policies.iter().map(|(name, _)| name.as_str()).collect();
    format!(
        "<footer class=\"quiet\"><p>The same workload and failures again: <code>mitra demo --seed {} --rounds {} --ops {} \
         --in-flight {} --policy {}{}</code> (how processes are scheduled is not in the seed). Mitra {}.</p></footer>\n",
        summary.seed,
        summary.rounds,
        summary.ops_per_round,
        summary.in_flight,
        policies.join(","),
        if summary.log { " --log" } else { "" },
        env!("CARGO_PKG_VERSION")
    )
}
