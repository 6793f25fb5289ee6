//! The connection of a process to one peer. The connection delivers messages in order, and loses no
//! message until a process crashes or the connection breaks.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use mitra_consensus::ProcessId;
use mitra_consensus_memory::{Hello, Token, VERSION, Welcome};
use mitra_handshake::Incoming;
use mitra_verbs::Error;

use crate::link::{Link, LinkEvent};
use crate::link_poller::Pass;
use crate::pending_connect::{Identity, PendingConnect, RETRY_INTERVAL};

/// The maximum number of messages that wait for a connection. `send` drops the oldest messages
/// above this number, because the protocols treat a process that accepts no message for so long as
/// crashed.
const MAX_QUEUED: usize = 4096;

/// Of two processes, the process with the higher id dials.
#[derive(Debug)]
pub(crate) struct Peer {
    identity: Identity,
    /// The key of the links.
    key: u8,
    address: SocketAddr,
    /// The token that the peer must present.
    token: Token,
    max_message_bytes: usize,
    dials: bool,
    state: State,
    queued: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
enum State {
    /// There is no connection, and this process does not dial: the peer is this process itself, or
    /// has not dialled yet.
    Idle,
    /// No queue pair or descriptor was free. The process dials again at this time.
    Backoff(Instant),
    Connecting(PendingConnect),
    Connected(Link),
}

impl Peer {
    pub(crate) fn new(
        identity: &Identity,
        key: u8,
        peer: ProcessId,
        address: SocketAddr,
        token: Token,
        max_message_bytes: usize,
    ) -> Result<Peer, Error> {
        let dials = peer < identity.process;
        let state = match dials {
            true => {
                let link = identity.new_link(key, max_message_bytes, 0)?;
                State::Connecting(identity.connect(address, link, Duration::ZERO)?)
            }
            false => State::Idle,
        };
        let (identity, queued) = (identity.clone(), VecDeque::new());
        Ok(Peer { identity, key, address, token, max_message_bytes, dials, state, queued })
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(&self.state, State::Connected(link) if !link.is_broken())
    }

    /// Accepts a connection from the peer, which replaces an earlier connection.
    pub(crate) fn accept(&mut self, incoming: Incoming<Hello>) {
        if incoming.hello.version != VERSION
            || incoming.hello.token != self.token
            || incoming.hello.from <= self.identity.process
        {
            return;
        }
        // The peer dials only after it has dropped its end of the earlier connection.
        self.state = State::Idle;
        let accepted = self.identity.new_link(self.key, self.max_message_bytes, 0).and_then(|mut link| {
            let info = link.info()?;
            link.connect(&incoming.hello.info)?;
            Ok((link, info))
        });
        let Ok((link, info)) = accepted else { return };
        let welcome = Welcome { info, incarnation: 0, register_capacity: 0, regions: Vec::new() };
        if incoming.accept(&welcome).is_ok() {
            self.state = State::Connected(link);
            self.send_queued();
        }
    }

    /// Sends a message now, or queues it until the peer is connected.
    pub(crate) fn send(&mut self, message: Vec<u8>) {
        self.queued.push_back(message);
        if self.queued.len() > MAX_QUEUED {
            self.queued.pop_front();
        }
        self.send_queued();
    }

    fn send_queued(&mut self) {
        if let State::Connected(link) = &mut self.state {
            self.queued.drain(..).for_each(|message| _ = link.send(message));
        }
    }

    /// Drives the connection, and passes each message that arrived to `on_message`.
    pub(crate) fn drive(&mut self, pass: Pass, mut on_message: impl FnMut(Vec<u8>)) {
        match &mut self.state {
            State::Idle => {}
            State::Backoff(until) if *until > Instant::now() => {}
            State::Backoff(_) => self.dial(Duration::ZERO),
            State::Connecting(pending) => match pending.response.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(Ok(welcome)) => self.finish_connect(&welcome),
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => self.dial(RETRY_INTERVAL),
            },
            State::Connected(link) => {
                link.drive(pass, |event| {
                    if let LinkEvent::Message(bytes) = event {
                        on_message(bytes);
                    }
                });
                if link.is_broken() {
                    // Messages in flight are lost, as if the sender had crashed.
                    self.dial(RETRY_INTERVAL);
                }
            }
        }
    }

    fn finish_connect(&mut self, welcome: &Welcome) {
        let State::Connecting(PendingConnect { mut link, .. }) =
            std::mem::replace(&mut self.state, State::Idle)
        else {
            return;
        };
        if link.connect(&welcome.info).is_err() {
            return self.dial(RETRY_INTERVAL);
        }
        self.state = State::Connected(link);
        self.send_queued();
    }

    /// Drops the current connection. Dials the peer after `delay` if this process has the higher
    /// id.
    fn dial(&mut self, delay: Duration) {
        let previous = std::mem::replace(&mut self.state, State::Idle);
        if !self.dials {
            return;
        }
        let link = match previous {
            State::Connecting(pending) => Ok(pending.link),
            _ => self.identity.new_link(self.key, self.max_message_bytes, 0),
        };
        self.state = match link.and_then(|link| self.identity.connect(self.address, link, delay)) {
            Ok(pending) => State::Connecting(pending),
            Err(_) => State::Backoff(Instant::now() + RETRY_INTERVAL),
        };
    }

    /// Returns after which time a pass is due even if no event arrives.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        match &self.state {
            State::Idle => None,
            State::Connecting(_) => Some(RETRY_INTERVAL),
            State::Backoff(until) => Some(until.saturating_duration_since(Instant::now())),
            State::Connected(link) => link.due_in(),
        }
    }
}
