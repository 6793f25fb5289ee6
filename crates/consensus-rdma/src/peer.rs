//! A process's way to another: messages, in order, for as long as both live.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use mitra_consensus::ProcessId;
use mitra_verbs::Error;

use crate::handshake::{Guest, Token, Welcome};
use crate::link::{Event, Link};
use crate::pending_connect::{AGAIN, Call, Identity};

/// Messages that wait for a connection, at most; the oldest go first. Who takes none for so long has crashed, as far as protocols can tell.
const WAITING: usize = 4096;

/// Another process. Of two, the one with the higher number calls.
#[derive(Debug)]
pub(crate) struct Peer {
    identity: Identity,
    address: SocketAddr,
    /// The word that it must know.
    token: Token,
    longest: usize,
    /// Whether it is mine to call.
    calls: bool,
    state: State,
    waiting: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
enum State {
    /// Myself, or nobody that I can call.
    Alone,
    /// There was no queue pair or no descriptor for a connection: it is tried again then.
    Resting(Instant),
    Calling(Call),
    Connected(Link),
}

impl Peer {
    pub(crate) fn new(
        identity: &Identity,
        p: ProcessId,
        address: SocketAddr,
        token: Token,
        longest: usize,
    ) -> Result<Peer, Error> {
        let calls = p < identity.me;
        let state = match calls {
            true => State::Calling(identity.call(address, identity.link(longest)?, Duration::ZERO)?),
            false => State::Alone,
        };
        let (identity, waiting) = (identity.clone(), VecDeque::new());
        Ok(Peer { identity, address, token, longest, calls, state, waiting })
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(&self.state, State::Connected(link) if !link.is_broken())
    }

    /// It has come to our door.
    pub(crate) fn let_in(&mut self, guest: Guest) {
        if guest.hello.token != self.token || guest.hello.from <= self.identity.me {
            return;
        }
        // Who was there before is gone, or it would not come.
        self.state = State::Alone;
        let made = self.identity.link(self.longest).and_then(|mut link| {
            let info = link.info()?;
            link.connect(&guest.hello.info)?;
            Ok((link, info))
        });
        let Ok((link, info)) = made else { return };
        let welcome = Welcome { info, life: 0, room: 0, regions: Vec::new() };
        if guest.welcome(&welcome).is_ok() {
            self.state = State::Connected(link);
            self.send_waiting();
        }
    }

    /// Sends a message, now or once it is connected.
    pub(crate) fn send(&mut self, message: Vec<u8>) {
        self.waiting.push_back(message);
        if self.waiting.len() > WAITING {
            self.waiting.pop_front();
        }
        self.send_waiting();
    }

    fn send_waiting(&mut self) {
        if let State::Connected(link) = &mut self.state {
            self.waiting.drain(..).for_each(|message| _ = link.send(message));
        }
    }

    /// Drives it, and hands over the messages that came.
    pub(crate) fn poll(&mut self, mut message: impl FnMut(Vec<u8>)) {
        match &mut self.state {
            State::Alone => {}
            State::Resting(until) if *until > Instant::now() => {}
            State::Resting(_) => self.call(Duration::ZERO),
            State::Calling(call) => match call.answer.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(Ok(welcome)) => self.connect(&welcome),
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => self.call(AGAIN),
            },
            State::Connected(link) => {
                link.poll(|event| {
                    if let Event::Message(bytes) = event {
                        message(bytes);
                    }
                });
                if link.is_broken() {
                    // What was under way is lost, as it is when a process crashes.
                    self.call(AGAIN);
                }
            }
        }
    }

    fn connect(&mut self, welcome: &Welcome) {
        let State::Calling(Call { mut link, .. }) = std::mem::replace(&mut self.state, State::Alone) else {
            return;
        };
        if link.connect(&welcome.info).is_err() {
            return self.call(AGAIN);
        }
        self.state = State::Connected(link);
        self.send_waiting();
    }

    /// Calls again, if it is mine to call.
    fn call(&mut self, wait: Duration) {
        let old = std::mem::replace(&mut self.state, State::Alone);
        if !self.calls {
            return;
        }
        let link = match old {
            State::Calling(call) => Ok(call.link),
            _ => self.identity.link(self.longest),
        };
        self.state = match link.and_then(|link| self.identity.call(self.address, link, wait)) {
            Ok(call) => State::Calling(call),
            Err(_) => State::Resting(Instant::now() + AGAIN),
        };
    }

    pub(crate) fn arm(&self) {
        if let State::Connected(link) = &self.state {
            link.arm();
        }
    }
}
