use super::*;
use crate::rdmacm::message::sidr;

fn inquiry(request_id: u64) -> Inquiry {
    Inquiry { request_id, gid: [1; 16], private_data: b"where?".to_vec() }
}

fn answer(request_id: u64) -> Answer {
    let (status, private_data) = (sidr::VALID, b"here".to_vec());
    Answer { request_id, status, qpn: 17, qkey: 1, gid: [2; 16], private_data }
}

fn client() -> SocketAddr {
    ([127, 0, 0, 1], 4000).into()
}

#[test]
fn a_request_is_answered_once_and_its_repetition_gets_the_same_answer() {
    let now = Instant::now();
    let (mut lookup, mut requests) = (Lookup::new(inquiry(5), now), Requests::default());
    assert_eq!(lookup.tick(now), Step::Send);
    let key = match requests.receive(client(), lookup.request(), now) {
        Arrival::New(key, asked) => {
            assert_eq!(asked, inquiry(5));
            key
        }
        other => panic!("{other:?}"),
    };
    // While the program thinks, repetitions are not new.
    assert_eq!(requests.receive(client(), lookup.request(), now), Arrival::Nothing);
    let datagram = requests.answer(key, answer(5), now);
    assert_eq!(requests.receive(client(), lookup.request(), now), Arrival::Again(&datagram));
    assert_eq!(lookup.receive(&datagram), Some(answer(5)));
}

#[test]
fn an_answer_to_another_request_is_none() {
    let lookup = Lookup::new(inquiry(5), Instant::now());
    let mut requests = Requests::default();
    let datagram = requests.answer((client(), 6), answer(6), Instant::now());
    assert_eq!(lookup.receive(&datagram), None);
    assert_eq!(lookup.receive(b"noise"), None);
    assert_eq!(lookup.receive(lookup.request()), None);
}

#[test]
fn a_request_is_repeated_until_it_is_given_up() {
    let start = Instant::now();
    let mut lookup = Lookup::new(inquiry(1), start);
    let (mut now, mut sent) = (start, 0);
    loop {
        match lookup.tick(now) {
            Step::Send => sent += 1,
            Step::GiveUp => break,
            Step::Wait => now = lookup.deadline(),
        }
        assert!(now <= start + ANSWER_WITHIN);
    }
    assert_eq!(sent, 300);
    assert!(!lookup.is_refused(start) && lookup.is_refused(start + KNOCK_FOR));
}

#[test]
fn a_flood_of_requests_is_bounded_and_passes() {
    let now = Instant::now();
    let mut requests = Requests::default();
    let ask = |requests: &mut Requests, id: u64, now: Instant| {
        matches!(requests.receive(client(), Lookup::new(inquiry(id), now).request(), now), Arrival::New(..))
    };
    let taken = (0..2 * MAX_REQUESTS as u64).filter(|id| ask(&mut requests, *id, now)).count();
    assert_eq!(taken, MAX_REQUESTS);
    assert!(ask(&mut requests, u64::MAX, now + REMEMBER));
}
