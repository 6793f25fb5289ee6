//! Everything that needs NICs, over NICs of another kind than software NICs (`--nics minimal`).
//! They delegate to software NICs, and have no inline data and less evidence for a failover.
//! `tests/programs` runs verbs programs on them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_driver::Connection;
use mitra_failover::{Config, Domain, Outcome, VirtualQp};
use mitra_nics::NicKind;
use mitra_objects::{
    Announcements, Change, Changed, Execution, IndirectCell, Operation, Owner, Publication, STAGING_BYTES,
    Word,
};
use mitra_test_process::{OwnNetwork, TestProcess, command, output};
use mitra_verbs::fault::{Failure, Stage, Trigger};
use mitra_verbs::{Access, Buffer, Data, Nic, Provider, SendOp, SendWr};
use serde_json::Value;

fn mitra(words: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_mitra"));
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn transactions_on_minimal_nics() {
    let words = ["txn", "local", "--workload", "smallbank", "--accounts", "500", "--seconds", "1", "--json"];
    let ran = output(mitra(&words).args(["--nics", "minimal"]));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{said}");
    let ran: Value = serde_json::from_slice(&ran.stdout).expect("an object");
    assert!(ran["committed"].as_u64() > Some(0), "{ran}");
    assert_eq!(ran["check"]["is_clean"], true, "{ran}");
}

/// A memory node and a process of the key-value store. The environment chooses the NICs of one, and
/// the command line those of the other.
#[test]
fn store_on_minimal_nics() {
    let mut memory = mitra(&["memory", "kv", "--processes", "1", "--memories", "1", "--json"]);
    memory.env("MITRA_NICS", "minimal").stderr(Stdio::inherit());
    let mut memory = TestProcess::start(&mut memory);
    let mut line = String::new();
    BufReader::new(memory.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let told: Value = serde_json::from_str(&line).expect("an object");
    let address = told["address"].as_str().expect("where it listens");

    let network = OwnNetwork::new();
    let [door, clients] = [7101, 6401].map(|port| format!("{}:{port}", network.address(1)));
    let serve = ["kv", "serve", "--id", "0", "--processes", &door, "--clients", &clients];
    let serve = [&serve[..], &["--memories", address, "--nics", "minimal"]].concat();
    let mut server = TestProcess::start(&mut mitra(&serve));
    let mut lines = BufReader::new(server.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "mitra: the leader is process 0"));

    let client = TcpStream::connect(&clients).expect("it listens");
    client.set_read_timeout(Some(Duration::from_secs(30))).expect("the time is not 0");
    let value = "x".repeat(3000);
    let set = format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$3000\r\n{value}\r\n");
    let get = "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
    let mut replies = BufReader::new(&client);
    let mut ask = |request: &str| {
        (&client).write_all(request.as_bytes()).expect("it reads");
        let mut line = String::new();
        replies.read_line(&mut line).expect("it answers");
        line
    };
    // The new leader is busy at first.
    let started = Instant::now();
    let mut reply = ask(&set);
    while reply.starts_with("-TRYAGAIN") && started.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
        reply = ask(&set);
    }
    assert_eq!(reply, "+OK\r\n");
    assert_eq!(ask(get), "$3000\r\n");
    let mut read = String::new();
    replies.read_line(&mut read).expect("it answers");
    assert_eq!(read, format!("{value}\r\n"));
}

/// Two NICs, the local ends of two rails, and their domain.
fn end(kind: NicKind) -> (Vec<Arc<dyn Nic>>, Arc<Domain>, VirtualQp) {
    let nics: Vec<_> = (0..2).map(|_| kind.open_free().expect("an address is free")).collect();
    let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    let domain = Domain::new(providers).expect("the NICs have room");
    let config = Config::default().with_available_inline(&domain.limits());
    let vqp = VirtualQp::builder(&domain).config(config).build().expect("the NICs can do this");
    (nics, domain, vqp)
}

