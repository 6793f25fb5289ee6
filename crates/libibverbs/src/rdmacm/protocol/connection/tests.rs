use super::super::message::ConnectionFlags;
use super::*;

fn params(qpn: u32, private_data: &[u8]) -> ConnectionParams {
    ConnectionParams {
        qpn,
        starting_psn: 7,
        gid: [qpn as u8; 16],
        path_mtu: 5,
        responder_resources: 1,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 7,
        flags: ConnectionFlags { flow_control: false, srq: true },
        private_data: private_data.to_vec(),
    }
}

fn rejection(reason: u16, private_data: &[u8]) -> Rejection {
    Rejection { reason, private_data: private_data.to_vec() }
}

/// Both ends of a connection; [`exchange`](ConnectionPair::exchange) is the stream between them.
struct ConnectionPair {
    active: Connection,
    passive: Connection,
    now: Instant,
}

impl ConnectionPair {
    fn new() -> Self {
        let now = Instant::now();
        Self { active: Connection::active(params(1, b"hello"), now), passive: Connection::passive(now), now }
    }

    fn requested() -> Self {
        let mut pair = Self::new();
        pair.exchange();
        assert_eq!(events(&mut pair.passive), [ConnectionEvent::Requested(params(1, b"hello"))]);
        pair
    }

    fn replied() -> Self {
        let mut pair = Self::requested();
        pair.passive.accept(params(2, b"welcome"), pair.now).unwrap();
        pair.exchange();
        assert_eq!(events(&mut pair.active), [ConnectionEvent::Replied(params(2, b"welcome"))]);
        pair
    }

    fn established() -> Self {
        let mut pair = Self::replied();
        pair.active.establish().unwrap();
        pair.exchange();
        assert_eq!(events(&mut pair.passive), [ConnectionEvent::Established]);
        assert_eq!((pair.active.deadline(), pair.passive.deadline()), (None, None));
        pair
    }

    /// Delivers the messages of both ends byte by byte, until both outboxes are empty.
    fn exchange(&mut self) {
        loop {
            let (to_passive, to_active) =
                (std::mem::take(self.active.outbox()), std::mem::take(self.passive.outbox()));
            if to_passive.is_empty() && to_active.is_empty() {
                return;
            }
            to_passive.iter().for_each(|byte| self.passive.receive(&[*byte], self.now));
            to_active.iter().for_each(|byte| self.active.receive(&[*byte], self.now));
        }
    }
}

fn events(connection: &mut Connection) -> Vec<ConnectionEvent> {
    std::iter::from_fn(|| connection.next_event()).collect()
}

#[test]
fn connection_is_established_and_ended() {
    let mut pair = ConnectionPair::established();
    pair.active.disconnect(pair.now).unwrap();
    assert!(pair.active.awaits_drep());
    pair.exchange();
    for end in [&mut pair.active, &mut pair.passive] {
        assert_eq!(events(end), [ConnectionEvent::Disconnected]);
        assert!(end.is_closed() && !end.is_over());
    }
    // No timer runs, because the passive program uses its queue pair until the program disconnects.
    assert_eq!(pair.passive.deadline(), None);
    for end in [&mut pair.active, &mut pair.passive] {
        assert_eq!(end.disconnect(pair.now), Ok(()));
        let exit = end.deadline().expect("TIMEWAIT ends");
        end.on_timeout(exit - Duration::from_nanos(1));
        assert_eq!(events(end), []);
        assert_eq!(end.disconnect(exit), Ok(()));
        end.on_timeout(exit);
        assert_eq!(events(end), [ConnectionEvent::TimeWaitExit]);
        assert!(end.is_over() && end.deadline().is_none());
    }
}

#[test]
fn simultaneous_disconnects_end_both_sides() {
    let mut pair = ConnectionPair::established();
    pair.active.disconnect(pair.now).unwrap();
    pair.passive.disconnect(pair.now).unwrap();
    pair.exchange();
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Disconnected]);
    assert_eq!(events(&mut pair.passive), [ConnectionEvent::Disconnected]);
}

#[test]
fn rejection_of_request_carries_private_data() {
    let mut pair = ConnectionPair::requested();
    let no = rejection(reject_reason::CONSUMER_DEFINED, b"not today");
    pair.passive.reject(no.clone()).unwrap();
    pair.exchange();
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Rejected(no)]);
    assert_eq!(events(&mut pair.passive), []);
    assert!(pair.active.is_closed() && pair.passive.is_closed());
}

