//! The example `counter` over devices: two processes of this test program.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::Failed;
use mitra_test_process::{TestProcess, command};

use crate::{DEADLINE, Devices, counter};

/// The first argument of a process that runs the example with the arguments that follow.
const COUNTER: &str = "--run-counter";

/// Runs the example if the arguments of this process say so.
pub fn run_if_asked() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (first, rest) = args.split_first()?;
    (first == COUNTER).then(|| {
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        counter::run(&rest).map_or_else(
            |error| {
                eprintln!("{error}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        )
    })
}

pub fn two_processes_add_and_write(devices: &Devices) -> Result<(), Failed> {
    let start = |words: &[&str], end: usize| -> Result<TestProcess, Failed> {
        let mut example: Command = command(std::env::current_exe()?);
        example.arg(COUNTER).args(words).args(["--device", &devices.of_end(end)]);
        let example = devices.in_directory(&mut example).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(TestProcess::start_within(example, DEADLINE))
    };
    let mut server = start(&["server"], 1)?;
    let mut said = BufReader::new(server.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line)?;
    let address = line.trim().strip_prefix("listening on ").ok_or("the server prints its address")?;
    let client = start(&["client", address], 0)?.output()?;
    let printed = String::from_utf8_lossy(&client.stdout);
    let expected = "1000 additions and 1000 WRITEs, each executed exactly once";
    assert!(printed.contains(expected), "{printed}{}", String::from_utf8_lossy(&client.stderr));
    line.clear();
    said.read_to_string(&mut line)?;
    assert!(line.contains("the counter is 1000, and 1000 words were written"), "{line}");
    assert!(server.wait().success());
    Ok(())
}
