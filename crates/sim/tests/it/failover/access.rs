//! The rights of a peer on the queue pairs of every rail, before, during and after a failover.

use std::sync::Arc;

use crate::vqp_pair::{VqpPair, config};
use mitra_failover::{
    CloseReason, CompletionLogConfig, Config, Domain, Outcome, Secret, UnresolvedError, VirtualQp,
};
use mitra_sim::Testbed;
use mitra_transport::fault::Failure;
use mitra_verbs::{Access, Data, Provider, QpState, SendOp, WcStatus};

/// The number of rounds of polling in which a failover ends and the old rail is rebuilt.
const FAILOVER: usize = 4000;

fn with_access(access: Access) -> Config {
    Config { access, ..config() }
}

fn check_refused(pair: &mut VqpPair) {
    let before = pair.memory[1].load(64);
    pair.send_write(99, 64, before + 1);
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.outcome(0, 99, false), Some(Outcome::Failed(WcStatus::RemoteInvalidRequest)));
    assert_eq!(pair.memory[1].load(64), before);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::RequestError));
}

fn check_read(pair: &mut VqpPair, wr_id: u64) {
    let into = Data::sge(pair.mr[0].sge(512, 8));
    pair.send(0, wr_id, SendOp::Read(pair.remote(1, 0)), into);
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.outcome(0, wr_id, false), Some(Outcome::Success));
}

#[test]
fn missing_right_is_missing_on_every_rail() {
    for failovers in 0..4 {
        let mut pair = VqpPair::new(2, with_access(Access::REMOTE_READ));
        pair.poll_times(&[0, 1], 5);
        for i in 0..failovers {
            check_read(&mut pair, i);
            pair.fail_over(FAILOVER);
        }
        check_read(&mut pair, 50);
        check_refused(&mut pair);
    }
}

#[test]
fn revoked_right_is_revoked_on_every_rail() {
    for failovers in 0..4 {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 5);
        pair.send_write(1, 0, 7);
        pair.poll_times(&[0, 1], 400);
        assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Success));
        pair.vqps[1].set_access(Access::REMOTE_READ).expect("the NICs are alive");
        for _ in 0..failovers {
            pair.fail_over(FAILOVER);
        }
        check_read(&mut pair, 50);
        check_refused(&mut pair);
    }
}

/// The program revokes the right after `rounds` rounds of a move, for each number of rounds. A
/// WRITE that is posted after the revocation is refused.
#[test]
fn right_that_is_revoked_during_a_move_is_revoked_on_the_new_rail() {
    for rounds in 0..60 {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 5);
        pair.link_down(0, 0);
        pair.poll_times(&[0, 1], rounds);
        pair.vqps[1].set_access(Access::REMOTE_READ).expect("the NICs are alive");
        let before = pair.memory[1].load(64);
        pair.send_write(1, 64, 7);
        pair.poll_times(&[0, 1], FAILOVER);
        assert_eq!(
            pair.outcome(0, 1, false),
            Some(Outcome::Failed(WcStatus::RemoteInvalidRequest)),
            "{rounds}"
        );
        assert_eq!(pair.memory[1].load(64), before);
    }
}

/// An end may execute atomics at its peer, but no WRITEs. So it writes no completion log there.
#[test]
fn atomics_without_the_right_to_write_are_executed_once_with_a_log() {
    const ATOMICS: u64 = 12;
    for rounds in 0..40 {
        let config = Config {
            completion_log: Some(CompletionLogConfig::default()),
            ..with_access(Access::REMOTE_ATOMIC)
        };
        let mut pair = VqpPair::new(2, config);
        pair.poll_times(&[0, 1], 5);
        for i in 0..ATOMICS {
            let into = Data::sge(pair.mr[0].sge(8 * i, 8));
            pair.send(0, i, SendOp::FetchAdd { remote: pair.remote(1, 0), add: 1 }, into);
        }
        pair.poll_times(&[0, 1], rounds);
        pair.link_down(0, 0);
        pair.poll_times(&[0, 1], FAILOVER);
        for i in 0..ATOMICS {
            assert_eq!(pair.outcome(0, i, false), Some(Outcome::Success), "{i} after {rounds} rounds");
            assert_eq!(pair.memory[0].load(8 * i as usize), i);
        }
        assert_eq!(pair.memory[1].load(0), ATOMICS);
        check_refused(&mut pair);
    }
}

