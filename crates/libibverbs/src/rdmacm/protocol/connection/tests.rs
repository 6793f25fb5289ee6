use mitra_prng::Prng;

use super::super::message::{ConnectionFlags, PortSpace, Service, Transport};
use super::*;

fn params(qpn: u32, private_data: &[u8]) -> ConnectionParams {
    ConnectionParams {
        qpn,
        starting_psn: 7,
        gid: [qpn as u8; 16],
        guid: qpn.into(),
        path_mtu: 5,
        responder_resources: 1,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 7,
        flags: ConnectionFlags { flow_control: false, srq: true },
        private_data: private_data.to_vec(),
    }
}

fn request() -> Request {
    let address = |port: u16| ([127, 0, 0, 1], port).into();
    Request {
        sender: 11,
        service: Service { space: PortSpace::Tcp, source: address(4000), destination: address(5000) },
        transport: Transport::Reliable,
        ack_timeout: 17,
        traffic_class: 0,
        remote_gid: [2; 16],
        params: params(1, b"hello"),
    }
}

/// The reply as the active end reports it.
fn replied() -> ConnectionEvent {
    ConnectionEvent::Replied(ConnectionParams { path_mtu: 5, ..params(2, b"welcome") })
}

fn rejection(reason: u16) -> Rejection {
    Rejection { private_data: b"no".to_vec(), ..Rejection::new(Answered::Req, reason) }
}

fn rejected(answered: Answered, reason: u16) -> ConnectionEvent {
    ConnectionEvent::Rejected(Rejection::new(answered, reason))
}

/// Both ends of a connection, and the datagrams between them.
struct ConnectionPair {
    active: Connection,
    passive: Option<Connection>,
    now: Instant,
}

impl ConnectionPair {
    fn new() -> Self {
        let now = Instant::now();
        let mut active = Connection::active(11, 100, now);
        active.request(request(), now);
        Self { active, passive: None, now }
    }

    fn requested() -> Self {
        let mut pair = Self::new();
        pair.exchange();
        assert!(pair.passive().awaits_answer());
        pair
    }

    fn accepted() -> Self {
        let mut pair = Self::requested();
        let now = pair.now;
        pair.passive().accept(params(2, b"welcome"), now).unwrap();
        pair
    }

    fn replied() -> Self {
        let mut pair = Self::accepted();
        pair.exchange();
        assert_eq!(events(&mut pair.active), [replied()]);
        pair
    }

    fn established() -> Self {
        let mut pair = Self::replied();
        pair.active.establish().unwrap();
        pair.exchange();
        assert_eq!(events(pair.passive()), [ConnectionEvent::Established]);
        assert_eq!((pair.active.deadline(), pair.passive().deadline()), (None, None));
        pair
    }

    fn passive(&mut self) -> &mut Connection {
        self.passive.as_mut().expect("the REQ has arrived")
    }

    fn deliver_to_passive(&mut self, transaction: Transaction) {
        match (&mut self.passive, &transaction.message) {
            (Some(passive), _) => passive.receive(transaction, [1; 16], self.now),
            (None, Message::Req(request)) => {
                self.passive = Some(Connection::passive(12, transaction.id, request, self.now));
            }
            (None, _) => {}
        }
    }

    fn deliver_to_active(&mut self, transaction: Transaction) {
        self.active.receive(transaction, [2; 16], self.now);
    }

    /// Delivers the messages of both ends until both have nothing to send.
    fn exchange(&mut self) {
        loop {
            let (to_passive, to_active) =
                (messages(&mut self.active), self.passive.as_mut().map(messages).unwrap_or_default());
            if to_passive.is_empty() && to_active.is_empty() {
                return;
            }
            to_passive.into_iter().for_each(|message| self.deliver_to_passive(message));
            to_active.into_iter().for_each(|message| self.deliver_to_active(message));
        }
    }

    /// Both ends' messages are lost.
    fn lose(&mut self) {
        drop((messages(&mut self.active), self.passive.as_mut().map(messages)));
    }

    /// Advances the clock to the next timer of either end.
    fn wait(&mut self) {
        let deadlines = [self.active.deadline(), self.passive.as_ref().and_then(Connection::deadline)];
        self.now = deadlines.into_iter().flatten().min().expect("a timer runs");
        self.active.on_timeout(self.now);
        if let Some(passive) = &mut self.passive {
            passive.on_timeout(self.now);
        }
    }
}

