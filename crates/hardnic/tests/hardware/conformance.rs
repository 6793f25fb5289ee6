//! What every NIC must do, case by case.

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mitra_conformance::{CASES, Case, Difference, Fabric, Report, run};
use mitra_verbs::Provider;

use crate::devices::Devices;

/// What no NIC of the kernel offers.
const ALL: &[Difference] = &[
    Difference::refused("refusals::reregistered_region_keeps_its_keys", "a change of a region in place"),
    Difference::refused("queue_pairs::saved_results_are_those_of_the_last_atomics", "saved results"),
    Difference::refused("windows::type_1_window_is_replaced_by_the_next_bind", "windows of this type"),
    Difference::refused("datagrams::gsi_delivers_message", "queue pair 1"),
    Difference::refused("multicast::members_receive_each_message_once", "multicast"),
    Difference::refused("multicast::sender_receives_its_own_message", "multicast"),
    Difference::refused("multicast::group_receives_only_its_messages", "multicast"),
    Difference::refused("multicast::detached_queue_pair_receives_nothing", "multicast"),
    Difference::refused("multicast::unicast_addresses_have_no_members", "multicast"),
];

/// What a NIC that is not qualified does not offer.
const UNQUALIFIED: &[Difference] = &[
    Difference::refused("queue_pairs::psn_counts_packets", "PSN"),
    Difference::refused("queue_pairs::psn_stays_in_error_state", "PSN"),
];

/// What soft-RoCE of Linux 6.1 does otherwise.
const RXE: &[Difference] = &[
    Difference::fails(
        "refusals::access_error_raises_event_at_responder",
        "timed out",
        "it reports no access errors to the responder",
    ),
    Difference::fails(
        "errors::wrong_local_key_fails_the_send",
        "LocalQpOperation",
        "it has one status for all local errors",
    ),
    Difference::fails(
        "errors::receive_with_wrong_key_fails_both_ends",
        "LocalQpOperation",
        "it has one status for all local errors",
    ),
    Difference::fails(
        "errors::send_longer_than_receive_fails_both_ends",
        "LocalQpOperation",
        "it has one status for all local errors",
    ),
    Difference::fails(
        "queue_pairs::drained_send_queue_holds_new_requests",
        "timed out",
        "a send queue in SQD does not continue",
    ),
    Difference::fails(
        "queues::limits_of_queue_pairs_are_checked",
        "Cannot allocate memory",
        "its largest queue needs more memory than the machine has",
    ),
    Difference::fails(
        "shared_receives::failed_queue_pair_raises_last_event",
        "timed out",
        "it does not report the last receive of a failed queue pair",
    ),
    Difference::fails(
        "windows::window_grants_only_its_bytes",
        "Success",
        "it checks the bounds of the region in place of those of the window",
    ),
    Difference::fails(
        "windows::send_with_invalidate_of_a_region_is_refused",
        "Success",
        "it invalidates regions, too",
    ),
    Difference::fails(
        "events::error_is_an_event_of_solicited_only_arming",
        "timed out",
        "a failed send is no solicited event",
    ),
];

impl Fabric for Devices {
    fn name(&self) -> String {
        self.pair().join(" and ")
    }

    /// Returns the same NICs for all cases: the probe of a new one takes longer than most cases.
    fn nics(&self) -> [Arc<dyn Provider>; 2] {
        self.nics().clone().map(|nic| nic as Arc<dyn Provider>)
    }

    fn wait(&self) {
        std::thread::yield_now();
    }

    fn thread_wait(&self) -> Option<fn()> {
        Some(std::thread::yield_now)
    }

    /// Each case takes milliseconds, and a device that does otherwise must not keep CI waiting.
    fn timeout(&self) -> Duration {
        Duration::from_secs(3)
    }
}

pub fn trials(devices: Option<&Arc<Devices>>) -> Vec<Trial> {
    let trial = |case: &'static Case| {
        let devices = devices.cloned();
        let name = format!("conformance::{}", case.name);
        Trial::test(name, move || check(&*devices.ok_or("no devices")?, case))
    };
    CASES.iter().map(trial).collect()
}

fn check(devices: &Devices, case: &'static Case) -> Result<(), Failed> {
    let outcome = run(devices, case);
    let of_driver = if devices.are_rxe() { RXE } else { &[] };
    let is_qualified = devices.nics().iter().all(|nic| nic.attr().capabilities.psn_query);
    let of_evidence = if is_qualified { &[] } else { UNQUALIFIED };
    let known =
        ALL.iter().chain(of_driver).chain(of_evidence).filter(|difference| difference.case() == case.name);
    let differences: Vec<Difference> = known.copied().collect();
    for difference in &differences {
        println!("{}: {difference}", case.name);
    }
    let report = Report { fabric: devices.name(), outcomes: vec![(case.name, outcome)] };
    let unexpected = report.unexpected(&differences);
    if unexpected.is_empty() { Ok(()) } else { Err(unexpected.join("\n").into()) }
}
