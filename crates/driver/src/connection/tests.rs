//! Connections over software NICs.

use mitra_failover::{CloseReason, Policy, VirtualMr};
use mitra_nics::NicKind;
use mitra_verbs::fault::Failure;
use mitra_verbs::{Access, Buffer, Nic};

use super::*;

const STRICT: WritePolicy = WritePolicy::Strict;

/// The longest time that an operation takes on a busy machine.
const TIMEOUT: core::time::Duration = core::time::Duration::from_secs(20);

/// The id of an operation, how it ended, and what it fetched.
type Operation = (u64, Ended, Vec<u8>);

/// A connection whose peer lends memory.
struct Pair {
    near: Connection,
    far: Connection,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    far_domain: Arc<Domain>,
    far_nic: Arc<dyn Nic>,
}

fn pair(kind: QpKind, config: Config, staging_bytes: usize) -> Pair {
    let open = || {
        let nic = NicKind::Soft.open_free().expect("a free address");
        let domain = Domain::new(vec![Arc::clone(&nic) as _]).expect("an idle NIC");
        (domain, nic)
    };
    let ((near, _), (far_domain, far_nic)) = (open(), open());
    let memory = Arc::new(Buffer::new(4096));
    let mr = far_domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE).expect("a free region");
    let mut near = Connection::new(&near, kind, &config, staging_bytes).expect("a free queue pair");
    let mut far = Connection::new(&far_domain, kind, &config, 64).expect("a free queue pair");
    if kind == QpKind::Virtual {
        near = near.with_receives(2, 64).expect("a free region");
        far = far.with_receives(2, 64).expect("a free region");
    }
    assert_eq!(far.connect(&near.info().expect("a live NIC")), Ok(true));
    assert_eq!(near.connect(&far.info().expect("a live NIC")), Ok(true));
    near.import(&mr.remote()).expect("a connected end");
    Pair { near, far, memory, mr, far_domain, far_nic }
}

impl Pair {
    fn write(&mut self, id: u64, bytes: &[u8]) -> bool {
        self.near.put(id, SendOp::Write(self.mr.remote().at(0)), bytes, STRICT)
    }

    fn read(&mut self, id: u64, offset: u64, len: usize) -> bool {
        self.near.fetch(id, SendOp::Read(self.mr.remote().at(offset)), len)
    }

    /// Polls until `count` operations have ended or the connection has.
    fn poll(&mut self, count: usize) -> (Vec<Operation>, Result<(), ConnectionError>) {
        let (mut ended, begin) = (Vec::new(), std::time::Instant::now());
        while ended.len() < count {
            let polled = self.near.poll(|event| match event {
                Event::Ended { id, ended: how, fetched } => ended.push((id, how, fetched.to_vec())),
                Event::Message(_) => panic!("the peer sends nothing"),
            });
            if polled.is_err() {
                return (ended, polled);
            }
            let _ = self.far.poll(|_| ());
            assert!(begin.elapsed() < TIMEOUT, "the operations do not end: {ended:?}");
        }
        (ended, Ok(()))
    }
}

#[test]
fn operations_end_in_their_order_with_what_they_fetched() {
    for kind in [QpKind::Virtual, QpKind::Rc] {
        let mut pair = pair(kind, Config::default(), 256);
        let word = pair.mr.remote().at(8);
        let long: Vec<u8> = (0..100).collect();
        assert!(pair.write(1, &7_u64.to_ne_bytes()));
        assert!(pair.near.fetch(2, SendOp::FetchAdd { remote: word, add: 5 }, 8));
        assert!(pair.near.fetch(3, SendOp::CompareSwap { remote: word, compare: 5, swap: 9 }, 8));
        assert!(pair.read(4, 0, 16));
        // A WRITE may overtake a READ.
        assert!(pair.near.put(5, SendOp::Write(pair.mr.remote().at(64)), &long, STRICT));
        pair.near.post().expect("an open connection");
        let word = |value: u64| value.to_ne_bytes().to_vec();
        let both = [word(7), word(9)].concat();
        let expected = [(1, vec![]), (2, word(0)), (3, word(5)), (4, both), (5, vec![])];
        let expected = expected.map(|(id, bytes)| (id, Ended::Success, bytes));
        assert_eq!(pair.poll(5), (expected.to_vec(), Ok(())), "{kind:?}");
        let mut bytes = [0; 100];
        pair.memory.read_at(64, &mut bytes);
        assert_eq!(bytes[..], long);
    }
}

