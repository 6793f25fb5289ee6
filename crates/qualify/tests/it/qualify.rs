//! Fences in the middle of messages tell an exact PSN from others, and a fence from none.

use std::sync::Arc;
use std::time::Duration;

use mitra_qualify::testing::{FaultyNic, NicFault};
use mitra_qualify::{FenceCounts, Qualification, QualifyConfig, Verdict, qualify};
use mitra_softnic::{Config, SoftNic};
use mitra_verbs::fault::Noise;
use mitra_verbs::{Nic, Provider};

const CONFIG: QualifyConfig =
    QualifyConfig { write_fences: 8, atomic_fences: 5, marker_timeout: Duration::from_secs(5) };

/// Returns a NIC that loses packets. A software NIC executes a posted message before the call
/// returns, and only a lost packet leaves it in the middle, until it is sent again.
fn nic() -> Arc<SoftNic> {
    let nic = SoftNic::open(Config::loopback()).expect("an address is free");
    let noise = Noise { drop_ppm: 50_000, ..Noise::default() };
    nic.fault_switch().expect("a software NIC fails on demand").set_noise(noise, Noise::default());
    nic
}

fn faulty(fault: NicFault) -> FaultyNic {
    FaultyNic::new(nic(), fault)
}

fn qualify_alone(nic: &dyn Provider) -> Qualification {
    qualify(nic, nic, CONFIG, &mut |_, _| ()).expect("the NIC works")
}

fn kinds(qualification: Qualification) -> [FenceCounts; 2] {
    [qualification.writes, qualification.atomics]
}

#[test]
fn software_nic_is_exact() {
    let nic = nic();
    let mut calls = Vec::new();
    let found = qualify(&*nic, &*nic, CONFIG, &mut |done, total| calls.push((done, total)));
    let found = found.expect("the NIC works");
    assert_eq!(found.verdict(), Verdict::PsnExact, "{found:?}");
    assert_eq!((found.writes.cut_off, found.atomics.cut_off), (8, 5));
    assert_eq!(calls.len() as u32, found.writes.fences + found.atomics.fences);
    assert!(calls.is_sorted() && calls.last() == Some(&(13, 13)), "{calls:?}");
}

#[test]
fn peer_may_be_another_nic() {
    let (tested, peer) = (nic(), nic());
    let found = qualify(&*tested, &*peer, CONFIG, &mut |_, _| ()).expect("the NICs work");
    assert_eq!(found.verdict(), Verdict::PsnExact, "{found:?}");
}

#[test]
fn psn_that_runs_ahead_is_found() {
    let found = qualify_alone(&faulty(NicFault::PsnAhead(3)));
    assert_eq!(found.verdict(), Verdict::RecordsOnly, "{found:?}");
    for counts in kinds(found) {
        assert!(counts.ahead > 0 && counts.behind == 0, "{found:?}");
    }
}

#[test]
fn frozen_psn_is_behind() {
    let found = qualify_alone(&faulty(NicFault::FrozenPsn));
    assert_eq!(found.verdict(), Verdict::RecordsOnly);
    for counts in kinds(found) {
        assert_eq!((counts.behind, counts.ahead, counts.equal), (counts.fences, 0, 0), "{found:?}");
    }
}

/// Memory that changes before the marker is counted, and is no reason to refuse the NIC. Here the
/// changed word is no packet of the stream, so that the PSN differs from memory as well.
#[test]
fn late_execution_before_the_marker_is_counted() {
    let found = qualify_alone(&faulty(NicFault::LateBeforeMarker));
    assert_ne!(found.verdict(), Verdict::NoFence);
    for counts in kinds(found) {
        assert_eq!((counts.late_before_marker, counts.late_after_marker), (counts.fences, 0), "{found:?}");
    }
}

#[test]
fn late_execution_after_the_marker_refuses_the_nic() {
    let found = qualify_alone(&faulty(NicFault::LateAfterMarker));
    assert_eq!(found.verdict(), Verdict::NoFence);
    for counts in kinds(found) {
        assert_eq!((counts.late_before_marker, counts.late_after_marker), (0, counts.fences), "{found:?}");
    }
}

#[test]
fn missing_marker_refuses_the_nic_at_once() {
    let config = QualifyConfig { marker_timeout: Duration::from_millis(20), ..CONFIG };
    let nic = faulty(NicFault::NoMarker);
    let found = qualify(&nic, &nic, config, &mut |_, _| ()).expect("the NIC works");
    assert_eq!(found.verdict(), Verdict::NoFence);
    assert_eq!((found.writes.fences, found.writes.missing_markers, found.atomics.fences), (1, 1, 0));
}
