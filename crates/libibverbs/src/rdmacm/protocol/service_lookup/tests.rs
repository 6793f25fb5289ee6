use super::super::message::sidr_status;
use super::*;

fn request(request_id: u64) -> SidrRequest {
    SidrRequest { request_id, gid: [1; 16], private_data: b"where?".to_vec() }
}

fn reply(request_id: u64) -> SidrReply {
    let (status, private_data) = (sidr_status::VALID, b"here".to_vec());
    SidrReply { request_id, status, qpn: 17, qkey: 1, gid: [2; 16], private_data }
}

fn client() -> SocketAddr {
    ([127, 0, 0, 1], 4000).into()
}

#[test]
fn repeated_request_gets_the_same_reply() {
    let now = Instant::now();
    let (mut lookup, mut requests) = (ServiceLookup::new(request(5), now), ServiceRequests::default());
    assert_eq!(lookup.on_timer(now), LookupAction::Send);
    let key = match requests.receive(client(), lookup.request(), now) {
        ReceivedDatagram::New(key, received) => {
            assert_eq!(received, request(5));
            key
        }
        other => panic!("{other:?}"),
    };
    // The responder ignores repetitions until the program answers.
    assert_eq!(requests.receive(client(), lookup.request(), now), ReceivedDatagram::Ignored);
    let datagram = requests.reply(key, reply(5), now);
    assert_eq!(requests.receive(client(), lookup.request(), now), ReceivedDatagram::Duplicate(&datagram));
    assert_eq!(lookup.receive(&datagram), Some(reply(5)));
}

#[test]
fn reply_to_another_request_is_ignored() {
    let lookup = ServiceLookup::new(request(5), Instant::now());
    let mut requests = ServiceRequests::default();
    let datagram = requests.reply((client(), 6), reply(6), Instant::now());
    assert_eq!(lookup.receive(&datagram), None);
    assert_eq!(lookup.receive(b"garbage"), None);
    assert_eq!(lookup.receive(lookup.request()), None);
}

#[test]
fn request_is_repeated_until_timeout() {
    let start = Instant::now();
    let mut lookup = ServiceLookup::new(request(1), start);
    let (mut now, mut sent) = (start, 0);
    loop {
        match lookup.on_timer(now) {
            LookupAction::Send => sent += 1,
            LookupAction::TimedOut => break,
            LookupAction::Wait => now = lookup.deadline(),
        }
        assert!(now <= start + RESPONSE_TIMEOUT);
    }
    assert_eq!(sent, 300);
    assert!(!lookup.is_refusal_final(start) && lookup.is_refusal_final(start + REFUSED_RETRY_PERIOD));
}

#[test]
fn stored_requests_are_bounded_and_expire() {
    let now = Instant::now();
    let mut requests = ServiceRequests::default();
    let is_new = |requests: &mut ServiceRequests, id: u64, now: Instant| {
        matches!(
            requests.receive(client(), ServiceLookup::new(request(id), now).request(), now),
            ReceivedDatagram::New(..)
        )
    };
    let accepted = (0..2 * MAX_REQUESTS as u64).filter(|id| is_new(&mut requests, *id, now)).count();
    assert_eq!(accepted, MAX_REQUESTS);
    assert!(is_new(&mut requests, u64::MAX, now + STORE_PERIOD));
}
