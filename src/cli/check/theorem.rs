//! `mitra check NAME` for a theorem: the steps that show it, and on request their replay on the
//! software NIC.

use std::io::Write;
use std::process::ExitCode;

use mitra_model_check::Theorem;
use serde::Serialize;

use super::replay::{self, Replayed};
use super::vqp_run::{self, VqpEnd};
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    on_a_vqp: Vec<VqpEnd>,
}

pub(super) fn run(
    theorem: &Theorem,
    replays: bool,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let shown = theorem.explore();
    let is_shown = !shown.histories.is_empty();
    let (mut replayed, mut on_a_vqp) = (Vec::new(), Vec::new());
    for history in shown.histories.iter().filter(|_| replays) {
        replayed.push(replay::run(theorem.setup, history)?);
        on_a_vqp.push(vqp_run::run(theorem.setup.operation, history)?);
    }
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
            on_a_vqp,
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
            if let (Some(replayed), Some(end)) = (replayed.get(number), on_a_vqp.get(number)) {
                writeln!(out, "  On the software NIC: {replayed}.")?;
                writeln!(out, "  The same failure of a vQP's rail: {end}.")?;
            }
        }
    }
    Ok(if is_shown { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Numbers the steps of all histories. If there are several, each step names its history.
fn numbered_by_history(histories: &[Vec<String>]) -> Vec<String> {
    if let [history] = histories {
        return history.clone();
    }
    let of = |(number, history): (usize, &Vec<String>)| {
        history.iter().map(|step| format!("History {}: {step}", number + 1)).collect::<Vec<_>>()
    };
    histories.iter().enumerate().flat_map(of).collect()
}
