//! Programs that connect by `rdma_cm`: one with Mitra's connection manager and NIC, the other with
//! the kernel's.

use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use mitra_test_process::{TestProcess, command, output};

use super::{KERNEL_IP, MITRA_IP};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/connection-manager-of-mitra-connects", mitra_connects),
    ("mitra/connection-manager-of-the-kernel-connects", kernel_connects),
    ("mitra/connection-manager-of-the-kernel-rejects", kernel_rejects),
];

/// The number of messages that rping exchanges, each by READ, WRITE and SEND.
const ROUNDS: &str = "5";

/// A program in the namespace of this process, under Mitra.
fn under_mitra(program: &[&str]) -> Command {
    let mut mitra = command(env!("CARGO_BIN_EXE_mitra"));
    mitra.args(["run", "--rails", MITRA_IP, "--"]).args(program);
    mitra
}

/// A program in the first namespace, which has the kernel's devices.
fn under_the_kernel(program: &[&str]) -> Command {
    let mut nsenter = command("nsenter");
    nsenter.args(["--target", "1", "--net"]).args(program);
    nsenter
}

fn exchange(start: fn(&[&str]) -> Command, server_ip: &str, connect: fn(&[&str]) -> Command) -> Result<()> {
    let rounds = ["-v", "-V", "-C", ROUNDS, "-a", server_ip];
    let mut server = start(&[&["rping", "-s"], &rounds[..]].concat());
    let server = TestProcess::start(server.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let started = Instant::now();
    // The client is rejected until the server listens.
    let client = loop {
        let client = output(&mut connect(&[&["rping", "-c"], &rounds[..]].concat()));
        if client.status.success() || started.elapsed() > Duration::from_secs(60) {
            break client;
        }
        thread::sleep(Duration::from_millis(500));
    };
    let pings = count_pings(&client);
    ensure!(client.status.success() && pings == 5, "the client: {pings} messages, {client:?}");
    let server = server.output().context("the server")?;
    let pings = count_pings(&server);
    ensure!(pings == 5, "the server: {pings} messages, {server:?}");
    Ok(())
}

fn count_pings(output: &Output) -> usize {
    String::from_utf8_lossy(&output.stdout).matches("ping data: rdma-ping-").count()
}

fn mitra_connects() -> Result<()> {
    exchange(under_the_kernel, KERNEL_IP, under_mitra)
}

fn kernel_connects() -> Result<()> {
    exchange(under_mitra, MITRA_IP, under_the_kernel)
}

fn kernel_rejects() -> Result<()> {
    let client = output(&mut under_mitra(&["rping", "-c", "-a", KERNEL_IP, "-p", "7999", "-C", "1"]));
    let text = String::from_utf8_lossy(&client.stderr);
    ensure!(text.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{client:?}");
    Ok(())
}
