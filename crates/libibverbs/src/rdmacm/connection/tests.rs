use super::*;

fn offer(qpn: u32, private_data: &[u8]) -> Offer {
    Offer {
        qpn,
        starting_psn: 7,
        gid: [qpn as u8; 16],
        path_mtu: 5,
        responder_resources: 1,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 7,
        flow_control: false,
        srq: true,
        private_data: private_data.to_vec(),
    }
}

fn rejection(reason: u16, private_data: &[u8]) -> Rejection {
    Rejection { reason, private_data: private_data.to_vec() }
}

/// Two ends and the stream between them.
struct Pair {
    active: Connection,
    passive: Connection,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        Self { active: Connection::active(offer(1, b"hello"), now), passive: Connection::passive(now), now }
    }

    fn requested() -> Self {
        let mut pair = Self::new();
        pair.exchange();
        assert_eq!(happenings(&mut pair.passive), [Happening::Requested(offer(1, b"hello"))]);
        pair
    }

    fn replied() -> Self {
        let mut pair = Self::requested();
        pair.passive.accept(offer(2, b"welcome"), pair.now).unwrap();
        pair.exchange();
        assert_eq!(happenings(&mut pair.active), [Happening::Replied(offer(2, b"welcome"))]);
        pair
    }

    fn established() -> Self {
        let mut pair = Self::replied();
        pair.active.establish().unwrap();
        pair.exchange();
        assert_eq!(happenings(&mut pair.passive), [Happening::Established]);
        assert_eq!((pair.active.deadline(), pair.passive.deadline()), (None, None));
        pair
    }

    /// Carries what both have to say, a byte at a time, until nobody has anything to say.
    fn exchange(&mut self) {
        loop {
            let (to_passive, to_active) =
                (std::mem::take(self.active.outbox()), std::mem::take(self.passive.outbox()));
            if to_passive.is_empty() && to_active.is_empty() {
                return;
            }
            to_passive.iter().for_each(|byte| self.passive.receive(&[*byte]));
            to_active.iter().for_each(|byte| self.active.receive(&[*byte]));
        }
    }
}

fn happenings(connection: &mut Connection) -> Vec<Happening> {
    std::iter::from_fn(|| connection.next_happening()).collect()
}

#[test]
fn a_connection_is_made_and_ended() {
    let mut pair = Pair::established();
    pair.active.disconnect(pair.now).unwrap();
    assert!(pair.active.awaits_the_end());
    pair.exchange();
    for end in [&mut pair.active, &mut pair.passive] {
        assert_eq!(happenings(end), [Happening::Disconnected]);
        assert!(end.is_finished());
        // The peer was quicker.
        assert_eq!(end.disconnect(pair.now), Ok(()));
        assert_eq!(happenings(end), []);
    }
}

#[test]
fn both_may_hang_up_at_once() {
    let mut pair = Pair::established();
    pair.active.disconnect(pair.now).unwrap();
    pair.passive.disconnect(pair.now).unwrap();
    pair.exchange();
    assert_eq!(happenings(&mut pair.active), [Happening::Disconnected]);
    assert_eq!(happenings(&mut pair.passive), [Happening::Disconnected]);
}

#[test]
fn a_request_is_rejected_with_the_program_s_words() {
    let mut pair = Pair::requested();
    let no = rejection(reason::CONSUMER_DEFINED, b"not today");
    pair.passive.reject(no.clone()).unwrap();
    pair.exchange();
    assert_eq!(happenings(&mut pair.active), [Happening::Rejected(no)]);
    assert_eq!(happenings(&mut pair.passive), []);
    assert!(pair.active.is_finished() && pair.passive.is_finished());
}

#[test]
fn a_reply_may_be_rejected() {
    let mut pair = Pair::replied();
    let no = rejection(reason::CONSUMER_DEFINED, b"");
    pair.active.reject(no.clone()).unwrap();
    pair.exchange();
    assert_eq!(happenings(&mut pair.passive), [Happening::Rejected(no)]);
}

#[test]
fn data_before_the_rtu_may_establish() {
    let mut pair = Pair::replied();
    pair.active.establish().unwrap();
    pair.passive.notify().unwrap();
    assert_eq!(happenings(&mut pair.passive), [Happening::Established]);
    pair.exchange();
    assert_eq!(happenings(&mut pair.passive), []);
    assert_eq!(pair.passive.notify(), Err(Errno::EISCONN));
}

/// What each side hears when the stream breaks, by how far it has come.
#[test]
fn a_peer_that_vanishes_is_reported_at_every_step() {
    let broken = Errno::ECONNRESET;
    type Step = (fn() -> Pair, Happening, Option<Happening>);
    let steps: [Step; 4] = [
        (Pair::new, Happening::Unreachable(Errno::ECONNRESET), None),
        (Pair::requested, Happening::Unreachable(Errno::ECONNRESET), Some(rejected(reason::TIMEOUT))),
        (Pair::replied, Happening::Unreachable(Errno::ECONNRESET), Some(rejected(reason::TIMEOUT))),
        (Pair::established, Happening::Disconnected, Some(Happening::Disconnected)),
    ];
    for (make, active, passive) in steps {
        let mut pair = make();
        pair.active.lose(broken);
        pair.passive.lose(broken);
        assert_eq!(happenings(&mut pair.active), [active]);
        assert_eq!(happenings(&mut pair.passive), passive.as_slice());
        assert!(pair.active.is_finished() && pair.passive.is_finished());
    }
}

