//! Many vQPs between two processes that both share atomics, so each process has a home rail. Both
//! homes move at each failure, and must soon agree.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{CloseReason, Domain};
use mitra_sim::workload::shared_word::{PEER_TIMEOUT, Pace, domain, time_below};
use mitra_sim::{DurationRange, Prng, reproduce_command};

use crate::shared_word::{Setup, Shape};

fn set_up(seed: u64, rng: &mut Prng, vqps: usize) -> (Setup, Arc<Domain>) {
    let mut world = mitra_sim::Config::swarm(seed);
    world.link.switched = true;
    world.memory.atomic_delay = DurationRange::nanos(100, 3_000);
    world.host.pause_length.max = world.host.pause_length.max.min(PEER_TIMEOUT / 16);
    world.host.pause_length.min = world.host.pause_length.min.min(world.host.pause_length.max);
    let rails = vec![world.capabilities; rng.between(2, 4) as usize];
    let shape = Shape {
        clients: 1,
        rails,
        shares: true,
        server_pace: Pace::every(Duration::from_nanos(rng.below(200_000))),
    };
    let mut setup = Setup::with_shape(seed, world, shape);
    let peer = domain(&setup.nics[1]);
    peer.share_atomics().expect("no vQP is connected");
    for _ in 0..vqps {
        setup.add_client_in(&peer, 1, rng.below(3) == 0, rng.between(100, 1000));
    }
    let interval = Duration::from_nanos(rng.below(200_000));
    for client in &setup.clients {
        client.borrow_mut().pace = Pace::every(interval);
    }
    (setup, peer)
}

/// Draws changes of addresses, and failures of links that are healed later. Returns the number of
/// faults.
fn add_faults(setup: &mut Setup, rng: &mut Prng) -> usize {
    let faults = rng.between(6, 16) as usize;
    let mut at = Duration::ZERO;
    for _ in 0..faults {
        at += time_below(rng, 14, 22);
        let nics = &setup.nics[rng.index(2)];
        let nic = nics[rng.index(nics.len())].id();
        if rng.below(2) == 0 {
            setup.world.after(at, move |w| w.change_address(nic));
        } else {
            let up = at + time_below(rng, 15, 23);
            setup.world.after(at, move |w| w.set_link(nic, false));
            setup.world.after(up, move |w| w.set_link(nic, true));
        }
    }
    faults
}

/// Runs the world of a seed. Returns the number of faults and the highest epoch, or an error.
fn run(seed: u64) -> Result<(usize, u16), String> {
    let rng = &mut Prng::stream(seed, "two homes");
    let vqps = rng.between(24, 40) as usize;
    let (mut setup, _peer) = set_up(seed, rng, vqps);
    let faults = add_faults(&mut setup, rng);
    setup.run(Duration::from_millis(60));
    setup.world.stop_noise();
    for nic in setup.nics.concat() {
        setup.world.set_link(nic.id(), true);
    }
    if !setup.run(Duration::from_secs(20)) {
        return Err(format!("work is not done, rails {:?}, {:?}", setup.rails(), setup.close_reasons()));
    }
    let closed: Vec<CloseReason> = setup.close_reasons().into_iter().flatten().collect();
    if !closed.is_empty() {
        return Err(format!("closed: {closed:?}"));
    }
    if !setup.run_until_together() {
        return Err(format!("the vQPs are not together: {:?}", setup.rails()));
    }
    setup.check()?;
    Ok((faults, setup.highest_epoch()))
}

/// Runs the worlds of these seeds, in which homes move. `run` returns the number of faults and the
/// highest epoch of a vQP, or an error. Fails if a vQP reaches more epochs than `epochs_per_fault`
/// allows, because then the homes alternate.
fn check_homes(
    seeds: impl Iterator<Item = u64>,
    epochs_per_fault: usize,
    run: impl Fn(u64) -> Result<(usize, u16), String>,
) {
    let (mut faults, mut most) = (0, 0);
    for seed in seeds {
        let (of_seed, epoch) =
            run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", reproduce_command(seed)));
        let bound = epochs_per_fault * (of_seed + 1);
        assert!(
            usize::from(epoch) <= bound,
            "seed {seed}: the homes alternate: {of_seed} faults, epoch {epoch}\n{}",
            reproduce_command(seed)
        );
        (faults, most) = (faults + of_seed, most.max(epoch));
    }
    println!("{faults} faults, at most {most} epochs");
    assert!(faults > 0, "no fault in any world");
}

// Hazard: two processes choose different homes
#[test]
fn homes_of_two_processes_agree() {
    // Not of a rotation: from seed 3469669997, one vQP closes as unreachable 400 ms after NICs of
    // both ends changed their addresses, which nobody has explained yet.
    check_homes(0..3, 3, run);
}