fn messages(connection: &mut Connection) -> Vec<Transaction> {
    std::iter::from_fn(|| connection.next_message()).map(|outgoing| outgoing.transaction).collect()
}

fn events(connection: &mut Connection) -> Vec<ConnectionEvent> {
    std::iter::from_fn(|| connection.next_event()).collect()
}

#[test]
fn connection_is_established_and_ended() {
    let mut pair = ConnectionPair::established();
    assert_eq!((pair.active.ids(), pair.passive().ids()), {
        let ids = |sender, receiver| Ids { sender, receiver };
        (ids(11, 12), ids(12, 11))
    });
    pair.active.disconnect(pair.now).unwrap();
    assert!(pair.active.awaits_drep());
    pair.exchange();
    let now = pair.now;
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Disconnected]);
    assert_eq!(events(pair.passive()), [ConnectionEvent::Disconnected]);
    // No timer runs, because the passive program uses its queue pair until the program disconnects.
    assert_eq!(pair.passive().deadline(), None);
    let mut passive = pair.passive.take().expect("connected");
    for end in [&mut pair.active, &mut passive] {
        assert_eq!(end.disconnect(now), Ok(()));
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
    let now = pair.now;
    pair.active.disconnect(now).unwrap();
    pair.passive().disconnect(now).unwrap();
    pair.exchange();
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Disconnected]);
    assert_eq!(events(pair.passive()), [ConnectionEvent::Disconnected]);
}

#[test]
fn rejection_of_request_carries_private_data_and_is_repeated() {
    let mut pair = ConnectionPair::requested();
    let (now, no) = (pair.now, rejection(reject_reason::CONSUMER_DEFINED));
    pair.passive().reject(no.clone(), now).unwrap();
    assert_eq!(pair.passive().accept(params(2, b""), now), Err(Errno::EINVAL));
    pair.lose();
    pair.wait();
    pair.exchange();
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Rejected(no)]);
    assert_eq!(events(pair.passive()), []);
    assert!(pair.active.is_over() && !pair.passive().is_over());
    pair.wait();
    assert!(pair.passive().is_over());
    assert_eq!(pair.now, now + REJECTION_TIME);
}

#[test]
fn rejection_of_reply_reaches_passive_side() {
    let mut pair = ConnectionPair::replied();
    pair.active.reject(rejection(reject_reason::CONSUMER_DEFINED), pair.now).unwrap();
    pair.exchange();
    let no = Rejection { answered: Answered::Rep, ..rejection(reject_reason::CONSUMER_DEFINED) };
    assert_eq!(events(pair.passive()), [ConnectionEvent::Rejected(no)]);
}

#[test]
fn notify_establishes_before_rtu() {
    let mut pair = ConnectionPair::replied();
    pair.active.establish().unwrap();
    pair.passive().notify().unwrap();
    assert_eq!(events(pair.passive()), [ConnectionEvent::Established]);
    pair.exchange();
    assert_eq!(events(pair.passive()), []);
    assert_eq!(pair.passive().notify(), Err(Errno::EISCONN));
}

/// Each message is lost once.
#[test]
fn lost_messages_are_repeated() {
    let mut pair = ConnectionPair::new();
    pair.lose(); // REQ
    pair.wait();
    pair.exchange();
    let now = pair.now;
    pair.passive().accept(params(2, b"welcome"), now).unwrap();
    pair.lose(); // REP
    pair.wait();
    pair.exchange();
    assert_eq!(events(&mut pair.active), [replied()]);
    pair.active.establish().unwrap();
    pair.lose(); // RTU
    pair.wait();
    pair.exchange();
    assert_eq!(events(pair.passive()), [ConnectionEvent::Established]);
    let now = pair.now;
    pair.passive().disconnect(now).unwrap();
    pair.lose(); // DREQ
    pair.wait();
    let dreq = messages(pair.passive());
    assert!(matches!(dreq[..], [Transaction { message: Message::Dreq(_, 1), .. }]), "{dreq:?}");
    dreq.into_iter().for_each(|message| pair.deliver_to_active(message));
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Disconnected]);
    pair.lose(); // DREP
    pair.wait();
    pair.exchange();
    assert_eq!(events(pair.passive()), [ConnectionEvent::Disconnected]);
    assert_eq!(events(&mut pair.active), []);
}

