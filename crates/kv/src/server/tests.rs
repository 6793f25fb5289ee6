//! The server over a store whose outcomes and states a test chooses.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use mitra_consensus::kv_store::Change;

use super::*;
use crate::StoreConfig;
use crate::memories::Memories;

const LEADER: ProcessId = ProcessId(1);

/// What a test sets, and what the server asked for.
struct Script {
    asked: Vec<(Waiter, Request)>,
    changed: Vec<(Waiter, Change)>,
    outcomes: Vec<(Waiter, Outcome)>,
    events: Vec<Event>,
    states: [MemoryState; 3],
    is_damaged: bool,
}

impl Script {
    /// Gives the next pending read this outcome.
    fn end_read(&mut self, nth: usize, outcome: Outcome) {
        let (waiter, _) = self.asked.remove(nth);
        self.outcomes.push((waiter, outcome));
    }

    fn end_change(&mut self, nth: usize, outcome: Outcome) {
        let (waiter, _) = self.changed.remove(nth);
        self.outcomes.push((waiter, outcome));
    }
}

struct ScriptedStore {
    script: Arc<Mutex<Script>>,
    memories: Memories,
    never_readable: UnixStream,
    _other_end: UnixStream,
}

impl ScriptedStore {
    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.script.lock().expect("no test panics while it holds the script")
    }
}

impl Store for ScriptedStore {
    fn request(&mut self, waiter: Waiter, request: Request) {
        self.script().asked.push((waiter, request));
    }

    fn change(&mut self, waiter: Waiter, change: Change) {
        self.script().changed.push((waiter, change));
    }

    fn handle_events(&mut self) -> std::io::Result<bool> {
        self.poll()
    }

    fn poll(&mut self) -> std::io::Result<bool> {
        let Script { states, is_damaged, .. } = *self.script();
        self.memories.update(states.into_iter());
        match is_damaged {
            true => Err(std::io::ErrorKind::InvalidData.into()),
            false => Ok(false),
        }
    }

    fn take_outcomes(&mut self) -> (Vec<(Waiter, Outcome)>, Vec<Event>) {
        let mut script = self.script();
        (std::mem::take(&mut script.outcomes), std::mem::take(&mut script.events))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.never_readable.as_fd()
    }

    fn next_timeout(&self, max: Duration) -> Duration {
        max.min(Duration::from_millis(1))
    }

    fn leader(&self) -> Option<ProcessId> {
        Some(LEADER)
    }

    fn is_leader(&self) -> bool {
        false
    }

    fn applied(&self) -> u64 {
        7
    }

    fn memories(&self) -> &Memories {
        &self.memories
    }

    fn connected(&self) -> (usize, usize) {
        (3, 1)
    }
}

struct World {
    server: Server,
    script: Arc<Mutex<Script>>,
    client: std::net::TcpStream,
}

