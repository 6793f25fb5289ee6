//! The cases that every NIC must pass, over minimal NICs.

use std::sync::Arc;

use mitra_conformance::{Difference, Fabric, run_all};
use mitra_nics::NicKind;
use mitra_verbs::Provider;

/// Two new minimal NICs for each case.
struct MinimalNics;

impl Fabric for MinimalNics {
    fn name(&self) -> String {
        NicKind::Minimal.to_string()
    }

    fn nics(&self) -> [Arc<dyn Provider>; 2] {
        [(); 2].map(|()| {
            let nic = NicKind::Minimal.open_free().unwrap();
            nic.receive_traffic_classes().unwrap();
            nic as Arc<dyn Provider>
        })
    }

    fn wait(&self) {
        std::thread::yield_now();
    }

    fn thread_wait(&self) -> Option<fn()> {
        Some(std::thread::yield_now)
    }
}

/// What minimal NICs do not offer.
const DIFFERENCES: &[Difference] = &[
    Difference::refused("operations::inline_data_is_delivered", "inline data"),
    Difference::refused("operations::inline_data_beyond_the_limit_is_refused", "inline data"),
    Difference::refused("queue_pairs::psn_counts_packets", "the PSN"),
    Difference::refused("queue_pairs::psn_stays_in_error_state", "the PSN"),
    Difference::refused("queue_pairs::saved_results_are_those_of_the_last_atomics", "saved results"),
];

#[test]
fn minimal_nics_pass_all_cases_but_those_of_what_they_lack() {
    run_all(&MinimalNics, "").assert_expected(DIFFERENCES);
}
