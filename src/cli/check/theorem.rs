//! `mitra check NAME` for a theorem: the steps that show it, and on request their replay on the software NIC.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use mitra_consensus_check::{ResendStep, ResendWorld, Theorem};
use serde::Serialize;

use super::replay::{Replay, Replayed};
use super::write_steps;
use crate::cli::write_json;

#[derive(Serialize)]
struct Report {
    name: &'static str,
    states: usize,
    holds: [&'static str; 1],
    counterexample: Option<&'static str>,
    counterexample_steps: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    replayed: Vec<Replayed>,
}

/// Explores the world of a theorem, and prints the steps that show it.
pub(super) fn run(
    theorem: &Theorem,
    replays: bool,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let shown = theorem.explore();
    let is_shown = !shown.histories.is_empty();
    let replayed = if replays {
        shown.histories.iter().map(|history| replay(theorem, history)).collect::<Result<_, _>>()?
    } else {
        Vec::new()
    };
    let texts =
        shown.histories.iter().map(|history| history.iter().map(|step| format!("{step:?}")).collect());
    let texts: Vec<Vec<String>> = texts.collect();
    if json {
        let report = Report {
            name: theorem.name,
            states: shown.states,
            holds: [theorem.shows],
            counterexample: (!is_shown).then_some(theorem.shows),
            counterexample_steps: numbered_by_history(&texts),
            replayed,
        };
        write_json(out, &report)?;
    } else {
        writeln!(out, "{}: {}", theorem.name, theorem.explored_world)?;
        let result = if is_shown { "shown" } else { "not shown" };
        writeln!(out, "{} states: {result} that {}", shown.states, theorem.shows)?;
        for (number, history) in texts.iter().enumerate() {
            if texts.len() > 1 {
                writeln!(out, "History {}:", number + 1)?;
            }
            write_steps(out, history)?;
            if let Some(Replayed { executions, completions, word }) = replayed.get(number) {
                writeln!(
                    out,
                    "  On the software NIC: executions {executions}, completions {completions}, word {word}."
                )?;
            }
        }
    }
    Ok(if is_shown { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the steps of all histories. Those of several ones name theirs.
fn numbered_by_history(histories: &[Vec<String>]) -> Vec<String> {
    if let [history] = histories {
        return history.clone();
    }
    let of = |(number, history): (usize, &Vec<String>)| {
        history.iter().map(|step| format!("History {}: {step}", number + 1)).collect::<Vec<_>>()
    };
    histories.iter().enumerate().flat_map(of).collect()
}

/// Runs a history on the software NIC, whose state must be that of the model at the end.
fn replay(theorem: &Theorem, history: &[ResendStep]) -> anyhow::Result<Replayed> {
    let mut model = ResendWorld::new(theorem.setup);
    let mut nics = Replay::new(theorem.setup)?;
    for &step in history {
        model.apply(step);
        nics.apply(step).with_context(|| format!("the software NIC cannot repeat this step: {step:?}"))?;
    }
    let replayed = nics.done()?;
    let in_model = (u64::from(model.executions()), u64::from(model.word()));
    ensure!(
        (replayed.executions, replayed.word) == in_model,
        "the model says {} executions and the word {}, the software NIC did otherwise: {replayed:?}",
        in_model.0,
        in_model.1
    );
    Ok(replayed)
}