/// End 1's NIC executes the atomic, and refuses the log entry that end 0 writes after it. End 0
/// must not report the atomic as flushed, which would mean "not executed".
#[test]
fn atomic_with_a_log_fails_when_the_right_to_write_is_taken_away() {
    let mut pair =
        VqpPair::new(2, Config { completion_log: Some(CompletionLogConfig::default()), ..config() });
    pair.poll_times(&[0, 1], 5);
    pair.vqps[1].set_access(Access::REMOTE_ATOMIC).expect("the NICs are alive");
    let into = Data::sge(pair.mr[0].sge(0, 8));
    pair.send(0, 1, SendOp::FetchAdd { remote: pair.remote(1, 0), add: 1 }, into);
    pair.poll_times(&[0, 1], FAILOVER);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::RequestError));
    assert_eq!(pair.memory[1].load(0), 1, "the NIC has executed the atomic");
    let outcome = pair.outcome(0, 1, false).expect("the atomic has ended");
    assert_ne!(outcome, Outcome::Failed(WcStatus::Flushed));
    assert_eq!(
        pair.vqps.each_ref().map(|vqp| vqp.active_rail()),
        [0; 2],
        "a refusal is no failure of the rail"
    );
}

#[test]
fn memory_of_another_domain_is_refused_on_every_rail() {
    for failovers in 0..3 {
        for is_local in [false, true] {
            let mut pair = VqpPair::new(2, config());
            let end = usize::from(!is_local);
            let other = pair.vqps[end].domain().with_own_pds().expect("the NICs have room");
            let mr =
                other.register(&pair.memory[end], crate::vqp_pair::FULL_ACCESS).expect("the NICs have room");
            pair.vqps[0].import(&mr.remote()).expect("the vQP is connected");
            pair.poll_times(&[0, 1], 5);
            for _ in 0..failovers {
                pair.fail_over(FAILOVER);
            }
            pair.memory[0].store(0, 7);
            let (status, op, data) = if is_local {
                (WcStatus::LocalProtection, SendOp::Write(pair.remote(1, 0)), Data::sge(mr.sge(0, 8)))
            } else {
                (WcStatus::RemoteAccess, SendOp::Write(mr.remote().at(0)), Data::sge(pair.mr[0].sge(0, 8)))
            };
            pair.send(0, 1, op, data);
            pair.poll_times(&[0, 1], 400);
            assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Failed(status)));
            assert_eq!(pair.memory[1].load(0), 0);
        }
    }
}

/// A queue pair in RTR keeps its rights until it enters RTS.
#[test]
fn right_that_is_revoked_in_rtr_is_revoked_in_rts() {
    let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let mut ends = [0, 1].map(|i: usize| {
        let nics = testbed.nics[i].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let domain = Domain::new(nics).expect("the NICs have room");
        let secret = Secret::fixed([i as u64 + 1, 7]);
        VirtualQp::builder(&domain).config(config()).secret(secret).build().expect("the NICs have room")
    });
    let infos = ends.each_ref().map(|end| end.local_info());
    let min_rnr_timer = config().min_rnr_timer;
    for i in 0..2 {
        ends[i].modify_to_rtr(&infos[1 - i], min_rnr_timer).expect("the ends match");
    }
    ends[1].set_access(Access::REMOTE_READ).expect("the NICs are alive");
    ends.iter_mut().for_each(|end| end.modify_to_rts(7).expect("the NICs are alive"));
    let first_rail = testbed.nics[1][0].query_qp(ends[1].qpn()).expect("the NIC is alive");
    assert_eq!((first_rail.state, first_rail.attr.access), (QpState::Rts, Some(Access::REMOTE_READ)));
}

/// A hung NIC still executes requests. A change of the rights resets the NIC.
#[test]
fn hung_nic_does_not_grant_revoked_right() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 5);
    let nic = pair.testbed.nics[1][0].id();
    pair.testbed.world.fail(nic, Failure::NicHung);
    pair.vqps[1].set_access(Access::REMOTE_READ).expect("the NIC can be reset");
    pair.send_write(1, 64, 7);
    pair.poll_times(&[0], 400);
    assert_eq!(pair.memory[1].load(64), 0);
    // The reset has destroyed the evidence.
    pair.poll_times(&[0, 1], FAILOVER);
    let indeterminate = Outcome::Unresolved(UnresolvedError::Indeterminate);
    assert_eq!((pair.outcome(0, 1, false), pair.memory[1].load(64)), (Some(indeterminate), 0));
    pair.vqps[0].resume();
    check_refused(&mut pair);
}
