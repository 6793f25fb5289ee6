//! A broken or hostile peer process: a plain virtual queue pair in place of a shared backup, whose
//! program sends arbitrary bytes.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{
    BackedQp, BackedQpInfo, CloseReason, Completion, Config, Domain, Outcome, Secret, SharedBackup,
    VirtualMr, VirtualQp,
};
use mitra_sim::{Prng, Testbed, seeds};
use mitra_verbs::{Access, Buffer, Data, Provider, RecvWr, SendOp, SendWr, WcOpcode, WcStatus};

use super::run::config;

/// The kinds of messages in `crates/failover/src/vqp/shared_backup/message.rs`.
const EVIDENCE: u8 = 1;
const RESUMED: u8 = 2;
const OFFERED: u8 = 3;
const CONFIRMED: u8 = 4;
const CLOSED: u8 = 5;
const ASK_GRANT: u8 = 6;
const GRANT: u8 = 7;

/// An honest end on host a, and a peer on host b that is a plain virtual queue pair.
struct World {
    testbed: Testbed,
    backup: Arc<SharedBackup>,
    qps: Vec<BackedQp>,
    completions: Vec<Completion>,
    peer: VirtualQp,
    peer_completions: Vec<Completion>,
    peer_memory: Arc<Buffer>,
    peer_mr: VirtualMr,
}

impl World {
    /// Connects the ends. The peer posts `receives` receives of `len` bytes.
    fn new(members: usize, receives: u64, len: u32) -> World {
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
        let domain = |h: usize| {
            let nics = testbed.nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
            Domain::new(nics).expect("the NICs have the resources of a domain")
        };
        let (domain_a, domain_b) = (domain(0), domain(1));
        let builder = VirtualQp::builder(&domain_a).config(config()).secret(Secret::fixed([2, 77]));
        let backup = SharedBackup::new(builder).expect("the NICs have the resources of a backup");
        let of_peer = Config { rnr_retry: 7, access: Access::LOCAL_WRITE | Access::REMOTE, ..config() };
        let builder = VirtualQp::builder(&domain_b).config(of_peer).secret(Secret::fixed([3, 78]));
        let mut peer = builder.build().expect("a free queue pair");
        backup.connect(&peer.local_info()).expect("the ends match");
        peer.connect(&backup.local_info()).expect("the ends match");
        let peer_memory = Arc::new(Buffer::new(1 << 16));
        let peer_mr = domain_b
            .register(&peer_memory, Access::LOCAL_WRITE | Access::REMOTE)
            .expect("the NICs have a free region");
        for i in 0..receives {
            let wr = RecvWr::new(i, peer_mr.sge(0, len));
            peer.post_recv(wr).expect("the receive queue has room");
        }
        let qps = (0..members).map(|_| backup.queue_pair(config()).expect("a free queue pair")).collect();
        let (completions, peer_completions) = (Vec::new(), Vec::new());
        World { testbed, backup, qps, completions, peer, peer_completions, peer_memory, peer_mr }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.peer_memory.write_at(8192, bytes);
        let data = Data::sge(self.peer_mr.sge(8192, bytes.len() as u32));
        self.peer.post_send(SendWr::new(1, SendOp::Send, data)).expect("room");
        self.poll(8);
    }

    fn poll(&mut self, times: usize) {
        for _ in 0..times {
            self.qps.iter_mut().for_each(|qp| _ = qp.poll(&mut self.completions));
            self.backup.progress();
            self.peer.poll(&mut self.peer_completions);
            self.testbed.world.run_for(Duration::from_micros(25));
        }
    }
}

fn message(slot: u32, instance: u32, kind: u8, body: &[u8]) -> Vec<u8> {
    [&slot.to_le_bytes()[..], &instance.to_le_bytes(), &[kind], body].concat()
}

/// Returns the connection parameters of member `slot` at an end with the `rd_atomic` of [`config`].
fn info(slot: u32) -> BackedQpInfo {
    let rd_atomic = config().rd_atomic;
    let bytes = [&b"MBQ2"[..], &slot.to_le_bytes(), &0_u32.to_le_bytes(), &[rd_atomic, 0]].concat();
    BackedQpInfo::decode(&bytes).expect("the encoding of `BackedQpInfo`")
}

/// Evidence without any source: flags, number of saved results, PSN, log, receives, bytes.
const NO_EVIDENCE: [u8; 25] = [0; 25];