impl World {
    fn new() -> World {
        let memories = (7001..7004).map(|port| ([127, 0, 0, 1], port).into()).collect::<Vec<_>>();
        let script = Arc::new(Mutex::new(Script {
            asked: Vec::new(),
            changed: Vec::new(),
            outcomes: Vec::new(),
            events: Vec::new(),
            states: [MemoryState::Connected; 3],
            is_damaged: false,
        }));
        let config = ServerConfig {
            store: StoreConfig { processes: 2, memories: 3, capacity_mib: 1 },
            id: ProcessId(0),
            tokens: Vec::new(),
            processes: Vec::new(),
            memories,
            client_addresses: vec![([127, 0, 0, 1], 6401).into(), ([127, 0, 0, 1], 6402).into()],
            heartbeat_interval: Duration::from_millis(5),
            failover: mitra_failover::Config::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let client = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
        client.set_nonblocking(true).expect("a socket");
        let store = {
            let (never_readable, _other_end) = UnixStream::pair().expect("a free descriptor");
            let memories = Memories::new(config.memories.clone());
            ScriptedStore { script: script.clone(), memories, never_readable, _other_end }
        };
        World {
            server: Server::over(Box::new(store), listener, config).expect("epoll works"),
            script,
            client,
        }
    }

    /// Sends the requests, and lets the server read them until the store has been asked for `asked`
    /// operations.
    fn send(&mut self, requests: &[&[&[u8]]], asked: usize) {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| crate::resp::encode_request(request, &mut bytes));
        self.client.write_all(&bytes).expect("the socket buffer has room");
        while {
            let script = self.script();
            script.asked.len() + script.changed.len() < asked
        } {
            self.server.run_once().expect("the store is not damaged");
        }
    }

    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.script.lock().expect("no test panics while it holds the script")
    }

    /// Asserts that the server sends these bytes next, and no others by then.
    fn expect(&mut self, expected: &str) {
        let mut received = Vec::new();
        while received.len() < expected.len() {
            self.server.run_once().expect("the store is not damaged");
            let mut chunk = [0; 1024];
            match self.client.read(&mut chunk) {
                Ok(len) => received.extend_from_slice(&chunk[..len]),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(String::from_utf8_lossy(&received), expected);
    }

    fn lose_memories(&mut self, lost: usize) {
        let mut states = [MemoryState::Connected; 3];
        states[..lost].fill(MemoryState::Lost);
        self.script().states = states;
    }
}

fn value(bytes: &[u8], index: u64) -> Outcome {
    Outcome::Reply(KvReply::Value(Some((bytes.into(), index))))
}

#[test]
fn replies_keep_the_order_of_the_requests() {
    let mut world = World::new();
    world.send(&[&[b"GET", b"a"], &[b"SET", b"b", b"x"], &[b"GET", b"c"]], 3);
    world.script().end_read(1, value(b"last", 3));
    world.script().end_change(0, Outcome::Reply(KvReply::Changed(true)));
    world.server.run_once().expect("the store is not damaged");
    world.script().end_read(0, value(b"first", 1));
    world.expect("$5\r\nfirst\r\n+OK\r\n$4\r\nlast\r\n");
}

#[test]
fn refusals_name_the_leader_unless_a_part_was_executed() {
    let mut world = World::new();
    world.send(&[&[b"SET", b"a", b"x"], &[b"DEL", b"a", b"b"]], 3);
    let refused = Outcome::Refused(LogError::NotLeader);
    world.script().end_change(0, refused.clone());
    world.script().end_change(0, Outcome::Reply(KvReply::Changed(true)));
    world.script().end_change(0, refused);
    world.expect(
        "-MOVED 0 127.0.0.1:6402\r\n-UNKNOWN some parts were refused; the others were executed or not\r\n",
    );
}

#[test]
fn lost_majority_answers_what_waits_and_refuses_what_follows() {
    let mut world = World::new();
    world.send(&[&[b"SET", b"a", b"x"]], 1);
    world.lose_memories(2);
    let lost = "memory nodes 127.0.0.1:7001, 127.0.0.1:7002 are lost, and 1 of 3 are no majority";
    world.expect(&format!("-UNKNOWN {lost}: the change may or may not be made\r\n"));
    world.send(&[&[b"GET", b"a"]], 1);
    world.expect(&format!("-CLUSTERDOWN {lost}\r\n"));
    assert!(world.script().asked.is_empty());
    // The outcome of the answered request comes late, and the client has its reply.
    world.script().end_change(0, Outcome::Reply(KvReply::Changed(true)));
    world.lose_memories(1);
    world.server.run_once().expect("the store is not damaged");
    world.send(&[&[b"GET", b"a"]], 1);
    world.script().end_read(0, value(b"x", 9));
    world.expect("$1\r\nx\r\n");
}

#[test]
fn watched_key_pushes_the_changes_of_all_processes() {
    let mut world = World::new();
    world.send(&[&[b"HELLO", b"3"], &[b"MITRA.WATCH", b"k"], &[b"GET", b"k"]], 1);
    world.script().end_read(0, Outcome::Reply(KvReply::Value(None)));
    // The first replies end with that of the read.
    let mut received = Vec::new();
    while !received.ends_with(b"_\r\n") {
        world.server.run_once().expect("the store is not damaged");
        let mut chunk = [0; 4096];
        if let Ok(len) = world.client.read(&mut chunk) {
            received.extend_from_slice(&chunk[..len]);
        }
    }
    for key in [b"other", b"k".as_slice()] {
        world.script().events.push(Event { index: 4, key: key.into(), value: Some(b"v".into()) });
    }
    world.expect(">4\r\n$6\r\nchange\r\n$1\r\nk\r\n$1\r\nv\r\n:4\r\n");
}

#[test]
fn info_names_the_state_of_the_store() {
    let mut world = World::new();
    world.lose_memories(1);
    world.server.run_once().expect("the store is not damaged");
    let info = world.server.info();
    let leader = LEADER.to_string();
    for line in
        [&format!("leader:{leader}"), "leads:0", "applied:7", "memories:3", "lost_memories:1", "processes:2"]
    {
        assert!(info.contains(&format!("{line}\r\n")), "{line} in {info}");
    }
}

#[test]
fn damaged_store_ends_the_server() {
    let mut world = World::new();
    world.script().is_damaged = true;
    let error = world.server.run_once().expect_err("the store is damaged");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}
