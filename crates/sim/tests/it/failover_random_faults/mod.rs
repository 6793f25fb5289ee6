//! Virtual queue pairs under random faults: several failures on three rails, flapping rails,
//! packets that arrive long after a failover, hosts that are paused during a failover, devices with
//! fewer capabilities, and several vQPs over the same NICs. Every reported outcome must be true.

pub mod random_run;

use core::time::Duration;
use std::collections::BTreeMap;

use mitra_failover::{CloseReason, CompletionLogConfig, Contradiction};
use mitra_sim::workload::{FailureCase, OpKind, Plan, Verdict};
use mitra_sim::{DurationRange, Failure, Prng, reproduce_command, seeds, seeds_of_cases};

use random_run::{Endings, Setup, cut_cable, micros, random_time, run};

/// The second link fails during the first failover, shortly after it, or much later.
#[test]
fn two_link_failures_on_three_rails() {
    let (mut moved_twice, mut closed) = (0, 0);
    for seed in seeds(400) {
        let mut setup = Setup::new(seed, 3);
        setup.failover.completion_log = (seed % 2 == 0).then(CompletionLogConfig::default);
        let kinds: &[OpKind] = match seed % 4 {
            0 | 1 => &OpKind::ALL,
            2 => &[OpKind::WriteImm, OpKind::Send],
            _ => &[OpKind::WriteImm],
        };
        let plan = |mut p: Plan| {
            p.max_len = 12_000;
            p.only(kinds)
        };
        let out = run(seed, setup, plan, |testbed, rng| {
            let first = micros(rng, 1, 200);
            cut_cable(testbed, rng, 0, first);
            let limit = [50, 2_000, 20_000][rng.index(3)];
            let second = first + micros(rng, 1, limit);
            cut_cable(testbed, rng, 1, second);
        });
        out.assert_exact(seed, "two cables");
        match out.close_reasons[0] {
            [None, None] => {
                moved_twice += u32::from(out.epochs[0] >= 3);
                assert!(out.verdicts[0].iter().all(Verdict::is_complete), "seed {seed}");
            }
            _ => closed += 1,
        }
    }
    println!("moved twice: {moved_twice}, closed: {closed}");
    assert!(moved_twice > 0);
}

#[test]
fn overlapping_failures_on_three_rails() {
    let mut endings = Endings::default();
    for seed in seeds(400) {
        let rng = &mut Prng::stream(seed, "setup");
        let mut setup = Setup::with_late_packets(seed, 3, rng);
        setup.ops = [60, 60];
        let mut label = format!("log {}", setup.failover.completion_log.is_some());
        let out = run(
            seed,
            setup,
            |p| p,
            |testbed, rng| {
                for _ in 0..rng.between(2, 4) {
                    let (host, rail) = (rng.index(2), rng.index(3));
                    let nic = testbed.nics[host][rail].id();
                    let at = random_time(rng, 1_000_000, 6);
                    let link = Failure::LinkDown;
                    let failure = *rng.pick(&[link, link, Failure::NicDead, Failure::NicHung]);
                    label += &format!(", {failure:?} of {}{rail} at {at:?}", ["a", "b"][host]);
                    testbed.world.after(at, move |w| w.fail(nic, failure));
                }
            },
        );
        out.assert_exact(seed, &label);
        endings.count(&out);
    }
    endings.print();
}

#[test]
fn flapping_links_on_two_rails() {
    for seed in seeds(400) {
        let mut setup = Setup::with_late_packets(seed, 2, &mut Prng::stream(seed, "setup"));
        setup.ops = [80, 80];
        let out = run(
            seed,
            setup,
            |p| p,
            |testbed, rng| {
                let mut at = Duration::ZERO;
                for _ in 0..rng.between(1, 6) {
                    let nic = testbed.nics[rng.index(2)][rng.index(2)].id();
                    at += random_time(rng, 300_000, 8);
                    testbed.world.after(at, move |w| w.set_link(nic, false));
                    let up = at + random_time(rng, 100_000, 8);
                    testbed.world.after(up, move |w| w.set_link(nic, true));
                }
            },
        );
        out.assert_exact(seed, "cables");
    }
}

