//! Ends whose configurations have different failure detectors.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{CloseReason, Config, DetectorConfig, Domain, Secret, VirtualQp};
use mitra_sim::Testbed;
use mitra_verbs::Provider;

const MS: Duration = Duration::from_millis(1);

struct Ends {
    testbed: Testbed,
    vqps: [VirtualQp; 2],
}

impl Ends {
    fn new(rails: u8, detectors: [DetectorConfig; 2]) -> Ends {
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), rails);
        let [mut a, mut b] = [0, 1].map(|host: usize| {
            let nics = testbed.nics[host].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
            let domain = Domain::new(nics).expect("the NICs have the resources of a domain");
            let config = Config { detector: detectors[host], ..Config::default() };
            let secret = Secret::fixed([host as u64 + 1, 9]);
            VirtualQp::builder(&domain).config(config).secret(secret).build().expect("the NICs have room")
        });
        let infos = [&a, &b].map(|vqp| vqp.local_info());
        a.connect(&infos[1]).expect("the ends agree");
        b.connect(&infos[0]).expect("the ends agree");
        Ends { testbed, vqps: [a, b] }
    }

    /// Drives these ends every 100 µs for this time, or until `a` closes. Returns why it closed.
    fn drive(&mut self, ends: &[usize], time: Duration) -> Option<CloseReason> {
        let mut completions = Vec::new();
        for _ in 0..time.as_micros() / 100 {
            for &end in ends {
                self.vqps[end].poll(&mut completions);
            }
            self.testbed.world.run_for(MS / 10);
            if self.vqps[0].close_reason().is_some() {
                break;
            }
        }
        self.vqps[0].close_reason()
    }
}

fn heartbeats(interval: Duration, max_missed_heartbeats: u32) -> DetectorConfig {
    DetectorConfig { heartbeat_interval: interval, max_missed_heartbeats, ..DetectorConfig::default() }
}

/// Three pairs of detectors. The two ends differ in whether they have heartbeats, in the heartbeat
/// interval (20 and 200 ms), or in the silence that they accept (100 ms and 2 s).
fn different() -> [[DetectorConfig; 2]; 3] {
    let fast = heartbeats(20 * MS, 5);
    [[fast, heartbeats(20 * MS, 0)], [fast, heartbeats(200 * MS, 5)], [fast, heartbeats(10 * MS, 200)]]
}

#[test]
fn ends_with_different_detectors_stay_where_nothing_fails() {
    for [one, other] in different() {
        for (detectors, rails) in [([one, other], 1), ([one, other], 2), ([other, one], 2), ([one, other], 3)]
        {
            let mut ends = Ends::new(rails, detectors);
            let what = format!("{rails} rails, {detectors:?}");
            assert_eq!(ends.drive(&[0, 1], Duration::from_secs(10)), None, "{what}");
            for vqp in &ends.vqps {
                assert!(vqp.close_reason().is_none() && vqp.last_failover().is_none(), "{what}");
            }
        }
    }
}

/// The agreed detectors detect what the slower end's detector would detect.
#[test]
fn silent_peer_is_detected_by_the_slower_heartbeats() {
    for [one, other] in different() {
        for (detectors, rails) in [([one, other], 2), ([other, one], 1)] {
            let mut ends = Ends::new(rails, detectors);
            assert_eq!(ends.drive(&[0, 1], Duration::from_secs(1)), None);
            // The peer's process is stopped.
            let reason = ends.drive(&[0], Duration::from_secs(20));
            let has_heartbeats = detectors.iter().all(|detector| detector.max_missed_heartbeats > 0);
            let expected = has_heartbeats.then_some(CloseReason::PeerUnreachable);
            assert_eq!(reason, expected, "{rails} rails, {detectors:?}");
        }
    }
}
