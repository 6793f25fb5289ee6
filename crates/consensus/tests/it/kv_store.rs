//! Compares the key-value store with a plain map. Sessions expire, commands are retried, and
//! snapshots are taken at random times.

use std::collections::BTreeMap;

use mitra_consensus::AllRules;
use mitra_consensus::kv_store::{Change, Event, KvStore, Limits, Reply, Request, Session};
use proptest::prelude::*;

const LIMITS: Limits = Limits { sessions: 3, bytes: 600 };

#[derive(Clone, Debug)]
enum Step {
    Open,
    Get(u8),
    /// A change in the n-th newest session, counted from 0. Its sequence number is the session's
    /// last sequence number plus the offset.
    Change(usize, i64, Change),
    Snapshot,
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => prop::collection::vec(0..3_u8, 0..2), 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

fn change() -> impl Strategy<Value = Change> {
    let key = || prop::collection::vec(0..3_u8, 1);
    prop_oneof![
        (key(), bytes()).prop_map(|(key, value)| Change::Put { key, value }),
        (key(), prop::option::of(bytes()), prop::option::of(bytes()))
            .prop_map(|(key, expected, value)| Change::Cas { key, expected, value }),
        key().prop_map(|key| Change::Delete { key }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Open),
        2 => (0..3_u8).prop_map(Step::Get),
        8 => (0..5_usize, -1..3_i64, change()).prop_map(|(s, offset, change)| Step::Change(s, offset, change)),
        1 => Just(Step::Snapshot),
    ];
    prop::collection::vec(step, 0..80)
}

/// The reference model: a map, and the sessions, least recently used first. Each session has the
/// sequence number of its last command, and the reply to this command.
#[derive(Default)]
struct Model {
    values: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    sessions: Vec<(Session, u64, Reply)>,
}

impl Model {
    fn open(&mut self, session: Session) {
        if self.sessions.len() == usize::from(LIMITS.sessions) {
            self.sessions.remove(0);
        }
        self.sessions.push((session, 0, Reply::SessionOpened(session)));
    }

    fn last(&self, session: Session) -> u64 {
        self.sessions
            .iter()
            .find(|session_state| session_state.0 == session)
            .map_or(1, |session_state| session_state.1)
    }

    /// Applies a change as the store should. `full` is whether the store replied that it is full.
    fn change_once(
        &mut self,
        index: u64,
        session: Session,
        sequence: u64,
        change: &Change,
        full: bool,
    ) -> (Reply, Option<Event>) {
        let Some(at) = self.sessions.iter().position(|session_state| session_state.0 == session) else {
            return (Reply::SessionExpired, None);
        };
        if sequence < self.sessions[at].1 {
            return (Reply::StaleSequence, None);
        }
        let last = self.sessions.remove(at);
        let (reply, event) = match sequence == last.1 {
            true => (last.2, None),
            false if full => (Reply::Full, None),
            false => self.change(index, change),
        };
        self.sessions.push((session, sequence, reply.clone()));
        (reply, event)
    }

