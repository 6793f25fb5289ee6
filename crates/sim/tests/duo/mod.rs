//! Two ends of a virtual queue pair, driven by hand: the schedule is exactly the one that the test plays.
#![allow(dead_code)] // each test file uses a part

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{Completion, Config, Domain, Outcome, VirtualMr, VirtualQp};
use mitra_sim::Rig;
use mitra_verbs::{Access, Buffer, Data, Provider, RecvWr, RemoteAddr, SendOp, SendWr, WcOpcode};

pub const SIZE: usize = 1 << 16;
pub const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// Two ends and their memory; what each has completed.
pub struct Duo {
    pub rig: Rig,
    pub v: [VirtualQp; 2],
    pub memory: [Arc<Buffer>; 2],
    pub mr: [VirtualMr; 2],
    pub got: [Vec<Completion>; 2],
}

pub fn config() -> Config {
    let mut config = Config { send_wrs: 64, recv_wrs: 64, ..Config::default() };
    config.detector.local_ack_timeout = mitra_verbs::LocalAckTimeout::from_code(9);
    config.detector.max_missed_heartbeats = 0;
    config
}

impl Duo {
    pub fn new(rails: u8, config: Config) -> Duo {
        Duo::over(rails, config, mitra_sim::Config::calm())
    }

    pub fn over(rails: u8, config: Config, world: mitra_sim::Config) -> Duo {
        let rig = Rig::with(1, world, rails);
        let domains = [0, 1].map(|h| {
            let nics: Vec<_> = rig.nics[h].iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect();
            Domain::new(nics).expect("domain")
        });
        let [mut a, mut b] = [0, 1].map(|h: usize| {
            VirtualQp::new(Arc::clone(&domains[h]), config, [h as u64 + 1, h as u64 + 0xff_fff0])
                .expect("make")
        });
        let (info_a, info_b) = (a.local_info().expect("info"), b.local_info().expect("info"));
        a.connect(&info_b).expect("connect");
        b.connect(&info_a).expect("connect");
        let memory = [0, 1].map(|_| Arc::new(Buffer::new(SIZE)));
        let mr = [0, 1].map(|h: usize| domains[h].register(&memory[h], ALL).expect("register"));
        a.import(&mr[1].remote()).expect("import");
        b.import(&mr[0].remote()).expect("import");
        Duo { rig, v: [a, b], memory, mr, got: [Vec::new(), Vec::new()] }
    }

    /// Lets these ends poll once, and a little time pass.
    pub fn turn(&mut self, who: &[usize]) {
        for &h in who {
            self.v[h].poll(&mut self.got[h]);
        }
        self.rig.world.run_for(Duration::from_micros(25));
    }

    pub fn turns(&mut self, who: &[usize], n: usize) {
        for _ in 0..n {
            self.turn(who);
        }
    }

    pub fn remote(&self, of: usize, offset: u64) -> RemoteAddr {
        self.mr[of].remote().at(offset)
    }

    pub fn send(&mut self, from: usize, wr_id: u64, op: SendOp, data: Data) {
        self.v[from].post_send(SendWr::new(wr_id, op, data)).expect("post");
    }

    pub fn recv(&mut self, at: usize, wr_id: u64, len: u32) {
        let sge = self.mr[at].sge(wr_id * 256, len);
        self.v[at].post_recv(RecvWr::new(wr_id, sge)).expect("post_recv");
    }

    pub fn unplug(&mut self, h: usize, rail: usize) {
        let nic = self.rig.nics[h][rail].id();
        self.rig.world.set_link(nic, false);
    }

    pub fn plug(&mut self, h: usize, rail: usize) {
        let nic = self.rig.nics[h][rail].id();
        self.rig.world.set_link(nic, true);
    }

    pub fn outcome(&self, h: usize, wr_id: u64, receive: bool) -> Option<Outcome> {
        let is = |c: &&Completion| {
            c.wr_id == wr_id && matches!(c.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm) == receive
        };
        self.got[h].iter().find(is).map(|c| c.outcome)
    }
}