#[test]
fn rejection_of_reply_reaches_passive_side() {
    let mut pair = ConnectionPair::replied();
    let no = rejection(reject_reason::CONSUMER_DEFINED, b"");
    pair.active.reject(no.clone()).unwrap();
    pair.exchange();
    assert_eq!(events(&mut pair.passive), [ConnectionEvent::Rejected(no)]);
}

#[test]
fn notify_establishes_before_rtu() {
    let mut pair = ConnectionPair::replied();
    pair.active.establish().unwrap();
    pair.passive.notify().unwrap();
    assert_eq!(events(&mut pair.passive), [ConnectionEvent::Established]);
    pair.exchange();
    assert_eq!(events(&mut pair.passive), []);
    assert_eq!(pair.passive.notify(), Err(Errno::EISCONN));
}

#[test]
fn end_of_stream_is_reported_in_every_state() {
    let broken = Errno::ECONNRESET;
    type Step = (fn() -> ConnectionPair, ConnectionEvent, Option<ConnectionEvent>);
    // The program has not accepted the request, so it gets no event.
    let steps: [Step; 4] = [
        (ConnectionPair::new, ConnectionEvent::Unreachable(Errno::ECONNRESET), None),
        (ConnectionPair::requested, ConnectionEvent::Unreachable(Errno::ECONNRESET), None),
        (
            ConnectionPair::replied,
            ConnectionEvent::Unreachable(Errno::ECONNRESET),
            Some(rejected(reject_reason::TIMEOUT)),
        ),
        (ConnectionPair::established, ConnectionEvent::Disconnected, Some(ConnectionEvent::Disconnected)),
    ];
    for (make, active, passive) in steps {
        let mut pair = make();
        pair.active.on_stream_end(broken, pair.now);
        pair.passive.on_stream_end(broken, pair.now);
        assert_eq!(events(&mut pair.active), [active]);
        assert_eq!(events(&mut pair.passive), passive.as_slice());
        assert!(pair.active.is_closed() && pair.passive.is_closed());
    }
}

#[test]
fn refused_connection_is_retried_for_a_limited_period() {
    let mut pair = ConnectionPair::new();
    let (start, mut now, mut retries) = (pair.now, pair.now, 0);
    loop {
        pair.active.on_connection_refused(now);
        assert!(pair.active.outbox().len() < 100, "a REQ that was not sent is not repeated");
        let received = events(&mut pair.active);
        if !received.is_empty() {
            assert_eq!(received, [rejected(reject_reason::INVALID_SERVICE_ID)]);
            break;
        }
        assert!(!pair.active.take_connect_retry(now));
        now = pair.active.deadline().expect("a retry is scheduled");
        assert!(pair.active.take_connect_retry(now));
        retries += 1;
    }
    assert_eq!((now - start, retries), (REFUSED_RETRY_PERIOD, 10));
    assert!(pair.active.is_closed() && pair.active.deadline().is_none());
}

#[test]
fn retry_reaches_server_that_starts_late() {
    let mut pair = ConnectionPair::new();
    pair.active.on_connection_refused(pair.now);
    assert!(pair.active.take_connect_retry(pair.now + REFUSED_RETRY_INTERVAL));
    pair.exchange();
    assert_eq!(events(&mut pair.passive), [ConnectionEvent::Requested(params(1, b"hello"))]);
}

/// A listener with a full backlog drops the request, and reports a repetition when the backlog has
/// room.
#[test]
fn dropped_request_is_repeated() {
    let mut pair = ConnectionPair::requested();
    pair.passive.drop_request(pair.now);
    // The second repetition arrives while the program has not answered the first repetition.
    for expected in [&[ConnectionEvent::Requested(params(1, b"hello"))][..], &[]] {
        pair.now = pair.active.deadline().expect("a repetition is due");
        pair.active.on_timeout(pair.now);
        pair.exchange();
        assert_eq!(events(&mut pair.passive), expected);
    }
    pair.passive.accept(params(2, b"welcome"), pair.now).unwrap();
    pair.exchange();
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Replied(params(2, b"welcome"))]);
    assert_eq!(pair.active.deadline(), None);
}

