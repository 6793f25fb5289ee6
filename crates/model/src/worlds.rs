//! A world for each protocol, at any size.

use mitra_agreement::ProcessId;
use mitra_agreement::disk_paxos::{self, DiskPaxos};
use mitra_agreement::paxos::{self, Paxos};
use mitra_agreement::protected_memory_paxos::{self, ProtectedMemoryPaxos};

use crate::{Limits, World};

/// What process `p` proposes.
pub fn proposal(p: u8) -> u8 {
    10 + p
}

/// `n` processes of Paxos.
pub fn paxos<R: paxos::Rules>(n: u8, limits: Limits) -> World<Paxos<u8, R>> {
    World::new((0..n).map(|p| Paxos::new(ProcessId(p), n, proposal(p))).collect(), 0, &[], limits)
}

/// `n` processes of Disk Paxos over `m` memories.
pub fn disk_paxos<R: disk_paxos::Rules>(n: u8, m: u8, limits: Limits) -> World<DiskPaxos<u8, R>> {
    let processes = (0..n).map(|p| DiskPaxos::new(ProcessId(p), n, m, proposal(p))).collect();
    World::new(processes, m, &DiskPaxos::<u8, R>::regions(n), limits)
}

/// `n` processes of Protected Memory Paxos over `m` memories.
pub fn protected_memory_paxos<R: protected_memory_paxos::Rules>(
    n: u8,
    m: u8,
    limits: Limits,
) -> World<ProtectedMemoryPaxos<u8, R>> {
    let processes = (0..n).map(|p| ProtectedMemoryPaxos::new(ProcessId(p), n, m, proposal(p))).collect();
    World::new(processes, m, &ProtectedMemoryPaxos::<u8, R>::regions(n), limits)
}
