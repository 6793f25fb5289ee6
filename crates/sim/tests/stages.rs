//! Each stage × failure × kind, on one operation over a bare queue pair: it falls where the table says, and nothing
//! is done twice.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mitra_sim::workload::{Kind, Party, Plan, RcOptions, Record, connect_rc, judge};
use mitra_sim::{Case, Config, PartyApp, Rig, Stage, What, seeds};
use mitra_verbs::{Mtu, Provider};

/// What the responder may have seen of the operation.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Effect {
    None,
    Once,
    Either,
}

fn expected(case: Case) -> Effect {
    use What::*;
    let goes_on = matches!(case.what, RequesterHung | ResponderHung);
    match (case.stage, case.what) {
        _ if goes_on => Effect::Once,
        (Stage::Posted | Stage::RequestOnWire, _) => Effect::None,
        // The requester dies behind its packet, which is there.
        (Stage::Arrived, Requester) => Effect::Once,
        (Stage::Arrived, _) => Effect::None,
        // What else of the message is in flight survives its sender, not its cable nor its receiver.
        (Stage::PartlyExecuted, Requester) => Effect::Either,
        (Stage::PartlyExecuted, _) => Effect::None,
        // Executed is not placed: the responder's death may come between.
        (Stage::Executed, Responder | Both) => Effect::Either,
        (Stage::NotPlaced, Responder | Both) => Effect::None,
        (Stage::Executed | Stage::AckOnWire | Stage::Acknowledged | Stage::NotPlaced, _) => Effect::Once,
    }
}

struct Outcome {
    struck: bool,
    effects: u64,
    record: Record,
    exact: bool,
    said: String,
}

fn run(seed: u64, case: Case, hold: Option<Duration>) -> Outcome {
    let mut config = Config::swarm(seed).healed();
    config.capabilities.ack_after_placement = !case.breaks_promise();
    // A window as large as the message: none of it is acknowledged before the last packet.
    config.tuning.send_window = 1 << 18;
    let mut rig = Rig::with(seed, config, 1);
    // An operation of several packets, if its kind has such.
    let plan = (seed..)
        .map(|s| Plan { unsignalled_ppm: 0, ..Plan::new(s, 1).only(&[case.kind]) })
        .find(|p| {
            p.ops()[0].len > 600 || matches!(case.kind, Kind::Write | Kind::FetchAdd | Kind::CompareSwap)
        })
        .unwrap();
    let none = Plan { tag: 2, ..Plan::new(seed, 0) };
    let mut parties = [Party::new(&plan, &none), Party::new(&none, &plan)];
    let nics = rig.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
    let options = RcOptions { mtu: Mtu::M256, timeout: 5, retry_cnt: 3, ..RcOptions::default() };
    let [a, b] = connect_rc(nics, parties.each_mut(), &options).unwrap();
    let [requester, responder] = parties.map(|p| Rc::new(RefCell::new(p)));
    let start = |rig: &mut Rig, host: usize, party: &Rc<RefCell<Party>>, endpoint| {
        let endpoint = Rc::new(RefCell::new(endpoint));
        rig.world.add_app(rig.hosts[host], PartyApp { party: Rc::clone(party), endpoint });
    };
    // Receives first: no RNR NAK shall be taken for an acknowledgement.
    start(&mut rig, 1, &responder, b);
    rig.world.run_for(Duration::from_millis(1));
    let rail = rig.rail(0);
    let at = case.arm(&mut rig.world, rail, 1, hold);
    start(&mut rig, 0, &requester, a);
    rig.world.run_for(Duration::from_millis(50));
    rig.world.settle().unwrap_or_else(|e| panic!("{case}: {e}"));
    rig.world.run_for(Duration::from_millis(5));
    for party in [&requester, &responder] {
        party.borrow_mut().sweep();
    }
    let (requester, responder) = (requester.borrow(), responder.borrow());
    let seen = responder.seen();
    let effects = seen.words.len() + seen.blocks.len() + seen.received.len();
    let verdict = judge(&plan, requester.asked(), seen);
    Outcome {
        struck: rig.world.struck(at),
        effects: effects as u64 + seen.counters.iter().sum::<u64>(),
        record: requester.asked().records[0],
        exact: verdict.is_exact(),
        said: format!("seed {seed} {case}: {:?}\n{verdict}", requester.asked().records),
    }
}

#[test]
fn every_case_falls_where_it_should() {
    let cases = Case::all();
    assert!(cases.len() > 250, "{} cases", cases.len());
    for seed in seeds(3) {
        for &case in &cases {
            let o = run(seed, case, None);
            assert!(o.struck, "never struck: {}", o.said);
            if case.kind != Kind::Read {
                match expected(case) {
                    Effect::None => assert_eq!(o.effects, 0, "{}", o.said),
                    Effect::Once => assert_eq!(o.effects, 1, "{}", o.said),
                    Effect::Either => assert!(o.effects <= 1, "{}", o.said),
                }
            }
            let succeeded = o.record.ending == Some(mitra_sim::workload::Ending::Success);
            let lost_after_ack = case.breaks_promise() && matches!(case.what, What::Responder);
            if lost_after_ack {
                // The one case in which a NIC breaks its word; so the judge must say it does.
                assert!(succeeded && !o.exact, "{}", o.said);
            } else {
                assert!(o.exact, "{}", o.said);
            }
            if case.what == What::ResponderHung {
                assert!(succeeded, "a hung responder goes on: {}", o.said);
            }
            if matches!(case.what, What::Requester | What::Both) {
                assert_eq!(o.record.ending, None, "a dead NIC completes nothing: {}", o.said);
            }
        }
    }
}

#[test]
fn what_is_held_back_executes_late() {
    let hold = Some(Duration::from_millis(20));
    for seed in seeds(3) {
        for case in Case::all().into_iter().filter(|c| c.kind == Kind::Write) {
            // The request is on its way, nothing at the responder has failed: so it comes.
            if matches!(case.stage, Stage::RequestOnWire | Stage::Arrived) && case.what == What::Requester {
                let o = run(seed, case, hold);
                assert_eq!((o.struck, o.effects, o.exact), (true, 1, true), "{}", o.said);
            }
        }
    }
}