#[test]
fn every_waiting_state_times_out() {
    fn wait(connection: &mut Connection) -> Vec<ConnectionEvent> {
        let deadline = connection.deadline.expect("the state has a deadline");
        connection.on_timeout(deadline - Duration::from_nanos(1));
        assert_eq!(connection.deadline, Some(deadline));
        connection.on_timeout(deadline);
        events(connection)
    }
    let unreachable = [ConnectionEvent::Unreachable(Errno::ETIMEDOUT)];
    let mut pair = ConnectionPair::new();
    assert_eq!(wait(&mut pair.active), unreachable);
    assert_eq!(wait(&mut pair.passive), []);
    assert!(pair.passive.is_closed());

    // The active program never confirms the reply.
    let mut pair = ConnectionPair::replied();
    assert_eq!(wait(&mut pair.passive), unreachable);
    pair.exchange();
    assert_eq!(events(&mut pair.active), [rejected(reject_reason::TIMEOUT)]);

    let mut pair = ConnectionPair::established();
    pair.active.disconnect(pair.now).unwrap();
    assert_eq!(wait(&mut pair.active), [ConnectionEvent::Disconnected]);
}

#[test]
fn abandoned_connection_informs_its_peer() {
    let consumer = || rejected(reject_reason::CONSUMER_DEFINED);
    // The events of the active and of the passive end. A passive program that has not accepted gets
    // no event.
    type Step = (fn() -> ConnectionPair, ConnectionEvent, Option<ConnectionEvent>);
    let steps: [Step; 3] = [
        (ConnectionPair::requested, consumer(), None),
        (ConnectionPair::replied, consumer(), Some(consumer())),
        (ConnectionPair::established, ConnectionEvent::Disconnected, Some(ConnectionEvent::Disconnected)),
    ];
    for (make, to_active, to_passive) in steps {
        for active_abandons in [true, false] {
            let mut pair = make();
            let (abandoning, peer, expected) = if active_abandons {
                (&mut pair.active, &mut pair.passive, to_passive.clone())
            } else {
                (&mut pair.passive, &mut pair.active, Some(to_active.clone()))
            };
            abandoning.abandon();
            peer.receive(&std::mem::take(abandoning.outbox()), pair.now);
            assert_eq!(events(peer), expected.as_slice());
            assert_eq!(events(abandoning), []);
            assert!(abandoning.is_closed());
        }
    }
}

#[test]
fn request_of_a_peer_that_gave_up_cannot_be_accepted() {
    let mut pair = ConnectionPair::requested();
    assert!(pair.passive.awaits_answer());
    pair.active.abandon();
    pair.exchange();
    assert!(!pair.passive.awaits_answer());
    assert_eq!(pair.passive.accept(params(2, b""), pair.now), Err(Errno::EINVAL));
    assert_eq!(events(&mut pair.passive), []);
}

#[test]
fn unexpected_calls_fail_and_unexpected_messages_close() {
    let now = Instant::now();
    let mut pair = ConnectionPair::new();
    assert_eq!(pair.active.accept(params(1, b""), now), Err(Errno::EINVAL));
    assert_eq!(pair.active.establish(), Err(Errno::EINVAL));
    assert_eq!(pair.active.disconnect(now), Err(Errno::EINVAL));
    assert_eq!(pair.passive.reject(rejection(1, b"")), Err(Errno::EINVAL));
    assert_eq!(pair.passive.notify(), Err(Errno::EINVAL));

    // An RTU on an established connection is a protocol error.
    let mut pair = ConnectionPair::established();
    let mut bytes = Vec::new();
    Message::Rtu.encode(&mut bytes);
    pair.passive.receive(&bytes, pair.now);
    assert_eq!(events(&mut pair.passive), [ConnectionEvent::Disconnected]);

    let mut bytes = Vec::new();
    Message::Req(params(3, b"")).encode(&mut bytes);
    for garbage in [&bytes[..], b"GET / HTTP/1.1"] {
        let mut pair = ConnectionPair::established();
        pair.passive.receive(garbage, pair.now);
        assert_eq!(events(&mut pair.passive), [ConnectionEvent::Disconnected]);
        assert!(pair.passive.is_closed());
        pair.passive.receive(&bytes, pair.now);
        assert_eq!(events(&mut pair.passive), []);
        assert!(pair.passive.inbox.is_empty());
    }
}