/// Space is taken again only after the operation in it has ended, and the bytes of operations under
/// way stay.
#[test]
fn full_staging_memory_refuses_until_an_operation_has_ended() {
    let mut pair = pair(QpKind::Virtual, Config::default(), 96);
    for round in 0..50 {
        let [first, second] = [[round; 48], [round + 100; 48]];
        assert!(pair.write(1, &first));
        assert!(pair.near.put(2, SendOp::Write(pair.mr.remote().at(48)), &second, STRICT));
        assert!(!pair.write(3, &[0xff; 33]), "no space is free");
        assert!(!pair.read(3, 0, 8), "no space is free");
        assert!(pair.near.put(3, SendOp::Write(pair.mr.remote().at(96)), &[round; 32], STRICT), "inline");
        pair.near.post().expect("an open connection");
        assert_eq!(pair.poll(3).0.len(), 3);
        let mut bytes = [0; 128];
        pair.memory.read_at(0, &mut bytes);
        assert_eq!(bytes, [&first[..], &second, &[round; 32]].concat()[..]);
    }
    assert!(!pair.write(1, &[0; 97]), "longer than the memory");
    assert!(pair.write(1, &[0; 96]), "as long as the memory");
}

#[test]
fn queue_takes_as_many_operations_as_it_is_deep() {
    let mut pair = pair(QpKind::Virtual, Config { send_wrs: 4, ..Config::default() }, 64);
    for id in 0..4 {
        assert_eq!(pair.near.free_slots(), 4 - id as usize);
        assert!(pair.write(id, &[1; 8]));
    }
    assert!(!pair.write(4, &[1; 8]) && pair.near.free_slots() == 0);
    pair.near.post().expect("an open connection");
    assert_eq!(pair.poll(4).0.len(), 4);
    assert!(pair.write(4, &[1; 8]));
}

/// Each operation that the peer has not executed ends once, or not at all if it is undecided.
#[test]
fn refused_operation_ends_the_connection_and_no_later_one_is_executed() {
    for kind in [QpKind::Virtual, QpKind::Rc] {
        let mut pair = pair(kind, Config::default(), 256);
        pair.far_domain.deregister(&pair.mr).expect("a live NIC");
        for id in 0..3 {
            assert!(pair.write(id, &[1; 8]));
        }
        pair.near.post().expect("an open connection");
        let (ended, polled) = pair.poll(4);
        assert!(matches!(polled, Err(ConnectionError::Request(_))), "{kind:?}: {polled:?}");
        let ids: Vec<u64> = ended.iter().map(|&(id, ..)| id).collect();
        assert!(ids.iter().copied().eq(0..ids.len() as u64), "{ended:?}");
        assert!(ended.iter().all(|&(_, how, _)| how == Ended::NotExecuted), "{ended:?}");
        assert_eq!(pair.poll(1), (Vec::new(), polled), "nothing is reported twice");
        assert!(!pair.write(9, &[1; 8]) && pair.near.is_lost());
        assert_eq!(pair.memory.load(0), 0);
    }
}

/// The completions that have arrived are not lost with a list that the NIC refuses.
#[test]
fn operation_that_has_completed_ends_before_a_refused_post_ends_the_connection() {
    let mut pair = pair(QpKind::Virtual, Config::default(), 64);
    assert!(pair.write(1, &[1; 8]));
    pair.near.post().expect("an open connection");
    let started = std::time::Instant::now();
    while !pair.near.vqp().is_some_and(VirtualQp::has_completions) {
        pair.near.progress();
        assert!(started.elapsed().as_secs() < 20, "the WRITE does not complete");
    }
    let not_imported = mitra_verbs::RemoteAddr { addr: 0, rkey: mitra_verbs::Key(1) };
    assert!(pair.near.fetch(2, SendOp::Read(not_imported), 8));
    let (ended, polled) = pair.poll(2);
    assert_eq!(ended, [(1, Ended::Success, Vec::new())]);
    assert!(matches!(polled, Err(ConnectionError::Nic(_))), "{polled:?}");
    assert_eq!(pair.poll(1), (Vec::new(), polled), "nothing is reported twice");
}

