//! `mitra run`: sets up the environment so that a libibverbs program finds Mitra's device, and
//! executes that program.
//!
//! The program replaces the `mitra` process, so signals, exit code and terminal are the program's
//! own.

mod digest_file;
mod library;
mod program;
mod sanitizers;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use mitra_control::{FaultScript, MetricsAddress, RailsConfig, Settings, run_dir};
use mitra_failover::{Policy, WritePolicy};
use mitra_nics::{NicKind, RailNics};
use mitra_verbs::Links;

use super::complain;
use library::Preload;
use program::{Program, RunError};

/// Run an unmodified libibverbs program on Mitra's software NICs, or on RDMA devices
///
/// The program finds one RDMA device, mitra0. With --rails it consists of software NICs, which need
/// no root, kernel module or hardware; with --device, of RDMA devices of this machine. With more
/// than one rail the program survives the failure of a rail: its queue pairs, keys and completions
/// stay valid.
#[derive(clap::Args)]
#[command(after_help = concat!("\
Examples:
  mitra run -- ibv_rc_pingpong -g 0 &
  sleep 1; mitra run -- ibv_rc_pingpong -g 0 localhost
  mitra run --rails 2 --fault 'rail0 down at 2s' -- ib_write_bw -D 5 &
  sleep 1; mitra run --rails 2 -- ib_write_bw -D 5 localhost
  mitra run --device mlx5_0,mlx5_1 --log -- ib_write_bw -D 60 &          on two RDMA devices of one machine ...
  mitra run --device mlx5_0,mlx5_1 --log -- ib_write_bw -D 60 SERVER     ... and of another one
  export UCX_TLS=rc_v UCX_NET_DEVICES=mitra0:1
  mitra run --rails 2 -- ucx_perftest &
  sleep 1; mitra run --rails 2 -- ucx_perftest -t tag_lat localhost
UCX uses Mitra only if UCX_TLS names rc_v. It loads libibverbs later, so that the note about it can be ignored.
Between machines, give the addresses of the rails: --rails 10.0.0.1,10.1.0.1 (see `mitra devices`).
Policies: after a failure, exact executes again only what was not executed, and reports what it cannot decide. The others
are for comparison: transparent and blanket execute again what may have been executed (transparent no atomics), delay waits
10 ms instead of fencing the failed rail, and none closes the connection.
Defaults come from MITRA_RAILS, MITRA_DEVICE, MITRA_NICS, MITRA_LINKS, MITRA_POLICY, MITRA_WRITES, MITRA_PREFER, MITRA_LOG, MITRA_VERBOSE,
MITRA_QUIET, MITRA_FAULTS, MITRA_METRICS, MITRA_LATENCY and MITRA_TRACE; those of options without a value are 1 or 0.
MITRA_PRELOAD is the path of another library to preload than the one in this program.
", faults_in_help!(), "\
Exit codes: those of the program; before the program starts, 127 no such program, 126 the program cannot run on Mitra
(not executable, statically linked, linked with musl, set-uid, built for another machine), 2 bad arguments or no
library."))]
pub(crate) struct Args {
    /// Number of rails, 1 to 8, each on a free loopback address; or the address of each rail,
    /// separated by commas. Both ends need the same number [default: 1]
    #[arg(long, value_name = "N|ADDRESS,...")]
    rails: Option<RailsConfig>,
    /// NIC of each rail, instead of --rails: an RDMA device of this machine by its name or address,
    /// separated by commas. `mitra devices` lists them. Both ends need the same number
    #[arg(long, value_name = "NAME|ADDRESS,...", conflicts_with = "rails")]
    device: Option<RailNics>,
    /// Kind of NIC: soft, or minimal, a software NIC without what programs and failover can do
    /// without, for tests (inline data, PSNs and results of atomics that can be read)
    /// [default: soft]
    #[arg(long, value_name = "KIND")]
    nics: Option<NicKind>,
    /// How packets reach the NICs of this host: through shared memory (shm), over UDP (udp), or
    /// through shared memory where it is possible (auto). NICs with shm and with udp do not reach
    /// each other [default: auto]
    #[arg(long, value_name = "KIND")]
    links: Option<Links>,
    /// Failover policy for operations in flight: exact, transparent, blanket, delay, none; see
    /// below. Both ends need the same [default: exact]
    #[arg(long)]
    policy: Option<Policy>,
    /// A WRITE whose execution is unknown completes with an error (strict) or is written again
    /// (repeatable) [default: strict]
    #[arg(long)]
    writes: Option<WritePolicy>,
    /// Number of the rail, from 0, to which connections move back when both ends have been able to
    /// use it for a second. Both ends need the same
    /// [default: connections stay on the rail to which they have moved]
    #[arg(long, value_name = "RAIL")]
    prefer: Option<u8>,
    /// Keep a completion log on connections over several rails. It shows which requests a failed
    /// NIC had executed, all of a connection but one at most, and costs one small packet per WRITE
    /// and atomic. Both ends need it
    #[arg(long)]
    log: bool,
    /// Explain every refused call on standard error; by default, each kind of refusal is explained
    /// once, and calls by which programs find out about the device are not
    #[arg(long)]
    verbose: bool,
    /// Write nothing to standard error, except why the program or the device cannot start
    #[arg(long, conflicts_with = "verbose")]
    quiet: bool,
    /// Fault script, with times relative to the opening of the device; can be given several times
    #[arg(long, value_name = "SCRIPT")]
    fault: Vec<FaultScript>,
    /// Serve OpenMetrics at http://127.0.0.1:PORT/metrics, or at another address; port 0 takes a
    /// free one
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    metrics: Option<MetricsAddress>,
    /// Sample the latencies of operations over several rails, for `mitra watch` and --metrics
    #[arg(long)]
    latency: bool,
    /// Write each step of a failover to standard error, with the time since its detection
    #[arg(long)]
    trace: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let settings = settings(args)?;
    let program = match Program::find(&args.command[0]) {
        Ok(program) => program,
        Err(RunError { code, reason }) => {
            complain(reason);
            return Ok(ExitCode::from(code));
        }
    };
    let run_dir = settings.run_dir.clone().unwrap_or_else(run_dir::default_path);
    let preload = Preload::new(&run_dir)?;
    let sanitizer_options = sanitizers::options(&preload.dir)?;
    let mut libraries = None;
    let preloaded = preload.variable(|value| libraries.insert(program.libraries(value)).found.clone());
    if !settings.quiet {
        let libraries = libraries.unwrap_or_else(|| program.libraries(&preloaded));
        let sanitizer = program.sanitizer(&libraries);
        let sanitizer = sanitizer.map(|sanitizer| sanitizer.note(&program.path, &sanitizer_options));
        for note in program.note(&libraries).into_iter().chain(sanitizer) {
            complain(format_args!("note: {note}"));
        }
    }
    let error = Command::new(&program.path)
        .arg0(&args.command[0])
        .args(&args.command[1..])
        .envs(settings.to_env())
        .envs(sanitizer_options.variables)
        .env(library::LD_PRELOAD, preloaded)
        .exec();
    complain(format_args!("cannot run {}: {error}", program.path.display()));
    Ok(ExitCode::from(program::CANNOT_RUN))
}

