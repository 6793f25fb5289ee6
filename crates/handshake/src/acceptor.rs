//! A handshake: one TCP frame in each direction, such as the data that the two queue pairs need to
//! connect.
//!
//! The handshake runs before the NICs of the two ends know each other, so every byte that arrives
//! is untrusted until it is parsed.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{read_frame, write_frame};

/// The time limit for each step of a handshake. The steps are: to connect, to send a frame, and to
/// receive a frame.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of handshakes in progress, and of unanswered handshakes. The acceptor drops
/// further connections.
const MAX_PENDING: usize = 64;

/// A reader with one deadline for the whole frame. A peer cannot extend the deadline by sending
/// single bytes.
struct DeadlineReader<'a> {
    stream: &'a mut TcpStream,
    deadline: Instant,
}

impl DeadlineReader<'_> {
    fn new(stream: &mut TcpStream) -> DeadlineReader<'_> {
        DeadlineReader { stream, deadline: Instant::now() + HANDSHAKE_TIMEOUT }
    }
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(remaining))?;
        self.stream.read(out)
    }
}

/// A connection whose first frame has arrived and which awaits its answer.
#[derive(Debug)]
pub struct Incoming<H> {
    /// The peer's first frame, which is hostile until it is checked.
    pub hello: H,
    stream: TcpStream,
}

impl<H> Incoming<H> {
    /// Sends the answer. A peer that has disconnected meanwhile retries its handshake.
    ///
    /// # Errors
    /// Any error of the stream.
    pub fn accept(mut self, welcome: &impl Serialize) -> io::Result<()> {
        write_frame(&mut self.stream, welcome)
    }
}

/// Accepts handshakes, whose first frame is an `H`, in background threads.
#[derive(Debug)]
pub struct Acceptor<H> {
    incoming: Receiver<Incoming<H>>,
    address: SocketAddr,
    listener: TcpListener,
    closed: Arc<AtomicBool>,
}

impl<H: DeserializeOwned + Send + 'static> Acceptor<H> {
    /// Starts accepting on `listener`. The acceptor calls `wake` whenever an [`Incoming`] is ready.
    ///
    /// # Errors
    /// If the system refuses a thread or a descriptor.
    pub fn start(listener: TcpListener, wake: impl Fn() + Send + Clone + 'static) -> io::Result<Acceptor<H>> {
        let address = listener.local_addr()?;
        let (sender, incoming) = sync_channel(MAX_PENDING);
        let (active, closed) = (Arc::new(()), Arc::new(AtomicBool::new(false)));
        let (accepting, stop) = (listener.try_clone()?, Arc::clone(&closed));
        std::thread::Builder::new().name("mitra-acceptor".to_owned()).spawn(move || {
            for stream in accepting.incoming() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                // Each handshake has its own thread, so that a slow peer delays no other.
                // HANDSHAKE_TIMEOUT bounds the life of each thread and MAX_PENDING their number.
                let (sender, wake, slot) = (sender.clone(), wake.clone(), Arc::clone(&active));
                if Arc::strong_count(&slot) > MAX_PENDING {
                    continue;
                }
                let handshake = move || {
                    let _slot = slot;
                    let Ok(mut stream) = stream else { return };
                    if stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT)).is_ok()
                        && let Ok(hello) = read_frame(&mut DeadlineReader::new(&mut stream))
                        && sender.try_send(Incoming { hello, stream }).is_ok()
                    {
                        wake();
                    }
                };
                let _ = std::thread::Builder::new().name("mitra-handshake".to_owned()).spawn(handshake);
            }
        })?;
        Ok(Acceptor { incoming, address, listener, closed })
    }

    /// Returns the address that the listener is bound to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the next connection that awaits its answer, if there is one.
    pub fn next(&self) -> Option<Incoming<H>> {
        self.incoming.try_recv().ok()
    }
}

impl<H> Drop for Acceptor<H> {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // The accept loop blocks in accept(2). Shutting the socket down ends that call, and the
        // loop then reads `closed`.
        let _ = nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
    }
}

/// Executes a handshake with the acceptor at `address` in a new thread, after `delay`, and sends
/// the result to the returned receiver. Then calls `wake`. The receiver reports a disconnect if the
/// thread cannot be started.
pub fn dial<H, W>(
    address: SocketAddr,
    hello: H,
    delay: Duration,
    wake: impl FnOnce() + Send + 'static,
) -> Receiver<io::Result<W>>
where
    H: Serialize + Send + 'static,
    W: DeserializeOwned + Send + 'static,
{
    let (response, receiver) = sync_channel(1);
    let exchange = move || {
        std::thread::sleep(delay);
        let mut stream = TcpStream::connect_timeout(&address, HANDSHAKE_TIMEOUT)?;
        stream.set_nodelay(true)?;
        write_frame(&mut stream, &hello)?;
        read_frame(&mut DeadlineReader::new(&mut stream))
    };
    let thread = std::thread::Builder::new().name("mitra-dial".to_owned());
    // If the system refuses to start the thread, `response` is dropped and the caller retries.
    let _ = thread.spawn(move || {
        let _ = response.send(exchange());
        wake();
    });
    receiver
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Opens as many slow connections as the acceptor allows. The acceptor closes them at their
    /// deadlines, and a complete handshake then succeeds.
    #[test]
    fn slow_handshake_does_not_block_acceptor() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let acceptor: Acceptor<String> = Acceptor::start(listener, || ()).expect("a running acceptor");
        let connect = || TcpStream::connect(acceptor.address()).expect("a running acceptor");
        let mut slow_peers: Vec<TcpStream> = (0..MAX_PENDING).map(|_| connect()).collect();
        // Each connection announces a frame of 100 bytes and then sends one byte at a time, each
        // within the timeout.
        slow_peers
            .iter_mut()
            .for_each(|peer| peer.write_all(&[100, 0, 0, 0]).expect("the frame header is sent"));
        let hello = "the first frame".to_owned();
        let end = Instant::now() + 10 * HANDSHAKE_TIMEOUT;
        let accepted = std::iter::from_fn(|| (Instant::now() < end).then_some(())).any(|()| {
            slow_peers.iter_mut().for_each(|peer| _ = peer.write(&[0]));
            let _ = write_frame(&mut connect(), &hello);
            std::thread::sleep(HANDSHAKE_TIMEOUT / 4);
            acceptor.next().is_some_and(|incoming| incoming.hello == hello)
        });
        assert!(accepted, "the acceptor took no handshake in time");
    }
}
