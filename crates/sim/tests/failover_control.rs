//! What a virtual queue pair does with control messages that are malformed, foreign, old or absurd, with epochs that are used
//! up, and with a receiver that is not ready.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{Completion, Config, Domain, Ended, NamedError, Outcome, VirtualMr, VirtualQp};
use mitra_sim::Rig;
use mitra_verbs::{
    Access, Buffer, CqId, Data, Gid, Provider, Psn, QpAttr, QpCap, QpInitAttr, QpState, QpType, Qpn, RecvWr,
    SendFlags, SendOp, SendWr, UdDestination, WcOpcode, WcStatus,
};

const SIZE: usize = 1 << 14;

/// Two ends and their memory; what each has completed.
struct Duo {
    rig: Rig,
    v: [VirtualQp; 2],
    memory: [Arc<Buffer>; 2],
    mr: [VirtualMr; 2],
    got: [Vec<Completion>; 2],
}

fn config() -> Config {
    let mut config = Config { send_wrs: 64, recv_wrs: 64, ..Config::default() };
    config.detector.timeout = 9;
    config.detector.misses = 0;
    config
}

impl Duo {
    fn new(config: Config) -> Duo {
        let rig = Rig::with(1, mitra_sim::Config::calm(), 2);
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
        let all = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = [0, 1].map(|h: usize| domains[h].register(&memory[h], all).expect("register"));
        a.import(&mr[1].remote()).expect("import");
        b.import(&mr[0].remote()).expect("import");
        Duo { rig, v: [a, b], memory, mr, got: [Vec::new(), Vec::new()] }
    }

    fn turns(&mut self, n: usize) {
        for _ in 0..n {
            for h in 0..2 {
                self.v[h].poll(&mut self.got[h]);
            }
            self.rig.world.run_for(Duration::from_micros(25));
        }
    }

    fn send(&mut self, wr_id: u64, value: u64) {
        let data = Data::inline(&value.to_ne_bytes());
        self.v[0].post_send(SendWr::new(wr_id, SendOp::Send, data)).expect("post");
    }

    fn write(&mut self, wr_id: u64, at: u64, value: u64) {
        let op = SendOp::Write(self.mr[1].remote().at(at));
        self.v[0].post_send(SendWr::new(wr_id, op, Data::inline(&value.to_ne_bytes()))).expect("post");
    }

    /// A receive of the second end.
    fn recv(&mut self, wr_id: u64) {
        let sge = self.mr[1].sge(wr_id * 64, 64);
        self.v[1].post_recv(RecvWr::new(wr_id, sge)).expect("post_recv");
    }

    fn outcome(&self, h: usize, wr_id: u64) -> Option<Outcome> {
        self.got[h].iter().find(|c| c.wr_id == wr_id).map(|c| c.outcome)
    }

    fn received(&self) -> Vec<u64> {
        self.got[1].iter().filter(|c| c.opcode == WcOpcode::Recv && c.is_success()).map(|c| c.wr_id).collect()
    }
}

/// Somebody on the first host who knows all about the second end's control queue pair on rail 0.
struct Forger {
    nic: Arc<dyn Provider>,
    qpn: Qpn,
    cq: CqId,
    to: UdDestination,
    /// The second end's.
    cookie: u64,
}

impl Forger {
    fn new(d: &Duo) -> Forger {
        let nic = Arc::clone(&d.rig.nics[0][0]) as Arc<dyn Provider>;
        let pd = nic.alloc_pd().expect("pd");
        let cq = nic.create_cq(64, None).expect("cq");
        let cap = QpCap { send_wrs: 64, recv_wrs: 1, inline: 256, ..QpCap::default() };
        let qp_type = QpType::Ud;
        let init = QpInitAttr { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
        let qpn = nic.create_qp(&init).expect("qp");
        // MVQ1, cookie 8, 4 bytes, depth 4; rail: GID 16, MTU 2, four numbers of 4 (queue pair, PSN, control, Q_Key).
        let info = d.v[1].local_info().expect("info").encode();
        let word = |at: usize| u32::from_le_bytes(info[at..at + 4].try_into().unwrap());
        let gid = Gid(info[20..36].try_into().unwrap());
        let (control, qkey) = (Qpn::new(word(46)), word(50));
        let to_init =
            QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(qkey), ..QpAttr::to(QpState::Init) };
        let to_rts = QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) };
        for attr in [to_init, QpAttr::to(QpState::Rtr), to_rts] {
            nic.modify_qp(qpn, &attr).expect("modify");
        }
        let ah = nic.create_ah(pd, gid).expect("address handle");
        let cookie = u64::from_le_bytes(info[4..12].try_into().unwrap());
        Forger { nic, qpn, cq, to: UdDestination { ah, qpn: control, qkey }, cookie }
    }

    fn say(&self, bytes: &[u8]) {
        let flags = SendFlags::SIGNALED;
        let wr = SendWr::new(0, SendOp::Send, Data::inline(bytes)).to(self.to).with_flags(flags);
        self.nic.post_send(self.qpn, &[wr]).expect("post");
        self.nic.poll_cq(self.cq, 64, &mut Vec::new()).expect("poll");
    }

    /// A message with the right cookie and role.
    fn message(&self, kind: u8, epoch: u16, proposer: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![1, kind, 0, 0];
        out.extend_from_slice(&self.cookie.to_le_bytes());
        out.extend_from_slice(&epoch.to_le_bytes());
        out.push(proposer);
        out.extend_from_slice(body);
        out
    }
}