/// A failed rail recovers before the next rail fails, so at most one link is down at any time.
#[test]
fn alternating_flaps_close_no_vqp() {
    let mut epochs = BTreeMap::<u16, u32>::new();
    // With seed 541, an end declines a ballot, and could accept the ballot later, when the proposer
    // has already made another proposal.
    for seed in seeds(300).chain([541]) {
        let rng = &mut Prng::stream(seed, "setup");
        let rails = 2 + (seed % 2) as usize;
        let mut setup = Setup::with_late_packets(seed, rails as u8, rng);
        setup.ops = [300, 150];
        let out = run(
            seed,
            setup,
            |p| p,
            |testbed, rng| {
                let (mut at, first) = (Duration::ZERO, rng.index(rails));
                for round in 0..rng.between(3, 12) as usize {
                    let nic = testbed.rail((first + round) % rails)[rng.index(2)];
                    at += random_time(rng, 50_000, 7);
                    testbed.world.after(at, move |w| w.set_link(nic, false));
                    at += random_time(rng, 50_000, 9);
                    testbed.world.after(at, move |w| w.set_link(nic, true));
                }
            },
        );
        out.assert_exact(seed, "flapping in turn");
        assert_eq!(
            out.close_reasons[0],
            [None; 2],
            "seed {seed}: closed although a rail was up\n{}",
            reproduce_command(seed)
        );
        assert!(out.verdicts[0].iter().all(Verdict::is_complete), "seed {seed}\n{}", reproduce_command(seed));
        *epochs.entry(out.epochs[0]).or_default() += 1;
    }
    println!("epochs: {epochs:?}");
    assert!(epochs.keys().any(|&epoch| epoch > 5) || seeds(300).count() < 300);
}

/// Links fail at random times, possibly all at the same time.
#[test]
fn link_failures_shorter_than_peer_timeout_close_no_vqp() {
    let mut epochs = BTreeMap::<u16, u32>::new();
    for seed in seeds(300) {
        let rng = &mut Prng::stream(seed, "setup");
        let rails = rng.between(2, 3) as usize;
        let mut setup = Setup::with_late_packets(seed, rails as u8, rng);
        setup.ops = [200, 100];
        let mut label = String::new();
        let out = run(
            seed,
            setup,
            |p| p,
            |testbed, rng| {
                let mut at = Duration::ZERO;
                for _ in 0..rng.between(2, 10) {
                    let (host, rail) = (rng.index(2), rng.index(rails));
                    let nic = testbed.nics[host][rail].id();
                    at += random_time(rng, 40_000, 9);
                    let up = at + random_time(rng, 40_000, 11);
                    label += &format!(", {host}{rail} down at {at:?}, up at {up:?}");
                    testbed.world.after(at, move |w| w.set_link(nic, false));
                    testbed.world.after(up, move |w| w.set_link(nic, true));
                }
            },
        );
        out.assert_exact(seed, &label);
        assert_eq!(out.close_reasons[0], [None; 2], "seed {seed}{label}\n{}", reproduce_command(seed));
        assert!(out.verdicts[0].iter().all(Verdict::is_complete), "seed {seed}\n{}", reproduce_command(seed));
        *epochs.entry(out.epochs[0]).or_default() += 1;
    }
    println!("epochs: {epochs:?}");
    assert!(epochs.keys().any(|&epoch| epoch > 5) || seeds(300).count() < 300);
}

/// Links flap, NICs die or hang, packets arrive late and hosts pause.
#[test]
fn mixed_faults_on_any_device() {
    let mut endings = Endings::default();
    let mut epochs = BTreeMap::<u16, u32>::new();
    for seed in seeds(300) {
        let rng = &mut Prng::stream(seed, "setup");
        let rails = rng.between(2, 4) as usize;
        let mut setup = Setup::with_late_packets(seed, rails as u8, rng);
        setup.vqps = rng.between(1, 2);
        setup.ops = [120, 60];
        setup.world.host.pause_ppm = *rng.pick(&[0, 1_000, 10_000]);
        setup.world.host.pause_length = DurationRange::micros(50, 30_000);
        setup.world.capabilities.psn_query = rng.below(3) > 0;
        setup.world.capabilities.saved_results = rng.below(3) > 0;
        setup.failover.detector.max_missed_heartbeats = *rng.pick(&[0, 8, 40]);
        let mut label = format!("{rails} rails, log {}", setup.failover.completion_log.is_some());
        let out = run(
            seed,
            setup,
            |p| p,
            |testbed, rng| {
                let mut at = Duration::ZERO;
                for _ in 0..rng.between(2, 14) {
                    let (host, rail) = (rng.index(2), rng.index(rails));
                    let nic = testbed.nics[host][rail].id();
                    at += random_time(rng, 50_000, 8);
                    if rng.below(12) == 0 {
                        let failure = *rng.pick(&[Failure::NicDead, Failure::NicHung]);
                        label += &format!(", {failure:?} of {host}{rail} at {at:?}");
                        testbed.world.after(at, move |w| w.fail(nic, failure));
                        continue;
                    }
                    let up = at + random_time(rng, 50_000, 9);
                    label += &format!(", {host}{rail} down at {at:?}, up at {up:?}");
                    testbed.world.after(at, move |w| w.set_link(nic, false));
                    testbed.world.after(up, move |w| w.set_link(nic, true));
                }
            },
        );
        out.assert_exact(seed, &label);
        endings.count(&out);
        *epochs.entry(out.epochs[0]).or_default() += 1;
    }
    endings.print();
    println!("epochs: {epochs:?}");
    assert!(epochs.keys().any(|&epoch| epoch > 5) || seeds(300).count() < 300);
}

