//! The command `mitra devices`.

use std::net::UdpSocket;
use std::process::Output;

use mitra_test_process::{OwnNetwork, command, command_in_new_namespace, output};
use serde_json::Value;

fn devices(flags: &[&str]) -> Output {
    output(command(env!("CARGO_BIN_EXE_mitra")).arg("devices").args(flags))
}

#[test]
fn json_has_documented_fields() {
    let output = devices(&["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let limit = |name: &str| {
        let limits = report["soft"]["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["name"] == name).and_then(|limit| limit["value"].as_u64())
    };
    assert!(limit("qps").is_some_and(|qps| qps >= 1000));
    assert!(limit("rd_atomic").is_some());
    assert!(report["soft"]["mtu"].as_u64().is_some_and(|mtu| mtu >= 256));
    assert!(report["soft"]["send_window"].as_u64().is_some_and(|bytes| bytes > 0));
    let addresses = report["addresses"].as_array().unwrap();
    assert!(
        addresses.iter().any(|address| address["address"] == "127.0.0.0/8" && address["refused"].is_null())
    );
    assert!(report["offload"]["gso"].is_boolean() && report["offload"]["gro"].is_boolean());
    assert!(report["hardware"].is_array());
    assert!(report["hints"].as_array().is_some_and(|hints| !hints.is_empty()));
}

#[test]
fn text_lists_devices_and_missing_features() {
    let output = devices(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Software NICs: yes"), "{text}");
    assert!(text.contains("Limitations"), "{text}");
}

#[test]
fn holder_of_roce_port_is_named() {
    let network = OwnNetwork::new();
    let address = network.address(1);
    let socket = UdpSocket::bind((address, 4791)).unwrap();
    let text = String::from_utf8(devices(&[]).stdout).unwrap();
    let line = text.lines().find(|line| line.contains(&address.to_string())).expect("the address");
    assert!(line.contains(&format!("process {}", std::process::id())), "{line}");
    drop(socket);
}

/// The loopback interface of a new network namespace is down.
#[test]
fn loopback_interface_that_is_down_is_named() {
    for arguments in
        [&["devices"][..], &["run", "--", "ibv_devinfo"], &["run", "--rails", "2", "--", "ibv_devinfo"]]
    {
        let mut command = command_in_new_namespace();
        let output = output(command.arg(env!("CARGO_BIN_EXE_mitra")).args(arguments));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}: {said}");
        let named = said.matches("bring the loopback interface up (`ip link set lo up`)").count();
        assert_eq!(named, 1, "{arguments:?}: {said}");
    }
}

#[test]
fn bad_flag_is_named() {
    let output = devices(&["--jsn"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--jsn"));
}

/// A software NIC keeps what failover needs of the PSN. On the other kind it cannot be read, as on
/// much hardware.
#[test]
fn qualification_tells_a_readable_psn_from_none() {
    let output = devices(&["--qualify", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nics = report["nics"].as_array().unwrap();
    let names: Vec<_> = nics.iter().map(|nic| nic["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["soft", "minimal"]);
    let [soft, minimal] = [&nics[0], &nics[1]];
    assert_eq!((&soft["verdict"], &soft["psn_is_evidence"]), (&"psn-exact".into(), &true.into()), "{soft}");
    assert_eq!(soft["probe"]["passed"], true);
    assert_eq!((&soft["writes"]["cut_off"], &soft["atomics"]["cut_off"]), (&60.into(), &20.into()), "{soft}");
    let verdict = (&minimal["verdict"], &minimal["psn_is_evidence"]);
    assert_eq!(verdict, (&"records-only".into(), &false.into()), "{minimal}");
    assert_eq!(minimal["probe"]["states_are_true"], true);
    assert!(
        minimal["probe"]["findings"][0].as_str().is_some_and(|text| text.contains("rq_psn")),
        "{minimal}"
    );
}

#[test]
fn qualification_of_one_nic_prints_a_table() {
    let output = devices(&["--qualify", "--device", "minimal"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("minimal: log and receiver record only") && !text.contains("soft"), "{text}");
}

#[test]
fn unknown_nic_is_refused_by_name() {
    // On most machines the error is that of the library or of a machine without devices.
    let output = devices(&["--qualify", "--device", "none0"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("mitra: cannot open the NIC none0: "), "{said}");
    let output = devices(&["--qualify", "--device", "soft,../none"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("expected soft, minimal or the name of an RDMA device"), "{said}");
}
