//! Finds the device of the program that listens at a port.
//!
//! A program names a service by an IP address, and several processes with NICs of their own may
//! share that address, loopback first of all. The socket of a listening port therefore answers each
//! TCP connection with the GID of its process's device, and closes it. Nothing else goes over these
//! sockets: the requests travel over the rails.
//!
//! A service on another machine need not answer, because its program may use the kernel's
//! connection manager. The address that the program has named is then that of the device.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mitra_verbs::Gid;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use socket2::Socket;

use super::cm_event::IdHandle;
use super::rdma_port::{PortSpace, errno_of, is_local, non_blocking_stream};
use crate::rails::cm_receiver::Endpoints;

/// Magic and version. Version 1 sent the connection manager's messages over the stream, and version
/// 2 told no endpoints.
const PREFIX: [u8; 5] = *b"MiCM\x03";
/// The prefix, the GID, whether the device has queue pair 1 (8 bits), and the port of its UDP
/// socket or 0 (16 bits, big endian).
const ANSWER: usize = PREFIX.len() + 16 + 1 + 2;

/// The time between two questions while nothing listens.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How long a service on another machine may take to answer before its address counts as that of
/// its device. Longer than the time after which the system repeats a lost SYN.
const REMOTE_TIMEOUT: Duration = Duration::from_millis(1500);

/// The epoll data of a question's socket has this bit. The handles of identifiers do not.
const QUESTION: u64 = 1 << 63;

/// Answers the stream of a requester. An answer that does not fit into the socket's empty buffer is
/// lost, and the requester asks again.
pub fn answer(stream: &Socket, device: Gid, endpoints: Endpoints) {
    let _ = stream.set_nonblocking(true);
    let port = endpoints.port.unwrap_or(0).to_be_bytes();
    let answer = [&PREFIX[..], &device.0, &[u8::from(endpoints.has_queue_pair_1)], &port].concat();
    let _ = (&*stream).write(&answer);
}

fn parse(answer: &[u8]) -> Option<Answer> {
    let (gid, rest) = answer.strip_prefix(&PREFIX)?.split_first_chunk()?;
    let &[has_queue_pair_1, high, low] = rest else { return None };
    let port = Some(u16::from_be_bytes([high, low])).filter(|port| *port != 0);
    let endpoints = Endpoints { has_queue_pair_1: has_queue_pair_1 != 0, port };
    Some(Answer::Device(Gid(*gid), endpoints))
}

/// What is known about a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A program with this device listens.
    Device(Gid, Endpoints),
    /// No socket of this machine has the port.
    NobodyListens,
    /// On another machine, no socket has the port or nothing answers. A device may have the
    /// address.
    Unknown,
}

type Key = (PortSpace, SocketAddr);

struct Question {
    key: Key,
    is_local: bool,
    /// `None` between two attempts.
    socket: Option<Socket>,
    received: Vec<u8>,
    /// The identifiers that wait for the answer.
    waiting: Vec<IdHandle>,
    /// When the next attempt begins, or the present one counts as failed.
    due: Option<Instant>,
}

/// The questions of this process. Identifiers that look for the same service share one.
#[derive(Default)]
pub struct ServiceDirectory {
    questions: HashMap<u64, Question>,
    numbers: HashMap<Key, u64>,
    last: u64,
}

impl ServiceDirectory {
    pub fn is_question(epoll_data: u64) -> bool {
        epoll_data & QUESTION != 0
    }

    /// Asks which device serves `address`. Returns the waiting identifiers and the answer if it is
    /// known at once.
    pub fn ask(
        &mut self,
        epoll: &Epoll,
        (space, address): Key,
        handle: IdHandle,
        now: Instant,
    ) -> Option<(Vec<IdHandle>, Answer)> {
        let number = *self.numbers.entry((space, address)).or_insert_with(|| {
            self.last += 1;
            self.last | QUESTION
        });
        let question = self.questions.entry(number).or_insert_with(|| Question {
            key: (space, address),
            is_local: is_local(address),
            socket: None,
            received: Vec::new(),
            waiting: Vec::new(),
            due: Some(now),
        });
        question.waiting.push(handle);
        // A question that is being asked, or is asked again later, gets its answer later.
        let is_due = question.socket.is_none() && question.due.is_some_and(|due| due <= now);
        if is_due { self.begin(epoll, number, now) } else { None }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.questions.values().filter_map(|question| question.due).min()
    }