/// Merges the command line, the environment and the defaults, in this order of precedence.
fn settings(args: &Args) -> anyhow::Result<Settings> {
    let mut settings = Settings::from_env()?;
    if let Some(rails) = &args.rails {
        settings.rails = rails.clone();
    }
    if let Some(device) = &args.device {
        let names = device.names().iter().map(ToString::to_string).collect();
        settings.rails = RailsConfig::Devices(names);
    }
    settings.nics = args.nics.map(|kind| kind.to_string().into()).or(settings.nics);
    settings.nic_kind::<NicKind>()?;
    settings.links = args.links.unwrap_or(settings.links);
    settings.policy = args.policy.unwrap_or(settings.policy);
    settings.writes = args.writes.unwrap_or(settings.writes);
    settings.prefer = args.prefer.or(settings.prefer);
    settings.completion_log |= args.log;
    settings.metrics = args.metrics.or(settings.metrics);
    settings.latency |= args.latency;
    settings.trace |= args.trace;
    (settings.verbose, settings.quiet) = match (args.verbose, args.quiet) {
        (false, false) => (settings.verbose, settings.quiet),
        given => given,
    };
    if !args.fault.is_empty() {
        settings.faults = FaultScript(args.fault.iter().flat_map(|script| script.0.clone()).collect());
    }
    let name = |is_given: bool, option, variable| if is_given { option } else { variable };
    let source = name(!args.fault.is_empty(), "--fault", "MITRA_FAULTS");
    settings.faults.check_rails(settings.rails.count()).map_err(anyhow::Error::msg).context(source)?;
    if let RailsConfig::Devices(names) = &settings.rails {
        let names: RailNics = names.join(",").parse().map_err(anyhow::Error::msg).context("MITRA_DEVICE")?;
        for fault in &settings.faults.0 {
            let checked = names.names()[fault.rail].check_fault(fault.action.kind());
            checked.map_err(anyhow::Error::msg).context(source)?;
        }
    }
    let source = name(args.prefer.is_some(), "--prefer", "MITRA_PREFER");
    settings.check_prefer().map_err(anyhow::Error::msg).context(source)?;
    let dir = settings.run_dir.get_or_insert_with(run_dir::default_path);
    run_dir::ensure(dir)?;
    Ok(settings)
}
