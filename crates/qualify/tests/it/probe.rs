//! The probe tells NICs with a constant PSN or a false state from others.

use mitra_qualify::testing::NicFault;
use mitra_qualify::{ProbeFinding, probe};
use mitra_softnic::{Config, SoftNic};
use mitra_verbs::{Error, Provider, Psn, QpState};

use crate::{faulty, nic};

#[test]
fn software_nic_passes() {
    let nic = nic();
    let report = probe(&*nic).expect("the NIC works");
    assert_eq!(report.findings, []);
    assert!(report.passed() && report.states_are_true());
    assert_eq!(report.to_string(), "the responder PSN counted every packet, in RTS and in ERR");
}

#[test]
fn frozen_psn_is_found_in_both_states() {
    let report = probe(&faulty(NicFault::FrozenPsn)).expect("the NIC works");
    // 5 WRITEs and a READ of 3 packets, and an atomic, across the end of the PSN space.
    let (expected, found) = (Psn::new(3), Psn::new(0xff_fff0));
    let finding = |state| ProbeFinding::Psn { end: "responder", state, expected, found };
    assert_eq!(report.findings, [finding(QpState::Rts), finding(QpState::Err)]);
    assert!(!report.passed() && report.states_are_true());
    let reason = report.to_string();
    assert!(
        reason.contains("rq_psn of the responder in RTS is 16777200, and the packets end before 3"),
        "{reason}"
    );
}

#[test]
fn false_state_is_found() {
    let report = probe(&faulty(NicFault::FalseState)).expect("the NIC works");
    assert!(!report.passed() && !report.states_are_true());
    assert_eq!(report.findings.len(), 2);
    assert_eq!(report.findings[0].to_string(), "query_qp reports RESET for the requester in RTS");
}

/// When all packets are in memory, a number that counts them at their receipt is right.
#[test]
fn psn_that_runs_ahead_passes() {
    let report = probe(&faulty(NicFault::PsnAhead(3))).expect("the NIC works");
    assert!(report.passed(), "{report}");
}

/// The NIC has room for two probes at once, and the test runs 20 in turn.
#[test]
fn probe_destroys_its_objects() {
    let mut config = Config::loopback();
    (config.limits.pds, config.limits.mrs, config.limits.cqs) = (4, 4, 4);
    let nic = SoftNic::open(config).expect("an address is free");
    for _ in 0..20 {
        assert!(probe(&*nic).expect("there is room").passed());
    }
}

/// The second completion queue does not fit, so the probe fails with objects created.
#[test]
fn probe_that_fails_destroys_its_objects() {
    let mut config = Config::loopback();
    (config.limits.pds, config.limits.mrs, config.limits.cqs) = (2, 2, 1);
    let nic = SoftNic::open(config).expect("an address is free");
    for _ in 0..20 {
        assert!(matches!(probe(&*nic), Err(Error::Limit { .. })));
    }
    nic.create_cq(1, None).expect("the probe's queue is destroyed");
    for _ in 0..2 {
        nic.alloc_pd().expect("the probe's domains are deallocated");
    }
}
