//! Clients that record their requests and the store's answers, and the check that the record is
//! linearizable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mitra_kv::{Client, ClientError};
use mitra_model_check::{Operation, is_linearizable};

use super::cluster::Cluster;

/// A client's request about one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Request {
    Get,
    Put(String),
    Cas(Option<String>, String),
    Delete,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    Value(Option<String>),
    Done(bool),
}

/// The sequential specification of one key.
fn apply(state: &mut Option<String>, request: &Request) -> Answer {
    match request {
        Request::Get => Answer::Value(state.clone()),
        Request::Put(value) => {
            *state = Some(value.clone());
            Answer::Done(true)
        }
        Request::Cas(expected, value) => {
            let matches = state == expected;
            if matches {
                *state = Some(value.clone());
            }
            Answer::Done(matches)
        }
        Request::Delete => Answer::Done(state.take().is_some()),
    }
}

/// The operations on each key, in the order of calls.
type Histories = BTreeMap<String, Vec<Operation<Request, Answer>>>;

/// Keys that are in use at a time.
const KEYS: usize = 4;
/// Events after which the clients switch to new keys. The linearizability checker accepts histories
/// of bounded length only.
const EVENTS: usize = 400;
/// Operations of a client, at least.
const OPERATIONS: usize = 120;
const CLIENTS: usize = 4;
/// The number of the client that only reads. Without writes, the client learns only from an answer
/// that its server is no longer the leader.
const READER: usize = 3;

#[derive(Default)]
struct SharedRun {
    /// Counts calls and returns.
    clock: AtomicUsize,
    faults_over: AtomicBool,
}

/// Runs a client that issues one request after the other. The requests depend on the client's
/// number only, so a failure recurs if the schedule recurs.
fn run_client(id: usize, mut client: Client, run: &SharedRun) -> Histories {
    let mut histories = Histories::new();
    let mut last_seen = BTreeMap::new();
    for nth in 0.. {
        if nth >= OPERATIONS && run.faults_over.load(Ordering::Relaxed) {
            break;
        }
        let choice = (id * 7919 + nth * 104_729) % 997;
        let invoked_at = run.clock.fetch_add(1, Ordering::SeqCst);
        let key = format!("key{}.{}", invoked_at / EVENTS, choice % KEYS);
        let value = format!("{id}.{nth}");
        let request = match choice / KEYS % 5 {
            _ if id == READER => Request::Get,
            0 | 1 => Request::Get,
            2 => Request::Put(value),
            3 => Request::Cas(last_seen.get(&key).cloned().flatten(), value),
            _ => Request::Delete,
        };
        let bytes = |value: &str| Some(value.as_bytes().to_vec());
        let answer = match &request {
            Request::Get => client.get(key.as_bytes()).map(|found| {
                let value = found.map(|(value, _)| String::from_utf8(value).expect("clients put UTF-8"));
                last_seen.insert(key.clone(), value.clone());
                Answer::Value(value)
            }),
            Request::Put(value) => client.put(key.as_bytes(), value.as_bytes()).map(|()| Answer::Done(true)),
            Request::Cas(expected, value) => {
                let expected = expected.as_ref().and_then(|value| bytes(value));
                client.cas(key.as_bytes(), expected.as_deref(), bytes(value).as_deref()).map(Answer::Done)
            }
            Request::Delete => client.delete(key.as_bytes()).map(Answer::Done),
        };
        let response = match answer {
            Ok(answer) => Some((run.clock.fetch_add(1, Ordering::SeqCst), answer)),
            Err(ClientError::NoLeader(..) | ClientError::MajorityLost(..) | ClientError::SessionExpired) => {
                None
            }
            Err(other) => panic!("client {id}: {other}"),
        };
        histories.entry(key).or_default().push(Operation { invocation: request, invoked_at, response });
        std::thread::sleep(Duration::from_millis(4));
    }
    histories
}

/// Runs clients while `faults` happen, and checks that their history is linearizable and that every
/// request was answered.
pub fn check_under_faults(cluster: &mut Cluster, faults: impl FnOnce(&mut Cluster)) {
    let run = Arc::new(SharedRun::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|id| {
            let (client, run) = (cluster.client(), Arc::clone(&run));
            std::thread::spawn(move || run_client(id, client, &run))
        })
        .collect();
    faults(cluster);
    run.faults_over.store(true, Ordering::Relaxed);
    let mut all = Histories::new();
    for client in clients {
        let histories = client.join().expect("a client does not panic");
        let operations = histories.values().flatten();
        let answered = operations.clone().filter(|op| op.response.is_some()).count();
        assert!(operations.clone().count() >= OPERATIONS);
        assert_eq!(answered, operations.count(), "a live process leads, so every request is answered");
        for (key, history) in histories {
            all.entry(key).or_default().extend(history);
        }
    }
    for (key, history) in all {
        assert!(is_linearizable(&None, &history, apply), "{key}: {history:#?}");
    }
}
