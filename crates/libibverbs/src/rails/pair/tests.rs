//! Devices in one process, whose attendants the tests play themselves.

use std::thread;

use mitra_control::Settings;
use mitra_softnic::{Config, SoftNic};
use mitra_verbs::{CqId, QpCap, SgeList};

use super::*;
use crate::rails::attendant::answer_questions;

fn device() -> Arc<Spanning> {
    let nics: Vec<_> = (0..2).map(|_| SoftNic::open(Config::loopback()).expect("can open a NIC")).collect();
    Spanning::new(&nics, &Settings::default()).expect("can span them")
}

fn gids(device: &Spanning) -> Vec<Gid> {
    device.domain.nics().iter().map(|nic| nic.provider.query_port().expect("it lives").gid).collect()
}

fn pair(device: &Arc<Spanning>, completions: &Arc<Completions>) -> Arc<Pair> {
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        pd: device.pd(),
        send_cq: CqId(0),
        recv_cq: CqId(0),
        srq: None,
        cap: QpCap { send_wrs: 4, recv_wrs: 4, ..QpCap::default() },
        sq_sig_all: true,
    };
    let (sends, recvs) = (Arc::clone(completions), Arc::clone(completions));
    device
        .create(Made { init, sends, recvs, shared: None, on_event: Box::new(|_| {}) })
        .expect("can make a queue pair")
}

#[test]
fn a_queue_pair_that_was_destroyed_completes_nothing() {
    let (here, there) = (device(), device());
    let (completions, others) = (Completions::new(None), Completions::new(None));
    let (one, other) = (pair(&here, &completions), pair(&there, &others));
    let info = other.local_info().expect("it lives");
    lock(&one.inner).vqp.connect(&info).expect("they agree");
    one.post_recv(&[RecvWr { wr_id: 1, sges: SgeList::new() }]).expect("there is room");
    // As another thread may that polls just now.
    let known = here.pairs();
    here.destroy(one);
    known.iter().for_each(|pair| {
        pair.attend();
        pair.drive();
    });
    let mut found = Vec::new();
    completions.poll(16, &mut found);
    assert_eq!(found, []);
}

#[test]
fn only_the_peer_is_told_once_it_is_known() {
    let (asked, peer, stranger) = (device(), device(), device());
    let pair = pair(&asked, &Completions::new(None));
    let ask = |who: &Spanning| {
        thread::scope(|scope| {
            let answer = scope.spawn(|| who.meeting.connection(gids(&asked)[0], pair.qpn()));
            while !answer.is_finished() {
                answer_questions(&asked, &asked.pairs());
                thread::yield_now();
            }
            answer.join().expect("it only asks").is_ok()
        })
    };
    assert!(ask(&peer) && ask(&stranger), "anybody may be the peer");
    *lock(&pair.peer) = gids(&peer);
    assert!(ask(&peer));
    assert!(!ask(&stranger));
}
