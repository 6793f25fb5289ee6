//! A virtual queue pair beside a raw RC queue pair of the same device, by evidence.

use std::path::Path;
use std::sync::Arc;

use mitra_failover::{CompletionLogConfig, Config};
use mitra_qualify::QualificationStore;
use mitra_verbs::Provider;

use crate::devices::Devices;
use crate::rails::Ends;
use crate::requester::{Kind, RawEnd, Requester, Result, VirtualPair, block};
use crate::rows::Rows;

const ROUNDS: usize = 25;

fn config(has_log: bool) -> Config {
    let completion_log = has_log.then(CompletionLogConfig::default);
    Config { completion_log, ..Config::default() }
}

pub fn measure(devices: &Devices, rows: &mut Rows) -> Result<()> {
    let unqualified = QualificationStore::load(Path::new("/nonexistent"))?;
    let open =
        |store: &QualificationStore| Ends::open(devices.rails(), store, |nic| nic as Arc<dyn Provider>);
    let (qualified, unqualified) = (open(devices.store()), open(&unqualified));
    let raw = || {
        let nics = [&qualified.nics[0], &qualified.nics[1]];
        RawEnd::pair(nics.map(|nic| Arc::clone(nic) as Arc<dyn Provider>))
    };
    let ([mut rc, _rc_far], [mut aa, _aa_far]) = (raw()?, raw()?);
    let pair = |ends: &Ends, has_log| VirtualPair::new(&ends.client, &ends.server, config(has_log));
    let (mut psn, mut log, mut both) =
        (pair(&qualified, false)?, pair(&unqualified, true)?, pair(&qualified, true)?);
    for kind in Kind::ALL {
        let mut variants: [(&str, &mut dyn Requester); 5] =
            [("rc", &mut rc), ("aa", &mut aa), ("psn", &mut psn), ("log", &mut log), ("both", &mut both)];
        let count = if kind == Kind::Write64K { 32 } else { 100 };
        let mut blocks = variants.each_ref().map(|(name, _)| (*name, Vec::new()));
        for round in 0..=ROUNDS {
            for ((_, requester), (_, blocks)) in variants.iter_mut().zip(&mut blocks) {
                let value = block(*requester, kind, count)?;
                // The first round warms up.
                if round > 0 {
                    blocks.push(value);
                }
            }
            // The vQPs of the other variants must not take their peers for silent.
            for (_, requester) in &mut variants {
                requester.between_blocks();
            }
        }
        rows.add_variants(&format!("cost/{}", kind.name()), kind.unit(), &blocks);
    }
    Ok(())
}
