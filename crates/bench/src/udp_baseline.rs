//! What a plain UDP socket does on this machine: the floor under every figure of a NIC that is made of one.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use std::io::{IoSlice, IoSliceMut};

use super::clock::{Deadline, Stopwatch};

/// Asked of the kernel for each buffer, as the NICs do.
const BUFFER: usize = 8 << 20;
/// The payload of a UDP datagram, and of a run of segments in one piece.
const MAX_DATAGRAM: usize = 65_507;

/// A spinning, non-blocking, unconnected UDP socket: what a NIC that may talk to many peers uses.
pub(crate) struct UdpBaseline {
    socket: UdpSocket,
    peer: SocketAddr,
    buffer: Vec<u8>,
}

impl UdpBaseline {
    pub(crate) fn open() -> anyhow::Result<UdpBaseline> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot bind a UDP socket")?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::RcvBuf, &BUFFER)?;
        setsockopt(&socket, sockopt::SndBuf, &BUFFER)?;
        // Before Linux 5.0 there is none: then runs arrive one by one.
        let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
        let peer = socket.local_addr()?;
        Ok(UdpBaseline { socket, peer, buffer: vec![0; 1 << 16] })
    }

    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.socket.local_addr()?)
    }

    pub(crate) fn connect(&mut self, peer: SocketAddr) {
        self.peer = peer;
    }

    /// Sends `request` bytes, waits for the answer, `rounds` times; the first tenth is not counted.
    pub(crate) fn ping(&mut self, request: usize, rounds: u64) -> anyhow::Result<Histogram<u64>> {
        let mut watch = Stopwatch::start(rounds);
        for i in 0..watch.rounds() {
            self.send(i, request)?;
            ensure!(self.receive()? == i, "the UDP echo answers something else");
            watch.lap();
        }
        Ok(watch.done())
    }

    /// Answers as many with `response` bytes.
    pub(crate) fn pong(&mut self, response: usize, rounds: u64) -> anyhow::Result<()> {
        for _ in 0..Stopwatch::rounds_of(rounds) {
            let i = self.receive()?;
            self.send(i, response)?;
        }
        Ok(())
    }

    fn send(&mut self, number: u64, len: usize) -> anyhow::Result<()> {
        self.buffer[..8].copy_from_slice(&number.to_le_bytes());
        self.socket.send_to(&self.buffer[..len], self.peer)?;
        Ok(())
    }

    fn receive(&mut self) -> anyhow::Result<u64> {
        let mut deadline = Deadline::default();
        loop {
            match self.socket.recv_from(&mut self.buffer) {
                Ok(_) => {
                    let (number, _) = self.buffer.split_first_chunk().context("the buffer is long enough")?;
                    return Ok(u64::from_le_bytes(*number));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => deadline.check()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends `bytes` of payload in datagrams of `datagram` bytes that each carry `payload` of it, in runs as long as the
    /// kernel takes; at most `window` bytes of payload are unanswered. Says how long it took.
    pub(crate) fn stream(&mut self, plan: &StreamPlan) -> anyhow::Result<Duration> {
        let begin = std::time::Instant::now();
        let (mut sent, mut answered) = (0_u64, 0_u64);
        let mut deadline = Deadline::default();
        let to = SockaddrStorage::from(self.peer);
        while answered < plan.bytes {
            let run = (plan.run_datagrams() * plan.payload) as u64;
            if sent < plan.bytes && sent + run - answered <= plan.window.max(run) {
                if self.send_run(plan, &to)? {
                    sent += run;
                }
                continue;
            }
            match self.socket.recv_from(&mut self.buffer) {
                Ok((8, _)) => {
                    let (count, _) = self.buffer.split_first_chunk().context("the buffer is long enough")?;
                    answered = u64::from_le_bytes(*count);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => deadline.check()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(begin.elapsed())
    }

    fn send_run(&self, plan: &StreamPlan, to: &SockaddrStorage) -> anyhow::Result<bool> {
        let segment = plan.datagram as u16;
        let run = [IoSlice::new(&self.buffer[..plan.run_datagrams() * plan.datagram])];
        let control = [ControlMessage::UdpGsoSegments(&segment)];
        match sendmsg(self.socket.as_raw_fd(), &run, &control, MsgFlags::MSG_DONTWAIT, Some(to)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN) => Ok(false),
            Err(error) => Err(error).context("this kernel does not send runs of UDP datagrams (UDP_SEGMENT)"),
        }
    }

    /// Receives such a stream, answers each run with what has come so far, and gives the bytes no second look.
    pub(crate) fn sink(&mut self, plan: &StreamPlan) -> anyhow::Result<()> {
        let mut datagrams = 0_u64;
        let total = plan.bytes.div_ceil(plan.payload as u64);
        let mut deadline = Deadline::default();
        while datagrams < total {
            match self.receive_run() {
                Ok(0) => bail!("an empty datagram in the stream"),
                Ok(len) => {
                    datagrams += len.div_ceil(plan.datagram) as u64;
                    let answer = (datagrams * plan.payload as u64).to_le_bytes();
                    self.socket.send_to(&answer, self.peer)?;
                }
                Err(Errno::EAGAIN) => {
                    deadline.check().context("datagrams of the plain UDP stream were lost")?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive_run(&mut self) -> Result<usize, Errno> {
        let mut control = nix::cmsg_space!(i32);
        let mut iov = [IoSliceMut::new(&mut self.buffer)];
        let fd = self.socket.as_raw_fd();
        let message = recvmsg::<SockaddrStorage>(fd, &mut iov, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
        // Taken apart as a NIC would have to.
        if let Some(ControlMessageOwned::UdpGroSegments(segment)) = message.cmsgs()?.next() {
            std::hint::black_box(segment);
        }
        Ok(message.bytes)
    }
}

/// A plain UDP stream.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct StreamPlan {
    /// Payload in all: a multiple of a run's.
    pub(crate) bytes: u64,
    /// Of each datagram.
    pub(crate) datagram: usize,
    /// Its part that counts.
    pub(crate) payload: usize,
    /// Payload that may be unanswered.
    pub(crate) window: u64,
}

impl StreamPlan {
    /// Datagrams in one piece.
    pub(crate) fn run_datagrams(&self) -> usize {
        (MAX_DATAGRAM / self.datagram).clamp(1, 64)
    }

    /// The same, with `bytes` rounded up to whole runs.
    pub(crate) fn whole_runs(mut self) -> StreamPlan {
        self.bytes = self.bytes.next_multiple_of((self.run_datagrams() * self.payload) as u64);
        self
    }
}