const PROPOSE: u8 = 2;
const EVIDENCE: u8 = 3;
const RESUME: u8 = 4;
const REFUSE: u8 = 5;
const CLOSED: u8 = 6;

/// The body of an Evidence for rail 1 with absurd numbers.
fn evidence() -> Vec<u8> {
    let mut body = vec![1, 3, 1];
    body.resize(body.len() + 3 + 8 + 8 + 4 + 11, 0xff);
    body
}

#[test]
fn malformed_foreign_old_and_absurd_control_messages_move_nothing_and_leave_nothing() {
    hostile(false);
}

#[test]
fn ballots_for_rails_that_nobody_can_use_move_nothing_and_leave_nothing() {
    hostile(true);
}

/// `promised`: with ballots above the one in force too. They bind who hears them, so the peer's own come too late then: who
/// knows the cookie can speak for the peer.
fn hostile(promised: bool) {
    let mut d = Duo::new(config());
    (0..32).for_each(|i| d.recv(i));
    d.turns(50);
    let f = Forger::new(&d);
    let mut well_formed = vec![
        f.message(PROPOSE, 0, 1, &[1]),
        f.message(PROPOSE, 1, 0, &[1]),
        f.message(EVIDENCE, 1, 0, &evidence()),
        f.message(REFUSE, 1, 0, &[0xff]),
        f.message(REFUSE, 777, 1, &[0xff]),
        f.message(CLOSED, 0, 1, &[]),
    ];
    // Resumes of a move that nobody makes.
    well_formed.extend((0..50).map(|i| f.message(RESUME, 2 + i * 1000, 1, &[0, 0xff, 0xff, 0xff, 0xff])));
    if promised {
        well_formed.extend((0..50).map(|i| f.message(PROPOSE, 2 + i, 1, &[200])));
        well_formed.extend((0..50).map(|i| f.message(PROPOSE, 100 + i, 0, &[0])));
    }
    let good = f.message(EVIDENCE, 1, 0, &evidence());
    let mut bad: Vec<Vec<u8>> = (0..good.len()).map(|n| good[..n].to_vec()).collect();
    bad.extend((0..8).map(|bit| {
        let mut foreign = good.clone();
        foreign[4 + bit] ^= 1 << bit;
        foreign
    }));
    bad.extend([[good.as_slice(), &[0]].concat(), f.message(7, 1, 0, &[]), f.message(CLOSED, 9, 2, &[])]);
    bad.push(vec![0xff; 256]);
    let mut sizes = Vec::new();
    for round in 0..20 {
        for bytes in well_formed.iter().chain(&bad) {
            f.say(bytes);
            d.turns(3);
        }
        d.turns(8);
        assert_eq!(d.v[1].rejected_messages(), (round + 1) * bad.len() as u64);
        sizes.push(format!("{:?}", d.v[1]).len());
    }
    assert!(sizes.iter().all(|&n| n < sizes[0] + 500), "it grows: {sizes:?}");
    assert_eq!([d.v[0].ended(), d.v[1].ended()], [None, None]);
    assert_eq!([d.v[0].last_failover(), d.v[1].last_failover()], [None, None]);
    d.send(100, 1);
    d.turns(20);
    let mut moves = [0, 0];
    if !promised {
        let nic = d.rig.nics[0][0].id();
        d.rig.world.set_link(nic, false);
        moves = [1, 1];
    }
    d.send(101, 2);
    d.turns(400);
    assert_eq!(d.received(), [0, 1]);
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], moves, "{:?}", d.v[1].ended());
}

