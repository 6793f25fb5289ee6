//! The baseline is a fair comparison only if it keeps Raft's guarantee: an acknowledged write
//! survives the crash of its leader.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mitra_kv::RespConnection;
use mitra_kv::resp::Reply;
use mitra_test_process::{OwnNetwork, TestProcess, command};

fn start(id: usize, processes: &[SocketAddr], clients: &[SocketAddr]) -> TestProcess {
    let join = |all: &[SocketAddr]| all.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    let mut command = command(env!("CARGO_BIN_EXE_mitra-raft-baseline"));
    command.args(["--id", &id.to_string()]);
    command.args(["--processes", &join(processes), "--clients", &join(clients)]);
    TestProcess::start(&mut command)
}

/// Returns `None` if the process does not answer.
fn request(address: SocketAddr, requests: &[&[&[u8]]]) -> Option<Vec<Reply>> {
    RespConnection::connect(address).and_then(|mut connection| connection.pipeline(requests)).ok()
}

fn wait_until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < end, "timed out after 60 s: no process executed the requests");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the process that executes these requests, and its replies. An earlier attempt may have
/// executed the requests already.
fn served_by(clients: &[SocketAddr], requests: &[&[&[u8]]]) -> (usize, Vec<Reply>) {
    wait_until(|| {
        clients.iter().enumerate().find_map(|(p, &address)| {
            let replies = request(address, requests)?;
            let is_done = !replies.iter().any(|reply| matches!(reply, Reply::Error(_)));
            is_done.then_some((p, replies))
        })
    })
}

#[test]
fn acknowledged_write_survives_leader_crash() {
    let network = OwnNetwork::new();
    let addresses = |port| (1..=3).map(|host| (network.address(host), port).into()).collect::<Vec<_>>();
    let (processes, clients) = (addresses(7101), addresses(6401));
    let mut running: Vec<_> = (0..3).map(|id| Some(start(id, &processes, &clients))).collect();
    let bulk = |value: &[u8]| Reply::Bulk(Some(value.to_vec()));
    let ok = || Reply::Simple("OK");

    let reads: [&[&[u8]]; 2] = [&[b"GET", b"nothing"], &[b"PING"]];
    assert_eq!(served_by(&clients, &reads).1, [Reply::Bulk(None), bulk(b"PONG")]);
    // Pipelined requests are executed in order, also reads between writes.
    let mixed: [&[&[u8]]; 4] =
        [&[b"SET", b"k", b"v"], &[b"get", b"k"], &[b"SET", b"k", b"w"], &[b"GET", b"k"]];
    let (first, replies) = served_by(&clients, &mixed);
    assert_eq!(replies, [ok(), bulk(b"v"), ok(), bulk(b"w")]);

    // Each process that is not the leader redirects to the leader.
    wait_until(|| {
        clients.iter().find(|&&address| match request(address, &[&[b"SET", b"other", b"x"]]).as_deref() {
            Some([Reply::Error(text)]) => {
                let to = text.strip_prefix("MOVED 0 ").and_then(|to| to.parse().ok());
                to.is_some_and(|to: SocketAddr| to != address && clients.contains(&to))
            }
            _ => false,
        })
    });

    running[first] = None;
    let again: [&[&[u8]]; 3] = [&[b"GET", b"k"], &[b"SET", b"new", b"x"], &[b"GET", b"new"]];
    let (second, replies) = served_by(&clients, &again);
    assert_eq!(replies, [bulk(b"w"), ok(), bulk(b"x")]);
    assert_ne!(second, first);

    // One process of three is no majority, so it acknowledges no write and answers no read.
    running[3 - first - second] = None;
    for command in [&[b"GET", &b"k"[..]][..], &[b"SET", b"k", b"lost"]] {
        let replies = request(clients[second], &[command]);
        assert!(matches!(replies.as_deref(), None | Some([Reply::Error(_)])), "{replies:?}");
    }
}
