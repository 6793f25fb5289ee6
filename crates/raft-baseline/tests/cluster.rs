//! The baseline keeps Raft's word, too: what it acknowledged outlives its leader. Else it would be no fair opponent.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use mitra_kv::Connection;
use mitra_kv::resp::Reply;

/// A process that is ended when this is.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three addresses of this test's own: others run beside it.
fn addresses(port: u16) -> Vec<SocketAddr> {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    (1..=3).map(|last| (Ipv4Addr::new(127, 200 + high % 50, low, last), port).into()).collect()
}

fn start(id: usize, processes: &[SocketAddr], clients: &[SocketAddr]) -> Process {
    let words = |all: &[SocketAddr]| all.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mitra-raft-baseline"));
    command.args(["--id", &id.to_string()]);
    command.args(["--processes", &words(processes), "--clients", &words(clients)]);
    Process(command.spawn().expect("it starts"))
}

/// What a process says to requests that are sent at once; none if it is not there, or says nothing.
fn ask(at: SocketAddr, requests: &[&[&[u8]]]) -> Option<Vec<Reply>> {
    Connection::open(at).and_then(|mut connection| connection.ask_all(requests)).ok()
}

/// Who leads, once somebody does: who says something else than where to go.
fn leader(clients: &[SocketAddr]) -> usize {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        let leads = |&at: &SocketAddr| {
            ask(at, &[&[b"GET", b"nothing"]]).is_some_and(|replies| replies == [Reply::Bulk(None)])
        };
        if let Some(leader) = clients.iter().position(leads) {
            return leader;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("nobody leads");
}

#[test]
fn what_was_acknowledged_outlives_the_leader() {
    let (processes, clients) = (addresses(7101), addresses(6401));
    let mut running: Vec<_> = (0..3).map(|id| Some(start(id, &processes, &clients))).collect();
    let first = leader(&clients);

    // In a pipeline, with reads before and behind the write.
    let requests: [&[&[u8]]; 4] = [&[b"GET", b"k"], &[b"SET", b"k", b"v"], &[b"get", b"k"], &[b"PING"]];
    let said = [
        Reply::Bulk(None),
        Reply::Simple("OK"),
        Reply::Bulk(Some(b"v".to_vec())),
        Reply::Bulk(Some(b"PONG".to_vec())),
    ];
    assert_eq!(ask(clients[first], &requests), Some(said.to_vec()));

    // Who does not lead says who does, and does nothing.
    let moved = Reply::Error(format!("MOVED 0 {}", clients[first]));
    let other = clients[(first + 1) % 3];
    for words in [&[b"GET", &b"k"[..]][..], &[b"SET", b"k", b"w"]] {
        assert_eq!(ask(other, &[words]), Some(vec![moved.clone()]));
    }

    running[first] = None;
    let second = leader(&clients);
    assert_ne!(second, first);
    let kept = ask(clients[second], &[&[b"GET", b"k"], &[b"SET", b"k", b"new"], &[b"GET", b"k"]]);
    let bulk = |value: &[u8]| Reply::Bulk(Some(value.to_vec()));
    assert_eq!(kept, Some(vec![bulk(b"v"), Reply::Simple("OK"), bulk(b"new")]));

    // One of three is no majority: nothing is acknowledged, and nothing is read.
    running[(0..3).find(|&p| p != first && p != second).expect("the third")] = None;
    for words in [&[b"GET", &b"k"[..]][..], &[b"SET", b"k", b"lost"]] {
        let said = ask(clients[second], &[words]);
        assert!(matches!(said.as_deref(), None | Some([Reply::Error(_)])), "{said:?}");
    }
}
