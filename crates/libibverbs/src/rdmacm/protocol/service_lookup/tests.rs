use std::net::SocketAddr;

use super::super::message::{PortSpace, Service};
use super::*;

fn request(request_id: u32) -> SidrRequest {
    let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let service = Service { space: PortSpace::Udp, source: address(4000), destination: address(5000) };
    SidrRequest { request_id, service, private_data: b"where?".to_vec() }
}

fn reply(request_id: u32, status: u8) -> SidrReply {
    SidrReply { request_id, status, qpn: 17, qkey: 1, private_data: b"here".to_vec() }
}

fn client() -> Gid {
    Gid([7; 16])
}

#[test]
fn repeated_request_gets_the_same_reply() {
    let (now, key) = (Instant::now(), (client(), 5));
    let mut requests = ServiceRequests::default();
    assert_eq!(requests.receive(key, now), ReceivedRequest::New);
    // The responder ignores repetitions until the program answers.
    assert_eq!(requests.receive(key, now), ReceivedRequest::Ignored);
    requests.reply(key, reply(5, sidr_status::VALID), now);
    assert_eq!(requests.receive(key, now), ReceivedRequest::Answered(reply(5, sidr_status::VALID)));
    assert_eq!(requests.receive((Gid([8; 16]), 5), now), ReceivedRequest::New, "another device");
    requests.remove(key);
    assert_eq!(requests.receive(key, now), ReceivedRequest::New);
}

#[test]
fn request_is_repeated_until_timeout() {
    let start = Instant::now();
    let mut lookup = ServiceLookup::new(1, 2, start);
    assert_eq!(lookup.next_message(start), None, "the destination is not known");
    assert_eq!(lookup.deadline(), start + RESPONSE_TIMEOUT);
    let mut now = start + Duration::from_secs(1);
    lookup.request(request(1), now);
    let mut sent = 0;
    while !lookup.is_timed_out(now) {
        if let Some(message) = lookup.next_message(now) {
            assert_eq!(message.repetition, sent);
            assert_eq!(message.transaction.message, Message::SidrReq(request(1)));
            sent += 1;
        }
        now = lookup.deadline();
    }
    assert_eq!(now, start + RESPONSE_TIMEOUT);
    assert!((100..150).contains(&sent), "{sent}");
}

#[test]
fn refusal_counts_after_the_retry_period() {
    let start = Instant::now();
    let mut lookup = ServiceLookup::new(1, 2, start);
    let refusal = reply(1, sidr_status::UNSUPPORTED);
    assert!(!lookup.accepts(&reply(1, sidr_status::VALID), start), "nothing was asked");
    lookup.request(request(1), start);
    assert!(!lookup.accepts(&refusal, start) && lookup.accepts(&refusal, start + REFUSED_RETRY_PERIOD));
    for status in [sidr_status::VALID, sidr_status::REJECTED] {
        assert!(lookup.accepts(&reply(1, status), start));
    }
}

#[test]
fn stored_requests_are_bounded_and_expire() {
    let now = Instant::now();
    let mut requests = ServiceRequests::default();
    let mut is_new = |id: u32, now: Instant| requests.receive((client(), id), now) == ReceivedRequest::New;
    let accepted = (0..2 * MAX_REQUESTS as u32).filter(|id| is_new(*id, now)).count();
    assert_eq!(accepted, MAX_REQUESTS);
    assert!(is_new(u32::MAX, now + STORE_PERIOD));
}
