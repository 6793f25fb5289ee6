//! Programs that are killed while others use them.

use std::process::Stdio;
use std::time::Duration;

use libtest_mimic::Failed;
use mitra_test_process::{OwnNetwork, TestProcess};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::Devices;
use crate::client_histories::check_under_faults;
use crate::cluster::Cluster;
use crate::election::Election;

fn pause() {
    std::thread::sleep(Duration::from_millis(150));
}

/// Clients write while the leader and a memory node are killed. Their histories stay linearizable,
/// and every request is answered.
pub fn store_survives(devices: &Devices) -> Result<(), Failed> {
    devices.qualification();
    let mut cluster = Cluster::on_devices(2, 3, [devices.of_end(0), devices.of_end(1)]);
    check_under_faults(&mut cluster, |cluster| {
        pause();
        cluster.kill_memory(1);
        pause();
        let leader = cluster.leader();
        cluster.kill_process(leader);
    });
    Ok(())
}

/// A process that leads is killed at some time, and a memory node too. The others decide, and the
/// process has decided the same value if it has decided.
pub fn survivors_decide(devices: &Devices) -> Result<(), Failed> {
    devices.qualification();
    let protocol = "protected-memory-paxos";
    let mut memories = [(); 3].map(|()| Some(devices.memory(&["memory", protocol])));
    let at: Vec<_> = memories.iter().flatten().map(|(_, address)| address.clone()).collect();
    let network = OwnNetwork::new();
    let doors = [7101, 7102, 7103].map(|port| format!("{}:{port}", network.address(1))).join(",");
    let (at, clients) = (at.join(","), devices.of_end(0));
    let start = |id: &str, words: &[&str]| {
        let propose = ["propose", protocol, "--id", id, "--processes", &doors, "--memories", &at];
        let mut command = devices.mitra(&[&propose[..], words, &["--device", &clients, "--json"]].concat());
        TestProcess::start(command.stderr(Stdio::piped()))
    };
    let learner = start("2", &[]);
    let killed = start("0", &["red", "--lead"]);
    pause();
    memories[1] = None;
    killed.signal(Signal::SIGKILL);
    let killed = killed.output()?;
    let survivor = start("1", &["green", "--lead"]);
    let decided = |process: TestProcess| -> Result<String, Failed> {
        let output = process.output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout)?;
        Ok(told["decided"].as_str().expect("a value").to_owned())
    };
    let value = decided(survivor)?;
    assert!(["red", "green"].contains(&value.as_str()), "{value}");
    assert_eq!(decided(learner)?, value);
    if let Ok(told) = serde_json::from_slice::<Value>(&killed.stdout) {
        assert_eq!(told["decided"], value.as_str());
    }
    println!("decided {value}");
    Ok(())
}

/// The process that three have elected is killed, and the other two elect one of them.
pub fn survivors_elect(devices: &Devices) -> Result<(), Failed> {
    devices.qualification();
    let (_memory, address) = devices.memory(&["memory", "omega"]);
    let network = OwnNetwork::new();
    let doors = [7101, 7102, 7103].map(|port| format!("{}:{port}", network.address(1))).join(",");
    let clients = devices.of_end(0);
    let mut election = Election::start(|id| {
        let id = id.to_string();
        let elect = ["elect", "--id", &id, "--processes", &doors, "--memory", &address];
        devices.mitra(&[&elect[..], &["--device", &clients, "--json"]].concat())
    });
    let (killed, leader) = election.leaders_before_and_after_a_kill();
    println!("process {leader} leads after the kill of process {killed}");
    Ok(())
}

/// The only program with coordinators is killed while its transactions run. The next one completes
/// or undoes what it has left.
pub fn transactions_are_recovered(devices: &Devices) -> Result<(), Failed> {
    devices.qualification();
    let bank = ["--workload", "smallbank", "--accounts", "200", "--memories", "2"];
    let nodes = ["0", "1"].map(|id| devices.memory(&[&["txn", "memory", "--id", id], &bank[..]].concat()));
    let addresses = nodes.each_ref().map(|(_, address)| address.as_str()).join(",");
    let clients = devices.of_end(0);
    let local = ["txn", "local", "--nodes", &addresses, "--device", &clients];
    let local = [&local[..], &bank].concat();
    let mut command = devices.mitra(&[&local[..], &["--seconds", "3600"]].concat());
    let mut killed = TestProcess::start(command.stderr(Stdio::piped()));
    let mut said = std::io::BufReader::new(killed.stderr.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line)?;
    assert!(line.ends_with("transactions run\n"), "{line}");
    pause();
    killed.signal(Signal::SIGKILL);
    killed.wait();
    let ran = devices.json(&[&local[..], &["--seconds", "2"]].concat());
    println!("{} transactions after the recovery", ran["committed"]);
    assert_eq!((&ran["is_opened"], &ran["check"]["is_clean"]), (&true.into(), &true.into()), "{ran}");
    assert_eq!(ran["total"]["found"], ran["total"]["expected"], "{ran}");
    assert!(ran["committed"].as_u64() > Some(0), "{ran}");
    Ok(())
}
