//! Heartbeats while a minority of the memories crashes. All live processes name the live process
//! with the least id.

use mitra_consensus::heartbeat::Heartbeat;
use mitra_consensus::{MemoryId, ProcessId, ProcessSet};
use mitra_model_check::{FaultLimits, Step, World};

/// Wakes every live process once, and returns the leaders that they name.
fn wake_all(world: &mut World<Heartbeat>) -> Vec<Option<ProcessId>> {
    // An operation takes two delays, so the operations of the previous wake-up are complete.
    world.pass_delay();
    world.pass_delay();
    let living = world.live_processes();
    living.iter().for_each(|&p| world.apply(Step::Wake(p)));
    let leader = |p| world.process(p)?.leader(ProcessSet::first(4));
    living.into_iter().map(leader).collect()
}

#[test]
fn least_live_process_leads_after_crash_of_any_minority_of_memories() {
    for crashed in 0..5 {
        let processes = (0..4).map(|p| Heartbeat::new(ProcessId(p), 4, 5)).collect();
        let limits = FaultLimits { process_crashes: 3, memory_crashes: 2, ..FaultLimits::default() };
        let mut world = World::new(processes, 5, &Heartbeat::regions(4), limits);
        for p in 0..3 {
            for _ in 0..50 {
                assert!(wake_all(&mut world).iter().all(|&leader| leader == Some(ProcessId(p))));
            }
            if p == 1 {
                world.apply(Step::CrashMemory(MemoryId(crashed)));
                world.apply(Step::CrashMemory(MemoryId((crashed + 2) % 5)));
            }
            world.apply(Step::CrashProcess(ProcessId(p)));
            let next = Some(ProcessId(p + 1));
            let wakes = (1..100).find(|_| wake_all(&mut world).iter().all(|&leader| leader == next));
            assert!(wakes.is_some_and(|wakes| (13..=15).contains(&wakes)), "{wakes:?} wake-ups");
        }
    }
}
