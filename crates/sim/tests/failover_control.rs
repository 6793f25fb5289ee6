//! What a virtual queue pair does with control messages that are malformed, foreign, old or absurd, with epochs that are used
//! up, and with a receiver that is not ready.

mod duo;

use std::sync::Arc;

use mitra_failover::{CloseReason, Config, Outcome, UnresolvedError};
use mitra_verbs::{
    CqId, Data, Gid, Provider, Psn, QpAttr, QpCap, QpInitAttr, QpState, QpType, Qpn, SendFlags, SendOp,
    SendWr, UdDestination, WcOpcode, WcStatus,
};

use duo::{Duo, config};

impl Duo {
    fn message(&mut self, wr_id: u64, value: u64) {
        self.send(0, wr_id, SendOp::Send, Data::inline(&value.to_ne_bytes()));
    }

    fn write(&mut self, wr_id: u64, at: u64, value: u64) {
        self.send(0, wr_id, SendOp::Write(self.remote(1, at)), Data::inline(&value.to_ne_bytes()));
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
        // MVQ2, cookie 8, 4 bytes; rail: GID 16, MTU 2, four numbers of 4 (queue pair, PSN, control, Q_Key).
        let info = d.v[1].local_info().expect("info").encode();
        let word = |at: usize| u32::from_le_bytes(info[at..at + 4].try_into().unwrap());
        let gid = Gid(info[16..32].try_into().unwrap());
        let (control, qkey) = (Qpn::new(word(42)), word(46));
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
const PATH: u8 = 7;

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
    let mut d = Duo::new(2, config());
    (0..32).for_each(|i| d.recv(1, i, 64));
    d.turns(&[0, 1], 50);
    let f = Forger::new(&d);
    let mut well_formed = vec![
        f.message(PROPOSE, 0, 1, &[1]),
        f.message(PROPOSE, 1, 0, &[1]),
        f.message(EVIDENCE, 1, 0, &evidence()),
        f.message(REFUSE, 1, 0, &[0xff]),
        f.message(REFUSE, 777, 1, &[0xff]),
        f.message(CLOSED, 0, 1, &[]),
    ];
    // New queue pairs for rails that nobody left, or that are not there.
    for (epoch, rail) in [(0, 0), (1, 0), (1, 1), (777, 1), (777, 200)] {
        well_formed.push(f.message(PATH, epoch, 1, &[rail, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]));
    }
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
    bad.extend([
        [good.as_slice(), &[0]].concat(),
        f.message(8, 1, 0, &[]),
        f.message(PATH, 1, 0, &[0; 7]),
        f.message(CLOSED, 9, 2, &[]),
    ]);
    bad.push(vec![0xff; 256]);
    let mut sizes = Vec::new();
    for round in 0..20 {
        for bytes in well_formed.iter().chain(&bad) {
            f.say(bytes);
            d.turns(&[0, 1], 3);
        }
        d.turns(&[0, 1], 8);
        assert_eq!(d.v[1].rejected_messages(), (round + 1) * bad.len() as u64);
        sizes.push(format!("{:?}", d.v[1]).len());
    }
    assert!(sizes.iter().all(|&n| n < sizes[0] + 500), "it grows: {sizes:?}");
    assert_eq!([d.v[0].close_reason(), d.v[1].close_reason()], [None, None]);
    assert_eq!([d.v[0].last_failover(), d.v[1].last_failover()], [None, None]);
    d.message(100, 1);
    d.turns(&[0, 1], 20);
    let mut moves = [0, 0];
    if !promised {
        let nic = d.rig.nics[0][0].id();
        d.rig.world.set_link(nic, false);
        moves = [1, 1];
    }
    d.message(101, 2);
    d.turns(&[0, 1], 400);
    assert_eq!(d.received(), [0, 1]);
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], moves, "{:?}", d.v[1].close_reason());
}

