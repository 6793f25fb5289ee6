//! A connected pair of virtual queue pairs that the test polls, so that the test determines the
//! schedule.
#![allow(dead_code)] // each test binary uses a part of this module

pub mod forger;

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{Completion, Config, Domain, Outcome, Secret, VirtualMr, VirtualQp};
use mitra_sim::workload::{FailoverQp, check_liveness};
use mitra_sim::{Failure, Testbed};
use mitra_verbs::{Access, Buffer, Data, Provider, RecvWr, RemoteAddr, SendOp, SendWr, WcOpcode};

pub const MEMORY_BYTES: usize = 1 << 16;
pub const FULL_ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// Each array has one element for each end.
pub struct VqpPair {
    pub testbed: Testbed,
    pub vqps: [VirtualQp; 2],
    pub memory: [Arc<Buffer>; 2],
    pub mr: [VirtualMr; 2],
    pub completions: [Vec<Completion>; 2],
    /// Whether the test has perhaps cut off an end by an attack, so that the liveness rule does not
    /// apply.
    pub is_attacked: bool,
}

pub fn config() -> Config {
    let mut config = Config { send_wrs: 64, recv_wrs: 64, ..Config::default() };
    config.detector.local_ack_timeout = mitra_verbs::LocalAckTimeout::from_code(9);
    config.detector.max_missed_heartbeats = 0;
    config
}

impl Drop for VqpPair {
    fn drop(&mut self) {
        if !self.is_attacked {
            assert_liveness(&self.testbed, self.vqps.each_ref());
        }
    }
}

/// Asserts the liveness rule, unless the test fails anyway.
pub fn assert_liveness<Q: FailoverQp>(testbed: &Testbed, ends: [&Q; 2]) {
    if let (Err(dead), false) =
        (check_liveness(&testbed.world, testbed.hosts, ends), std::thread::panicking())
    {
        panic!("{dead}");
    }
}

impl VqpPair {
    pub fn new(rails: u8, config: Config) -> VqpPair {
        VqpPair::with_world(rails, config, mitra_sim::Config::fault_free())
    }

    pub fn with_world(rails: u8, config: Config, world: mitra_sim::Config) -> VqpPair {
        VqpPair::with_testbed(Testbed::with_config(1, world, rails), config)
    }

    pub fn with_testbed(testbed: Testbed, config: Config) -> VqpPair {
        VqpPair::after_failures(testbed, config, &[])
    }

    /// Makes a pair whose NICs at these ends and rails fail before the vQPs are made.
    pub fn after_failures(testbed: Testbed, config: Config, failed: &[(usize, usize)]) -> VqpPair {
        let nics = [0, 1].map(|h| {
            testbed.nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect::<Vec<_>>()
        });
        VqpPair::over(testbed, nics, config, failed)
    }

    /// Like [`VqpPair::after_failures`], over these NICs, which use those of `testbed`.
    pub fn over(
        mut testbed: Testbed,
        nics: [Vec<Arc<dyn Provider>>; 2],
        config: Config,
        failed: &[(usize, usize)],
    ) -> VqpPair {
        let domains = nics.map(|nics| Domain::new(nics).expect("the NICs have the resources of a domain"));
        for &(end, rail) in failed {
            let nic = testbed.nics[end][rail].id();
            testbed.world.fail(nic, Failure::NicDead);
        }
        let [mut a, mut b] = [0, 1].map(|h: usize| {
            VirtualQp::builder(&domains[h])
                .config(config)
                .secret(Secret::fixed([h as u64 + 1, h as u64 + 0xff_fff0]))
                .build()
                .expect("the NICs have the resources of a vQP")
        });
        let (info_a, info_b) = (a.local_info(), b.local_info());
        a.connect(&info_b).expect("the ends match");
        b.connect(&info_a).expect("the ends match");
        let memory = [0, 1].map(|_| Arc::new(Buffer::new(MEMORY_BYTES)));
        let mr = [0, 1].map(|h: usize| {
            domains[h].register(&memory[h], FULL_ACCESS).expect("the NICs have a free region")
        });
        a.import(&mr[1].remote()).expect("the vQP is connected");
        b.import(&mr[0].remote()).expect("the vQP is connected");
        VqpPair {
            testbed,
            vqps: [a, b],
            memory,
            mr,
            completions: [Vec::new(), Vec::new()],
            is_attacked: false,
        }
    }

    /// Polls these ends once and advances the virtual time by 25 µs.
    pub fn poll(&mut self, ends: &[usize]) {
        for &h in ends {
            self.vqps[h].poll(&mut self.completions[h]);
        }
        self.testbed.world.run_for(Duration::from_micros(25));
    }

    pub fn poll_times(&mut self, ends: &[usize], n: usize) {
        for _ in 0..n {
            self.poll(ends);
        }
    }

    pub fn remote(&self, of: usize, offset: u64) -> RemoteAddr {
        self.mr[of].remote().at(offset)
    }

    pub fn send(&mut self, from: usize, wr_id: u64, op: SendOp, data: Data) {
        self.vqps[from].post_send(SendWr::new(wr_id, op, data)).expect("the send queue has room");
    }

    /// Posts a SEND of one word from the first end.
    pub fn send_message(&mut self, wr_id: u64, value: u64) {
        self.send(0, wr_id, SendOp::Send, Data::inline(&value.to_ne_bytes()));
    }

    /// Posts a WRITE of one word from the first end to the second end's memory.
    pub fn send_write(&mut self, wr_id: u64, offset: u64, value: u64) {
        self.send(0, wr_id, SendOp::Write(self.remote(1, offset)), Data::inline(&value.to_ne_bytes()));
    }

    /// Returns the `wr_id`s of the second end's successful receives, in order of completion.
    pub fn received_ids(&self) -> Vec<u64> {
        self.completions[1]
            .iter()
            .filter(|c| c.opcode == WcOpcode::Recv && c.is_success())
            .map(|c| c.wr_id)
            .collect()
    }

    /// Posts a receive of `len` bytes at offset 256 · `wr_id` of the end's memory.
    pub fn recv(&mut self, end: usize, wr_id: u64, len: u32) {
        let sge = self.mr[end].sge(wr_id * 256, len);
        self.vqps[end].post_recv(RecvWr::new(wr_id, sge)).expect("the receive queue has room");
    }

    pub fn link_down(&mut self, h: usize, rail: usize) {
        let nic = self.testbed.nics[h][rail].id();
        self.testbed.world.set_link(nic, false);
    }

    pub fn link_up(&mut self, h: usize, rail: usize) {
        let nic = self.testbed.nics[h][rail].id();
        self.testbed.world.set_link(nic, true);
    }

    /// Fails the link of the active rail, and heals it after `polls` polls, in which the vQP must
    /// move. Then polls as often again.
    pub fn fail_over(&mut self, polls: usize) {
        let rail = self.vqps[0].active_rail();
        self.link_down(0, rail);
        self.poll_times(&[0, 1], polls);
        assert_ne!(self.vqps[0].active_rail(), rail, "the vQP moved");
        self.link_up(0, rail);
        self.poll_times(&[0, 1], polls);
    }

    /// Returns `None` if the operation or receive has not completed.
    pub fn outcome(&self, h: usize, wr_id: u64, is_receive: bool) -> Option<Outcome> {
        let matches_request = |c: &&Completion| {
            c.wr_id == wr_id && matches!(c.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm) == is_receive
        };
        self.completions[h].iter().find(matches_request).map(|c| c.outcome)
    }
}
