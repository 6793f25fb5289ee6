//! What clients of Redis send and rely on, over sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::Duration;

use mitra_kv::resp::encode_request;

use mitra_test_process::{command, output, setup_dir};

use super::cluster::{Cluster, TIMEOUT};

/// A store of one process and one memory node.
fn store() -> (Cluster, impl Fn() -> TcpStream) {
    let cluster = Cluster::start(1, 1);
    let address = cluster.client_address(cluster.leader());
    let connect = move || {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        stream
    };
    (cluster, connect)
}

fn encoded(requests: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        encode_request(&request.split(' ').map(str::as_bytes).collect::<Vec<_>>(), &mut bytes);
    }
    bytes
}

/// Sends requests and then no more, and returns all that the server sends until it closes.
fn half_closed(mut stream: TcpStream, requests: &[u8]) -> String {
    let mut sender = stream.try_clone().expect("a descriptor");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            sender.write_all(requests).expect("sent");
            sender.shutdown(Shutdown::Write).expect("half closed");
        });
        let mut replies = Vec::new();
        stream.read_to_end(&mut replies).expect("replies, then the end");
        String::from_utf8(replies).expect("text")
    })
}

#[test]
fn kv_hello() {
    let (_cluster, connect) = store();
    let ask = |requests: &[&str]| half_closed(connect(), &encoded(requests));
    let fields = |proto: u8| format!("$5\r\nproto\r\n:{proto}\r\n");
    let two = ask(&["HELLO", "HELLO 2", "GET none"]);
    assert!(two.starts_with("*14\r\n$6\r\nserver\r\n") && two.contains(&fields(2)), "{two}");
    assert!(two.ends_with("*0\r\n$-1\r\n"), "{two}");
    let three = ask(&["GET none", "HELLO 3 AUTH default x SETNAME me", "GET none", "CLIENT GETNAME"]);
    // A reply is in the protocol of its request, and that to HELLO in the new one.
    assert!(three.starts_with("$-1\r\n%7\r\n$6\r\nserver\r\n") && three.contains(&fields(3)), "{three}");
    assert!(three.ends_with("*0\r\n_\r\n$2\r\nme\r\n"), "{three}");
    let four = ask(&["HELLO 4", "GET none"]);
    assert_eq!(four, "-NOPROTO unsupported protocol version\r\n$-1\r\n");
}

/// A client that sends its requests and shuts down the socket for writing gets all replies.
#[test]
fn kv_half_closed() {
    let (_cluster, connect) = store();
    let requests = encoded(&["SET k v", "GET k", "DEL k", "PING"]);
    let replies = "+OK\r\n$1\r\nv\r\n:1\r\n+PONG\r\n";
    for repeat in [1; 50].into_iter().chain([5_000]) {
        let got = half_closed(connect(), &requests.repeat(repeat));
        assert!(got == replies.repeat(repeat), "{} of {} bytes", got.len(), repeat * replies.len());
    }
}

/// The commands of a refused transaction are not executed, although the client has sent them with
/// MULTI.
#[test]
fn kv_multi() {
    let (_cluster, connect) = store();
    let ask = |requests: &[&str]| half_closed(connect(), &encoded(requests));
    let begins = |replies: &str, expected: &[&str]| {
        let lines: Vec<_> = replies.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{replies}");
        assert!(lines.iter().zip(expected).all(|(line, start)| line.starts_with(start)), "{replies}");
    };
    begins(
        &ask(&["SET k 1", "MULTI", "SET k 2", "DEL k", "EXEC", "GET k"]),
        &[
            "+OK",
            "-ERR MULTI is not supported",
            "-ERR not executed",
            "-ERR not executed",
            "-EXECABORT",
            "$1",
            "1",
        ],
    );
    begins(
        &ask(&["MULTI", "SET k 2", "DISCARD", "EXEC", "WATCH k", "UNWATCH", "GET k"]),
        &["-ERR MULTI", "-ERR not executed", "+OK", "-ERR EXEC without", "-ERR WATCH", "+OK", "$1", "1"],
    );
    // The connection ends inside the transaction.
    begins(&ask(&["MULTI", "SET k 2"]), &["-ERR MULTI", "-ERR not executed"]);
    begins(&ask(&["GET k"]), &["$1", "1"]);
}

/// A client that reads nothing is not served any further, and others are.
#[test]
fn client_that_reads_nothing_stops_only_itself() {
    let (_cluster, connect) = store();
    let mut greedy = connect();
    greedy.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket");
    let value = "x".repeat(60_000);
    let requests = encoded(&[&format!("ECHO {value}")]).repeat(20);
    // The write fails once the server reads no more and the buffers of the sockets are full.
    let written = (0..1000).find(|_| greedy.write_all(&requests).is_err());
    assert!(written.is_some(), "the server buffers more than a gigabyte");
    assert_eq!(half_closed(connect(), &encoded(&["PING"])), "+PONG\r\n");
    // The replies are those of the requests that were executed, in order.
    let mut reply = vec![0; "$60000\r\n".len()];
    greedy.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply, b"$60000\r\n");
}

/// Runs a program with the port of a store of one process as its last argument.
fn run_client(program: &str, script: &str, words: &[&str]) {
    let cluster = Cluster::start(1, 1);
    let address = cluster.client_address(cluster.leader());
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kv/redis_clients");
    let mut client = command(setup_dir().join("venv/bin").join(program));
    client.arg(directory.join(script)).args(words);
    client.args([address.ip().to_string(), address.port().to_string()]);
    client.env("NODE_PATH", setup_dir().join("npm/node_modules")).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = output(&mut client);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}; `cargo xtask setup` installs the client: {said}", output.status);
}

/// The clients of Redis that people use today work with their defaults.
#[test]
fn kv_hello_redis_py() {
    run_client("python3", "redis_py.py", &[]);
}

#[test]
fn kv_hello_node_redis() {
    run_client("node", "check.mjs", &["redis"]);
}

#[test]
fn kv_hello_ioredis() {
    run_client("node", "check.mjs", &["ioredis"]);
}
