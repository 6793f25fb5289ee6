//! Queries between devices with two rails. Some devices lie about their GID.

use std::net::{IpAddr, Ipv4Addr};

use mitra_failover::{Domain, VirtualQp};
use mitra_nics::NicKind;
use mitra_verbs::fault::Failure;
use mitra_verbs::{Nic, Provider};

use super::terms::tests::terms;
use super::*;
use crate::common::random::random;

/// A device with two rails and one unconnected queue pair.
struct Device {
    nics: Vec<Arc<dyn Nic>>,
    rendezvous: Arc<Rendezvous>,
    qp: VirtualQp,
}

impl Device {
    /// Creates a device. If `gid` is set, the device claims to have this GID.
    fn new(gid: Option<Gid>) -> Device {
        let open = |_| NicKind::Soft.open_free().expect("loopback NICs can be opened");
        let nics: Vec<Arc<dyn Nic>> = (0..2).map(open).collect();
        let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let domain = Domain::new(providers).expect("two NICs form a domain");
        let mut rendezvous =
            Rendezvous::new(domain.nics(), Duration::from_secs(30)).expect("queue pair 1 is free");
        if let Some(gid) = gid {
            Arc::get_mut(&mut rendezvous).expect("it is not shared yet").device =
                Mutex::new(DeviceGid::new(gid));
        }
        let qp = VirtualQp::builder(&domain).build().expect("the configuration is within the limits");
        Device { nics, rendezvous, qp }
    }

    fn info(&self) -> ConnectInfo {
        self.qp.local_info()
    }

    fn gid(&self) -> Gid {
        self.info().gids().next().expect("a device has rails")
    }

    /// Sends `answer` to all queries that have arrived, and returns the number of queries.
    fn answer_all(&self, answer: Option<&ConnectInfo>) -> usize {
        let received = self.rendezvous.take_received();
        received.iter().for_each(|query| self.rendezvous.answer(query, answer.map(data)));
        received.len()
    }
}

/// Returns the answer of a peer with these connection data.
fn data(info: &ConnectInfo) -> Vec<u8> {
    ConnectionData { terms: terms(), info: info.encode() }.to_bytes()
}

fn at(rail: usize, gid: Gid) -> RailAddress {
    RailAddress { rail, gid, endpoint: Endpoint::QueuePair1 }
}

fn random_id() -> u64 {
    random().expect("the system has a random source")
}

/// Sends a query from `from` to `to`, and calls `answer` until the query ends.
fn query(from: &Device, to: &Device, mut answer: impl FnMut()) -> ConnectInfo {
    thread::scope(|scope| {
        let query = scope.spawn(|| {
            from.rendezvous.query_connection([random_id(), random_id()], to.gid(), to.qp.qpn(), terms())
        });
        while !query.is_finished() {
            answer();
            thread::yield_now();
        }
        match query.join().expect("a query does not panic").expect("the owner answers") {
            PeerConnection::Data(info, _) => info,
            PeerConnection::AwaitsReset(_) => panic!("no connection has ended"),
        }
    })
}

#[test]
fn query_reaches_the_owner_when_rail_0_of_either_end_is_down() {
    for (local_down, peer_down) in [(false, false), (true, false), (false, true), (true, true)] {
        let (local, peer, bystander) = (Device::new(None), Device::new(None), Device::new(None));
        if local_down {
            local.nics[0].fault_switch().expect("a software NIC fails on demand").fail(Failure::LinkDown);
        }
        if peer_down {
            peer.nics[0].fault_switch().expect("a software NIC fails on demand").fail(Failure::LinkDown);
        }
        let answer = query(&local, &peer, || {
            peer.answer_all(Some(&peer.info()));
            assert_eq!(bystander.answer_all(Some(&bystander.info())), 0, "only the owner is queried");
        });
        assert_eq!(answer, peer.info());
        assert!(lock(&local.rendezvous.outstanding).is_empty());
    }
}

#[test]
fn queries_that_wait_for_an_answer_are_bounded() {
    let (local, peer) = (Device::new(None), Device::new(None));
    let query = Message::Query(
        Subject::Connection { qpn: local.qp.qpn(), terms: terms() },
        DeviceGid::new(peer.gid()),
    );
    for id in 0..2 * MAX_RECEIVED as u64 {
        lock(&peer.rendezvous.ports[0]).send(local.gid(), Endpoint::Any, &encode(id, &query));
        // The queue pair has fewer receives than there are queries, so each query is received
        // before the next is sent.
        let started = Instant::now();
        while lock(&local.rendezvous.received).len() as u64 <= id.min(MAX_RECEIVED as u64 - 1)
            && started.elapsed() < Duration::from_secs(20)
        {
            local.rendezvous.poll();
        }
    }
    local.rendezvous.poll();
    assert_eq!(local.rendezvous.take_received().len(), MAX_RECEIVED);
}