/// The peer dies with operations under way, whose fate nobody knows.
#[test]
fn operations_of_a_dead_peer_are_undecided() {
    for kind in [QpKind::Virtual, QpKind::Rc] {
        let mut config = Config::default();
        config.detector.retry_cnt = 1;
        let mut pair = pair(kind, config, 256);
        assert!(pair.write(0, &[1; 8]));
        pair.near.post().expect("an open connection");
        assert_eq!(pair.poll(1).0.len(), 1);
        let faults = pair.far_nic.fault_switch().expect("software NICs fail on demand");
        faults.fail(Failure::NicDead);
        for id in 1..4 {
            assert!(pair.read(id, 0, 8));
        }
        pair.near.post().expect("an open connection");
        let (ended, polled) = pair.poll(3);
        assert_eq!((ended, polled.is_err()), (Vec::new(), true), "{kind:?}");
        assert_eq!(pair.poll(1), (Vec::new(), polled));
        assert!(!pair.read(4, 0, 8), "the connection has ended");
    }
}

#[test]
fn closed_connection_reports_no_undecided_operation() {
    let mut pair = pair(QpKind::Virtual, Config::default(), 64);
    assert!(pair.read(1, 0, 8));
    pair.near.post().expect("an open connection");
    pair.near.close().expect("a live NIC");
    let (ended, polled) = pair.poll(2);
    assert!(ended.len() <= 1, "{ended:?}");
    assert_eq!(polled, Err(ConnectionError::Closed(CloseReason::Closed)));
    assert_eq!(pair.near.close(), Ok(()), "the second time");
}

#[test]
fn messages_arrive_in_order_while_slots_are_reused() {
    let mut pair = pair(QpKind::Virtual, Config::default(), 256);
    let (mut arrived, mut sent) = (Vec::new(), 0_u8);
    let begin = std::time::Instant::now();
    while arrived.len() < 20 {
        if sent < 20 && pair.near.put(sent.into(), SendOp::Send, &vec![sent; 3 * sent as usize], STRICT) {
            sent += 1;
            pair.near.post().expect("an open connection");
        }
        pair.near.poll(|_| ()).expect("an open connection");
        let polled = pair.far.poll(|event| match event {
            Event::Message(bytes) => arrived.push(bytes.to_vec()),
            Event::Ended { .. } => panic!("the far end has posted nothing"),
        });
        polled.expect("an open connection");
        assert!(begin.elapsed() < TIMEOUT, "{arrived:?}");
    }
    assert!(arrived.iter().zip(0..).all(|(message, at)| *message == vec![at; 3 * at as usize]));
}

/// The table of what a completion becomes, apart from what needs a failure at a certain moment.
#[test]
fn completions_end_operations_as_their_outcomes_say() {
    use UnresolvedError::{ExecutedBehindError, Indeterminate, Undecided, ValueLost};
    let undecided = Outcome::Unresolved(Undecided(CloseReason::NoRail));
    let cases = [
        (Outcome::Success, Some(Ended::Success), Ok(())),
        (Outcome::Failed(WcStatus::Flushed), Some(Ended::NotExecuted), Ok(())),
        (
            Outcome::Failed(WcStatus::RemoteAccess),
            Some(Ended::NotExecuted),
            Err(ConnectionError::Request(WcStatus::RemoteAccess)),
        ),
        (Outcome::Unresolved(ValueLost), Some(Ended::ValueLost), Ok(())),
        (Outcome::Unresolved(ExecutedBehindError), Some(Ended::ValueLost), Ok(())),
        (Outcome::Unresolved(Indeterminate), Some(Ended::Unknown), Ok(())),
        (undecided, None, Err(ConnectionError::Closed(CloseReason::NoRail))),
    ];
    for (outcome, expected, result) in cases {
        let mut pair = pair(QpKind::Virtual, Config { policy: Policy::Exact, ..Config::default() }, 64);
        assert!(pair.read(5, 0, 8));
        let failed = Completion::failed_receive(5, 0, WcStatus::Flushed);
        let completion = Completion { opcode: WcOpcode::Read, outcome, ..failed };
        let mut ended = None;
        let handled = pair.near.on_completion(&completion, &mut |event: Event<'_>| {
            let Event::Ended { id: 5, ended: how, fetched } = event else { panic!("{event:?}") };
            assert_eq!(fetched.to_vec().len(), if how == Ended::Success { 8 } else { 0 });
            ended = Some(how);
        });
        assert_eq!((ended, handled), (expected, result), "{outcome:?}");
    }
}