#[test]
fn when_the_epochs_are_used_up_both_ends_end_named() {
    for struck in [0, 1] {
        let mut d = Duo::new(config());
        d.turns(50);
        // A ballot that the second end declines: but it has promised it.
        let f = Forger::new(&d);
        f.say(&f.message(PROPOSE, u16::MAX, 1, &[0]));
        d.turns(20);
        assert_eq!(d.v[1].ended(), None);
        let nic = d.rig.nics[1][0].id();
        if struck == 1 {
            d.write(1, 0, 7);
            d.rig.world.set_link(nic, false);
            d.turns(2000);
            assert_eq!(d.v[1].ended(), Some(Ended::EpochsUsedUp));
            assert_eq!(d.v[0].ended(), Some(Ended::PeerClosed));
            let undecided = Outcome::Named(NamedError::Undecided(Ended::PeerClosed));
            assert!(matches!(d.outcome(0, 1), Some(o) if o == undecided || d.memory[1].load(0) == 7));
        } else {
            // Only the first end notices. Its ballots are all below the one that was promised: it gives up, and says so.
            let nic = d.rig.nics[0][0].id();
            d.rig.world.set_link(nic, false);
            d.write(1, 0, 7);
            for _ in 0..6 {
                d.turns(40_000);
            }
            assert_eq!(d.v[0].ended(), Some(Ended::PeerUnreachable));
            assert_eq!(d.outcome(0, 1), Some(Outcome::Named(NamedError::Undecided(Ended::PeerUnreachable))));
            assert_eq!(d.v[1].ended(), Some(Ended::PeerClosed));
        }
    }
}

/// A receiver that is not ready is no failure: the message waits, and those behind it.
#[test]
fn a_message_waits_for_its_receive() {
    let mut d = Duo::new(config());
    d.turns(10);
    (0..4).for_each(|i| d.send(100 + i, 1000 + i));
    d.write(200, 8192, 5);
    d.turns(2000);
    assert_eq!((d.received(), d.outcome(0, 100), d.memory[1].load(8192)), (vec![], None, 0));
    for i in 0..4 {
        d.recv(i);
        d.turns(200);
        assert_eq!(d.received().len() as u64, i + 1);
        assert_eq!(d.memory[1].load(i as usize * 64), 1000 + i);
    }
    assert!((100..104).all(|i| d.outcome(0, i) == Some(Outcome::Success)));
    assert_eq!((d.outcome(0, 200), d.memory[1].load(8192)), (Some(Outcome::Success), 5));
    assert_eq!([d.v[0].last_failover(), d.v[1].last_failover()], [None, None]);
}

/// The rail fails while messages wait for their receives, which come only when the peer has moved.
#[test]
fn a_message_that_waits_for_its_receive_moves_with_the_rail() {
    for log in [false, true] {
        let mut d = Duo::new(Config { log, ..config() });
        d.recv(0);
        d.turns(10);
        (0..4).for_each(|i| d.send(100 + i, 1000 + i));
        d.write(200, 8192, 5);
        d.turns(40);
        assert_eq!(d.received(), [0]);
        let nic = d.rig.nics[0][0].id();
        d.rig.world.set_link(nic, false);
        d.turns(400);
        assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1, 1], "{:?}", d.v[0].ended());
        (1..4).for_each(|i| d.recv(i));
        d.turns(400);
        assert_eq!(d.received(), [0, 1, 2, 3]);
        assert!((0..4).all(|i| d.memory[1].load(i * 64) == 1000 + i as u64));
        assert!((100..104).all(|i| d.outcome(0, i) == Some(Outcome::Success)));
        assert_eq!((d.outcome(0, 200), d.memory[1].load(8192)), (Some(Outcome::Success), 5));
    }
}

/// Who does not wait for ever is told; it is no failure of the rail, and nothing behind it was executed.
#[test]
fn a_receiver_that_is_never_ready_ends_the_request_not_the_rail() {
    let mut d = Duo::new(Config { rnr_retry: 2, ..config() });
    d.recv(0);
    d.turns(10);
    (0..3).for_each(|i| d.send(100 + i, 1000 + i));
    d.write(200, 8192, 5);
    d.turns(2000);
    assert_eq!(d.outcome(0, 100), Some(Outcome::Success));
    assert_eq!(d.outcome(0, 101), Some(Outcome::Failed(WcStatus::RnrRetryExceeded)));
    assert_eq!(d.outcome(0, 102), Some(Outcome::Failed(WcStatus::Flushed)));
    assert_eq!(d.outcome(0, 200), Some(Outcome::Failed(WcStatus::Flushed)));
    assert_eq!(d.memory[1].load(8192), 0);
    assert_eq!((d.v[0].ended(), d.v[1].ended()), (Some(Ended::RequestError), Some(Ended::PeerClosed)));
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [0, 0]);
}
