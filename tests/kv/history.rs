//! Clients who note what they ask for and what they are told, and the judge of that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mitra_consensus_check::{Operation, is_linearizable};
use mitra_kv::{Client, ClientError};

use crate::cluster::Cluster;

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Ask {
    Get,
    Put(String),
    Cas(Option<String>, String),
    Delete,
}

/// What it is told.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    Value(Option<String>),
    Done(bool),
}

/// What a key does.
fn apply(state: &mut Option<String>, ask: &Ask) -> Told {
    match ask {
        Ask::Get => Told::Value(state.clone()),
        Ask::Put(value) => {
            *state = Some(value.clone());
            Told::Done(true)
        }
        Ask::Cas(expected, value) => {
            let holds = state == expected;
            if holds {
                *state = Some(value.clone());
            }
            Told::Done(holds)
        }
        Ask::Delete => Told::Done(state.take().is_some()),
    }
}

/// What happened to a key, in the order of calls.
type Histories = BTreeMap<String, Vec<Operation<Ask, Told>>>;

/// Keys that are used at a time, and the events after which others are: a judge can take so many only.
const KEYS: usize = 4;
const EVENTS: usize = 400;
/// Operations of a client, at least.
const OPERATIONS: usize = 120;
const CLIENTS: usize = 4;
/// The client that only reads: nothing tells it that its server has been deposed but what it is answered.
const READER: usize = 3;

/// What all clients share.
#[derive(Default)]
struct Play {
    /// Counts calls and returns.
    clock: AtomicUsize,
    /// The faults are over.
    over: AtomicBool,
}

/// A client that asks for one thing after the other. Numbers of its own, so that a failure comes again under the same seed as far as a
/// schedule can.
fn run_client(id: usize, mut client: Client, play: &Play) -> Histories {
    let mut histories = Histories::new();
    let mut seen = BTreeMap::new();
    for nth in 0.. {
        if nth >= OPERATIONS && play.over.load(Ordering::Relaxed) {
            break;
        }
        let dice = (id * 7919 + nth * 104_729) % 997;
        let called = play.clock.fetch_add(1, Ordering::SeqCst);
        let key = format!("key{}.{}", called / EVENTS, dice % KEYS);
        let value = format!("{id}.{nth}");
        let ask = match dice / KEYS % 5 {
            _ if id == READER => Ask::Get,
            0 | 1 => Ask::Get,
            2 => Ask::Put(value),
            3 => Ask::Cas(seen.get(&key).cloned().flatten(), value),
            _ => Ask::Delete,
        };
        let text = |value: &str| Some(value.as_bytes().to_vec());
        let told = match &ask {
            Ask::Get => client.get(key.as_bytes()).map(|found| {
                let value = found.map(|(value, _)| String::from_utf8(value).expect("what was put"));
                seen.insert(key.clone(), value.clone());
                Told::Value(value)
            }),
            Ask::Put(value) => client.put(key.as_bytes(), value.as_bytes()).map(|()| Told::Done(true)),
            Ask::Cas(expected, value) => {
                let expected = expected.as_ref().and_then(|value| text(value));
                client.cas(key.as_bytes(), expected.as_deref(), text(value).as_deref()).map(Told::Done)
            }
            Ask::Delete => client.delete(key.as_bytes()).map(Told::Done),
        };
        let response = match told {
            Ok(told) => Some((play.clock.fetch_add(1, Ordering::SeqCst), told)),
            Err(ClientError::NoLeader(..) | ClientError::SessionExpired) => None,
            Err(other) => panic!("client {id}: {other}"),
        };
        histories.entry(key).or_default().push(Operation { invocation: ask, invoked_at: called, response });
        std::thread::sleep(Duration::from_millis(4));
    }
    histories
}

/// Runs clients while `faults` happen, and judges what they were told.
pub fn under(cluster: &mut Cluster, faults: impl FnOnce(&mut Cluster)) {
    let play = Arc::new(Play::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|id| {
            let (client, play) = (cluster.client(), Arc::clone(&play));
            std::thread::spawn(move || run_client(id, client, &play))
        })
        .collect();
    faults(cluster);
    play.over.store(true, Ordering::Relaxed);
    let mut all = Histories::new();
    for client in clients {
        let histories = client.join().expect("a client does not panic");
        let operations = histories.values().flatten();
        let answered = operations.clone().filter(|op| op.response.is_some()).count();
        assert!(operations.clone().count() >= OPERATIONS);
        assert_eq!(answered, operations.count(), "somebody who lives leads, so all is answered in the end");
        for (key, history) in histories {
            all.entry(key).or_default().extend(history);
        }
    }
    for (key, history) in all {
        assert!(is_linearizable(&None, &history, apply), "{key}: {history:#?}");
    }
}