#[test]
fn when_the_epochs_are_used_up_both_ends_end_named() {
    for struck in [0, 1] {
        let mut d = Duo::new(2, config());
        d.turns(&[0, 1], 50);
        // A ballot that the second end declines: but it has promised it.
        let f = Forger::new(&d);
        f.say(&f.message(PROPOSE, u16::MAX, 1, &[0]));
        d.turns(&[0, 1], 20);
        assert_eq!(d.v[1].close_reason(), None);
        let nic = d.rig.nics[1][0].id();
        if struck == 1 {
            d.write(1, 0, 7);
            d.rig.world.set_link(nic, false);
            d.turns(&[0, 1], 2000);
            assert_eq!(d.v[1].close_reason(), Some(CloseReason::EpochsUsedUp));
            assert_eq!(d.v[0].close_reason(), Some(CloseReason::PeerClosed));
            let undecided = Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::PeerClosed));
            assert!(matches!(d.outcome(0, 1, false), Some(o) if o == undecided || d.memory[1].load(0) == 7));
        } else {
            // Only the first end notices. Its ballots are all below the one that was promised: it gives up, and says so.
            let nic = d.rig.nics[0][0].id();
            d.rig.world.set_link(nic, false);
            d.write(1, 0, 7);
            for _ in 0..6 {
                d.turns(&[0, 1], 40_000);
            }
            assert_eq!(d.v[0].close_reason(), Some(CloseReason::PeerUnreachable));
            assert_eq!(
                d.outcome(0, 1, false),
                Some(Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::PeerUnreachable)))
            );
            assert_eq!(d.v[1].close_reason(), Some(CloseReason::PeerClosed));
        }
    }
}

/// A receiver that is not ready is no failure: the message waits, and those behind it.
#[test]
fn a_message_waits_for_its_receive() {
    let mut d = Duo::new(2, config());
    d.turns(&[0, 1], 10);
    (0..4).for_each(|i| d.message(100 + i, 1000 + i));
    d.write(200, 8192, 5);
    d.turns(&[0, 1], 2000);
    assert_eq!((d.received(), d.outcome(0, 100, false), d.memory[1].load(8192)), (vec![], None, 0));
    for i in 0..4 {
        d.recv(1, i, 64);
        d.turns(&[0, 1], 200);
        assert_eq!(d.received().len() as u64, i + 1);
        assert_eq!(d.memory[1].load(i as usize * 256), 1000 + i);
    }
    assert!((100..104).all(|i| d.outcome(0, i, false) == Some(Outcome::Success)));
    assert_eq!((d.outcome(0, 200, false), d.memory[1].load(8192)), (Some(Outcome::Success), 5));
    assert_eq!([d.v[0].last_failover(), d.v[1].last_failover()], [None, None]);
}

/// The rail fails while messages wait for their receives, which come only when the peer has moved.
#[test]
fn a_message_that_waits_for_its_receive_moves_with_the_rail() {
    for log in [false, true] {
        let mut d = Duo::new(2, Config { completion_log: log, ..config() });
        d.recv(1, 0, 64);
        d.turns(&[0, 1], 10);
        (0..4).for_each(|i| d.message(100 + i, 1000 + i));
        d.write(200, 8192, 5);
        d.turns(&[0, 1], 40);
        assert_eq!(d.received(), [0]);
        let nic = d.rig.nics[0][0].id();
        d.rig.world.set_link(nic, false);
        d.turns(&[0, 1], 400);
        assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1, 1], "{:?}", d.v[0].close_reason());
        (1..4).for_each(|i| d.recv(1, i, 64));
        d.turns(&[0, 1], 400);
        assert_eq!(d.received(), [0, 1, 2, 3]);
        assert!((0..4).all(|i| d.memory[1].load(i * 256) == 1000 + i as u64));
        assert!((100..104).all(|i| d.outcome(0, i, false) == Some(Outcome::Success)));
        assert_eq!((d.outcome(0, 200, false), d.memory[1].load(8192)), (Some(Outcome::Success), 5));
    }
}

/// Who does not wait for ever is told; it is no failure of the rail, and nothing behind it was executed.
#[test]
fn a_receiver_that_is_never_ready_ends_the_request_not_the_rail() {
    let mut d = Duo::new(2, Config { rnr_retry: 2, ..config() });
    d.recv(1, 0, 64);
    d.turns(&[0, 1], 10);
    (0..3).for_each(|i| d.message(100 + i, 1000 + i));
    d.write(200, 8192, 5);
    d.turns(&[0, 1], 2000);
    assert_eq!(d.outcome(0, 100, false), Some(Outcome::Success));
    assert_eq!(d.outcome(0, 101, false), Some(Outcome::Failed(WcStatus::RnrRetryExceeded)));
    assert_eq!(d.outcome(0, 102, false), Some(Outcome::Failed(WcStatus::Flushed)));
    assert_eq!(d.outcome(0, 200, false), Some(Outcome::Failed(WcStatus::Flushed)));
    assert_eq!(d.memory[1].load(8192), 0);
    assert_eq!(
        (d.v[0].close_reason(), d.v[1].close_reason()),
        (Some(CloseReason::RequestError), Some(CloseReason::PeerClosed))
    );
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [0, 0]);
}
