//! A plain UDP socket, the baseline of the software NIC, which itself uses a UDP socket.

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

use super::stopwatch::{Deadline, Stopwatch};

/// The socket buffer sizes in bytes. The software NICs ask the kernel for the same sizes.
const BUFFER: usize = 8 << 20;
/// The largest payload of a UDP datagram in bytes, which also bounds a GSO run.
const MAX_DATAGRAM: usize = 65_507;

/// A busy-polling, non-blocking, unconnected UDP socket, like the socket of a software NIC.
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
        // Linux before 5.0 has no UDP_GRO and delivers each datagram of a run separately.
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

    /// Sends `request` bytes and waits for the echo, `rounds` times after a warm-up of one tenth.
    pub(crate) fn ping(&mut self, request: usize, rounds: u64) -> anyhow::Result<Histogram<u64>> {
        let mut watch = Stopwatch::start(rounds);
        for i in 0..watch.rounds() {
            self.send(i, request)?;
            ensure!(self.receive()? == i, "the UDP echo does not match the request");
            watch.lap();
        }
        Ok(watch.into_histogram())
    }

    /// Answers the datagrams of [`UdpBaseline::ping`] with `response` bytes each.
    pub(crate) fn pong(&mut self, response: usize, rounds: u64) -> anyhow::Result<()> {
        for _ in 0..Stopwatch::with_warm_up(rounds) {
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

    /// Sends the stream of `plan` in GSO runs, with at most `window` bytes of unacknowledged
    /// payload. Returns the duration.
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
            Err(error) => Err(error).context("cannot send with UDP segmentation offload (UDP_SEGMENT)"),
        }
    }

    /// Receives the stream of `plan`. Acknowledges each run with the number of payload bytes
    /// received so far. The payload is not read.
    pub(crate) fn sink(&mut self, plan: &StreamPlan) -> anyhow::Result<()> {
        let mut datagrams = 0_u64;
        let total = plan.bytes.div_ceil(plan.payload as u64);
        let mut deadline = Deadline::default();
        while datagrams < total {
            match self.receive_run() {
                Ok(0) => bail!("the UDP stream contains an empty datagram"),
                Ok(len) => {
                    datagrams += len.div_ceil(plan.datagram) as u64;
                    let answer = (datagrams * plan.payload as u64).to_le_bytes();
                    self.socket.send_to(&answer, self.peer)?;
                }
                Err(Errno::EAGAIN) => {
                    deadline.check().context("the UDP stream lost datagrams")?;
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
        // The software NIC reads the segment size of each run too, so the baseline includes the
        // same work.
        if let Some(ControlMessageOwned::UdpGroSegments(segment)) = message.cmsgs()?.next() {
            std::hint::black_box(segment);
        }
        Ok(message.bytes)
    }
}

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct StreamPlan {
    /// The payload of the stream in bytes, a multiple of the payload of a GSO run.
    pub(crate) bytes: u64,
    /// The length of a datagram in bytes.
    pub(crate) datagram: usize,
    /// The payload of a datagram in bytes.
    pub(crate) payload: usize,
    /// An upper bound on the unacknowledged payload, in bytes. A single run may exceed it.
    pub(crate) window: u64,
}

impl StreamPlan {
    /// Returns the number of datagrams per GSO run.
    pub(crate) fn run_datagrams(&self) -> usize {
        (MAX_DATAGRAM / self.datagram).clamp(1, 64)
    }

    /// Returns the plan with `bytes` rounded up to whole runs.
    pub(crate) fn whole_runs(mut self) -> StreamPlan {
        self.bytes = self.bytes.next_multiple_of((self.run_datagrams() * self.payload) as u64);
        self
    }
}
