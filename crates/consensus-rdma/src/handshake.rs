//! How two ends meet: over TCP, one frame each way, before their NICs know each other. Everything that is read is hostile until parsed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use mitra_consensus::ProcessId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// How long one end waits for the other.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest frame.
const LONGEST: u32 = 1 << 20;
/// Greetings that wait to be answered; more are turned away.
const WAITING: usize = 64;

/// A word that who greets must know: who it is and whether it may. It travels in the clear: for networks that one trusts.
pub type Token = [u8; 16];

/// What who comes says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) from: ProcessId,
    pub(crate) token: Token,
    /// Differs from one life of a process to the next, as of a memory.
    pub(crate) life: u64,
    /// Its half of the connection.
    pub(crate) info: Vec<u8>,
}

/// What it is answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The other half of the connection.
    pub(crate) info: Vec<u8>,
    /// Differs from one life to the next: what begins anew has forgotten everything.
    pub(crate) life: u64,
    /// Bytes of a register's contents, at most.
    pub(crate) room: u32,
    /// Where the regions are, for this process.
    pub(crate) regions: Vec<Place>,
}

/// Where a region is, and what it may be reached for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) read: Option<Vec<u8>>,
    pub(crate) write: Option<Vec<u8>>,
}

/// The version of what is said here and on the links.
pub(crate) const VERSION: u32 = 2;

pub(crate) fn write_frame(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_stdvec(what).map_err(io::Error::other)?;
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    to.write_all(&frame)
}

pub(crate) fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame longer than any that is meant"));
    }
    // As it comes, so that a length alone costs nothing.
    let mut body = Vec::new();
    from.take(len.into()).read_to_end(&mut body)?;
    postcard::from_bytes(&body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// A stream that is read until a time at the latest: who sends a byte now and then keeps nobody for longer.
struct Until<'a>(&'a mut TcpStream, Instant);

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.read(into)
    }
}

/// Who has come, and waits for an answer.
pub(crate) struct Guest {
    pub(crate) hello: Hello,
    stream: TcpStream,
}

impl Guest {
    /// Answers it. If it has gone meanwhile, it comes again.
    pub(crate) fn welcome(mut self, welcome: &Welcome) -> io::Result<()> {
        write_frame(&mut self.stream, welcome)
    }
}

/// Where others come in.
#[derive(Debug)]
pub(crate) struct Door {
    guests: Receiver<Guest>,
    address: SocketAddr,
    listener: TcpListener,
    closed: Arc<AtomicBool>,
}

impl Door {
    /// Opens it. `wake` is called when somebody waits.
    pub(crate) fn open(listener: TcpListener, wake: impl Fn() + Send + Clone + 'static) -> io::Result<Door> {
        let address = listener.local_addr()?;
        let (enter, guests) = sync_channel(WAITING);
        let (inside, closed) = (Arc::new(()), Arc::new(AtomicBool::new(false)));
        let (incoming, over) = (listener.try_clone()?, Arc::clone(&closed));
        std::thread::Builder::new().name("mitra-door".to_owned()).spawn(move || {
            for stream in incoming.incoming() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                // Each has a thread, so that who says nothing keeps nobody waiting. They end by themselves, and are not many.
                let (enter, wake, here) = (enter.clone(), wake.clone(), Arc::clone(&inside));
                if Arc::strong_count(&here) > WAITING {
                    continue;
                }
                let greet = move || {
                    let _here = here;
                    let Ok(mut stream) = stream else { return };
                    if stream.set_write_timeout(Some(PATIENCE)).is_ok()
                        && let Ok(hello) =
                            read_frame::<Hello>(&mut Until(&mut stream, Instant::now() + PATIENCE))
                        && hello.version == VERSION
                        && enter.try_send(Guest { hello, stream }).is_ok()
                    {
                        wake();
                    }
                };
                let _ = std::thread::Builder::new().name("mitra-greeting".to_owned()).spawn(greet);
            }
        })?;
        Ok(Door { guests, address, listener, closed })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next who waits.
    pub(crate) fn next(&self) -> Option<Guest> {
        self.guests.try_recv().ok()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Its thread waits for somebody to come, and hears of this instead.
        let _ = nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
    }
}

/// Goes to somebody's door, in a thread of its own. None comes if it is not answered.
pub(crate) fn knock(at: SocketAddr, hello: Hello, wait: Duration) -> Receiver<io::Result<Welcome>> {
    let (answer, receiver) = sync_channel(1);
    let visit = move || {
        std::thread::sleep(wait);
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_nodelay(true)?;
        write_frame(&mut stream, &hello)?;
        read_frame(&mut Until(&mut stream, Instant::now() + PATIENCE))
    };
    let thread = std::thread::Builder::new().name("mitra-knock".to_owned());
    // Without a thread nobody answers, and it is tried again.
    let _ = thread.spawn(move || _ = answer.send(visit()));
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as the door has room for, who send a byte now and then: they are sent away, and who comes after them gets in.
    #[test]
    fn who_dawdles_at_the_door_does_not_block_it() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let door = Door::open(listener, || ()).expect("a door");
        let connect = || TcpStream::connect(door.address()).expect("a door");
        let mut dawdlers: Vec<TcpStream> = (0..WAITING).map(|_| connect()).collect();
        // Each announces a frame of 100 bytes, the next of which always comes in time.
        dawdlers.iter_mut().for_each(|dawdler| dawdler.write_all(&[100, 0, 0, 0]).expect("sent"));
        let hello = Hello { version: VERSION, from: ProcessId(0), token: [1; 16], life: 1, info: Vec::new() };
        let end = Instant::now() + 10 * PATIENCE;
        let let_in = std::iter::from_fn(|| (Instant::now() < end).then_some(())).any(|()| {
            dawdlers.iter_mut().for_each(|dawdler| _ = dawdler.write(&[0]));
            let _ = write_frame(&mut connect(), &hello);
            std::thread::sleep(PATIENCE / 4);
            door.next().is_some_and(|guest| guest.hello == hello)
        });
        assert!(let_in);
    }
}
