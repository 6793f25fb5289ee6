//! The HTTP endpoint, with well-behaved and with hostile clients.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mitra_metrics::{CONTENT_TYPE, MetricsServer, encode};

/// The timeout of each wait. It exceeds the duration of every exchange in these tests by far.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Starts an endpoint, and returns it with the number of snapshots that it has taken.
fn start() -> (MetricsServer, Arc<AtomicU64>) {
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    let snapshot = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        crate::sample_snapshot::snapshot()
    };
    let server =
        MetricsServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), snapshot).expect("a port is free");
    (server, taken)
}

fn connect(server: &MetricsServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).expect("the endpoint listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("the timeout is not zero");
    stream
}

/// Sends bytes, and returns the head and the body of the response.
fn exchange(server: &MetricsServer, request: &[u8]) -> (String, String) {
    let mut stream = connect(server);
    stream.write_all(request).expect("the endpoint reads");
    receive(&mut stream)
}

fn receive(stream: &mut TcpStream) -> (String, String) {
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the endpoint closes the connection after the response");
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
    (head.to_owned(), body.to_owned())
}

const SCRAPE: &[u8] =
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\r\n";

#[test]
fn scrape_returns_the_encoded_snapshot() {
    let (server, _) = start();
    let (head, body) = exchange(&server, SCRAPE);
    assert_eq!(body, encode(&crate::sample_snapshot::snapshot()));
    let lines: Vec<&str> = head.lines().collect();
    assert_eq!(lines[0], "HTTP/1.1 200 OK");
    assert!(lines.contains(&&*format!("Content-Type: {CONTENT_TYPE}")), "{head}");
    assert!(lines.contains(&&*format!("Content-Length: {}", body.len())), "{head}");
    let (head_only, empty) = exchange(&server, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert_eq!((head_only, &*empty), (head, ""));
}

#[test]
fn other_requests_are_refused_with_the_way_out() {
    let (server, taken) = start();
    for (request, status, text) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404", "/metrics"),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405", "GET"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", "400", "HTTP/1.1"),
    ] {
        let (head, body) = exchange(&server, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(body.contains(text), "{body}");
    }
    assert_eq!(taken.load(Ordering::Relaxed), 0, "no snapshot was taken for them");
}

#[test]
fn request_in_single_bytes_is_answered() {
    let (server, _) = start();
    let mut stream = connect(&server);
    stream.set_nodelay(true).expect("a TCP socket has the option");
    for byte in SCRAPE {
        stream.write_all(&[*byte]).expect("the endpoint reads");
    }
    assert!(receive(&mut stream).1.ends_with("# EOF\n"));
}

#[test]
fn endless_request_is_refused() {
    let (server, _) = start();
    let mut stream = connect(&server);
    let _ = stream.write_all(&vec![b'x'; 1 << 20]); // the endpoint may close the connection meanwhile
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response); // a reset may follow the response, because bytes are unread
    assert!(response.is_empty() || response.starts_with(b"HTTP/1.1 431 "));
    assert!(exchange(&server, SCRAPE).0.starts_with("HTTP/1.1 200 "));
}

/// More clients than there may be connections send nothing, or a part of a request. A scrape is
/// answered nevertheless, and the oldest connections have ended.
#[test]
fn silent_clients_do_not_keep_a_scrape_away() {
    let (server, _) = start();
    let mut silent: Vec<_> = (0..40).map(|_| connect(&server)).collect();
    for stream in &mut silent {
        let _ = stream.write_all(b"GET /metr"); // the endpoint may have ended the connection
    }
    assert!(exchange(&server, SCRAPE).1.ends_with("# EOF\n"));
    // The endpoint has accepted the other clients before the scrape.
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).expect("the socket is valid");
        let read = stream.read(&mut [0; 16]);
        stream.set_nonblocking(false).expect("the socket is valid");
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let open = silent.iter_mut().map(is_open).filter(|open| *open).count();
    assert!(open <= 16, "{open} connections are open");
    // The oldest connection has ended, by an end of file or a reset, and without a response. A read
    // that times out fails with `WouldBlock`.
    let ended = silent[0].read(&mut [0; 16]);
    assert!(!matches!(&ended, Ok(1..)) && !ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
}

/// Clients that ask and do not read the response end after the deadline, and do not keep a scrape
/// away.
#[test]
fn clients_that_read_nothing_do_not_keep_a_scrape_away() {
    let (server, taken) = start();
    let mut stuck: Vec<_> = (0..16).map(|_| connect(&server)).collect();
    for stream in &mut stuck {
        stream.write_all(SCRAPE).expect("the endpoint reads");
    }
    for _ in 0..50 {
        assert!(exchange(&server, SCRAPE).1.ends_with("# EOF\n"));
    }
    assert!(taken.load(Ordering::Relaxed) < 66, "an encoded snapshot is sent again");
}

#[test]
fn client_that_half_closes_is_answered() {
    let (server, _) = start();
    let mut stream = connect(&server);
    stream.write_all(SCRAPE).expect("the endpoint reads");
    stream.shutdown(Shutdown::Write).expect("it is open");
    assert!(receive(&mut stream).1.ends_with("# EOF\n"));
}

#[test]
fn dropped_server_frees_its_port() {
    let (server, _) = start();
    let address = server.address();
    let _open = connect(&server);
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn address_in_use_is_an_error() {
    let (server, _) = start();
    let error = MetricsServer::start(server.address(), crate::sample_snapshot::snapshot)
        .expect_err("the port is in use");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    let text = error.to_string();
    assert!(text.contains(&server.address().to_string()) && text.contains("choose another port"), "{text}");
}

#[test]
fn foreign_address_is_an_error() {
    let foreign = SocketAddr::from(([192, 0, 2, 1], 0));
    let error =
        MetricsServer::start(foreign, crate::sample_snapshot::snapshot).expect_err("the address is foreign");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("choose an address of this machine"), "{error}");
}
