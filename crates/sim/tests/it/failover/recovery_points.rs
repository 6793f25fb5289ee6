//! A second failure at every point of a recovery: at each call by which an end changes or queries
//! its NICs, and at each control message.

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::rail_negotiation::MessageKind;
use mitra_failover::{Config, VirtualQp};
use mitra_sim::workload::{
    Endpoint, FailoverEndpoint, OpKind, Plan, WorkloadPeer, check_liveness, connect_vqp, verify,
};
use mitra_sim::{AppContext, Failure, NicId, PacketFate, PacketKind, Testbed, World, reproduce_command};
use mitra_verbs::{LocalAckTimeout, Provider};

const MS: Duration = Duration::from_millis(1);
/// The instant at which the link of rail 0 goes down, while operations are in flight.
const FIRST_FAILURE: Duration = Duration::from_micros(12);
/// The last rail never fails.
const RAILS: u8 = 3;

/// Runs two ends whose rail 0 fails, with the faults that `arm` places when rail 0 fails. Returns
/// whether all these faults happened.
fn run(label: &str, arm: impl FnOnce(&mut World, [Vec<NicId>; 2]) + 'static) -> bool {
    let mut testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), RAILS);
    let mut config = Config { peer_timeout: 500 * MS, ..Config::default() };
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(6);
    let mut plans = [Plan::new(1, 60), Plan::new(2, 60)];
    for (plan, tag) in plans.iter_mut().zip(1..) {
        (plan.tag, plan.by_word, plan.imm_by_word) = (tag, true, true);
        plan.mix[OpKind::Block as usize] += 2;
    }
    let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
    let providers =
        testbed.nics.each_ref().map(|nics| nics.iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect());
    let ends = connect_vqp(providers, peers.each_mut(), config, 1).expect("a vQP");
    let peers = peers.map(|peer| Rc::new(RefCell::new(peer)));
    let ends: [Rc<RefCell<FailoverEndpoint<VirtualQp>>>; 2] = ends.map(|end| Rc::new(RefCell::new(end)));
    let stop = Rc::new(Cell::new(false));
    for h in 0..2 {
        let (peer, end, stop) = (Rc::clone(&peers[h]), Rc::clone(&ends[h]), Rc::clone(&stop));
        testbed.world.add_app(testbed.hosts[h], move |ctx: &mut AppContext<'_>| {
            if stop.get() {
                ctx.exit();
            } else if peer.borrow_mut().step(&mut *end.borrow_mut()) {
                ctx.mark_active();
            }
        });
    }
    let nics = testbed.nics.each_ref().map(|nics| nics.iter().map(|nic| nic.id()).collect::<Vec<_>>());
    testbed.world.after(FIRST_FAILURE, move |world| {
        world.set_link(nics[0][0], false);
        arm(world, nics);
    });
    let done = |_: &World| peers.iter().all(|peer| peer.borrow().is_done());
    let ended = testbed.world.run_until(done, Duration::from_secs(5));
    assert!(ended.is_ok(), "{label}: {}", ended.unwrap_err());
    {
        let [a, b] = ends.each_ref().map(|end| end.borrow());
        let alive = check_liveness(&testbed.world, testbed.hosts, [&a.qp, &b.qp]);
        assert_eq!(alive, Ok(true), "{label}");
    }
    testbed.world.run_for(2 * MS);
    let happened = testbed.world.placed_faults_happened();
    stop.set(true);
    testbed.world.run_for(20 * MS);
    peers.iter().for_each(|peer| peer.borrow_mut().sweep());
    let [a, b] = peers.each_ref().map(|peer| peer.borrow());
    for verdict in [
        verify(&plans[0], a.requester_log(), b.responder_log()),
        verify(&plans[1], b.requester_log(), a.responder_log()),
    ] {
        assert!(verdict.is_exact(), "{label}\n{verdict}\n{}", reproduce_command(1));
        // The evidence of every operation survives, except for evidence on a NIC that dies.
        assert!(verdict.total().unfinished == 0, "{label}\n{verdict}");
    }
    assert!(ends.iter().all(|end| end.borrow().is_idle()), "{label}");
    happened
}

/// In each run, the next rail or the old rail fails at another call of an end. The last run reaches
/// the end of the recovery before the call.
#[test]
fn second_failure_at_every_call_of_a_recovery_keeps_the_promises() {
    for end in 0..2 {
        for (rail, failure) in [(1, Failure::LinkDown), (1, Failure::NicDead), (0, Failure::NicDead)] {
            let mut points = 0;
            for nth in 1..=60 {
                let label = format!("{failure:?} of rail {rail} at call {nth} of end {end}");
                points += u32::from(run(&label, move |world, nics| {
                    let host = world.host_of(nics[end][0]);
                    world.fail_at_call(host, nth, &[(nics[end][rail], failure)]);
                }));
            }
            assert!(points > 30, "{points} points of a recovery of end {end}");
        }
    }
}

/// A control message of each kind that a failover sends is lost, late, or the last thing that its
/// rail carries.
#[test]
fn fault_at_every_control_message_of_a_recovery_keeps_the_promises() {
    use MessageKind::{Evidence, NewQp, Propose, Resume};
    let mut happened = 0;
    for kind in [Propose, Evidence, Resume, NewQp] {
        for (end, arriving, nth) in [0, 1]
            .into_iter()
            .flat_map(|end| [(end, false, 1), (end, false, 2), (end, true, 1), (end, true, 2)])
        {
            for fate in [PacketFate::Lost, PacketFate::Held(3 * MS), PacketFate::Passes] {
                let label = format!("{kind:?} {nth} of end {end}, arriving {arriving}, {fate:?}");
                happened += u32::from(run(&label, move |world, nics| {
                    let failures = [(nics[end][1], Failure::LinkDown)];
                    let failures = if fate == PacketFate::Passes { &failures[..] } else { &[] };
                    let kind = PacketKind::Control(kind);
                    world.fail_at_packet(nics[end][1], kind, arriving, nth, fate, failures);
                }));
            }
        }
    }
    assert!(happened > 30, "{happened} faults happened");
}
