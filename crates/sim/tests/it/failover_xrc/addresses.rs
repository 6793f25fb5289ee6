//! NICs whose addresses (GIDs) change.

use mitra_failover::{CompletionLogConfig, Config};
use mitra_sim::seeds;

use super::scene::{KINDS, Kind, SENDS, Scene, config};

fn go_on(scene: &mut Scene, times: usize) {
    for _ in 0..times {
        if scene.sender.outstanding() < SENDS as usize {
            let n = scene.posted.len();
            scene.post(KINDS[n % KINDS.len()], n % 3, true);
        }
        (0..3).for_each(|queue| scene.post_receives(queue, 16));
        scene.poll(1);
    }
}

/// The address of the active rail or of the other rail changes, at either end.
#[test]
fn messages_arrive_once_across_changes_of_address() {
    for end in 0..2 {
        for rail in 0..2 {
            let mut scene = Scene::fault_free(2, config());
            go_on(&mut scene, 40);
            let nic = scene.testbed.nics[end][rail].id();
            scene.testbed.world.change_address(nic);
            go_on(&mut scene, 400);
            assert_eq!(scene.sender.active_rail(), usize::from(rail == 0), "end {end}: the rail is left");
            let active = scene.testbed.nics[1 - end][scene.sender.active_rail()].id();
            scene.testbed.world.set_link(active, false);
            go_on(&mut scene, 400);
            assert_eq!(
                scene.sender.active_rail(),
                rail.min(1 - usize::from(rail == 0)),
                "end {end}: it is used again"
            );
            scene.poll(400);
            scene.all_sent(scene.posted.len());
            scene.all_succeed();
            assert!(scene.posted.iter().all(|posted| posted.received || !posted.kind.takes_receive()));
        }
    }
}

/// One NIC changes at a time.
#[test]
fn messages_arrive_once_across_flaps_and_changes() {
    let mut moves = 0;
    for seed in seeds(60) {
        let mut scene = Scene::new(
            seed,
            3,
            mitra_sim::Config::fault_free(),
            Config { completion_log: (seed % 2 == 0).then(CompletionLogConfig::default), ..config() },
        );
        go_on(&mut scene, 20);
        for _ in 0..12 {
            let (end, rail) = (scene.rng.index(2), scene.rng.index(3));
            let nic = scene.testbed.nics[end][rail].id();
            let down = scene.rng.below(2) == 0;
            scene.testbed.world.set_link(nic, !down);
            let polls = scene.rng.index(60);
            go_on(&mut scene, polls);
            if scene.rng.below(3) > 0 {
                scene.testbed.world.change_address(nic);
            }
            let polls = scene.rng.index(30);
            go_on(&mut scene, polls);
            scene.testbed.world.set_link(nic, true);
            go_on(&mut scene, 200);
        }
        scene.post(Kind::Send, 0, true);
        for _ in 0..400 {
            go_on(&mut scene, 0);
            (0..3).for_each(|queue| scene.post_receives(queue, 16));
            scene.poll(1);
        }
        assert_eq!((scene.sender.close_reason(), scene.sender.outstanding()), (None, 0), "seed {seed}");
        scene.all_succeed();
        moves += scene.sender.domain().activity().failovers;
    }
    assert!(moves > seeds(60).count() as u64, "{moves} failovers");
}
