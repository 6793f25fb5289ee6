//! The baseline keeps Raft's word, too: what it acknowledged outlives its leader. Else it would be no fair opponent.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use mitra_kv::resp::{Reply, write_request};

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

/// What a process says to requests that are sent at once; none if it is not there.
fn ask(at: SocketAddr, requests: &[&[&[u8]]]) -> Option<Vec<Reply>> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut bytes = Vec::new();
    requests.iter().for_each(|words| write_request(words, &mut bytes));
    stream.write_all(&bytes).ok()?;
    let (mut input, mut chunk, mut replies) = (Vec::new(), [0; 4096], Vec::new());
    while replies.len() < requests.len() {
        match Reply::read(&input).expect("it speaks RESP") {
            Some((reply, len)) => {
                input.drain(..len);
                replies.push(reply);
            }
            None => {
                let len = stream.read(&mut chunk).ok().filter(|&len| len > 0)?;
                input.extend_from_slice(&chunk[..len]);
            }
        }
    }
    Some(replies)
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
