//! `cargo xtask test`: runs `cargo xtask setup`, then all tests, then the search for mutants. Ends with the names of the failed tests and the slowest test programs.

use std::io::{self, IsTerminal, Read, Write};
use std::process::{Child, Command, ExitCode};

use anyhow::{Context, Result};

use crate::test_summary::TestSummary;
use crate::{root, setup};

/// The arguments of the runs of cargo. The mutants are in a build of their own, so that no other test runs with them. With `--workspace`, their crates use the other
/// packages as the first run has built them.
const RUNS: [&[&str]; 3] = [
    &["test", "--workspace", "--no-fail-fast"],
    &["test", "--package", "mitra-mutants", "--features", "enabled", "--no-fail-fast"],
    &["test", "--workspace", "--features", "mitra-sweep/mutants", "--test", "mutants", "--no-fail-fast"],
];

/// Installs missing tools, then runs every test of the workspace. The last lines of the output are the failed tests.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    setup::run()?;
    let mut summary = TestSummary::default();
    let mut is_success = true;
    // Arguments choose tests of the workspace.
    let runs = if args.is_empty() { &RUNS[..] } else { &RUNS[..1] };
    for run in runs {
        // Both streams of cargo write to one pipe, so they stay in order. The children stay in this process group, so Ctrl-C ends them too.
        let (output, write_end) = io::pipe().context("cannot create a pipe")?;
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(*run).args(args).current_dir(root());
        cargo.stdout(write_end.try_clone().context("cannot create a pipe")?).stderr(write_end);
        if io::stdout().is_terminal() {
            cargo.env("CARGO_TERM_COLOR", "always");
        }
        let child = cargo.spawn().context("cannot run cargo")?;
        drop(cargo); // with its ends of the pipe
        is_success &= pass_on(output, child, &mut summary)?;
    }
    print!("{summary}");
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Copies the output to standard output and to the summary as it comes, until the child has ended. Returns whether the child succeeded.
fn pass_on(mut output: impl Read, mut child: Child, summary: &mut TestSummary) -> Result<bool> {
    let mut stdout = io::stdout().lock();
    let mut chunk = vec![0; 1 << 16];
    loop {
        match output.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => {
                stdout.write_all(&chunk[..length]).and_then(|()| stdout.flush()).context("cannot print")?;
                summary.add(&chunk[..length]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("cannot read the output of cargo"),
        }
    }
    summary.end();
    let status = child.wait().context("cannot wait for cargo")?;
    Ok(status.success())
}
