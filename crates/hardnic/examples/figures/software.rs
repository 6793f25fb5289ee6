//! Mitra's software NIC between two network namespaces, beside the kernel's soft-RoCE on a link of
//! the same kind. One thread drives both ends, as the kernel mostly does with soft-RoCE: a second
//! busy thread of a machine whose processors are emulated would measure the host's scheduler.

use std::fs::File;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use mitra_softnic::{Config, Links, SoftNic};
use mitra_verbs::Provider;
use nix::sched::{CloneFlags, setns};

use crate::devices::Devices;
use crate::rails::Ends;
use crate::requester::{Kind, RawEnd, Requester, Result, block};
use crate::rows::Rows;

const ROUNDS: usize = 25;

/// Makes a link between two new network namespaces, like those of the machine's devices.
const LINK: &[&str] = &[
    "netns add soft0",
    "netns add soft1",
    "link add s0 mtu 4200 netns soft0 address 02:78:00:00:00:01 type veth peer name s1 mtu 4200 netns soft1 address 02:78:00:00:00:02",
    "-n soft0 addr add 10.78.0.1/24 dev s0",
    "-n soft1 addr add 10.78.0.2/24 dev s1",
    "-n soft0 link set s0 up",
    "-n soft1 link set s1 up",
    "-n soft0 neigh replace 10.78.0.2 lladdr 02:78:00:00:00:02 dev s0",
    "-n soft1 neigh replace 10.78.0.1 lladdr 02:78:00:00:00:01 dev s1",
];

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Opens a NIC in a network namespace. Its sockets and threads stay in the namespace.
fn open(namespace: &'static str, address: [u8; 4]) -> Result<Arc<dyn Provider>> {
    let opened = thread::spawn(move || -> std::result::Result<Arc<SoftNic>, String> {
        let namespace = File::open(format!("/run/netns/{namespace}")).map_err(|error| error.to_string())?;
        setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string())?;
        let config = Config { links: Links::Udp, ..Config::at(IpAddr::from(address)) };
        SoftNic::open(config).map_err(|error| error.to_string())
    });
    let nic: Arc<SoftNic> = opened.join().map_err(|_| "the NIC could not be opened")??;
    Ok(nic)
}

/// Both ends of a connection of software NICs, whose responder works when its program polls.
struct SoftPair([RawEnd; 2]);

impl Requester for SoftPair {
    fn post(&mut self, kind: Kind) -> Result<()> {
        self.0[0].post(kind)
    }

    fn poll(&mut self) -> Result<usize> {
        self.0[1].poll()?;
        self.0[0].poll()
    }
}

pub fn measure(devices: &Devices, rows: &mut Rows) -> Result<()> {
    LINK.iter().try_for_each(|command| ip(command))?;
    let ends = Ends::open(devices.rails(), devices.store(), |nic| nic as Arc<dyn Provider>);
    let kernel = || RawEnd::pair([0, 1].map(|k| Arc::clone(&ends.nics[k]) as Arc<dyn Provider>));
    let ([mut rxe, _rxe_far], [mut aa, _aa_far]) = (kernel()?, kernel()?);
    let nics = [open("soft0", [10, 78, 0, 1])?, open("soft1", [10, 78, 0, 2])?];
    let mut soft = SoftPair(RawEnd::pair(nics)?);
    for kind in Kind::ALL {
        let mut variants: [(&str, &mut dyn Requester); 3] =
            [("rxe", &mut rxe), ("aa", &mut aa), ("mitra", &mut soft)];
        let count = if kind == Kind::Write64K { 32 } else { 100 };
        let mut blocks = variants.each_ref().map(|(name, _)| (*name, Vec::new()));
        for round in 0..=ROUNDS {
            for ((_, requester), (_, blocks)) in variants.iter_mut().zip(&mut blocks) {
                let value = block(*requester, kind, count)?;
                // The first round warms up.
                if round > 0 {
                    blocks.push(value);
                }
            }
        }
        rows.add_variants(&format!("software/{}", kind.name()), kind.unit(), &blocks);
    }
    Ok(())
}
