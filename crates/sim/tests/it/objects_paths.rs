//! Operations on objects over a bare RC queue pair on one NIC, and over virtual queue pairs on two.

use core::time::Duration;
use std::sync::Arc;

use crate::vqp_pair::config;
use mitra_driver::{Connection, QpKind};
use mitra_failover::{Domain, VirtualMr};
use mitra_objects::{Execution, Operation, PathError, ReadWord, STAGING_BYTES, Word};
use mitra_sim::Testbed;
use mitra_verbs::{Access, Buffer, Provider};

/// A path to memory that the peer lends.
struct Paths {
    testbed: Testbed,
    domains: [Arc<Domain>; 2],
    memory: Arc<Buffer>,
    mr: VirtualMr,
    path: Connection,
    peer: Connection,
}

impl Paths {
    fn new(kind: QpKind, rails: u8) -> Paths {
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), rails);
        let domains = [0, 1].map(|host: usize| {
            let nics = testbed.nics[host].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>);
            Domain::new(nics.collect()).expect("the NICs have the resources of a domain")
        });
        let memory = Arc::new(Buffer::new(64));
        let mr = domains[1].register(&memory, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let [path, peer] = connect(&domains, &mr, kind);
        Paths { testbed, domains, memory, mr, path, peer }
    }

    /// Fences the path and makes another. The peer executes nothing more for the old queue pair.
    fn fence(&mut self, kind: QpKind) {
        self.peer.close().unwrap();
        [self.path, self.peer] = connect(&self.domains, &self.mr, kind);
    }

    /// Drives an operation to its end or to the end of the path.
    fn run<O: Operation>(&mut self, execution: &mut Execution<O>) -> Result<O::Output, PathError> {
        for _ in 0..4_000 {
            if let Some(result) = execution.poll(&mut self.path)? {
                return Ok(result);
            }
            let _ = self.peer.poll(|_| ());
            self.testbed.world.run_for(Duration::from_micros(25));
        }
        panic!("the operation does not end")
    }

    fn read(&self) -> Execution<ReadWord> {
        Execution::new(ReadWord(Word::new(self.mr.remote().at(8)).unwrap()))
    }

    fn set_link(&mut self, is_up: bool) {
        let nic = self.testbed.nics[0][0].id();
        self.testbed.world.set_link(nic, is_up);
    }
}

fn connect(domains: &[Arc<Domain>; 2], mr: &VirtualMr, kind: QpKind) -> [Connection; 2] {
    let [mut near, mut peer] = domains
        .each_ref()
        .map(|domain| Connection::new(domain, kind, &config(), STAGING_BYTES).expect("a free queue pair"));
    assert_eq!(near.connect(&peer.info().unwrap()), Ok(true));
    assert_eq!(peer.connect(&near.info().unwrap()), Ok(true));
    near.import(&mr.remote()).unwrap();
    [near, peer]
}

#[test]
fn operation_runs_over_virtual_queue_pair_and_survives_link_failure() {
    let mut paths = Paths::new(QpKind::Virtual, 2);
    paths.memory.store(8, 17);
    let mut read = paths.read();
    assert_eq!(paths.run(&mut read), Ok(17));

    let mut read = paths.read();
    assert_eq!(read.poll(&mut paths.path), Ok(None));
    paths.set_link(false);
    assert_eq!(paths.run(&mut read), Ok(17));
    assert_eq!(paths.path.vqp().map(|vqp| vqp.active_rail()), Some(1));
}

#[test]
fn closed_virtual_queue_pair_ends_the_path_and_not_the_operation() {
    let mut paths = Paths::new(QpKind::Virtual, 2);
    paths.memory.store(8, 5);
    let mut read = paths.read();
    assert_eq!(read.poll(&mut paths.path), Ok(None));
    paths.path.close().unwrap();
    let closed = paths.run(&mut read);
    assert!(matches!(closed, Err(PathError::Closed(_))), "{closed:?}");

    paths.fence(QpKind::Virtual);
    paths.memory.store(8, 6);
    read.fenced();
    assert_eq!(paths.run(&mut read), Ok(6));
}

#[test]
fn operation_runs_over_rc_queue_pair_and_goes_on_after_a_fence() {
    let mut paths = Paths::new(QpKind::Rc, 1);
    paths.memory.store(8, 9);
    let mut read = paths.read();
    assert_eq!(paths.run(&mut read), Ok(9));

    let mut read = paths.read();
    paths.set_link(false);
    let lost = paths.run(&mut read);
    assert!(matches!(lost, Err(PathError::Lost(_))), "{lost:?}");

    paths.set_link(true);
    paths.fence(QpKind::Rc);
    paths.memory.store(8, 10);
    read.fenced();
    assert_eq!(paths.run(&mut read), Ok(10));
}