/// Messages for members that do not exist are dropped. The end counts the messages that no honest
/// peer sends in this state.
#[test]
fn messages_that_no_honest_peer_sends_change_nothing() {
    let mut world = World::new(1, 64, 4096);
    world.qps[0].connect(&info(0)).expect("the ends match");
    world.poll(40);
    let epoch = |epoch: u16| epoch.to_le_bytes();
    for (slot, instance) in [(1, 0), (u32::MAX, 0), (0, 1), (0, u32::MAX)] {
        world.send(&message(slot, instance, CLOSED, &[0]));
        world.send(&message(slot, instance, ASK_GRANT, &[1, 0, 0, 0]));
    }
    assert_eq!(
        world.backup.rejected_messages(),
        0,
        "an honest peer may not know yet that a member has closed"
    );
    let rejected = [
        message(0, 0, EVIDENCE, &[&epoch(9)[..], &NO_EVIDENCE].concat()), // an epoch that has not begun
        message(0, 0, RESUMED, &[&epoch(1)[..], &[0; 4]].concat()),       // the current epoch
        message(0, 0, RESUMED, &[&epoch(u16::MAX)[..], &[255; 4]].concat()),
        message(0, 0, OFFERED, &[&epoch(9)[..], &[0], &[1, 0, 0, 0], &[0; 4]].concat()),
        message(0, 0, OFFERED, &[&epoch(1)[..], &[200], &[1, 0, 0, 0], &[0; 4]].concat()), // a rail that is not active
        message(0, 0, CONFIRMED, &epoch(9)),
        message(0, 0, GRANT, &[7, 0, 0, 0, 3]), // no region
        message(0, 0, 99, &[]),
        vec![1, 2, 3],
        vec![0; 4096],
    ];
    for (i, bytes) in rejected.iter().enumerate() {
        world.send(bytes);
        assert_eq!(world.backup.rejected_messages(), i as u64 + 1, "{bytes:?}");
    }
    assert_eq!((world.qps[0].close_reason(), world.backup.close_reason()), (None, None));
    // The members still accept an honest message.
    world.send(&message(0, 0, CLOSED, &[0]));
    world.poll(40);
    assert_eq!(world.qps[0].close_reason(), Some(CloseReason::PeerClosed));
}

/// A queue pair that has closed and was not dropped yet grants no keys, because nothing would
/// revoke them.
#[test]
fn closed_queue_pair_grants_no_key_that_the_peer_asks_for() {
    for is_closed in [false, true] {
        let mut world = World::new(1, 64, 4096);
        let memory = Arc::new(Buffer::new(64));
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = world.qps[0].domain().register(&memory, access).expect("the NICs have a free region");
        world.qps[0].connect(&info(0)).expect("the ends match");
        if is_closed {
            world.qps[0].shutdown();
        }
        world.poll(40);
        let before = world.peer_completions.len();
        world.send(&message(0, 0, ASK_GRANT, &mr.remote().at(0).rkey.0.to_le_bytes()));
        world.poll(40);
        let mut answer = [0; 9];
        world.peer_memory.read_at(0, &mut answer);
        let received = world.peer_completions[before..].iter().filter(|c| c.opcode == WcOpcode::Recv).count();
        match is_closed {
            false => assert_eq!((received, answer[8]), (1, GRANT)),
            true => assert_eq!(received, 0),
        }
    }
}

/// A refusal of a message leaves the members of both ends waiting for each other.
#[test]
fn peer_that_refuses_a_message_ends_the_backup_by_name() {
    let mut world = World::new(1, 64, 1); // receives that are too short
    world.qps[0].connect(&info(0)).expect("the ends match");
    let mr = world.peer_mr.remote();
    world.qps[0].import(&mr).expect("the queue pair is connected");
    world.qps[0].post_send(SendWr::new(7, SendOp::Send, Data::inline(&[1]))).expect("room");
    world.poll(2000);
    let reason = world.qps[0].close_reason();
    assert!(matches!(reason, Some(CloseReason::RequestError | CloseReason::PeerClosed)), "{reason:?}");
    assert_eq!(world.completions.iter().filter(|c| c.wr_id == 7).count(), 1);
    assert!(world.completions.iter().all(|c| !c.is_success()));
}

/// Random bytes, and messages with random fields, in random order.
#[test]
fn random_messages_do_no_harm() {
    for seed in seeds(30) {
        let mut rng = Prng::new(seed);
        let mut world = World::new(3, 64, 4096);
        let memory = Arc::new(Buffer::new(4096));
        for slot in 0..3 {
            world.qps[slot].connect(&info(slot as u32)).expect("the ends match");
        }
        let _region =
            world.qps[0].domain().register(&memory, Access::LOCAL_WRITE | Access::REMOTE).expect("free");
        for _ in 0..40 {
            let mut bytes = Vec::new();
            for _ in 0..rng.between(1, 30) {
                let (slot, instance) = (rng.below(5) as u32, u32::from(rng.below(8) == 0));
                let len = rng.below(40) as usize;
                let mut body: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
                if rng.below(2) == 0 {
                    body.iter_mut().skip(2).for_each(|byte| *byte &= 3);
                    body.iter_mut().take(2).for_each(|byte| *byte = u8::from(*byte & 1 != 0));
                    body.resize(27, 0);
                }
                bytes.extend(message(slot, instance, rng.between(0, 9) as u8, &body));
            }
            bytes.truncate(4096);
            if world.peer.close_reason().is_some() || world.peer.outstanding() > 30 {
                break;
            }
            world.send(&bytes);
        }
        world.poll(100);
        let successes = world.completions.iter().filter(|c| c.outcome == Outcome::Success).count();
        assert_eq!(successes, 0, "seed {seed}: nothing was sent to the members");
        assert!(
            world.completions.iter().all(|c| c.outcome == Outcome::Failed(WcStatus::Flushed)),
            "seed {seed}"
        );
    }
}