#[test]
fn every_failure_case_with_late_packets_and_pauses() {
    let cases: Vec<FailureCase> =
        FailureCase::all().into_iter().filter(|c| !c.requires_early_ack()).collect();
    for seed in seeds_of_cases(cases.len(), 2) {
        let case = cases[(seed % cases.len() as u64) as usize];
        let rng = &mut Prng::stream(seed, "setup");
        let mut setup = Setup::with_late_packets(seed, 2, rng);
        setup.world.host.pause_ppm = *rng.pick(&[0, 5_000]);
        setup.world.host.pause_length = DurationRange::micros(50, 30_000);
        // The second end posts no operations, because the trigger would count their packets.
        setup.ops = [40, 0];
        let plan = |p: Plan| p.only(&[case.kind]);
        let out = run(seed, setup, plan, |testbed, rng| {
            let hold = Some(Duration::from_micros(rng.between(100, 60_000)));
            let rail = testbed.rail(0);
            case.arm(&mut testbed.world, rail, rng.between(1, 30) as u32, hold);
        });
        out.assert_exact(seed, &case.to_string());
    }
}

/// The reported outcomes must be true, unless a report or the device excuses a false outcome.
#[test]
fn devices_with_fewer_capabilities() {
    let mut endings = Endings::default();
    for seed in seeds(300) {
        let rng = &mut Prng::stream(seed, "setup");
        let mut setup = Setup::with_late_packets(seed, 2, rng);
        setup.ops = [60, 60];
        let capabilities = &mut setup.world.capabilities;
        capabilities.psn_query = rng.below(2) == 0;
        capabilities.saved_results = rng.below(2) == 0;
        let ack_after_placement = rng.below(2) == 0;
        capabilities.ack_after_placement = ack_after_placement;
        let ordered = rng.below(2) == 0;
        capabilities.write_order = ordered;
        capabilities.reset = rng.below(4) > 0;
        let log = setup.failover.completion_log.is_some() && ordered;
        let durable = log && rng.below(2) == 0;
        setup.failover.completion_log =
            log.then(|| CompletionLogConfig { durable, ..CompletionLogConfig::default() });
        let mut label = format!("log {log}, durable {durable}, {capabilities:?}");
        let out = run(
            seed,
            setup,
            |p| Plan { ordered, ..p },
            |testbed, rng| {
                let nic = testbed.nics[rng.index(2)][0].id();
                let at = random_time(rng, 300_000, 3);
                let failure = *rng.pick(&[Failure::LinkDown, Failure::NicDead, Failure::NicHung]);
                label += &format!(", {failure:?} at {at:?}");
                testbed.world.after(at, move |w| w.fail(nic, failure));
            },
        );
        endings.count(&out);
        // Two reports excuse a false outcome. After `Unfenced`, a hung NIC may continue to execute
        // requests. After `LostAfterAck`, the responder lost data that it had acknowledged before
        // placement.
        let reports_loss = |c: &Option<Contradiction>| matches!(c, Some(Contradiction::LostAfterAck { .. }));
        let excused = out.close_reasons[0].contains(&Some(CloseReason::Unfenced))
            || !ack_after_placement && !durable && out.contradictions[0].iter().any(reports_loss);
        // Without a completion log, the loss of acknowledged data cannot be detected.
        let undetectable = !ack_after_placement && !log && out.placement_bytes_lost > 0;
        if !excused && !undetectable {
            out.assert_exact(seed, &label);
        }
    }
    endings.print();
}

