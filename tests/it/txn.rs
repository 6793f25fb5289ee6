//! The commands `mitra txn memory`, `local` and `check`: each memory node is a process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use mitra_test_process::{TestProcess, command, output};
use nix::sys::signal::Signal;
use serde_json::Value;

fn txn(arguments: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_mitra"));
    command.arg("txn").args(arguments).stdout(Stdio::piped());
    command
}

/// Runs a command with `--json` to its end. Returns its exit code and the printed object.
fn run(arguments: &[&str]) -> (Option<i32>, Value) {
    let Output { status, stdout, .. } = output(txn(arguments).arg("--json"));
    (status.code(), serde_json::from_slice(&stdout).unwrap_or_default())
}

/// The deadline of processes that live as long as a test, which loads TPC-C and recovers it.
const DEADLINE: Duration = Duration::from_secs(300);

/// Starts a memory node. Returns its address too.
fn memory(id: &str, options: &[&str]) -> (TestProcess, String) {
    let mut command = txn(&["memory", "--id", id, "--json"]);
    let mut program = TestProcess::start_within(command.args(options), DEADLINE);
    let mut line = String::new();
    BufReader::new(program.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let told: Value = serde_json::from_str(&line).expect("an object");
    assert!(told["bytes"].as_u64() > Some(0), "{told}");
    let address = told["address"].as_str().expect("where it listens").to_owned();
    (program, address)
}

/// Checks that a check has found nothing, by the field names that stay stable.
fn assert_clean(check: &Value) {
    assert_eq!(check["is_clean"], true, "{check}");
    for kind in ["held_locks", "unrecovered_locks", "torn", "differing", "index_errors"] {
        assert_eq!(check[kind]["count"], 0, "{check}");
        assert_eq!(check[kind]["first"], serde_json::json!([]), "{check}");
    }
    assert!(check["recovered_locks"].is_u64(), "{check}");
}

#[test]
fn store_in_memory_processes_is_clean_after_a_rail_has_failed() {
    let options = ["--workload", "smallbank", "--accounts", "500"];
    // The failure comes when the thousandth message has been executed, long after the load.
    let fault = [&options[..], &["--fault", "rail0 link-down@5:1000"]].concat();
    let memories = [memory("0", &fault), memory("1", &options), memory("2", &options)];
    let nodes = memories.iter().map(|(_, address)| address.as_str()).collect::<Vec<_>>().join(",");
    let with = |words: &[&str]| run(&[words, &options, &["--nodes", &nodes]].concat());

    let (code, ran) = with(&["local", "--seconds", "2"]);
    assert_eq!(code, Some(0), "{ran}");
    assert!(ran["committed"].as_u64() > Some(0) && ran["rolled_back"].is_u64(), "{ran}");
    // A busy machine may delay a heartbeat for so long that another rail fails over, too.
    assert!(ran["failovers"].as_u64() >= Some(1), "{ran}");
    assert_eq!(ran["is_full"], false, "{ran}");
    assert!(ran["total"]["found"].is_i64(), "{ran}");
    assert_eq!(ran["total"]["found"], ran["total"]["expected"], "{ran}");
    assert_clean(&ran["check"]);

    let (code, check) = with(&["check"]);
    assert_eq!(code, Some(0), "{check}");
    assert_clean(&check);
    assert_eq!(check["records"], serde_json::json!({"savings": 500, "checking": 500}));
    assert_eq!(check["consistency"], Value::Null, "the conditions are those of TPC-C");

    // The store is opened again. Nothing is lost that was committed.
    let (code, again) = with(&["local", "--seconds", "1"]);
    assert_eq!(code, Some(0), "{again}");
    assert_eq!((&ran["is_opened"], &again["is_opened"]), (&false.into(), &true.into()));
    let sum = |total: &Value| total.as_i64().expect("a sum");
    assert_eq!(again["total"]["found"], again["total"]["expected"], "{again}");
    assert_eq!(sum(&again["total"]["before"]), sum(&ran["total"]["found"]), "{again}");

    // A store is refused with other options, also with a number of accounts that has the same
    // layout.
    for accounts in ["5000", "501"] {
        for command in ["check", "local"] {
            let other = [command, "--workload", "smallbank", "--accounts", accounts, "--nodes", &nodes];
            let other = output(&mut txn(&other));
            let said = String::from_utf8_lossy(&other.stderr);
            assert_eq!(other.status.code(), Some(2), "{said}");
            assert!(said.contains("was started with another --workload, --warehouses, --accounts"), "{said}");
        }
    }
}

/// The memory nodes of a store, and the options of its other processes.
struct Store {
    options: Vec<String>,
    _memories: [TestProcess; 3],
}

impl Store {
    fn start(options: &[&str]) -> Store {
        let memories = ["0", "1", "2"].map(|id| memory(id, options));
        let nodes = memories.iter().map(|(_, address)| address.as_str()).collect::<Vec<_>>().join(",");
        let options = [options, &["--nodes", &nodes]].concat().into_iter().map(str::to_owned).collect();
        Store { options, _memories: memories.map(|(process, _)| process) }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = txn(words);
        command.args(&self.options).arg("--json").stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end. Returns its exit code and the printed object.
    fn run(&self, words: &[&str]) -> (Option<i32>, Value) {
        ended(output(&mut self.command(words)))
    }

    /// Starts to run transactions, and waits until they run.
    fn start_transactions(&self) -> TestProcess {
        let mut process =
            TestProcess::start_within(&mut self.command(&["local", "--seconds", "3600"]), DEADLINE);
        let stderr = process.stderr.as_mut().expect("piped");
        // What follows the first line stays for the caller.
        let (mut line, mut byte) = (Vec::new(), [0]);
        while stderr.read_exact(&mut byte).is_ok() && byte != *b"\n" {
            line.extend(byte);
        }
        let line = String::from_utf8_lossy(&line);
        assert!(line.ends_with("transactions run"), "{line}");
        process
    }

    /// Ends a process that runs transactions so that its locks stay. Then checks that the next
    /// process completes or undoes what it has left.
    fn assert_recovers_from(&self, end: impl Fn(TestProcess)) -> Value {
        let mut attempt = 0;
        let (code, check) = loop {
            attempt += 1;
            let process = self.start_transactions();
            std::thread::sleep(attempt * Duration::from_millis(100));
            end(process);
            let (code, check) = self.run(&["check"]);
            // Perhaps no transaction held a lock at that time.
            if code != Some(0) {
                break (code, check);
            }
        };
        assert_eq!(code, Some(3), "{check}");
        assert_eq!((&check["is_clean"], &check["is_recovered"]), (&false.into(), &false.into()), "{check}");
        assert_eq!(check["held_locks"]["count"], 0, "{check}");
        let (code, ran) = self.run(&["local", "--seconds", "1"]);
        assert_eq!(code, Some(0), "{ran}");
        assert_eq!(ran["is_opened"], true, "{ran}");
        // The check of a store that nobody uses any more.
        assert_clean(&ran["check"]);
        ran
    }
}

fn ended(Output { status, stdout, stderr }: Output) -> (Option<i32>, Value) {
    eprint!("{}", String::from_utf8_lossy(&stderr));
    (status.code(), serde_json::from_slice(&stdout).unwrap_or_default())
}

/// Waits for a process that a signal has ended. Returns the printed object.
fn ended_by_request(process: TestProcess) -> Value {
    let (code, ran) = ended(process.output().expect("the process ends"));
    assert_eq!(code, Some(0), "{ran}");
    assert!(ran["committed"].as_u64() > Some(0), "{ran}");
    assert_clean(&ran["check"]);
    ran
}

fn kill(mut process: TestProcess) {
    process.signal(Signal::SIGKILL);
    process.wait();
}

/// The only program with coordinators is killed, paused or asked to end while transactions run.
#[test]
fn txn_crash() {
    let store = Store::start(&["--workload", "smallbank", "--accounts", "500"]);
    let mut first = store.start_transactions();
    // A program that runs is not disturbed.
    let refused = output(&mut store.command(&["local"]));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("coordinator 1 runs, as incarnation"), "{said}");
    assert!(first.try_wait().is_none(), "the program still runs");
    kill(first);
    let ran = store.assert_recovers_from(kill);
    assert_eq!(ran["total"]["found"], ran["total"]["expected"], "{ran}");

    // A program that has only paused has lost its rights when it goes on.
    let paused = store.start_transactions();
    paused.signal(Signal::SIGSTOP);
    let next = store.start_transactions();
    paused.signal(Signal::SIGCONT);
    let paused = paused.output().expect("the process ends");
    let said = String::from_utf8_lossy(&paused.stderr);
    assert_eq!(paused.status.code(), Some(1), "{said}");
    assert!(said.contains("the store cannot be used"), "{said}");

    next.signal(Signal::SIGINT);
    let ran = ended_by_request(next);
    assert_eq!(ran["total"]["found"], ran["total"]["expected"], "{ran}");
    let (code, check) = store.run(&["check"]);
    assert_eq!(code, Some(0), "{check}");
    assert_clean(&check);

    let asked = store.start_transactions();
    asked.signal(Signal::SIGTERM);
    let asked = ended_by_request(asked);
    // What was told as committed is there.
    let (code, ran) = store.run(&["local", "--seconds", "1"]);
    assert_eq!(code, Some(0), "{ran}");
    assert_eq!(ran["total"]["before"], asked["total"]["found"], "{ran}");

    store.assert_recovers_from(|mut twice| {
        twice.signal(Signal::SIGINT);
        twice.signal(Signal::SIGTERM);
        assert_eq!(twice.wait().code(), Some(143), "the second signal ends the program at once");
    });
}

#[test]
fn txn_crash_of_tpcc() {
    let ran = Store::start(&[]).assert_recovers_from(kill);
    for number in 1..=12 {
        assert_eq!(ran["check"]["consistency"][format!("c{number}")], true, "{ran}");
    }
}

/// Ctrl-C goes to the memory nodes, too.
#[test]
fn txn_crash_by_ctrl_c_with_own_memory_nodes() {
    let options = ["local", "--workload", "smallbank", "--accounts", "500", "--seconds", "3600", "--json"];
    for seconds in (0..).map(|attempt| 1 << attempt) {
        let process = TestProcess::start(txn(&options).stderr(Stdio::piped()));
        std::thread::sleep(Duration::from_secs(seconds));
        process.signal(Signal::SIGINT);
        let (code, ran) = ended(process.output().expect("the process ends"));
        // The signal ends the program at once while the store is loaded.
        if code != Some(130) {
            assert_eq!(code, Some(0), "{ran}");
            return assert_clean(&ran["check"]);
        }
    }
}

#[test]
fn tpcc_keeps_its_conditions() {
    let (code, ran) = run(&["local", "--seconds", "1"]);
    assert_eq!(code, Some(0), "{ran}");
    assert!(ran["committed"].as_u64() > Some(0), "{ran}");
    let check = &ran["check"];
    assert_clean(check);
    for number in 1..=12 {
        assert_eq!(check["consistency"][format!("c{number}")], true, "{check}");
    }
    assert_eq!(check["violations"]["count"], 0, "{check}");
    assert_eq!(check["records"]["item"], 100_000, "{check}");
}

#[test]
fn result_in_words_says_what_was_checked() {
    let output =
        output(&mut txn(&["local", "--workload", "smallbank", "--accounts", "20", "--seconds", "1"]));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{text}");
    for line in
        ["savings: 20 records", "held locks: 0", "torn records: 0", "index errors: 0", "nothing is wrong"]
    {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn store_that_was_never_loaded_violates_conditions() {
    let memories = ["0", "1", "2"].map(|id| memory(id, &[]));
    let nodes = memories.iter().map(|(_, address)| address.as_str()).collect::<Vec<_>>().join(",");
    let (code, check) = run(&["check", "--nodes", &nodes]);
    assert_eq!(code, Some(1), "{check}");
    assert_eq!(check["is_clean"], false, "{check}");
    assert_eq!(check["consistency"]["c1"], false, "{check}");
    assert!(check["violations"]["count"].as_u64() > Some(0), "{check}");
    assert_eq!(check["index_errors"]["count"], 0, "{check}");
}

#[test]
fn coordinator_without_a_rail_has_lost_the_store() {
    let options = ["--workload", "smallbank", "--accounts", "100"];
    // The NIC fails during the transactions.
    let fault = [&options[..], &["--rails", "1", "--fault", "rail0 nic-dead@5:1000"]].concat();
    let (_memory, address) = memory("0", &[&fault[..], &["--memories", "1", "--backups", "0"]].concat());
    let local = ["local", "--memories", "1", "--backups", "0", "--rails", "1", "--nodes", &address];
    let output = output(txn(&[&local, &options[..]].concat()).stderr(Stdio::piped()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the store cannot be used") && said.contains("memory node 0 is lost"), "{said}");
}
