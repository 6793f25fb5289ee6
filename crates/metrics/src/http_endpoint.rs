//! An HTTP endpoint for scrapes, on one thread.
//!
//! Clients are not trusted. A connection has a deadline and a bounded request. There are at most
//! [`MAX_CLIENTS`] connections, and a further connection ends the oldest, so that slow clients do
//! not keep a scrape away. A snapshot is encoded at most every [`MAX_AGE`], however many clients
//! ask.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::http_request::{self, Request};
use crate::{Snapshot, openmetrics};

const MAX_CLIENTS: usize = 16;
/// The time after which a connection ends, finished or not.
const DEADLINE: Duration = Duration::from_secs(5);
/// The age up to which an encoded snapshot is sent again.
const MAX_AGE: Duration = Duration::from_millis(100);
/// The pause after an error of `accept`, for example because the process has no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Adds the address and a remedy to an error of `bind(2)`.
fn cannot_listen(address: SocketAddr, error: &io::Error) -> io::Error {
    let way_out = match error.kind() {
        ErrorKind::AddrNotAvailable => "choose an address of this machine",
        ErrorKind::PermissionDenied => "choose a port above 1023, or 0 for a free one",
        _ => "choose another port, or 0 for a free one",
    };
    io::Error::new(error.kind(), format!("cannot listen at {address}: {error}; {way_out}"))
}

/// A running endpoint. Dropping it stops its thread. After a fork, dropping it in the child does
/// nothing.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    /// Closing this end makes the other end, [`ServerThread::stop_requested`], readable.
    stop_signal: Option<UnixStream>,
    pid: u32,
}

impl MetricsServer {
    /// Listens on `address` and serves the metrics at `/metrics`. `snapshot` is called on the
    /// server's thread, at most every 100 ms.
    ///
    /// The endpoint has no access control. An address other than a loopback address shows the
    /// metrics to everybody who reaches it.
    ///
    /// # Errors
    /// The thread cannot be created; or the address is in use, is not an address of this machine,
    /// or may not be used by this user. The error then names the address and a remedy.
    pub fn start(
        address: SocketAddr,
        snapshot: impl FnMut() -> Snapshot + Send + 'static,
    ) -> io::Result<MetricsServer> {
        let listener = TcpListener::bind(address).map_err(|error| cannot_listen(address, &error))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop_signal, stop_requested) = UnixStream::pair()?;
        let server = ServerThread { listener, stop_requested, clients: Vec::new(), snapshot, encoded: None };
        let thread = mitra_os_util::thread::spawn("mitra-metrics", move || server.run())?;
        Ok(MetricsServer {
            address,
            thread: Some(thread),
            stop_signal: Some(stop_signal),
            pid: process::id(),
        })
    }

    /// Returns the address on which the endpoint listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        if process::id() != self.pid {
            return;
        }
        drop(self.stop_signal.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // if `snapshot` panicked, the panic hook has reported it
        }
    }
}

struct ServerThread<F> {
    listener: TcpListener,
    /// Becomes readable when the server is dropped.
    stop_requested: UnixStream,
    /// Oldest first.
    clients: Vec<Client>,
    snapshot: F,
    /// The last encoded snapshot, and its time.
    encoded: Option<(Instant, String)>,
}

struct Client {
    stream: TcpStream,
    ends_at: Instant,
    received: Vec<u8>,
    /// The bytes of the response that are not sent. `None` before the request is complete.
    response: Option<Vec<u8>>,
    sent: usize,
}

#[derive(PartialEq, Eq)]
enum Progress {
    Waits,
    Ended,
}

impl<F: FnMut() -> Snapshot> ServerThread<F> {
    fn run(mut self) {
        while let Some(ready) = self.wait() {
            let now = Instant::now();
            let mut index = 0;
            self.clients.retain_mut(|client| {
                let is_ready = ready.get(index).copied().unwrap_or(false);
                index += 1;
                client.ends_at > now
                    && (!is_ready
                        || client.advance(|| encode(&mut self.encoded, &mut self.snapshot))
                            == Progress::Waits)
            });
            self.accept(now);
        }
    }

