//! The errors of a vQP that has ended: each says why the vQP ended and what the application can do.

mod vqp_pair;

use mitra_failover::{CloseReason, Outcome};
use mitra_verbs::{Data, RecvWr, SendOp, SendWr};

use vqp_pair::{VqpPair, config};

/// Closes a pair of two rails with a WRITE in flight, by cutting both rails of the first end, and polls until the first end has closed.
fn pair_without_rails() -> VqpPair {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    pair.link_down(0, 0);
    pair.link_down(0, 1);
    pair.send_write(7, 0, 1);
    for _ in 0..1_000_000 {
        if pair.vqps[0].close_reason().is_some() {
            return pair;
        }
        pair.poll(&[0, 1]);
    }
    panic!("the vQP closes when no rail is left");
}

#[test]
fn refused_post_names_reason_and_way_out() {
    let mut pair = pair_without_rails();
    let send = SendWr::new(8, SendOp::Send, Data::inline(&[0; 8]));
    let recv = RecvWr::new(9, pair.mr[0].sge(0, 64));
    let errors = [
        pair.vqps[0].post_send(send.clone()).unwrap_err().to_string(),
        pair.vqps[0].check_send(&send).unwrap_err().to_string(),
        pair.vqps[0].post_recv(recv).unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.contains("rail") && error.contains("connect a new"), "{error}");
    }
}

#[test]
fn completion_of_closed_vqp_names_reason_and_way_out() {
    let mut pair = pair_without_rails();
    pair.poll(&[0]);
    let completion = pair.completions[0].iter().find(|c| c.wr_id == 7).expect("the vQP completes every send");
    let Outcome::Unresolved(error) = completion.outcome else { panic!("{completion:?}") };
    let error = error.to_string();
    assert!(error.contains("connect a new"), "{error}");
    let names = ["NoRail", "PeerUnreachable", "FailedDuringRecovery"];
    assert!(!names.iter().any(|name| error.contains(name)), "a variant's name is not a message: {error}");
    let _: Option<CloseReason> = pair.vqps[0].close_reason();
}
