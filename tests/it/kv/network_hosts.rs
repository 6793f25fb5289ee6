//! Hosts, each a network namespace with a link to a router. The test runs at the router, so it
//! reaches all hosts. The router drops packets from one host to another on request.

use std::fs::File;
use std::net::Ipv4Addr;
use std::process::Command;

use mitra_test_process::{command, command_in_new_namespace, output, run_test_under};
use nix::sched::{CloneFlags, setns, unshare};

/// Tells the test program that it runs inside the router's namespace.
const INSIDE: &str = "MITRA_TEST_ROUTER";

/// Runs `body`, the body of the test `test`, in a new network namespace, which is the router's.
pub fn run_at_router(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    run_test_under(command_in_new_namespace().env(INSIDE, "yes"), test);
}

/// Hosts around a router, numbered from 0.
pub struct NetworkHosts {
    namespaces: Vec<File>,
    /// Pairs (from, to) whose packets the router drops.
    cuts: Vec<(usize, usize)>,
}

pub fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, host as u8, 2)
}

fn ip(arguments: &str) {
    let output = output(command("ip").args(arguments.split(' ')));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {}: {errors}", output.status);
}

/// Returns a path at which other processes find the open file.
fn path(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(namespace))
}

/// Runs `f` in a new thread. A thread has a network namespace of its own.
fn in_new_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(f).join().expect("the thread does not panic"))
}

impl NetworkHosts {
    pub fn new(count: usize) -> NetworkHosts {
        ip("link set lo up");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("the namespace is this test's");
        let mut hosts = NetworkHosts { namespaces: Vec::new(), cuts: Vec::new() };
        for host in 0..count {
            // The open file keeps the namespace alive after its thread has ended.
            let namespace = in_new_thread(|| {
                unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
                File::open("/proc/thread-self/ns/net").expect("the namespace's file")
            });
            let file = path(&namespace);
            hosts.namespaces.push(namespace);
            ip(&format!("link add host{host} type veth peer name cable netns {file}"));
            ip(&format!("address add 10.0.{host}.1/24 dev host{host}"));
            ip(&format!("link set host{host} up"));
            hosts.run_on(host, || {
                ip(&format!("address add {}/24 dev cable", address(host)));
                ip("link set lo up");
                ip("link set cable up");
                ip(&format!("route add default via 10.0.{host}.1"));
            });
        }
        hosts
    }

    fn run_on<T: Send>(&self, host: usize, f: impl FnOnce() -> T + Send) -> T {
        in_new_thread(|| {
            setns(&self.namespaces[host], CloneFlags::CLONE_NEWNET).expect("the host's namespace");
            f()
        })
    }

    /// Returns a command that runs a program on a host.
    pub fn command(&self, host: usize, program: &str) -> Command {
        // A thread in the host's namespace would have to live as long as the program that it
        // starts.
        let mut command = command("nsenter");
        command.arg(format!("--net={}", path(&self.namespaces[host]))).args(["--", program]);
        command
    }

    /// Makes the router drop all packets from one host to another.
    pub fn cut(&mut self, from: usize, to: usize) {
        ip(&format!("rule add from {} to {} blackhole", address(from), address(to)));
        self.cuts.push((from, to));
    }

    /// Makes the router forward all packets again.
    pub fn heal(&mut self) {
        for (from, to) in self.cuts.drain(..) {
            ip(&format!("rule del from {} to {} blackhole", address(from), address(to)));
        }
    }
}
