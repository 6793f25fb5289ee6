//! Two ends of several queue pairs with a shared backup, which the test polls.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{BackedQp, BuildError, Completion, Config, Outcome, SharedBackup, VirtualMr};
use mitra_sim::Testbed;
use mitra_verbs::{Access, Buffer, Data, RecvWr, SendOp, SendWr, WcOpcode};

use super::run::{config, connect_backups};
use crate::vqp_pair::assert_liveness;

pub const WORDS: usize = 64;

/// The ends of host a, which posts, and of host b.
pub struct BackedPair {
    pub testbed: Testbed,
    pub backups: [Arc<SharedBackup>; 2],
    pub qps: [Vec<BackedQp>; 2],
    pub memory: [Arc<Buffer>; 2],
    pub mr: [VirtualMr; 2],
    pub completions: [Vec<Vec<Completion>>; 2],
}

impl Drop for BackedPair {
    fn drop(&mut self) {
        for (a, b) in self.qps[0].iter().zip(&self.qps[1]) {
            assert_liveness(&self.testbed, [a, b]);
        }
    }
}

impl BackedPair {
    pub fn new(rails: u8, members: usize) -> BackedPair {
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), rails);
        BackedPair::with(testbed, config(), members, |backup, _| backup.queue_pair(config()))
    }

    /// Makes the queue pairs of host `h` by `make`, which gets the backup of the host and `h`.
    pub fn with(
        testbed: Testbed,
        backup: Config,
        members: usize,
        make: impl FnMut(&Arc<SharedBackup>, usize) -> Result<BackedQp, BuildError>,
    ) -> BackedPair {
        let backups = connect_backups(&testbed, backup, 1);
        BackedPair::of(testbed, backups, members, make)
    }

    /// Makes the queue pairs of backups that are connected over the NICs of the testbed.
    pub fn of(
        testbed: Testbed,
        backups: [Arc<SharedBackup>; 2],
        members: usize,
        mut make: impl FnMut(&Arc<SharedBackup>, usize) -> Result<BackedQp, BuildError>,
    ) -> BackedPair {
        let mut qps = [0, 1].map(|h: usize| -> Vec<BackedQp> {
            let make = |_| make(&backups[h], h).expect("the NICs have the resources of a queue pair");
            (0..members).map(make).collect()
        });
        let memory = [0, 1].map(|_| Arc::new(Buffer::new(8 * WORDS)));
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = [0, 1].map(|h: usize| {
            qps[h][0].domain().register(&memory[h], access).expect("the NICs have a free region")
        });
        let [a, b] = &mut qps;
        for (a, b) in a.iter_mut().zip(b) {
            a.connect(&b.local_info()).expect("the ends match");
            b.connect(&a.local_info()).expect("the ends match");
            a.import(&mr[1].remote()).expect("the queue pair is connected");
        }
        let completions = [0, 1].map(|_| vec![Vec::new(); members]);
        BackedPair { testbed, backups, qps, memory, mr, completions }
    }

    /// Polls these ends, and drives the backups of the other ends. Advances the virtual time by 25
    /// µs.
    pub fn poll(&mut self, ends: &[usize], times: usize) {
        for _ in 0..times {
            for h in 0..2 {
                match ends.contains(&h) {
                    false => self.backups[h].progress(),
                    true => {
                        for (qp, out) in self.qps[h].iter_mut().zip(&mut self.completions[h]) {
                            qp.poll(out);
                        }
                    }
                }
            }
            self.testbed.world.run_for(Duration::from_micros(25));
        }
    }

    pub fn write(&mut self, member: usize, word: usize, value: u64) {
        let op = SendOp::Write(self.mr[1].remote().at(8 * word as u64));
        self.qps[0][member]
            .post_send(SendWr::new(value, op, Data::inline(&value.to_ne_bytes())))
            .expect("room");
    }

    pub fn send(&mut self, member: usize, value: u64) {
        let wr = SendWr::new(value, SendOp::Send, Data::inline(&value.to_ne_bytes()));
        self.qps[0][member].post_send(wr).expect("room");
    }

    pub fn word(&self, word: usize) -> u64 {
        self.memory[1].load(8 * word)
    }

    pub fn recv(&mut self, member: usize, word: usize) {
        let wr = RecvWr::new(word as u64, self.mr[1].sge(8 * word as u64, 8));
        self.qps[1][member].post_recv(wr).expect("the receive queue has room");
    }

    /// Returns the outcomes of a member's operations, with their `wr_id`s.
    pub fn outcomes(&self, h: usize, member: usize) -> Vec<(u64, Outcome)> {
        let sends = self.completions[h][member].iter().filter(|c| c.opcode != WcOpcode::Recv);
        sends.map(|c| (c.wr_id, c.outcome)).collect()
    }
}