    fn change(&mut self, index: u64, change: &Change) -> (Reply, Option<Event>) {
        let (key, done, value) = match change {
            Change::Put { key, value } => (key, true, Some(value.clone())),
            Change::Cas { key, expected, value } => {
                let actual = self.values.get(key).map(|(value, _)| value.clone());
                (key, actual == *expected, value.clone())
            }
            Change::Delete { key } => (key, self.values.contains_key(key), None),
        };
        if !done {
            return (Reply::Changed(false), None);
        }
        match value.clone() {
            Some(value) => _ = self.values.insert(key.clone(), (value, index)),
            None => _ = self.values.remove(key),
        }
        (Reply::Changed(true), Some(Event { index, key: key.clone(), value }))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn store_equals_map_that_applies_each_change_once(steps in steps()) {
        let (mut store, mut model) = (KvStore::<AllRules>::new(LIMITS), Model::default());
        let mut opened = Vec::new();
        for (index, step) in (1..).zip(steps) {
            match step {
                Step::Open => {
                    let (reply, event) = store.apply(index, &Request::OpenSession.encode());
                    let Reply::SessionOpened(session) = reply else { panic!("{reply:?}") };
                    prop_assert_eq!(event, None);
                    prop_assert!(!opened.contains(&session), "the store reused a session number");
                    opened.push(session);
                    model.open(session);
                }
                Step::Get(key) => {
                    let actual = store.apply(index, &Request::Get { key: vec![key] }.encode());
                    prop_assert_eq!(actual, (Reply::Value(model.values.get(&[key][..]).cloned()), None));
                }
                Step::Change(nth, offset, change) => {
                    let Some(&session) = opened.iter().rev().nth(nth) else { continue };
                    let sequence = model.last(session).saturating_add_signed(offset);
                    let command = Request::Change { session, sequence, change: change.clone() }.encode();
                    let actual = store.apply(index, &command);
                    let full = actual.0 == Reply::Full;
                    let expected = model.change_once(index, session, sequence, &change, full);
                    prop_assert_eq!(&actual, &expected);
                    // A retry returns the same reply, and changes nothing.
                    prop_assert_eq!(store.apply(index + 1, &command), (actual.0.clone(), None));
                    prop_assert_eq!(model.change_once(index + 1, session, sequence, &change, full), (actual.0, None));
                }
                Step::Snapshot => {
                    let restored = KvStore::restore(&store.snapshot()).expect("a snapshot");
                    prop_assert_eq!(&restored, &store);
                    store = restored;
                }
            }
            for key in 0..3_u8 {
                prop_assert_eq!(store.get(&[key]), model.values.get(&[key][..]));
            }
            prop_assert!(store.snapshot().len() <= LIMITS.bytes as usize);
        }
    }

    #[test]
    fn arbitrary_bytes_are_applied_or_malformed(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut store: KvStore = KvStore::new(LIMITS);
        let before = store.clone();
        let (reply, _) = store.apply(1, &bytes);
        prop_assert!(reply != Reply::Malformed || store == before);
        prop_assert_eq!(Request::decode(&bytes).is_err(), reply == Reply::Malformed);
    }
}

/// A client of a store with the maximum number of sessions. The client uses one of the sessions,
/// with large sequence numbers.
struct Client {
    store: KvStore,
    session: Session,
    sequence: u64,
}

impl Client {
    fn new() -> Client {
        let mut store = KvStore::new(LIMITS);
        let sessions = (0..LIMITS.sessions)
            .map(|_| store.apply(1, &Request::OpenSession.encode()).0)
            .collect::<Vec<_>>();
        let [.., Reply::SessionOpened(session)] = sessions[..] else { panic!("{sessions:?}") };
        Client { store, session, sequence: u64::MAX / 2 }
    }

    /// Puts a value of `size` bytes, and returns whether the store had room for it.
    fn put(&mut self, key: u8, size: usize) -> bool {
        self.change(Change::Put { key: vec![key], value: vec![7; size] })
    }

    fn change(&mut self, change: Change) -> bool {
        self.sequence += 1;
        let request = Request::Change { session: self.session, sequence: self.sequence, change };
        let reply = self.store.apply(u64::MAX, &request.encode()).0;
        assert!(self.store.snapshot().len() <= LIMITS.bytes as usize, "the snapshot exceeds its limit");
        assert!(matches!(reply, Reply::Changed(_) | Reply::Full));
        reply != Reply::Full
    }
}

#[test]
fn store_is_full_at_its_limit_and_delete_frees_room() {
    let mut client = Client::new();
    let fits = (0..600).rev().find(|&size| client.put(0, size)).expect("a value that fits");
    assert!(fits > 300, "{fits} bytes fit");
    for _ in 0..10 {
        assert!(!client.put(0, fits + 1));
        assert!(client.put(0, fits - 1), "a smaller value always fits");
        assert!(!client.put(1, 1));
        assert!(client.change(Change::Delete { key: vec![0] }));
        assert!(client.put(0, fits));
    }
}

#[test]
fn small_keys_stay_within_the_limit() {
    let mut client = Client::new();
    let fit = (0..100).take_while(|&key| client.put(key, 0)).count();
    assert!((10..50).contains(&fit), "{fit} keys fit");
}

#[test]
fn trailing_bytes_are_rejected() {
    let twice = [Request::OpenSession.encode(), Request::OpenSession.encode()].concat();
    assert!(Request::decode(&twice).is_err());
    let mut bytes = KvStore::<AllRules>::new(LIMITS).snapshot();
    assert!(KvStore::<AllRules>::restore(&bytes).is_ok());
    bytes.push(0);
    assert!(KvStore::<AllRules>::restore(&bytes).is_err());
}