#[test]
fn where_nobody_listens_it_knocks_for_a_while() {
    let mut pair = Pair::new();
    let (start, mut now, mut knocks) = (pair.now, pair.now, 0);
    loop {
        pair.active.refused(now);
        let heard = happenings(&mut pair.active);
        if !heard.is_empty() {
            assert_eq!(heard, [rejected(reason::INVALID_SERVICE_ID)]);
            break;
        }
        assert!(!pair.active.knocks(now));
        now = pair.active.deadline().expect("it knocks again");
        assert!(pair.active.knocks(now));
        knocks += 1;
    }
    assert_eq!((now - start, knocks), (KNOCK_FOR, 250));
    assert!(pair.active.is_finished() && pair.active.deadline().is_none());
}

#[test]
fn a_server_that_comes_late_is_found() {
    let mut pair = Pair::new();
    pair.active.refused(pair.now);
    assert!(pair.active.knocks(pair.now + KNOCK_EVERY));
    pair.exchange();
    assert_eq!(happenings(&mut pair.passive), [Happening::Requested(offer(1, b"hello"))]);
}

/// What each side hears when the other is there and silent.
#[test]
fn silence_ends() {
    fn wait(connection: &mut Connection) -> Vec<Happening> {
        let deadline = connection.deadline().expect("something is waited for");
        connection.tick(deadline - Duration::from_nanos(1));
        assert_eq!(connection.deadline(), Some(deadline));
        connection.tick(deadline);
        happenings(connection)
    }
    let unreachable = [Happening::Unreachable(Errno::ETIMEDOUT)];
    let mut pair = Pair::new();
    assert_eq!(wait(&mut pair.active), unreachable);
    assert_eq!(wait(&mut pair.passive), []);
    assert!(pair.passive.is_finished());

    // The passive program never hears that the active one is ready.
    let mut pair = Pair::replied();
    assert_eq!(wait(&mut pair.passive), unreachable);
    pair.exchange();
    assert_eq!(happenings(&mut pair.active), [rejected(reason::TIMEOUT)]);

    let mut pair = Pair::established();
    pair.active.disconnect(pair.now).unwrap();
    assert_eq!(wait(&mut pair.active), [Happening::Disconnected]);
}

/// What the peer hears when a program destroys its identifier.
#[test]
fn an_abandoned_connection_tells_its_peer() {
    let consumer = || rejected(reason::CONSUMER_DEFINED);
    let steps: [(fn() -> Pair, Happening); 3] = [
        (Pair::requested, consumer()),
        (Pair::replied, consumer()),
        (Pair::established, Happening::Disconnected),
    ];
    for (make, heard) in steps {
        for active_abandons in [true, false] {
            let mut pair = make();
            let (leaving, left) = if active_abandons {
                (&mut pair.active, &mut pair.passive)
            } else {
                (&mut pair.passive, &mut pair.active)
            };
            leaving.abandon();
            left.receive(&std::mem::take(leaving.outbox()));
            assert_eq!(happenings(left), std::slice::from_ref(&heard));
            assert_eq!(happenings(leaving), []);
            assert!(leaving.is_finished());
        }
    }
}

#[test]
fn what_is_out_of_turn_is_refused_or_ends_it() {
    let now = Instant::now();
    let mut pair = Pair::new();
    assert_eq!(pair.active.accept(offer(1, b""), now), Err(Errno::EINVAL));
    assert_eq!(pair.active.establish(), Err(Errno::EINVAL));
    assert_eq!(pair.active.disconnect(now), Err(Errno::EINVAL));
    assert_eq!(pair.passive.reject(rejection(1, b"")), Err(Errno::EINVAL));
    assert_eq!(pair.passive.notify(), Err(Errno::EINVAL));

    // A second RTU in an established connection.
    let mut pair = Pair::established();
    let mut bytes = Vec::new();
    Message::Rtu.encode(&mut bytes);
    pair.passive.receive(&bytes);
    assert_eq!(happenings(&mut pair.passive), [Happening::Disconnected]);

    // A second REQ, and noise.
    let mut bytes = Vec::new();
    Message::Req(offer(3, b"")).encode(&mut bytes);
    for noise in [&bytes[..], b"GET / HTTP/1.1"] {
        let mut pair = Pair::established();
        pair.passive.receive(noise);
        assert_eq!(happenings(&mut pair.passive), [Happening::Disconnected]);
        assert!(pair.passive.is_finished());
        // Deaf from now on, whatever comes.
        pair.passive.receive(&bytes);
        assert_eq!(happenings(&mut pair.passive), []);
        assert!(pair.passive.inbox.is_empty());
    }
}
