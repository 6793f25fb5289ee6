//! The cases that every NIC must pass, over software NICs.

use std::sync::Arc;

use mitra_conformance::{Fabric, run_all};
use mitra_verbs::{Nic, Provider};

use crate::common::{loopback, open};

/// Two new software NICs for each case.
pub struct SoftNics;

impl Fabric for SoftNics {
    fn name(&self) -> String {
        format!("software NICs with links: {}", crate::LINKS)
    }

    fn nics(&self) -> [Arc<dyn Provider>; 2] {
        [(); 2].map(|()| {
            let nic = open(loopback());
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

#[test]
fn software_nics_pass_all_cases() {
    run_all(&SoftNics, "").assert_expected(&[]);
}