/// Adds 1 to a counter of 41, and loses the response with the rail. Returns the outcome, the value
/// that the operation returned, and the counter.
fn add_with_lost_response(kind: NicKind) -> (Outcome, u64, u64) {
    let ((_here, domain, mut a), (there, peer_domain, mut b)) = (end(kind), end(kind));
    let (info_a, info_b) = (a.local_info(), b.local_info());
    a.connect(&info_b).expect("the ends fit");
    b.connect(&info_a).expect("the ends fit");
    let (counter, returned) = (Arc::new(Buffer::new(8)), Arc::new(Buffer::new(8)));
    counter.store(0, 41);
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let counter_mr = peer_domain.register(&counter, access).expect("the NICs have room");
    a.import(&counter_mr.remote()).expect("it is the peer's");
    let returned_mr = domain.register(&returned, Access::LOCAL_WRITE).expect("the NICs have room");

    let switch = there[0].fault_switch().expect("it delegates to a software NIC");
    switch.arm(Trigger { stage: Stage::AckOnWire, nth: 1, failure: Failure::LinkDown });
    let op = SendOp::FetchAdd { remote: counter_mr.remote().at(0), add: 1 };
    a.post_send(SendWr::new(1, op, Data::sge(returned_mr.sge(0, 8)))).expect("the queue has room");
    let (mut done, started) = (Vec::new(), Instant::now());
    while done.is_empty() {
        a.poll(&mut done);
        b.progress();
        assert!(started.elapsed() < Duration::from_secs(30), "no completion over {kind} NICs");
    }
    (done[0].outcome, returned.load(0), counter.load(0))
}

/// A software NIC has saved the result of the fetch-and-add, so the peer recovers the value.
/// Without saved results the operation is not executed again, and ends with an error.
#[test]
fn evidence_of_minimal_nics_is_less_and_honest() {
    let (outcome, returned, counter) = add_with_lost_response(NicKind::Soft);
    assert!(matches!(outcome, Outcome::Success), "{outcome:?}");
    assert_eq!((returned, counter), (41, 42));
    let (outcome, _, counter) = add_with_lost_response(NicKind::Minimal);
    assert!(matches!(outcome, Outcome::Unresolved(_)), "{outcome:?}");
    assert_eq!(counter, 42);
}

/// Without inline data, a connection writes words from its registered memory.
#[test]
fn objects_on_minimal_nics() {
    const RECORDS: usize = Announcements::bytes(1);
    let ((_here, _domain, mut a), (_there, peer_domain, mut b)) =
        (end(NicKind::Minimal), end(NicKind::Minimal));
    let (info_a, info_b) = (a.local_info(), b.local_info());
    a.connect(&info_b).expect("the ends fit");
    b.connect(&info_a).expect("the ends fit");
    let memory = Arc::new(Buffer::new(RECORDS + IndirectCell::bytes(1)));
    let mr = peer_domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE).expect("the NICs have room");
    a.import(&mr.remote()).expect("it is the peer's");
    let mut path = Connection::over(a, STAGING_BYTES).expect("the NICs have room");
    let word = |offset: usize| Word::new(mr.remote().at(offset as u64)).expect("a multiple of 8");

    let open = Owner::open(Announcements::new(word(0), 1), 1, Publication::CompareSwap);
    let mut owner = run(&mut path, &mut b, open.expect("an announcement"));
    let cell = IndirectCell::new(word(RECORDS), 1);
    for old in 0..20 {
        let finished = run(&mut path, &mut b, cell.change(owner, Change::FetchAdd(1)));
        assert_eq!(finished.result, Ok(Changed::From(old)));
        owner = finished.owner;
    }
}

fn run<O: Operation>(path: &mut Connection, peer: &mut VirtualQp, operation: O) -> O::Output {
    let (mut execution, started) = (Execution::new(operation), Instant::now());
    loop {
        if let Some(result) = execution.poll(path).expect("the NICs work") {
            return result;
        }
        peer.progress();
        assert!(started.elapsed() < Duration::from_secs(30), "the operation does not end");
    }
}
