//! The programs over devices of the kernel: soft-RoCE in the emulated machine, or what this machine
//! has. `cargo xtask hardware` runs them. `MITRA_DEVICES` names pairs of devices that reach each
//! other, with commas between: `rxe0,rxe0b,rxe1,rxe1b` are two rails.

#[path = "../programs/build_programs.rs"]
#[allow(dead_code, reason = "the rows of `mitra run` build other programs, too")]
mod build_programs;
#[path = "../it/kv/child_process.rs"]
#[allow(dead_code, reason = "the tests of the store use all of it")]
mod child_process;
#[path = "../it/kv/client_histories.rs"]
mod client_histories;
#[path = "../it/kv/cluster.rs"]
#[allow(dead_code, reason = "the tests of the store use all of it")]
mod cluster;
#[path = "../../examples/counter.rs"]
#[allow(dead_code, reason = "its `main` reads other arguments than this program's")]
mod counter;
mod counter_example;
#[path = "../it/election.rs"]
mod election;
mod killed_programs;
#[path = "../../crates/hardnic/tests/hardware/link_faults.rs"]
#[allow(dead_code, reason = "the tests of `HardNic` use all of it")]
mod link_faults;
#[path = "../programs/listening.rs"]
#[allow(dead_code, reason = "the rows of `mitra run` use all of it")]
mod listening;
mod mixed_pairs;
#[path = "../it/kv/network_hosts.rs"]
#[allow(dead_code, reason = "the tests of the store use all of it")]
mod network_hosts;
mod programs;
mod unmodified_programs;

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use mitra_test_process::{TestProcess, command, output, output_within};
use serde_json::Value;
use tempfile::TempDir;

/// The deadline of a process, which loads TPC-C in the emulated machine.
const DEADLINE: Duration = Duration::from_secs(900);

/// A test.
type Body = Box<dyn Fn(&Devices) -> Result<(), Failed> + Send>;

/// A test that is a function.
type Function = fn(&Devices) -> Result<(), Failed>;

const TESTS: [(&str, Function); 14] = [
    ("programs::devices_are_listed_and_qualified", programs::devices_are_listed_and_qualified),
    ("programs::demo_is_exactly_once", programs::demo_is_exactly_once),
    ("programs::latency_and_bandwidth", programs::latency_and_bandwidth),
    ("programs::failover_of_a_reset_device", programs::failover_of_a_reset_device),
    ("programs::figures_of_varuna", programs::figures_of_varuna),
    ("programs::tpcc_keeps_its_conditions", programs::tpcc_keeps_its_conditions),
    ("programs::what_devices_cannot_do_is_refused", programs::what_devices_cannot_do_is_refused),
    ("programs::links_fail_on_demand", programs::links_fail_on_demand),
    ("killed_programs::store_survives", killed_programs::store_survives),
    ("killed_programs::survivors_decide", killed_programs::survivors_decide),
    ("killed_programs::survivors_elect", killed_programs::survivors_elect),
    ("killed_programs::transactions_are_recovered", killed_programs::transactions_are_recovered),
    ("counter_example::two_processes_add_and_write", counter_example::two_processes_add_and_write),
    ("mixed_pairs::store_over_software_nics_and_devices", mixed_pairs::store_over_software_nics_and_devices),
];

fn main() -> ExitCode {
    if let Some(code) = counter_example::run_if_asked() {
        return code;
    }
    let args = Arguments::from_args();
    let devices = Devices::named().map(Arc::new);
    // Without devices each test is listed as ignored.
    let is_ignored = devices.is_none();
    let trial = |(name, body): (String, Body)| {
        let (devices, named) = (devices.clone(), name.clone());
        let timed = move || {
            let (devices, begin) = (devices.ok_or("no devices")?, Instant::now());
            body(&devices)?;
            println!("{named}: {:.1} s", begin.elapsed().as_secs_f64());
            Ok(())
        };
        Trial::test(name, timed).with_ignored_flag(is_ignored)
    };
    let tests = TESTS.into_iter().map(|(name, body)| (name.to_owned(), Box::new(body) as Body));
    let rows = unmodified_programs::tests().map(|(name, row)| {
        (name, Box::new(move |devices: &Devices| unmodified_programs::run(devices, row)) as Body)
    });
    libtest_mimic::run(&args, tests.chain(rows).map(trial).collect()).exit_code()
}

