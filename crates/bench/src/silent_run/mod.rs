//! A libibverbs program over two rails under `mitra run`, of which one falls silent: two processes
//! that do not know of the rails.

use std::process::Command;

use anyhow::Context;
use mitra_nics::{NicName, TwoEnds};

use super::c_program::{CProgram, figure};
use super::programs::program_pair::{free_port, pair_output};
use super::report::{Row, row};
use super::{Common, RunFailed};

const PROGRAM: &str = include_str!("silent_run.c");

/// The time from the opening of the client's device to the fault, in milliseconds. The two
/// processes connect meanwhile.
const FAULT_AT: u32 = 300;
/// The time from the opening of the device after which the client posts nothing, in milliseconds.
/// The rest until then is for a fault that comes late.
const STOP_AT: u32 = 450;
/// The part of a line by which `mitra run` reports that a queue pair has left the rail.
const MOVED: &str = "moved from rail 0 to rail 1";
/// The line that the program writes to standard error shortly before the fault.
const FAULT_IS_DUE: &str = "fault is due";

/// How the client waits for completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    Poll,
    /// By `ibv_get_cq_event`.
    Events,
}

impl Wait {
    /// Returns the argument of the program.
    fn word(self) -> &'static str {
        match self {
            Wait::Poll => "poll",
            Wait::Events => "events",
        }
    }
}

/// A run in which the rail fell silent.
struct Run {
    /// The longest time between two completions, in µs.
    gap: f64,
    /// The time from the first of these two until all operations in flight had completed, in µs.
    fault_to_last: f64,
    /// The number of operations that were lost, executed twice or had a wrong result.
    violations: f64,
}

/// The runs of the program in which its client waits in one way.
pub(crate) struct SilentRuns<'a> {
    name: &'static str,
    wait: Wait,
    program: &'a SilentProgram,
    runs: Vec<Run>,
    /// The number of runs that ended, or left the rail, before the rail fell silent.
    untriggered: u32,
}

/// The compiled program and its parameters.
pub(crate) struct SilentProgram {
    program: CProgram,
    common: Common,
    log: bool,
    in_flight: u32,
    size: usize,
}

impl SilentProgram {
    pub(crate) fn compile(
        common: &Common,
        log: bool,
        in_flight: u32,
        size: usize,
    ) -> anyhow::Result<SilentProgram> {
        let program = CProgram::compile("silent_run", PROGRAM)?;
        Ok(SilentProgram { program, common: common.clone(), log, in_flight, size })
    }

    /// Returns the command of an end of the program: 0 is the client.
    fn command(&self, end: usize, fault: Option<&str>, words: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "mitra".into()));
        let rails =
            self.common.device.as_ref().map_or("2".to_owned(), |TwoEnds(ends)| {
                ends[end].each_ref().map(NicName::to_string).join(",")
            });
        // Otherwise MITRA_QUIET could hide that the rail was left.
        command.args(["run", "--verbose", "--policy", "exact", "--rails", &rails]);
        command.args(["--links", &self.common.links.to_string()]);
        command.args(self.log.then_some("--log"));
        command.args(fault.map(|fault| ["--fault", fault]).into_iter().flatten());
        command.arg("--").arg(self.program.path()).args(words);
        command
    }

    /// Runs the program once. Returns `None` if the program ended, or left the rail, before the
    /// rail fell silent.
    fn run(&self, wait: Wait) -> anyhow::Result<Option<Run>> {
        let port = free_port()?.to_string();
        let [window, size] = [self.in_flight.to_string(), self.size.to_string()];
        let [fault_at, stop_at] = [FAULT_AT, STOP_AT].map(|at| at.to_string());
        let fault = format!("rail0 noise drop=1000000ppm at {FAULT_AT}ms");
        let server = self.command(1, None, &[&port, &window, &size]);
        let words = [&port, &window, &size, "127.0.0.1", &fault_at, &stop_at, wait.word()];
        let client = self.command(0, Some(&fault), &words);
        let output = pair_output(server, client, &port).context(RunFailed)?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let of = |name: &str| figure(&printed, name);
        let errors = String::from_utf8_lossy(&output.stderr);
        let after_fault = errors.split_once(FAULT_IS_DUE).map_or("", |(_, after)| after);
        if !after_fault.contains(MOVED) {
            return Ok(None);
        }
        let violations = of("lost")? + of("doubled")? + of("wrong")?;
        Ok(Some(Run { gap: of("gap")?, fault_to_last: of("last")?, violations }))
    }
}

impl<'a> SilentRuns<'a> {
    /// `name` is the first part of the names of the rows.
    pub(crate) fn new(name: &'static str, wait: Wait, program: &'a SilentProgram) -> SilentRuns<'a> {
        SilentRuns { name, wait, program, runs: Vec::new(), untriggered: 0 }
    }

    /// Runs the program once. Returns whether the rail fell silent meanwhile.
    pub(crate) fn run(&mut self) -> anyhow::Result<bool> {
        let run = self.program.run(self.wait).with_context(|| format!("in a run of {}", self.name))?;
        self.untriggered += u32::from(run.is_none());
        let is_triggered = run.is_some();
        self.runs.extend(run);
        Ok(is_triggered)
    }

    /// Returns the name, and the number of runs that ended, or left the rail, before the rail fell
    /// silent.
    pub(crate) fn untriggered(&self) -> (&'static str, u32) {
        (self.name, self.untriggered)
    }

    pub(crate) fn violations(&self) -> u64 {
        self.runs.iter().map(|run| run.violations as u64).sum()
    }

    /// Returns no rows if the rail fell silent in no run.
    pub(crate) fn rows(&self) -> Vec<Row> {
        if self.runs.is_empty() {
            return Vec::new();
        }
        let row = |measure: &str, unit: &'static str, of: fn(&Run) -> f64| {
            let values: Vec<f64> = self.runs.iter().map(of).collect();
            row(&format!("{}/{measure}", self.name), unit, &values)
        };
        vec![
            row("fault_to_last", "us", |run| run.fault_to_last),
            row("gap", "us", |run| run.gap),
            row("violations", "ops", |run| run.violations),
        ]
    }
}
