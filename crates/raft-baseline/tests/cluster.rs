//! The baseline keeps Raft's word, too: what it acknowledged outlives its leader. Else it would be no fair opponent.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use mitra_kv::RespConnection;
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
    RespConnection::connect(at).and_then(|mut connection| connection.pipeline(requests)).ok()
}

/// Asks until a look finds something.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "nobody leads");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Who carries out these requests, once somebody does, and what it says. They may have been carried out before.
fn served(clients: &[SocketAddr], requests: &[&[&[u8]]]) -> (usize, Vec<Reply>) {
    until(|| {
        clients.iter().enumerate().find_map(|(p, &at)| {
            let said = ask(at, requests)?;
            let is_done = !said.iter().any(|reply| matches!(reply, Reply::Error(_)));
            is_done.then_some((p, said))
        })
    })
}

#[test]
fn what_was_acknowledged_outlives_the_leader() {
    let (processes, clients) = (addresses(7101), addresses(6401));
    let mut running: Vec<_> = (0..3).map(|id| Some(start(id, &processes, &clients))).collect();
    let bulk = |value: &[u8]| Reply::Bulk(Some(value.to_vec()));
    let ok = || Reply::Simple("OK");

    let reads: [&[&[u8]]; 2] = [&[b"GET", b"nothing"], &[b"PING"]];
    assert_eq!(served(&clients, &reads).1, [Reply::Bulk(None), bulk(b"PONG")]);
    // Requests of a pipeline are carried out in their order, reads among writes as well.
    let mixed: [&[&[u8]]; 4] =
        [&[b"SET", b"k", b"v"], &[b"get", b"k"], &[b"SET", b"k", b"w"], &[b"GET", b"k"]];
    let (first, said) = served(&clients, &mixed);
    assert_eq!(said, [ok(), bulk(b"v"), ok(), bulk(b"w")]);

    // Who does not lead says who does.
    until(|| {
        clients.iter().find(|&&at| match ask(at, &[&[b"SET", b"other", b"x"]]).as_deref() {
            Some([Reply::Error(text)]) => {
                let to = text.strip_prefix("MOVED 0 ").and_then(|to| to.parse().ok());
                to.is_some_and(|to: SocketAddr| to != at && clients.contains(&to))
            }
            _ => false,
        })
    });

    running[first] = None;
    let again: [&[&[u8]]; 3] = [&[b"GET", b"k"], &[b"SET", b"new", b"x"], &[b"GET", b"new"]];
    let (second, said) = served(&clients, &again);
    assert_eq!(said, [bulk(b"w"), ok(), bulk(b"x")]);
    assert_ne!(second, first);

    // One of three is no majority: nothing is acknowledged, and nothing is read.
    running[3 - first - second] = None;
    for words in [&[b"GET", &b"k"[..]][..], &[b"SET", b"k", b"lost"]] {
        let said = ask(clients[second], &[words]);
        assert!(matches!(said.as_deref(), None | Some([Reply::Error(_)])), "{said:?}");
    }
}