#[test]
fn false_owner_neither_ends_nor_wins_the_query() {
    let (local, peer) = (Device::new(None), Device::new(None));
    let impostor = Device::new(Some(peer.gid()));
    local.nics[0].fault_switch().expect("a software NIC fails on demand").fail(Failure::LinkDown);
    // The impostor answers in turn with its own connection data and that there is no such queue
    // pair. The owner answers only after four of these lies.
    let mut lies = 0;
    let answer = query(&local, &peer, || {
        let forged = impostor.info();
        lies += impostor.answer_all((lies % 2 == 0).then_some(&forged));
        peer.rendezvous.poll();
        if lies >= 4 {
            peer.answer_all(Some(&peer.info()));
        }
    });
    assert!(lies >= 4);
    assert_eq!(answer, peer.info());
}

#[test]
fn answers_need_the_id_of_a_query_and_the_address_of_its_peer() {
    let (local, peer, stranger) = (Device::new(None), Device::new(None), Device::new(None));
    let (id, search) = (random_id(), random_id());
    let subject = Subject::Connection { qpn: peer.qp.qpn(), terms: terms() };
    let owners = Some(OwnerSearch::new(search, peer.gid()));
    let mut outstanding =
        Query::new(&local.rendezvous, id, (vec![peer.gid()], Endpoint::Any), subject, owners);
    let add_owner = |from| {
        let mut outstanding = lock(&local.rendezvous.outstanding);
        let search = outstanding.get_mut(&id).and_then(|query| query.search.as_mut());
        search.expect("it is outstanding").add_owner(at(1, from), peer.gid());
    };
    let answer = data(&peer.info());
    let (peer_1, stranger_1) = (peer.info().gids().nth(1), stranger.info().gids().nth(1));
    let [peer_1, stranger_1] = [peer_1, stranger_1].map(|gid| gid.expect("a device has two rails"));
    let accept = |rail, from, id| local.rendezvous.accept_answer(at(rail, from), id, Some(answer.clone()));
    accept(0, peer.gid(), !id);
    accept(0, peer.gid(), search);
    accept(1, peer_1, id); // not found by the search
    add_owner(stranger_1);
    accept(1, stranger_1, id);
    accept(1, IpAddr::from(Ipv4Addr::LOCALHOST).into(), id);
    assert!(outstanding.poll().is_pending());
    add_owner(peer_1);
    accept(1, peer_1, id);
    assert!(matches!(outstanding.poll(), Poll::Ready(Ok(Some(_)))));
}

/// Processes with one address answer by sockets of their own. That one of them has no such queue
/// pair says nothing about the others.
#[test]
fn only_the_asked_process_denies_a_queue_pair_for_its_address() {
    let (local, peer) = (Device::new(None), Device::new(None));
    let subject = Subject::Connection { qpn: peer.qp.qpn(), terms: terms() };
    let by = |port| RailAddress { endpoint: Endpoint::Socket(port), ..at(0, peer.gid()) };
    let ask = |endpoint| {
        let id = random_id();
        (id, Query::new(&local.rendezvous, id, (vec![peer.gid()], endpoint), subject, None))
    };
    let deny = |id, from| local.rendezvous.accept_answer(from, id, None);

    let (id, mut query) = ask(Endpoint::Any);
    deny(id, by(5));
    assert!(query.poll().is_pending());
    local.rendezvous.accept_answer(by(6), id, Some(data(&peer.info())));
    assert!(matches!(query.poll(), Poll::Ready(Ok(Some(_)))));
    assert_eq!(query.endpoint(), Endpoint::Socket(6));

    let (id, mut query) = ask(Endpoint::Any);
    deny(id, by(5));
    query.started -= local.rendezvous.timeout + Duration::from_secs(1);
    assert!(matches!(query.poll(), Poll::Ready(Ok(None))), "all have denied it, or are silent");

    for (endpoint, from) in [(Endpoint::Socket(6), by(6)), (Endpoint::Any, at(0, peer.gid()))] {
        let (id, mut query) = ask(endpoint);
        deny(id, by(5));
        assert!(query.poll().is_pending());
        deny(id, from);
        assert!(matches!(query.poll(), Poll::Ready(Ok(None))), "{from:?}");
    }
}

/// A peer of another version takes no query of this end. Its own queries tell its version.
#[test]
fn peer_of_another_version_is_named_after_the_timeout() {
    let (local, peer, stranger) = (Device::new(None), Device::new(None), Device::new(None));
    let subject = Subject::Connection { qpn: peer.qp.qpn(), terms: terms() };
    let own_query = Message::Query(subject, DeviceGid::new(peer.gid()));
    let mut other_version = encode(1, &own_query);
    other_version[3] -= 1;
    for (from, text) in [(&stranger, "does not answer"), (&peer, "another version of Mitra")] {
        let mut query =
            Query::new(&local.rendezvous, random_id(), (vec![peer.gid()], Endpoint::Any), subject, None);
        // Datagrams of one queue pair arrive in order.
        for bytes in [&other_version, &encode(2, &own_query)] {
            lock(&from.rendezvous.ports[0]).send(local.gid(), Endpoint::Any, bytes);
        }
        let started = Instant::now();
        while local.rendezvous.take_received().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(20), "no query has arrived");
        }
        query.started -= local.rendezvous.timeout + Duration::from_secs(1);
        let Poll::Ready(Err(error)) = query.poll() else { panic!("the query has timed out") };
        assert!(error.to_string().contains(text), "{error}");
    }
}