#[test]
fn dreq_instead_of_lost_rtu_establishes_first() {
    let mut pair = ConnectionPair::replied();
    pair.active.establish().unwrap();
    pair.lose();
    pair.active.disconnect(pair.now).unwrap();
    pair.exchange();
    assert_eq!(events(pair.passive()), [ConnectionEvent::Established, ConnectionEvent::Disconnected]);
}

/// After the program's answer, neither end repeats anything.
#[test]
fn programs_that_take_long_get_few_repetitions() {
    let mut pair = ConnectionPair::requested();
    pair.wait();
    pair.exchange();
    let first = pair.now;
    pair.wait();
    assert_eq!(pair.now, first + Duration::from_secs(1), "the REQ");
    let now = pair.now;
    pair.passive().accept(params(2, b"welcome"), now).unwrap();
    pair.exchange();
    pair.wait();
    pair.exchange();
    let first = pair.now;
    pair.wait();
    assert_eq!(pair.now, first + Duration::from_secs(1), "the REP");
    pair.exchange();
    assert_eq!(events(&mut pair.active), [replied()], "once");
}

#[test]
fn refused_request_is_repeated_for_a_limited_period() {
    let mut pair = ConnectionPair::new();
    let start = pair.now;
    let ids = Ids { sender: 0, receiver: 11 };
    while !pair.active.is_over() {
        pair.lose();
        let message = Message::Rej(ids, Rejection::new(Answered::Req, reject_reason::INVALID_SERVICE_ID));
        pair.deliver_to_active(Transaction { id: 100, message });
        if !pair.active.is_over() {
            pair.wait();
        }
    }
    assert!((REFUSED_RETRY_PERIOD..2 * REFUSED_RETRY_PERIOD).contains(&(pair.now - start)));
    let refused = rejected(Answered::Req, reject_reason::INVALID_SERVICE_ID);
    assert_eq!(events(&mut pair.active), [refused]);
    assert_eq!(pair.active.deadline(), None);
}

#[test]
fn request_follows_the_mtu_of_the_peer() {
    let mut pair = ConnectionPair::new();
    let ids = Ids { sender: 0, receiver: 11 };
    pair.lose();
    let too_large = |mtu: u8| {
        let reason = Rejection::new(Answered::Req, reject_reason::INVALID_PATH_MTU);
        Transaction { id: 100, message: Message::Rej(ids, Rejection { info: vec![mtu], ..reason }) }
    };
    pair.deliver_to_active(too_large(3));
    match &messages(&mut pair.active)[..] {
        [Transaction { message: Message::Req(request), .. }] => assert_eq!(request.params.path_mtu, 3),
        other => panic!("{other:?}"),
    }
    // The REQ was sent twice before the first answer arrived. The second answer changes nothing.
    pair.deliver_to_active(too_large(3));
    assert!(!pair.active.is_over() && messages(&mut pair.active).is_empty());
    // A peer cannot make this end repeat its request forever.
    pair.deliver_to_active(too_large(4));
    assert!(pair.active.is_over() && messages(&mut pair.active).is_empty());
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
    let mut unknown = Connection::active(11, 100, Instant::now());
    assert_eq!(wait(&mut unknown), unreachable);
    assert_eq!(messages(&mut unknown), [], "nobody knows the request");
    let mut pair = ConnectionPair::new();
    assert_eq!(wait(&mut pair.active), unreachable);

    // The active program never confirms the reply.
    let mut pair = ConnectionPair::replied();
    assert_eq!(wait(pair.passive()), unreachable);
    pair.exchange();
    let info = 2u64.to_be_bytes().to_vec();
    let timeout = Rejection { info, ..Rejection::new(Answered::Other, reject_reason::TIMEOUT) };
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Rejected(timeout)]);

    let mut pair = ConnectionPair::established();
    pair.active.disconnect(pair.now).unwrap();
    assert_eq!(wait(&mut pair.active), [ConnectionEvent::Disconnected]);
}