/// The devices of the tests.
struct Devices {
    /// The devices of each end, from rail 0.
    ends: [Vec<String>; 2],
    /// The directory of the file of qualifications.
    directory: TempDir,
    qualified: OnceLock<Value>,
}

impl Devices {
    /// Returns the devices, or `None` if the environment does not name two.
    fn named() -> Option<Devices> {
        let names = std::env::var("MITRA_DEVICES").ok()?;
        let names: Vec<_> = names.split(',').map(|name| name.trim().to_owned()).collect();
        let ends = match names.len() {
            0 | 1 => return None,
            // One rail is not enough, so each device is a rail from itself to itself.
            2 | 3 => [names[..2].to_vec(), names[..2].to_vec()],
            _ => [0, 1].map(|end| [names[end].clone(), names[2 + end].clone()].to_vec()),
        };
        Some(Devices { ends, directory: TempDir::new().expect("a directory"), qualified: OnceLock::new() })
    }

    /// The devices of an end, as `--device` takes them: 0 is that of clients.
    fn of_end(&self, end: usize) -> String {
        self.ends[end].join(",")
    }

    /// The devices of both ends, as `mitra demo` and `mitra bench` take them.
    fn of_both(&self) -> String {
        format!("{},{}", self.of_end(0), self.of_end(1))
    }

    fn are_rxe(&self) -> bool {
        self.ends.iter().flatten().all(|name| name.starts_with("rxe"))
    }

    /// The report of the qualification of the first device, which holds for all devices of the same
    /// part and firmware.
    fn qualification(&self) -> &Value {
        self.qualified.get_or_init(|| {
            // A third of the fences of a user's qualification: this test has three minutes.
            let qualify = ["devices", "--qualify", "--fences", "20", "--device", &self.ends[0][0]];
            let report = self.json(&qualify);
            println!("{report}");
            report
        })
    }

    /// Whether failover decides by the responder's PSN.
    fn have_exact_psn(&self) -> bool {
        self.qualification()["nics"][0]["psn_is_evidence"] == true
    }

    fn mitra(&self, words: &[&str]) -> Command {
        let mut command = command(env!("CARGO_BIN_EXE_mitra"));
        self.in_directory(command.args(words).stdout(Stdio::piped()));
        command
    }

    /// Lets a program keep its files in the directory of the tests.
    fn in_directory<'a>(&self, program: &'a mut Command) -> &'a mut Command {
        program.env("MITRA_QUALIFICATIONS", self.directory.path().join("qualifications.json"));
        program.env("MITRA_RUN_DIR", self.directory.path().join("run"))
    }

    /// Runs a command with `--json` to its end, which must be a success. Returns the printed
    /// object.
    fn json(&self, words: &[&str]) -> Value {
        let output = output_within(self.mitra(words).arg("--json"), DEADLINE);
        let said = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {said}\n{printed}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {printed}"))
    }

    /// Runs a command that must be refused. Returns the line that it prints.
    fn refusal(&self, words: &[&str]) -> String {
        let output = output(&mut self.mitra(words));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{words:?}: {said}");
        said
    }

    /// Starts a memory node of `mitra memory` or `mitra txn memory` at the second end. Returns its
    /// address too.
    fn memory(&self, words: &[&str]) -> (TestProcess, String) {
        started_memory(self.mitra(words).args(["--device", &self.of_end(1)]))
    }
}

/// Starts a memory node. Returns its address too.
fn started_memory(command: &mut Command) -> (TestProcess, String) {
    let mut program = TestProcess::start_within(command.arg("--json").stdout(Stdio::piped()), DEADLINE);
    let mut line = String::new();
    BufReader::new(program.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let told: Value = serde_json::from_str(&line).expect("an object");
    let address = told["address"].as_str().expect("where it listens").to_owned();
    (program, address)
}
