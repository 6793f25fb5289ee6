//! For every combination of stage, failure target and kind of operation: one operation over an RC
//! queue pair has the effect that `expected` returns, and never two effects.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mitra_sim::workload::{
    FailureCase, FailureTarget, OpKind, PeerApp, Plan, RcOptions, Record, WorkloadPeer, connect_rc, verify,
};
use mitra_sim::{Config, Coverage, Operation, Stage, Testbed, seeds};
use mitra_verbs::{Mtu, Provider};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Effect {
    None,
    Once,
    AtMostOnce,
}

fn expected(case: FailureCase) -> Effect {
    use FailureTarget::*;
    let hung = matches!(case.target, RequesterHung | ResponderHung);
    match (case.stage, case.target) {
        _ if hung => Effect::Once,
        (Stage::Posted | Stage::RequestOnWire, _) => Effect::None,
        // The packet has arrived before the requester dies, so it is executed.
        (Stage::Arrived, Requester) => Effect::Once,
        (Stage::Arrived, _) => Effect::None,
        // If the requester dies, packets of the message that are in flight still arrive. If the
        // cable or the responder fails, these packets are lost.
        (Stage::PartlyExecuted, Requester) => Effect::AtMostOnce,
        (Stage::PartlyExecuted, _) => Effect::None,
        // The responder may die after the execution and before the placement.
        (Stage::Executed, Responder | Both) => Effect::AtMostOnce,
        (Stage::NotPlaced, Responder | Both) => Effect::None,
        (Stage::Executed | Stage::AckOnWire | Stage::Acknowledged | Stage::NotPlaced, _) => Effect::Once,
    }
}

struct Outcome {
    stage_reached: bool,
    effects: u64,
    record: Record,
    exact: bool,
    coverage: Coverage,
    report: String,
}

fn operation(kind: OpKind) -> Operation {
    match kind {
        OpKind::Write | OpKind::Block => Operation::Write,
        OpKind::WriteImm => Operation::WriteWithImm,
        OpKind::Send => Operation::Send,
        OpKind::Read => Operation::Read,
        OpKind::FetchAdd => Operation::FetchAdd,
        OpKind::CompareSwap => Operation::CompareSwap,
    }
}

fn run(seed: u64, case: FailureCase, hold: Option<Duration>) -> Outcome {
    let mut config = Config::swarm(seed).without_noise();
    config.capabilities.ack_after_placement = !case.requires_early_ack();
    // The window is as large as the message, so that nothing is acknowledged before the last
    // packet.
    config.tuning.send_window = 1 << 18;
    let mut testbed = Testbed::with_config(seed, config, 1);
    let plan = (seed..)
        .map(|s| Plan { unsignalled_ppm: 0, ..Plan::new(s, 1).only(&[case.kind]) })
        .find(|p| {
            p.ops()[0].len > 600
                || matches!(case.kind, OpKind::Write | OpKind::FetchAdd | OpKind::CompareSwap)
        })
        .unwrap();
    let none = Plan { tag: 2, ..Plan::new(seed, 0) };
    let mut peers = [WorkloadPeer::new(&plan, &none), WorkloadPeer::new(&none, &plan)];
    let nics = testbed.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
    // Slow memory places a message of 64 KiB in 7 ms, and acknowledges nothing before.
    let options = RcOptions { mtu: Mtu::M256, timeout: 10, retry_cnt: 3, ..RcOptions::default() };
    let [a, b] = connect_rc(nics, peers.each_mut(), &options).unwrap();
    let [requester, responder] = peers.map(|p| Rc::new(RefCell::new(p)));
    let start = |testbed: &mut Testbed, host: usize, peer: &Rc<RefCell<WorkloadPeer>>, endpoint| {
        let endpoint = Rc::new(RefCell::new(endpoint));
        testbed.world.add_app(testbed.hosts[host], PeerApp { peer: Rc::clone(peer), endpoint });
    };
    // The responder posts its receives first. Otherwise the trigger would count an RNR NAK as an
    // acknowledgement.
    start(&mut testbed, 1, &responder, b);
    testbed.world.run_for(Duration::from_millis(1));
    let rail = testbed.rail(0);
    let observer = case.arm(&mut testbed.world, rail, 1, hold);
    start(&mut testbed, 0, &requester, a);
    testbed.world.run_for(Duration::from_millis(50));
    testbed.world.run_until_quiet().unwrap_or_else(|e| panic!("{case}: {e}"));
    testbed.world.run_for(Duration::from_millis(5));
    for peer in [&requester, &responder] {
        peer.borrow_mut().sweep();
    }
    let (requester, responder) = (requester.borrow(), responder.borrow());
    let responder_log = responder.responder_log();
    let effects = responder_log.words.len() + responder_log.blocks.len() + responder_log.received.len();
    let verdict = verify(&plan, requester.requester_log(), responder_log);
    Outcome {
        stage_reached: testbed.world.stage_reached(observer),
        effects: effects as u64 + responder_log.counters.iter().sum::<u64>(),
        record: requester.requester_log().records[0],
        exact: verdict.is_exact(),
        coverage: testbed.world.coverage(),
        report: format!("seed {seed} {case}: {:?}\n{verdict}", requester.requester_log().records),
    }
}