    /// Waits until a connection can advance, a client connects or a deadline passes. Returns which
    /// clients are ready, or `None` if the server is to stop.
    fn wait(&self) -> Option<Vec<bool>> {
        let mut fds = vec![
            PollFd::new(self.stop_requested.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(self.clients.iter().map(|client| PollFd::new(client.stream.as_fd(), client.awaited())));
        let timeout =
            self.clients.iter().map(|client| client.ends_at).min().map_or(PollTimeout::NONE, |end| {
                // Rounded up, because rounding down would busy-wait during the last millisecond.
                let millis = end.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            });
        // After EINTR no descriptor is ready, and the caller waits again. With valid arguments
        // `poll` has no other error.
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        match poll(&mut fds, timeout) {
            Err(_) => Some(Vec::new()),
            Ok(_) if is_ready(&fds[0]) => None,
            Ok(_) => Some(fds[2..].iter().map(is_ready).collect()),
        }
    }

    /// Accepts at most [`MAX_CLIENTS`] of the clients that have connected, so that other
    /// connections advance meanwhile.
    fn accept(&mut self, now: Instant) {
        for _ in 0..MAX_CLIENTS {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.clients.len() == MAX_CLIENTS {
                        self.clients.remove(0);
                    }
                    let (received, ends_at) = (Vec::new(), now + DEADLINE);
                    self.clients.push(Client { stream, ends_at, received, response: None, sent: 0 });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(_) => return thread::sleep(ACCEPT_PAUSE),
            }
        }
    }
}

/// Returns the encoded snapshot, which may be [`MAX_AGE`] old.
fn encode(encoded: &mut Option<(Instant, String)>, snapshot: &mut impl FnMut() -> Snapshot) -> String {
    match encoded {
        Some((at, text)) if at.elapsed() < MAX_AGE => text.clone(),
        _ => {
            let text = openmetrics::encode(&snapshot());
            *encoded = Some((Instant::now(), text.clone()));
            text
        }
    }
}

impl Client {
    fn awaited(&self) -> PollFlags {
        match &self.response {
            Some(response) if self.sent < response.len() => PollFlags::POLLOUT,
            _ => PollFlags::POLLIN,
        }
    }

    /// Reads and writes as far as possible without waiting.
    fn advance(&mut self, metrics: impl FnOnce() -> String) -> Progress {
        self.try_advance(metrics).unwrap_or_else(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Progress::Waits,
            _ => Progress::Ended,
        })
    }

    fn try_advance(&mut self, metrics: impl FnOnce() -> String) -> io::Result<Progress> {
        let mut chunk = [0; 1024];
        if self.response.is_none() {
            let request = loop {
                if let Some(request) = http_request::parse(&self.received) {
                    break request;
                }
                match self.stream.read(&mut chunk)? {
                    0 => return Ok(Progress::Ended),
                    n => self.received.extend_from_slice(&chunk[..n]),
                }
            };
            let metrics = if matches!(request, Request::Metrics { .. }) { metrics() } else { String::new() };
            self.response = Some(http_request::response(request, &metrics));
            self.received = Vec::new();
        }
        let Some(response) = &self.response else { return Ok(Progress::Waits) };
        while self.sent < response.len() {
            self.sent += self.stream.write(&response[self.sent..])?;
            if self.sent == response.len() {
                self.stream.shutdown(Shutdown::Write)?;
            }
        }
        // Closing a socket with unread bytes resets the connection, and the client may lose the
        // response. Read one chunk at a time, so that a client that never stops sending does not
        // occupy the thread.
        Ok(if self.stream.read(&mut chunk)? == 0 { Progress::Ended } else { Progress::Waits })
    }
}