    /// Handles the questions whose time has come. Returns the answers that are known now.
    pub fn on_timer(&mut self, epoll: &Epoll, now: Instant) -> Vec<(Vec<IdHandle>, Answer)> {
        let is_due = |question: &Question| question.due.is_some_and(|due| due <= now);
        let due: Vec<u64> =
            self.questions.iter().filter(|(_, question)| is_due(question)).map(|(n, _)| *n).collect();
        let mut answers = Vec::new();
        for number in due {
            let has_timed_out = self.questions[&number].socket.is_some();
            answers.extend(match has_timed_out {
                true => self.end(number, Answer::Unknown),
                false => self.begin(epoll, number, now),
            });
        }
        answers
    }

    fn begin(&mut self, epoll: &Epoll, number: u64, now: Instant) -> Option<(Vec<IdHandle>, Answer)> {
        let question = self.questions.get_mut(&number)?;
        let (space, address) = question.key;
        question.received.clear();
        question.due = (!question.is_local).then_some(now + REMOTE_TIMEOUT);
        let connect = || {
            let socket = non_blocking_stream(address)?;
            // A program may choose the port of a socket in TIME_WAIT. If the option cannot be set,
            // the port is in use for a minute.
            let _ = socket.set_reuse_address(true);
            match socket.connect(&space.translate_address(address).into()).map_err(errno_of) {
                Ok(()) | Err(Errno::EINPROGRESS) => {}
                Err(errno) => return Err(errno),
            }
            // Edge-triggered, because a child of `fork` may keep the socket open.
            epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, number))?;
            Ok(socket)
        };
        match connect() {
            Ok(socket) => {
                question.socket = Some(socket);
                None
            }
            Err(errno) => self.fail(number, errno, now),
        }
    }

    /// Reads what has arrived on a question's socket.
    pub fn on_ready(&mut self, number: u64, now: Instant) -> Option<(Vec<IdHandle>, Answer)> {
        let question = self.questions.get_mut(&number)?;
        let socket = question.socket.as_ref()?;
        let mut bytes = [0; ANSWER];
        loop {
            match (&*socket).read(&mut bytes[question.received.len()..]) {
                Ok(0) => return self.fail(number, Errno::EPROTO, now),
                Ok(length) => question.received.extend(&bytes[question.received.len()..][..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => return self.fail(number, errno_of(error), now),
            }
            if question.received.iter().zip(&PREFIX).any(|(byte, own)| byte != own) {
                return self.fail(number, Errno::EPROTO, now);
            }
            if let Some(answer) = parse(&question.received) {
                return self.end(number, answer);
            }
        }
    }

    /// Handles a failed attempt. On this machine, a listener may start soon, or may have no
    /// descriptor left.
    fn fail(&mut self, number: u64, errno: Errno, now: Instant) -> Option<(Vec<IdHandle>, Answer)> {
        let question = self.questions.get_mut(&number)?;
        question.socket = None;
        match errno {
            Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS => {
                question.due = Some(now + RETRY_INTERVAL);
                None
            }
            _ if question.is_local => {
                question.due = Some(now + RETRY_INTERVAL);
                Some((std::mem::take(&mut question.waiting), Answer::NobodyListens))
            }
            _ => self.end(number, Answer::Unknown),
        }
    }

    fn end(&mut self, number: u64, answer: Answer) -> Option<(Vec<IdHandle>, Answer)> {
        let question = self.questions.remove(&number)?;
        self.numbers.remove(&question.key);
        Some((question.waiting, answer))
    }

    /// The identifier waits for no answer any more.
    pub fn forget(&mut self, handle: IdHandle) {
        for question in self.questions.values_mut() {
            question.waiting.retain(|waiting| *waiting != handle);
        }
        self.remove_unused();
    }

    /// Removes the questions for which no identifier waits any more.
    pub fn remove_unused(&mut self) {
        let numbers = &mut self.numbers;
        self.questions.retain(|_, question| {
            let is_used = !question.waiting.is_empty();
            if !is_used {
                numbers.remove(&question.key);
            }
            is_used
        });
    }
}