#[test]
fn abandoned_connection_informs_its_peer() {
    let by_program = |answered| rejected(answered, reject_reason::CONSUMER_DEFINED);
    // The events of the active and of the passive end. A passive program that has not accepted gets
    // no event.
    type Step = (fn() -> ConnectionPair, ConnectionEvent, Option<ConnectionEvent>);
    let steps: [Step; 3] = [
        (ConnectionPair::requested, by_program(Answered::Req), None),
        (ConnectionPair::replied, by_program(Answered::Other), Some(by_program(Answered::Rep))),
        (ConnectionPair::established, ConnectionEvent::Disconnected, Some(ConnectionEvent::Disconnected)),
    ];
    for (make, to_active, to_passive) in steps {
        let mut pair = make();
        pair.active.abandon(pair.now);
        pair.exchange();
        assert_eq!(events(pair.passive()), to_passive.as_slice());

        let mut pair = make();
        let now = pair.now;
        pair.passive().abandon(now);
        pair.exchange();
        assert_eq!(events(&mut pair.active), [to_active]);
    }
}

#[test]
fn request_of_a_peer_that_gave_up_cannot_be_accepted() {
    let mut pair = ConnectionPair::requested();
    pair.active.abandon(pair.now);
    pair.exchange();
    assert!(!pair.passive().awaits_answer());
    let now = pair.now;
    assert_eq!(pair.passive().accept(params(2, b""), now), Err(Errno::EINVAL));
    assert_eq!(events(pair.passive()), []);
}

#[test]
fn end_of_the_peer_is_reported_once_and_only_when_established() {
    for make in [ConnectionPair::requested, ConnectionPair::replied] {
        let mut pair = make();
        let now = pair.now;
        pair.active.on_peer_lost(now);
        pair.passive().on_peer_lost(now);
        assert_eq!((events(&mut pair.active), events(pair.passive())), (vec![], vec![]));
    }
    let mut pair = ConnectionPair::established();
    assert!(pair.active.depends_on_peer());
    for expected in [&[ConnectionEvent::Disconnected][..], &[]] {
        pair.active.on_peer_lost(pair.now);
        assert_eq!(events(&mut pair.active), expected);
        assert!(!pair.active.depends_on_peer());
    }
}

#[test]
fn unexpected_calls_fail_and_unexpected_messages_change_nothing() {
    let now = Instant::now();
    let mut pair = ConnectionPair::requested();
    assert_eq!(pair.active.accept(params(1, b""), now), Err(Errno::EINVAL));
    assert_eq!(pair.active.establish(), Err(Errno::EINVAL));
    assert_eq!(pair.active.disconnect(now), Err(Errno::EINVAL));
    assert_eq!(pair.active.reject(rejection(1), now), Err(Errno::EINVAL));
    assert_eq!(pair.passive().notify(), Err(Errno::EINVAL));

    let mut pair = ConnectionPair::established();
    let ids = Ids { sender: 11, receiver: 12 };
    for message in [
        Message::Rtu(ids),
        Message::Drep(ids),
        Message::Rep(ids, params(3, b"")),
        Message::Req(Box::new(request())),
        Message::Mra(ids, Answered::Rep),
    ] {
        pair.deliver_to_passive(Transaction { id: 100, message });
        assert_eq!((messages(pair.passive()), events(pair.passive())), (vec![], vec![]));
        assert!(pair.passive().depends_on_peer());
    }
}

