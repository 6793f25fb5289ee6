//! NICs that count their changes, as NICs of the kernel do.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use mitra_failover::Outcome;
use mitra_sim::{Config, Testbed};
use mitra_verbs::Provider;

use crate::hooked_nic::HookedNic;
use crate::vqp_pair::{VqpPair, config};

fn questions(nics: &[Arc<HookedNic>]) -> u32 {
    nics.iter().map(|nic| nic.questions.load(Ordering::Relaxed)).sum()
}

/// Returns a connected pair whose end 0 has hooked NICs with a generation.
fn pair() -> (VqpPair, Vec<Arc<HookedNic>>) {
    let testbed = Testbed::with_config(1, Config::fault_free(), 2);
    let hooked: Vec<_> = testbed.nics[0].iter().map(HookedNic::new).collect();
    let nics = [
        hooked.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect(),
        testbed.nics[1].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect(),
    ];
    for nic in &hooked {
        *nic.generation.lock().unwrap() = Some(0);
    }
    let mut pair = VqpPair::over(testbed, nics, config(), &[]);
    (1..4).for_each(|wr_id| pair.recv(1, wr_id, 8));
    pair.poll_times(&[0, 1], 200);
    (pair, hooked)
}

#[test]
fn nic_that_counts_its_changes_is_asked_only_after_one() {
    let (mut pair, nics) = pair();
    let before = questions(&nics);
    pair.poll_times(&[0, 1], 500);
    assert_eq!(questions(&nics), before);
    assert_eq!(pair.vqps[0].active_rail(), 0);

    pair.link_down(0, 0);
    *nics[0].generation.lock().unwrap() = Some(1);
    pair.send_message(7, 42);
    pair.poll_times(&[0, 1], 2000);
    assert!(questions(&nics) > before);
    assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.active_rail()), [1, 1]);
    assert_eq!(pair.outcome(0, 7, false), Some(Outcome::Success));
}

#[test]
fn nic_that_dies_without_an_event_is_found_by_its_generation() {
    let (mut pair, nics) = pair();
    nics[0].reset().unwrap();
    while nics[0].poll_async_event().is_some() {}
    *nics[0].generation.lock().unwrap() = Some(1);
    pair.poll_times(&[0, 1], 2000);
    assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.active_rail()), [1, 1]);
}
