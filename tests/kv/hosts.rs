//! Hosts, each a network namespace with a cable to a router. The router is where the test runs, so that it reaches all hosts; it can be told
//! to lose what one host sends to another.

use std::fs::File;
use std::net::Ipv4Addr;
use std::process::{Child, Command};

use nix::sched::{CloneFlags, setns, unshare};

use crate::network;

/// Says to the program of a test that it runs inside.
const INSIDE: &str = "MITRA_TEST_ROUTER";

/// Plays a part of the test of this name in a network of its own, at its router.
pub fn at_a_router(test: &str, play: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return play();
    }
    let mut inside = network::of_its_own();
    inside.arg(std::env::current_exe().expect("this program")).args([test, "--exact", "--nocapture"]);
    let output = inside.env(INSIDE, "yes").output().expect("timeout(1) runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // A name that is no test's would pass as well.
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{}\n{said}\n{errors}", output.status);
}

/// Hosts around a router, by their numbers.
pub struct Hosts {
    namespaces: Vec<File>,
    cuts: Vec<(usize, usize)>,
}

/// Where a host is.
pub fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, host as u8, 2)
}

/// Runs ip(8).
fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip(8) runs");
    assert!(status.success(), "ip {arguments}: {status}");
}

/// Does something in a thread of its own.
fn aside<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(act).join().expect("it does not panic"))
}

impl Hosts {
    /// So many of them.
    pub fn new(hosts: usize) -> Hosts {
        ip("link set lo up");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("the router's own");
        let mut all = Hosts { namespaces: Vec::new(), cuts: Vec::new() };
        for host in 0..hosts {
            // A thread's namespace lives for as long as it is open somewhere.
            let namespace = aside(|| {
                unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
                File::open("/proc/thread-self/ns/net").expect("its file")
            });
            let fd = std::os::fd::AsRawFd::as_raw_fd(&namespace);
            let file = format!("/proc/{}/fd/{fd}", std::process::id());
            all.namespaces.push(namespace);
            ip(&format!("link add host{host} type veth peer name cable netns {file}"));
            ip(&format!("address add 10.0.{host}.1/24 dev host{host}"));
            ip(&format!("link set host{host} up"));
            all.inside(host, || {
                ip(&format!("address add {}/24 dev cable", address(host)));
                ip("link set lo up");
                ip("link set cable up");
                ip(&format!("route add default via 10.0.{host}.1"));
            });
        }
        all
    }

    fn inside<T: Send>(&self, host: usize, act: impl FnOnce() -> T + Send) -> T {
        aside(|| {
            setns(&self.namespaces[host], CloneFlags::CLONE_NEWNET).expect("a namespace");
            act()
        })
    }

    /// Starts a program on a host.
    pub fn spawn(&self, host: usize, mut command: Command) -> std::io::Result<Child> {
        self.inside(host, || command.spawn())
    }

    /// From now on the router loses what a host sends to another.
    pub fn cut(&mut self, from: usize, to: usize) {
        ip(&format!("rule add from {} to {} blackhole", address(from), address(to)));
        self.cuts.push((from, to));
    }

    /// The router loses nothing any more.
    pub fn heal(&mut self) {
        for (from, to) in self.cuts.drain(..) {
            ip(&format!("rule del from {} to {} blackhole", address(from), address(to)));
        }
    }
}
