//! The knobs that worlds of the first generation lack: evidence options, failback, shared receive
//! queues and windows of vQPs, PSNs next to their wrap on any rail, the shape of operations,
//! detectors, and starvation.

use core::time::Duration;

use mitra_failover::{DetectorConfig, Failback};
use mitra_prng::SPLIT_MIX_STEP;

use super::options::ConnectionOptions;
use super::setup::{LARGE, Polling, Setup, seed_of_first_word};
use super::starvation;
use mitra_sim::Prng;

/// One of so many seeds has starvation.
const SEEDS_PER_STARVATION: u64 = 4;

pub(super) fn draw(seed: u64, setup: &mut Setup) {
    let rng = &mut Prng::stream(seed, "failover more knobs");
    draw_connection(rng, setup);
    draw_failback(rng, setup);
    draw_plans(rng, setup);
    draw_psn(rng, setup);
    if setup.focus.is_none() && setup.placed.is_none() {
        draw_detectors(&mut Prng::stream(seed, "failover detectors"), setup);
        draw_starvation(&mut Prng::stream(seed, "failover starvation"), setup);
    }
    draw_wakers(&mut Prng::stream(seed, "failover wakers"), setup);
}

/// In about a quarter of the seeds, each vQP that every turn would poll is polled when it is woken
/// instead.
fn draw_wakers(rng: &mut Prng, setup: &mut Setup) {
    let is_drawn = rng.below(2) == 0 && setup.is_vqp();
    for polling in setup.polling.iter_mut().filter(|polling| is_drawn && **polling == Polling::Always) {
        *polling = Polling::WhenWoken;
    }
}

/// In one of six seeds, draws ends without heartbeats, whose messages wait for receives without
/// limit. If such a connection has a completion log, its mode is usually `durable`. Some of the
/// NICs acknowledge data that is not in memory yet, or cannot be reset. In another sixth of the
/// seeds, the second end has other detectors than the first.
fn draw_detectors(rng: &mut Prng, setup: &mut Setup) {
    match rng.below(6) {
        0 => {
            (setup.vqp.detector.max_missed_heartbeats, setup.vqp.rnr_retry) = (0, 7);
            let (acks_early, reset) = (rng.below(2) == 0, rng.below(2) == 0);
            for nic in setup.rails.iter_mut().flat_map(|rail| &mut rail.capabilities) {
                (nic.ack_after_placement, nic.reset) = (nic.ack_after_placement && !acks_early, reset);
            }
            if let Some(options) = &mut setup.options {
                options.durable = options.completion_log && rng.below(4) > 0;
                options.shape(&mut setup.vqp);
            }
        }
        1 => {
            setup.second_detector = Some(DetectorConfig {
                heartbeat_interval: Duration::from_micros(1_000 << rng.below(7)),
                max_missed_heartbeats: *rng.pick(&[0, 3, 8, 40]),
                retry_cnt: *rng.pick(&[0, 1, 3, 5, 7]),
                ..setup.vqp.detector
            });
        }
        _ => {}
    }
}

/// Draws starvation. All of it together is short beside `peer_timeout`, after which an end may
/// close. Half of these worlds have no noise, because a move that follows the loss of a packet
/// counts as no false alarm.
fn draw_starvation(rng: &mut Prng, setup: &mut Setup) {
    if rng.below(SEEDS_PER_STARVATION) != 0 {
        return;
    }
    if rng.below(2) == 0 {
        setup.world.link = setup.world.link.without_noise();
        setup.rails.iter_mut().for_each(|rail| rail.link = rail.link.without_noise());
    }
    setup.starvation = starvation::draw(rng, setup.rails.len(), setup.vqp.peer_timeout / 4);
}

fn draw_connection(rng: &mut Prng, setup: &mut Setup) {
    setup.log_interval = *rng.pick(&[1, 1, 2, 3, 8, 64]);
    if let Some(log) = &mut setup.vqp.completion_log {
        log.interval = setup.log_interval;
    }
    if setup.is_vqp() && rng.below(3) == 0 {
        let options = ConnectionOptions::draw_with_log(rng, setup.vqp.completion_log.is_some());
        options.shape(&mut setup.vqp);
        setup.options = Some(options);
    }
}

fn draw_failback(rng: &mut Prng, setup: &mut Setup) {
    if rng.below(4) == 0 {
        let rail = rng.index(setup.rails.len()) as u8;
        setup.vqp.failback = Some(Failback { rail, delay: Duration::from_micros(100 << rng.below(10)) });
    }
}

fn draw_plans(rng: &mut Prng, setup: &mut Setup) {
    let inline = setup.vqp.inline as usize;
    for plan in setup.plans.iter_mut().flatten() {
        // Each turn compares all words of the first incomplete areas. Large areas would take most
        // of the time of a run.
        plan.imm_by_word = rng.below(3) == 0 && plan.max_len < LARGE && !plan.consumes_late;
        plan.empty_block_ppm = *rng.pick(&[0, 0, 100_000]);
        plan.inline_limit = (rng.below(2) == 0).then_some(inline);
        plan.sges = *rng.pick(&[1, 1, 2, 5]);
    }
}

/// In a third of the seeds, draws a first PSN of each end close to the wrap to 0, on any rail or on
/// a queue pair that replaces another queue pair.
fn draw_psn(rng: &mut Prng, setup: &mut Setup) {
    if rng.below(3) != 0 {
        return;
    }
    let rail = rng.index(setup.rails.len()) as u64;
    // The secret of a replacement queue pair is numbered by its rail, and by the epoch in which the
    // vQP leaves the rail.
    let number = rail | if rng.below(2) == 0 { 0 } else { rng.between(2, 4) << 8 };
    for secret in &mut setup.secrets {
        let psn = 0x100_0000 - rng.between(1, 64);
        let word = rng.bits() & !0xff_ffff | psn;
        secret[1] = seed_of_first_word(word).wrapping_sub(number.wrapping_mul(SPLIT_MIX_STEP));
    }
}
