//! `mitra peer`: the second process of `mitra bench` or `mitra demo`, or a memory node of
//! `mitra txn local`.

use std::process::ExitCode;

/// For internal use: a process that `mitra bench`, `mitra demo` or `mitra txn local` starts
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The command and side that this process serves
    role: Role,
    /// The id of the process that started this one
    parent: i32,
}

/// The command and side that a second process serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Role {
    /// The responder of `mitra bench`
    #[value(name = mitra_bench::PEER_ROLE)]
    Bench,
    /// The server of `mitra demo`
    #[value(name = super::demo::SERVER_ROLE)]
    DemoServer,
    /// A memory node of `mitra txn local`
    #[value(name = super::txn::PEER_ROLE)]
    TxnMemory,
}

/// Runs the second process until its work is done or the process that started it ends.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut connection = mitra_peer_process::connect_to_parent(args.parent)?;
    let result = match args.role {
        Role::Bench => mitra_bench::run_peer(&mut connection),
        Role::DemoServer => super::demo::run_server(&mut connection),
        Role::TxnMemory => super::txn::run_peer(&mut connection),
    };
    if let Err(error) = result {
        // The first process reports the error to the user. If that process has ended, no process
        // waits for the error.
        let _ = connection.send_error(&format!("{error:#}"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