/// Programs at both ends connect, wait and disconnect, over a network that loses, repeats and
/// reorders datagrams. Each program gets each of its events once, in order.
#[test]
fn connections_survive_a_network_that_loses_and_reorders() {
    for seed in 0..500 {
        let mut random = Prng::new(seed);
        let mut pair = ConnectionPair::new();
        let (mut seen_active, mut seen_passive) = (Vec::new(), Vec::new());
        let mut in_flight: Vec<(bool, Transaction)> = Vec::new();
        let mut has_disconnected = false;
        for step in 0.. {
            assert!(step < 10_000, "seed {seed}: {seen_active:?}, {seen_passive:?}");
            let sent = messages(&mut pair.active).into_iter().map(|message| (true, message));
            in_flight.extend(sent);
            if let Some(passive) = &mut pair.passive {
                in_flight.extend(messages(passive).into_iter().map(|message| (false, message)));
            }
            match random.below(4) {
                0 if !in_flight.is_empty() => {
                    let at = random.index(in_flight.len());
                    in_flight.swap_remove(at);
                }
                1 | 2 if !in_flight.is_empty() => {
                    let at = random.index(in_flight.len());
                    let (to_passive, message) = match random.below(4) {
                        0 => in_flight[at].clone(),
                        _ => in_flight.swap_remove(at),
                    };
                    if to_passive {
                        pair.deliver_to_passive(message)
                    } else {
                        pair.deliver_to_active(message)
                    }
                }
                _ if pair.active.deadline().is_some()
                    || pair.passive.as_ref().is_some_and(|passive| passive.deadline().is_some()) =>
                {
                    pair.wait();
                }
                _ => {}
            }
            if pair.passive.as_ref().is_some_and(Connection::awaits_answer) && random.below(8) == 0 {
                let now = pair.now;
                pair.passive().accept(params(2, b"welcome"), now).unwrap();
            }
            for event in events(&mut pair.active) {
                if matches!(event, ConnectionEvent::Replied(_)) {
                    pair.active.establish().unwrap();
                }
                seen_active.push(event);
            }
            if let Some(passive) = &mut pair.passive {
                seen_passive.extend(events(passive));
            }
            if !has_disconnected && pair.active.depends_on_peer() && random.below(16) == 0 {
                has_disconnected = true;
                pair.active.disconnect(pair.now).unwrap();
            }
            if seen_passive.last() == Some(&ConnectionEvent::Disconnected)
                && seen_active.last() == Some(&ConnectionEvent::TimeWaitExit)
            {
                break;
            }
        }
        let expected = [replied(), ConnectionEvent::Disconnected, ConnectionEvent::TimeWaitExit];
        assert_eq!(seen_active, expected, "seed {seed}");
        let expected = [ConnectionEvent::Established, ConnectionEvent::Disconnected];
        assert_eq!(seen_passive, expected, "seed {seed}");
    }
}

/// The host of the peer refuses messages while this end waits for an answer.
#[test]
fn refusing_host_ends_what_waits_for_it() {
    let mut pair = ConnectionPair::new();
    pair.active.on_peer_refuses(pair.now);
    assert!(!pair.active.is_over(), "a server may start soon");
    pair.active.on_peer_refuses(pair.now + REFUSED_RETRY_PERIOD);
    assert_eq!(events(&mut pair.active), [rejected(Answered::Req, reject_reason::INVALID_SERVICE_ID)]);

    let mut pair = ConnectionPair::accepted();
    let now = pair.now;
    pair.passive().on_peer_refuses(now);
    assert_eq!(events(pair.passive()), [rejected(Answered::Rep, reject_reason::TIMEOUT)]);

    let mut pair = ConnectionPair::established();
    pair.active.on_peer_refuses(pair.now);
    assert_eq!(events(&mut pair.active), [], "statements find out");
    pair.active.disconnect(pair.now).unwrap();
    pair.active.on_peer_refuses(pair.now);
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Disconnected]);
}

#[test]
fn late_request_of_a_withdrawn_connection_is_no_new_one() {
    let mut pair = ConnectionPair::requested();
    pair.active.abandon(pair.now);
    pair.exchange();
    pair.deliver_to_passive(Transaction { id: 100, message: Message::Req(Box::new(request())) });
    assert_eq!(messages(pair.passive()), []);
    let now = pair.now;
    assert_eq!(pair.passive().disconnect(now), Ok(()));
    pair.wait();
    assert!(pair.passive().is_over());
}

/// The passive end has destroyed its identifier, and its REJ was lost.
#[test]
fn rejected_requester_learns_the_end_from_each_answer() {
    let withdrawn = || {
        let mut pair = ConnectionPair::replied();
        let now = pair.now;
        pair.passive().abandon(now);
        pair.lose();
        assert!(pair.passive().has_ended(), "a statement is answered so");
        pair
    };
    let mut pair = withdrawn();
    pair.active.establish().unwrap();
    pair.exchange();
    assert_eq!(events(&mut pair.active), [rejected(Answered::Other, reject_reason::CONSUMER_DEFINED)]);

    let mut pair = withdrawn();
    pair.active.establish().unwrap();
    pair.lose();
    pair.active.disconnect(pair.now).unwrap();
    pair.exchange();
    assert_eq!(events(&mut pair.active), [ConnectionEvent::Disconnected]);
}
