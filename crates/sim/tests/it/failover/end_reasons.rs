//! The errors of a vQP that has ended: each says why the vQP ended and what the application can do.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{CloseReason, Outcome};
use mitra_verbs::{AsyncEvent, Buffer, Data, RecvWr, SendOp, SendWr, WcStatus};

use crate::vqp_pair::{FULL_ACCESS, VqpPair, config};

/// Cuts both rails of the first end of a pair with a WRITE in flight, and polls until that end has
/// closed.
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

/// The first end has moved and replays an invalid request, which the new rail refuses. The second
/// end handles two messages together: the evidence, which would make it move, and the message that
/// the first end has closed.
#[test]
fn event_of_a_request_that_the_new_rail_refused_is_kept() {
    let mut pair = VqpPair::new(2, config());
    let freed = Arc::new(Buffer::new(4096));
    let region = pair.vqps[1].domain().register(&freed, FULL_ACCESS).expect("the NICs have a free region");
    pair.vqps[0].import(&region.remote()).expect("the vQP is connected");
    pair.vqps[1].domain().deregister(&region).expect("the NICs confirm");
    pair.poll_times(&[0, 1], 5);
    pair.link_down(0, 0);
    pair.send(0, 1, SendOp::Write(region.remote().at(0)), Data::inline(&[0; 8]));
    pair.poll_times(&[0], 20); // the first end proposes the other rail
    pair.poll_times(&[1], 40); // the second end fences and sends its evidence
    pair.poll_times(&[0], 100); // the first end moves, and its request is refused
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Failed(WcStatus::RemoteAccess)));
    pair.poll_times(&[1], 100);
    assert!(pair.vqps[1].close_reason().is_some());
    let event = pair.vqps[1].qp_error_event();
    assert!(matches!(event, Some(AsyncEvent::QpAccessError(_))), "{event:?}");
}

/// The end runs less often than half of its heartbeat timeout, and has no requests in flight.
#[test]
fn rarely_polling_end_notices_that_its_peer_is_gone() {
    let mut config = config();
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 3;
    config.peer_timeout = Duration::from_millis(200);
    let mut pair = VqpPair::new(2, config);
    pair.poll_times(&[0, 1], 100);
    assert_eq!(pair.vqps[1].close_reason(), None);
    pair.testbed.world.pause(pair.testbed.hosts[0], None); // the first end is not polled any more
    for _ in 0..10_000 {
        pair.testbed.world.run_for(Duration::from_millis(2));
        pair.poll(&[1]);
        if pair.vqps[1].close_reason().is_some() {
            break;
        }
    }
    assert_eq!(pair.vqps[1].close_reason(), Some(CloseReason::PeerUnreachable));
}
