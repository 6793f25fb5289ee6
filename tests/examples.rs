//! Runs the programs in `examples/`, whose assertions must hold. An example of two processes runs
//! as two processes of this program.

#[path = "../examples/bank.rs"]
mod bank;
#[path = "../examples/cell.rs"]
mod cell;
#[allow(dead_code)] // this program passes other arguments than its own, so it does not call the example's `main`
#[path = "../examples/counter.rs"]
mod counter;
#[path = "../examples/rpc.rs"]
mod rpc;
#[path = "../examples/survive.rs"]
mod survive;
#[path = "../examples/tokio.rs"]
mod tokio_example;
#[path = "../examples/write.rs"]
mod write;

use std::io::{BufRead, BufReader, Read};
use std::process::{ExitCode, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};
use mitra_test_process::{TestProcess, command};

/// The first argument of a process that runs `counter` with the arguments that follow.
const COUNTER: &str = "--run-counter";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == COUNTER) {
        let args: Vec<&str> = args[1..].iter().map(String::as_str).collect();
        return match counter::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let tests = vec![
        trial("write_arrives", write::main),
        trial("cell_of_two_clients_survives_death_of_server_nic", cell::main),
        trial("counter_survives_rail_failure", survive::main),
        trial("sum_of_accounts_survives_rail_failure_and_end_of_coordinator", bank::main),
        trial("calls_are_executed_exactly_once", rpc::main),
        trial("tokio_waits_through_rail_failure", tokio_example::main),
        Trial::test("two_processes_add_and_write", || two_processes(false)),
        Trial::test("two_processes_survive_failure_of_rail_0", || two_processes(true)),
        Trial::test("wrong_use_of_counter_prints_usage", wrong_use),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn trial(name: &str, example: fn() -> Result<(), Box<dyn std::error::Error>>) -> Trial {
    Trial::test(name, move || example().map_err(|e| Failed::from(e.to_string())))
}

fn start(args: &[&str]) -> std::io::Result<TestProcess> {
    let mut command = command(std::env::current_exe()?);
    command.arg(COUNTER).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(TestProcess::start(&mut command))
}

/// Returns everything that a process prints, once it has ended with success.
fn output(process: TestProcess) -> Result<String, Failed> {
    let output = process.output()?;
    let out = String::from_utf8(output.stdout)?;
    if output.status.success() {
        return Ok(out);
    }
    Err(format!("{}: {out}{}", output.status, String::from_utf8_lossy(&output.stderr)).into())
}

fn two_processes(fail_rail_0: bool) -> Result<(), Failed> {
    let mut server = start(&["server"])?;
    let mut server_output = BufReader::new(server.stdout.take().ok_or("no output")?);
    let mut line = String::new();
    server_output.read_line(&mut line)?;
    let address = line.trim().strip_prefix("listening on ").ok_or("the server prints its address")?;
    let option = if fail_rail_0 { &["--fail-rail-0"][..] } else { &[] };
    let client = output(start(&[&["client", address], option].concat())?)?;
    let mut rest = String::new();
    server_output.read_to_string(&mut rest)?;
    assert!(client.contains("1000 additions and 1000 WRITEs, each executed exactly once"), "{client}");
    assert_eq!(client.contains("rail 0 failed"), fail_rail_0, "{client}");
    let expected = "the counter is 1000, and 1000 words were written; the peer closed it";
    assert!(rest.contains(expected), "{rest}");
    assert!(server.wait().success());
    Ok(())
}

fn wrong_use() -> Result<(), Failed> {
    let error = output(start(&["client"])?).err().ok_or("a client needs an address")?;
    let message = error.message().unwrap_or_default();
    assert!(message.contains("usage: counter server"), "{message}");
    Ok(())
}
