//! Operations on objects over a bare RC queue pair on one NIC, and over virtual queue pairs on two.

use core::time::Duration;
use std::sync::Arc;

use crate::vqp_pair::{VqpPair, config};
use mitra_objects::{Execution, Operation, PathError, RcSession, ReadWord, VqpSession, Word};
use mitra_sim::Testbed;
use mitra_verbs::{Access, Buffer, CqId, PdId, Provider, QpBuilder, Qpn, RcConnection};

/// Drives an operation over the first end of a pair.
fn run<O: Operation>(
    pair: &mut VqpPair,
    session: &mut VqpSession,
    execution: &mut Execution<O>,
) -> Result<O::Output, PathError> {
    for _ in 0..4_000 {
        if let Some(result) = execution.poll(&mut session.over(&mut pair.vqps[0]))? {
            return Ok(result);
        }
        pair.poll(&[1]);
    }
    panic!("the operation does not end")
}

#[test]
fn operation_runs_over_virtual_queue_pair_and_survives_link_failure() {
    let mut pair = VqpPair::new(2, config());
    let mut session = VqpSession::new(pair.vqps[0].domain(), 0).unwrap();
    let word = Word::new(pair.remote(1, 64)).unwrap();
    pair.memory[1].store(64, 17);
    assert_eq!(run(&mut pair, &mut session, &mut Execution::new(ReadWord(word))), Ok(17));

    let mut read = Execution::new(ReadWord(word));
    assert_eq!(read.poll(&mut session.over(&mut pair.vqps[0])), Ok(None));
    pair.link_down(0, 0);
    assert_eq!(run(&mut pair, &mut session, &mut read), Ok(17));
    assert_eq!(pair.vqps[0].active_rail(), 1);
    assert!(session.take_other_completions().is_empty());
}

#[test]
fn closed_virtual_queue_pair_ends_the_path_and_not_the_operation() {
    let mut pair = VqpPair::new(2, config());
    let mut session = VqpSession::new(pair.vqps[0].domain(), 0).unwrap();
    let word = Word::new(pair.remote(1, 64)).unwrap();
    pair.memory[1].store(64, 5);
    let mut read = Execution::new(ReadWord(word));
    assert_eq!(read.poll(&mut session.over(&mut pair.vqps[0])), Ok(None));
    pair.vqps[0].shutdown();
    let closed = run(&mut pair, &mut session, &mut read);
    assert!(matches!(closed, Err(PathError::Closed(_))), "{closed:?}");

    let mut next = VqpPair::new(2, config());
    next.memory[1].store(64, 6);
    let mut session = VqpSession::new(next.vqps[0].domain(), 0).unwrap();
    read.fenced();
    assert_eq!(run(&mut next, &mut session, &mut read), Ok(6));
}

fn queue_pair(nic: &dyn Provider) -> (PdId, CqId, Qpn) {
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None).unwrap());
    (pd, cq, QpBuilder::rc(pd, cq).build(nic).unwrap())
}

#[test]
fn operation_runs_over_rc_queue_pair_and_goes_on_after_a_fence() {
    let mut testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 1);
    let [a, b] = [0, 1].map(|host: usize| Arc::clone(&testbed.nics[host][0]));
    let connect = || {
        let (qp_a, qp_b) = (queue_pair(&*a), queue_pair(&*b));
        for (nic, qp, peer, peer_qp) in [(&a, qp_a.2, &b, qp_b.2), (&b, qp_b.2, &a, qp_a.2)] {
            let gid = peer.query_port().unwrap().gid;
            let connection = RcConnection {
                local_ack_timeout: mitra_verbs::LocalAckTimeout::from_code(9),
                ..RcConnection::to(gid, peer_qp)
            };
            connection.connect(&**nic, qp).unwrap();
        }
        (qp_a, qp_b)
    };
    let ((pd, cq, qp), (peer_pd, _, peer_qp)) = connect();
    let memory = Arc::new(Buffer::new(64));
    memory.store(8, 9);
    let mr = b.reg_mr(peer_pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    let mut session = RcSession::new(Arc::clone(&a) as Arc<dyn Provider>, pd).unwrap();
    let mut read = Execution::new(ReadWord(Word::new(mr.remote(8)).unwrap()));
    let poll = |testbed: &mut Testbed, session: &mut RcSession, read: &mut Execution<ReadWord>, qp, cq| {
        for _ in 0..4_000 {
            match read.poll(&mut session.over(qp, cq)) {
                Ok(None) => testbed.world.run_for(Duration::from_micros(25)),
                ended => return ended,
            };
        }
        panic!("the operation does not end")
    };
    assert_eq!(poll(&mut testbed, &mut session, &mut read, qp, cq), Ok(Some(9)));

    let mut read = Execution::new(ReadWord(Word::new(mr.remote(8)).unwrap()));
    let nic = testbed.nics[0][0].id();
    testbed.world.set_link(nic, false);
    let lost = poll(&mut testbed, &mut session, &mut read, qp, cq);
    assert!(matches!(lost, Err(PathError::Lost(_))), "{lost:?}");

    // This is the fence: the peer executes nothing more for this queue pair.
    b.destroy_qp(peer_qp).unwrap();
    testbed.world.set_link(nic, true);
    read.fenced();
    memory.store(8, 10);
    let ((pd, cq, qp), (peer_pd, ..)) = connect();
    b.rereg_mr(mr.id, peer_pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    let mut session = RcSession::new(Arc::clone(&a) as Arc<dyn Provider>, pd).unwrap();
    assert_eq!(poll(&mut testbed, &mut session, &mut read, qp, cq), Ok(Some(10)));
}
