//! The `mitra` program.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// RDMA in user space, with queue pairs that survive the failure of a NIC
#[derive(Parser)]
#[command(
    version,
    after_help = "\
Begin with `mitra demo`, or with `mitra run -- PROGRAM`. A rail is a network path between NICs, with a NIC of its own at
each end. docs/ in a help text is the directory of that name in Mitra's sources; docs/glossary.md defines the other words.
Exit codes: 0 success, 2 bad arguments or input; the --help of each command lists others. A command that a signal ends has
the shell's code for it: 130 after Ctrl-C, 143 after SIGTERM, unless its help says otherwise."
)]
struct Mitra {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(mitra_bench::Args),
    Check(cli::check::Args),
    Completions(cli::completions::Args),
    Demo(cli::demo::Args),
    Decode(cli::decode::Args),
    Devices(cli::devices::Args),
    Elect(cli::cluster::elect::Args),
    Fault(cli::fault::Args),
    Key(cli::cluster::key::Args),
    Kv(cli::cluster::kv::Args),
    Man(cli::man::Args),
    Memory(cli::cluster::memory::Args),
    #[command(hide = true)]
    Peer(cli::second_process::Args),
    Propose(cli::cluster::propose::Args),
    Run(cli::run::Args),
    Sim(cli::seeded_runs::Args),
    Topology(cli::topology::Args),
    Txn(cli::txn::Args),
    Watch(cli::watch::Args),
}

/// The whole command line.
fn command() -> clap::Command {
    cli::help::with_groups(Mitra::command())
}

fn main() -> ExitCode {
    let done = match cli::parse::<Mitra>(command()).command {
        Command::Bench(args) => mitra_bench::run(&args),
        Command::Check(args) => cli::check::run(&args),
        Command::Completions(args) => cli::completions::run(&args, &command()),
        Command::Demo(args) => cli::demo::run(&args),
        Command::Decode(args) => cli::decode::run(&args),
        Command::Devices(args) => cli::devices::run(&args),
        Command::Elect(args) => cli::cluster::elect::run(&args),
        Command::Fault(args) => cli::fault::run(&args),
        Command::Key(args) => cli::cluster::key::run(&args),
        Command::Kv(args) => cli::cluster::kv::run(&args),
        Command::Man(args) => cli::man::run(&args, command()),
        Command::Memory(args) => cli::cluster::memory::run(&args),
        Command::Peer(args) => cli::second_process::run(&args),
        Command::Propose(args) => cli::cluster::propose::run(&args),
        Command::Run(args) => cli::run::run(&args),
        Command::Sim(args) => cli::seeded_runs::run(&args),
        Command::Topology(args) => cli::topology::run(&args),
        Command::Txn(args) => cli::txn::run(&args),
        Command::Watch(args) => cli::watch::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) if cli::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::complain(cli::describe(&error));
            ExitCode::from(2)
        }
    }
}
