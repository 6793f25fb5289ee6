//! `mitra run`: sets a program up to find Mitra where it looks for a real NIC, and becomes that program.
//!
//! Nothing of `mitra` stays behind: signals, exit code and terminal are the program's own.

mod library;
mod program;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use mitra_control::{FaultScript, RailsConfig, Settings, run_dir};
use mitra_failover::{Policy, WritePolicy};

use program::{Program, Refusal};

/// Run a program that was written for libibverbs, unchanged, on Mitra's software NICs
///
/// The program finds one RDMA device, mitra0, without root, kernel module or hardware. With more than one rail it
/// outlives the loss of one: its queue pairs, keys and completions stay as they are.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra run -- ibv_rc_pingpong -g 0 &  mitra run -- ibv_rc_pingpong -g 0 localhost
  mitra run --rails 2 --fault 'rail0 down at 2s' -- ib_write_bw -D 5
  mitra run --rails 10.0.0.1,10.1.0.1 -- ucx_perftest
What is not given comes from MITRA_RAILS, MITRA_POLICY, MITRA_WRITES, MITRA_LOG, MITRA_VERBOSE and MITRA_FAULTS.
$MITRA_PRELOAD names the library that is preloaded, if it is not beside this program or in ../lib/mitra. Faults are described in docs/faults.md.
Exit codes: the program's own, once it runs; before that 127 there is no such program, 126 it cannot be run on Mitra
(no executable, statically linked, set-uid, for another machine), 2 bad arguments or no library.")]
pub(crate) struct Args {
    /// How many rails, each at a free loopback address; or the address of each, separated by commas [default: 1]
    #[arg(long, value_name = "N|ADDRESS,...")]
    rails: Option<RailsConfig>,
    /// What to do with what was in flight when a rail failed: exact, transparent, blanket, none [default: exact]
    #[arg(long)]
    policy: Option<Policy>,
    /// A WRITE that may or may not have been executed ends in an error (strict) or is written again (repeatable)
    /// [default: strict]
    #[arg(long)]
    writes: Option<WritePolicy>,
    /// Keep a completion log of connections that span rails, for one more small packet per WRITE and atomic: then what a NIC that
    /// died had executed is known but for one request. Both ends need it
    #[arg(long)]
    log: bool,
    /// Explain every call that is refused on standard error
    #[arg(long)]
    verbose: bool,
    /// Let this befall the rails, counted from when the program opens the device; may be given several times
    #[arg(long, value_name = "SCRIPT")]
    fault: Vec<FaultScript>,
    /// Take the place of libibverbs.so.1 instead of preloading: for programs that load it by dlopen, without rdma_cm
    #[arg(long)]
    replace: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let settings = settings(args)?;
    let program = match Program::find(&args.command[0]) {
        Ok(program) => program,
        Err(Refusal { code, why }) => {
            eprintln!("mitra: {why}");
            return Ok(ExitCode::from(code));
        }
    };
    let (variable, value) = library::variable(args.replace)?;
    if let Some(note) = program.note() {
        eprintln!("mitra: note: {note}");
    }
    let error = Command::new(&program.path)
        .arg0(&args.command[0])
        .args(&args.command[1..])
        .envs(settings.to_env())
        .env(variable, value)
        .exec();
    eprintln!("mitra: cannot run {}: {error}", program.path.display());
    Ok(ExitCode::from(program::CANNOT_RUN))
}

/// What was asked for on the command line, over what the environment holds, over the defaults.
fn settings(args: &Args) -> anyhow::Result<Settings> {
    let mut settings = Settings::from_env()?;
    if let Some(rails) = &args.rails {
        settings.rails = rails.clone();
    }
    settings.policy = args.policy.unwrap_or(settings.policy);
    settings.writes = args.writes.unwrap_or(settings.writes);
    settings.completion_log |= args.log;
    settings.verbose |= args.verbose;
    if !args.fault.is_empty() {
        settings.faults = FaultScript(args.fault.iter().flat_map(|script| script.0.clone()).collect());
    }
    settings.faults.check_rails(settings.rails.count()).map_err(anyhow::Error::msg).context("--fault")?;
    let dir = settings.run_dir.get_or_insert_with(run_dir::default_path);
    run_dir::ensure(dir)?;
    Ok(settings)
}