/// For even seeds, the active rail fails. For odd seeds, the active rail stays up.
#[test]
fn flapping_standby_rail_causes_no_failover() {
    for seed in seeds(150) {
        let out = run(
            seed,
            Setup::new(seed, 2),
            |p| p,
            |testbed, rng| {
                let nic = testbed.rail(1)[rng.index(2)];
                let mut at = Duration::ZERO;
                for _ in 0..20 {
                    at += micros(rng, 1, 60);
                    testbed.world.after(at, move |w| w.set_link(nic, false));
                    at += micros(rng, 1, 60);
                    testbed.world.after(at, move |w| w.set_link(nic, true));
                }
                if seed % 2 == 0 {
                    let after = micros(rng, 1, 400);
                    cut_cable(testbed, rng, 0, after);
                }
            },
        );
        out.assert_exact(seed, "a flapping standby");
        if seed % 2 == 1 {
            assert_eq!(
                (out.close_reasons[0], out.epochs[0]),
                ([None; 2], 0),
                "seed {seed}: the standby rail is not in use"
            );
            assert!(out.verdicts[0].iter().all(Verdict::is_complete), "seed {seed}");
        }
    }
}

/// The rails fail one after the other, and neither recovers.
#[test]
fn failure_of_all_rails_closes_both_ends() {
    for seed in seeds(150) {
        let out = run(
            seed,
            Setup::new(seed, 2),
            |p| p,
            |testbed, rng| {
                let mut at = Duration::ZERO;
                for rail in 0..2 {
                    let limit = [20, 300, 5_000][rng.index(3)];
                    at += micros(rng, 1, limit);
                    cut_cable(testbed, rng, rail, at);
                }
            },
        );
        out.assert_exact(seed, "every cable");
        let finished = out.verdicts[0].iter().all(Verdict::is_complete);
        let both_closed = out.close_reasons[0].iter().all(Option::is_some);
        assert!(finished || both_closed, "seed {seed}: {:?}", out.close_reasons[0]);
    }
}

/// The host is paused around the time of a failure. When it resumes, its peer may have moved, may
/// be waiting for it, or may have closed.
// Hazard: a host pauses and wakes in an old epoch
#[test]
fn host_paused_during_failover_resumes_in_old_epoch() {
    let mut closed = 0;
    for seed in seeds(150) {
        let out = run(
            seed,
            Setup::new(seed, 2),
            |p| p,
            |testbed, rng| {
                let host = testbed.hosts[rng.index(2)];
                let at = micros(rng, 1, 300);
                let limit = [500, 8_000, 100_000, 600_000][rng.index(4)];
                let length = micros(rng, 100, limit);
                testbed.world.after(at, move |w| {
                    let until = w.now() + length;
                    w.pause(host, Some(until));
                });
                let cut_at = micros(rng, 1, 600);
                cut_cable(testbed, rng, 0, cut_at);
            },
        );
        out.assert_exact(seed, "paused host");
        closed += u32::from(out.close_reasons[0].iter().any(Option::is_some));
    }
    println!("{closed} closed");
}

/// The failover of one vQP may reset a NIC that the other vQPs use.
#[test]
fn vqps_sharing_nics_stay_independent() {
    let cases: Vec<FailureCase> =
        FailureCase::all().into_iter().filter(|c| !c.requires_early_ack()).collect();
    for seed in seeds(150) {
        let mut setup = Setup { vqps: 3, ..Setup::new(seed, 2) };
        setup.failover.completion_log = Some(CompletionLogConfig::default());
        // The heartbeat timeout is longer than the hosts' pauses, so that the vQPs leave only the
        // failed rail.
        setup.failover.detector.max_missed_heartbeats = 40;
        let case = cases[(seed as usize * 7) % cases.len()];
        let out = run(
            seed,
            setup,
            |p| p,
            |testbed, rng| {
                let nth = rng.between(1, 120) as u32;
                let rail = testbed.rail(0);
                case.arm(&mut testbed.world, rail, nth, None);
            },
        );
        out.assert_exact(seed, &case.to_string());
        for close_reasons in &out.close_reasons {
            assert_eq!(
                *close_reasons, [None; 2],
                "seed {seed}, {case}: {:?} {:?}",
                out.contradictions, out.last_failovers
            );
        }
    }
}