#[test]
fn every_failure_case_has_the_expected_effect() {
    let cases = FailureCase::all();
    assert!(cases.len() > 250, "{} cases", cases.len());
    for seed in seeds(3) {
        let mut met = HashSet::new();
        for &case in &cases {
            let outcome = run(seed, case, None);
            assert!(outcome.stage_reached, "the stage was not reached: {}", outcome.report);
            let cells: Vec<_> = outcome.coverage.cells().collect();
            assert!(cells.iter().all(|cell| cell.can_exist()), "{cells:?}: {}", outcome.report);
            met.extend(cells.iter().map(|cell| (cell.stage, cell.operation)));
            if case.kind != OpKind::Read {
                match expected(case) {
                    Effect::None => assert_eq!(outcome.effects, 0, "{}", outcome.report),
                    Effect::Once => assert_eq!(outcome.effects, 1, "{}", outcome.report),
                    Effect::AtMostOnce => assert!(outcome.effects <= 1, "{}", outcome.report),
                }
            }
            let succeeded = outcome.record.outcome == Some(mitra_sim::workload::ReportedOutcome::Success);
            let lost_after_ack = case.requires_early_ack() && matches!(case.target, FailureTarget::Responder);
            if lost_after_ack {
                // Only in this case, a NIC loses data that it has acknowledged. The verdict must
                // report the loss.
                assert!(succeeded && !outcome.exact, "{}", outcome.report);
            } else {
                assert!(outcome.exact, "{}", outcome.report);
            }
            if case.target == FailureTarget::ResponderHung {
                assert!(succeeded, "a hung responder continues to execute requests: {}", outcome.report);
            }
            if matches!(case.target, FailureTarget::Requester | FailureTarget::Both) {
                assert_eq!(outcome.record.outcome, None, "a dead NIC completes nothing: {}", outcome.report);
            }
        }
        // If another NIC than the NIC of the packet fails, the packet passes. So a single case need
        // not reach the stage, but all cases of a stage together must.
        for case in &cases {
            assert!(met.contains(&(case.stage, operation(case.kind))), "seed {seed}: no failure met {case}");
        }
    }
}

#[test]
fn held_request_executes_late() {
    let hold = Some(Duration::from_millis(20));
    for seed in seeds(3) {
        for case in FailureCase::all().into_iter().filter(|c| c.kind == OpKind::Write) {
            // In these cases, the request is in flight and the responder is alive, so the request
            // arrives.
            if matches!(case.stage, Stage::RequestOnWire | Stage::Arrived)
                && case.target == FailureTarget::Requester
            {
                let outcome = run(seed, case, hold);
                assert_eq!(
                    (outcome.stage_reached, outcome.effects, outcome.exact),
                    (true, 1, true),
                    "{}",
                    outcome.report
                );
            }
        }
    }
}
