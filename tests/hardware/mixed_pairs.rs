//! A device of the kernel at one end of each rail, and a software NIC at the other.

use std::fs;
use std::process::Command;

use libtest_mimic::Failed;
use mitra_test_process::{TestProcess, command, output};
use nix::unistd::geteuid;

use crate::{Devices, started_memory};

/// The namespace of the software NICs: soft-RoCE takes RoCE's port of its own namespace.
const NAMESPACE: &str = "mitra-mixed";
/// Where the memory node listens.
const DOOR: &str = "10.78.0.2:7001";

/// The links of the test, while the value lives.
struct Links;

fn run(line: &str) -> Result<(), Failed> {
    let mut words = line.split(' ');
    let output = output(command(words.next().unwrap_or_default()).args(words));
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{line}: {said}").into()) }
}

impl Links {
    /// Makes two links into a namespace. The near end of each has a soft-RoCE device, `mix0` and
    /// `mix1`.
    fn new() -> Result<Links, Failed> {
        let links = Links;
        run(&format!("ip netns add {NAMESPACE}"))?;
        run(&format!("ip -n {NAMESPACE} link set lo up"))?;
        for k in 0..2 {
            run(&format!("ip link add m{k}a mtu 4200 type veth peer name m{k}b mtu 4200 netns {NAMESPACE}"))?;
            run(&format!("ip addr add 10.78.{k}.1/24 dev m{k}a"))?;
            run(&format!("ip link set m{k}a up"))?;
            run(&format!("ip -n {NAMESPACE} addr add 10.78.{k}.2/24 dev m{k}b"))?;
            run(&format!("ip -n {NAMESPACE} link set m{k}b up"))?;
            run(&format!("rdma link add mix{k} type rxe netdev m{k}a"))?;
        }
        Ok(links)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for line in
            ["rdma link delete mix0", "rdma link delete mix1", "ip link delete m0a", "ip link delete m1a"]
        {
            let _ = run(line);
        }
        let _ = run(&format!("ip netns delete {NAMESPACE}"));
    }
}

fn in_namespace(program: &Command) -> Command {
    let mut command = command("ip");
    command.args(["netns", "exec", NAMESPACE]).arg(program.get_program()).args(program.get_args());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// The memory node has software NICs, and the process of the store has devices.
pub fn store_over_software_nics_and_devices(devices: &Devices) -> Result<(), Failed> {
    if !devices.are_rxe() || !geteuid().is_root() {
        println!("needs root in the emulated machine, to make links");
        return Ok(());
    }
    devices.qualification();
    let _links = Links::new()?;
    let secret = devices.directory.path().join("secret");
    fs::write(&secret, "the test's secret")?;
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let secret = secret.to_str().expect("UTF-8");
    let sizes = ["--processes", "1", "--memories", "1", "--secret", secret];
    let memory = ["memory", "kv", "--listen", DOOR, "--rails", "10.78.0.2,10.78.1.2"];
    let memory = devices.mitra(&[&memory[..], &sizes].concat());
    let (_memory, address) = started_memory(&mut in_namespace(&memory));
    let (door, clients) = ("127.0.0.1:7199", "127.0.0.1:6499");
    let serve =
        ["kv", "serve", "--id", "0", "--processes", door, "--clients", clients, "--memories", &address];
    let serve = [&serve[..], &["--device", "mix0,mix1", "--secret", secret]].concat();
    let _server = TestProcess::start(&mut devices.mitra(&serve));
    let put = devices.json(&["kv", "put", "--servers", clients, "colour", "blue"]);
    assert_eq!(put["stored"], true, "{put}");
    // The rail of the first operations is lost, and the other one serves.
    run("ip link set m0a down")?;
    let swap = devices.json(&["kv", "cas", "--servers", clients, "colour", "blue", "green"]);
    assert_eq!(swap["swapped"], true, "{swap}");
    Ok(())
}
