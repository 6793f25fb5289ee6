//! Heartbeats over memories of which a minority crashes: whoever lives comes to name the least that lives, and to stay with it.

use mitra_consensus::heartbeat::Heartbeat;
use mitra_consensus::{MemoryId, ProcessId, ProcessSet};
use mitra_consensus_check::{FaultLimits, Step, World};

/// One look of everybody alive.
fn look(world: &mut World<Heartbeat>) -> Vec<Option<ProcessId>> {
    // An operation takes two delays: who wakes has the answers of before.
    world.pass_delay();
    world.pass_delay();
    let living = world.live_processes();
    living.iter().for_each(|&p| world.apply(Step::Wake(p)));
    let leader = |p| world.process(p)?.leader(ProcessSet::first(4));
    living.into_iter().map(leader).collect()
}

#[test]
fn the_least_that_lives_leads_whichever_minority_of_memories_has_crashed() {
    for crashed in 0..5 {
        let processes = (0..4).map(|p| Heartbeat::new(ProcessId(p), 4, 5)).collect();
        let limits = FaultLimits { process_crashes: 3, memory_crashes: 2, ..FaultLimits::default() };
        let mut world = World::new(processes, 5, &Heartbeat::regions(4), limits);
        for p in 0..3 {
            for _ in 0..50 {
                assert!(look(&mut world).iter().all(|&leader| leader == Some(ProcessId(p))));
            }
            if p == 1 {
                world.apply(Step::CrashMemory(MemoryId(crashed)));
                world.apply(Step::CrashMemory(MemoryId((crashed + 2) % 5)));
            }
            world.apply(Step::CrashProcess(ProcessId(p)));
            let next = Some(ProcessId(p + 1));
            let looks = (1..100).find(|_| look(&mut world).iter().all(|&leader| leader == next));
            assert!(looks.is_some_and(|looks| (13..=15).contains(&looks)), "{looks:?} looks");
        }
    }
}
