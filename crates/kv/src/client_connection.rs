//! A client's connection: its requests are answered in their order, however they are done.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use mio::net::TcpStream;

use crate::resp::{MAX_ARGUMENT_BYTES, Reply, RespError, parse_request};

/// Bytes that wait to be parsed, and to be sent, at most.
const INPUT: usize = 4 * MAX_ARGUMENT_BYTES;
const OUTPUT: usize = 16 << 20;
/// Requests under way, at most: more are not read.
const REQUESTS: usize = 1024;

pub(crate) struct ClientConnection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// Requests that are not answered yet, or wait for those before them; the first has this number.
    answers: VecDeque<Option<Reply>>,
    first: u64,
    /// The key that it wants to hear of, and since which request.
    watches: Option<(u64, Vec<u8>)>,
    /// To be closed once all is answered.
    closing: bool,
    /// The peer says no more.
    ended: bool,
    /// There may be more to read.
    pub(crate) readable: bool,
    /// What was read and not parsed is no whole request.
    partial: bool,
}

impl ClientConnection {
    pub(crate) fn new(stream: TcpStream) -> ClientConnection {
        ClientConnection {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            answers: VecDeque::new(),
            first: 0,
            watches: None,
            closing: false,
            ended: false,
            readable: true,
            partial: true,
        }
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Reads what there is.
    pub(crate) fn read(&mut self) {
        let mut chunk = [0; 16 << 10];
        while self.readable && self.input.len() < INPUT && self.answers.len() < REQUESTS && !self.ended {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.ended = true,
                Ok(len) => {
                    self.input.extend_from_slice(&chunk[..len]);
                    self.partial = false;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.ended = true,
            }
        }
    }

    /// Whether something can be read or parsed now. Half a request is nothing to be busy with.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.closing && self.answers.len() < REQUESTS && (self.readable || !self.partial)
    }

    /// Hands over each request that is there, with its number.
    pub(crate) fn requests(&mut self, mut take: impl FnMut(u64, &[&[u8]])) {
        let mut at = 0;
        while !self.closing && self.answers.len() < REQUESTS {
            match parse_request(&self.input[at..]) {
                Ok(Some((arguments, len))) => {
                    at += len;
                    if !arguments.is_empty() {
                        let number = self.first + self.answers.len() as u64;
                        self.answers.push_back(None);
                        take(number, &arguments);
                    }
                }
                Ok(None) if self.input.len() - at < INPUT => {
                    self.partial = true;
                    break;
                }
                Ok(None) => self.fail(RespError::TooLarge),
                Err(malformed) => self.fail(malformed),
            }
        }
        self.input.drain(..at);
    }

    fn fail(&mut self, malformed: RespError) {
        self.answers.push_back(Some(Reply::Error(format!("ERR {malformed}"))));
        self.closing = true;
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, number: u64, reply: Reply) {
        if let Some(answer) = number.checked_sub(self.first).and_then(|at| self.answers.get_mut(at as usize))
        {
            *answer = Some(reply);
        }
    }

    /// It wants to hear of a key, and asks for that by this request.
    pub(crate) fn watch(&mut self, number: u64, key: Vec<u8>) {
        self.watches = Some((number, key));
    }

    /// Whether it hears of a key: it does once it was told that it will, so that it takes no change for the reply.
    pub(crate) fn hears_of(&self, key: &[u8]) -> bool {
        matches!(&self.watches, Some((since, watched)) if *since < self.first && watched == key)
    }

    /// Says something that was not asked for.
    pub(crate) fn tell(&mut self, reply: &Reply) {
        reply.encode(&mut self.output);
    }

    /// No more is answered than was asked for so far.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    /// Sends what can be sent.
    pub(crate) fn write(&mut self) {
        while let Some(Some(reply)) = self.answers.front() {
            reply.encode(&mut self.output);
            self.answers.pop_front();
            self.first += 1;
        }
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Who always leaves something would else make it grow for ever.
                    self.output.drain(..std::mem::take(&mut self.sent));
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
        self.output.clear();
        self.sent = 0;
    }

    /// Whether nothing is left to be done for it, or it reads too slowly.
    pub(crate) fn is_over(&self) -> bool {
        let quiet = self.answers.is_empty() && self.output.is_empty();
        self.ended || self.closing && quiet || self.output.len() - self.sent > OUTPUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection, and its client's end.
    fn pair() -> (ClientConnection, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
        let (stream, _) = listener.accept().expect("a client");
        stream.set_nonblocking(true).expect("a socket");
        (ClientConnection::new(TcpStream::from_std(stream)), client)
    }

    /// Reads until there is nothing more; the requests that came.
    fn serve(connection: &mut ClientConnection, bytes: usize) -> usize {
        let mut requests = 0;
        let mut came = 0;
        while came < bytes {
            let before = connection.input.len();
            connection.readable = true;
            connection.read();
            came += connection.input.len() - before;
            connection.requests(|_, _| requests += 1);
        }
        requests
    }

    #[test]
    fn half_a_request_keeps_nobody_busy() {
        let (mut connection, mut client) = pair();
        let half = b"*1\r\n$4\r\nPI";
        client.write_all(half).expect("sent");
        assert_eq!(serve(&mut connection, half.len()), 0);
        assert!(!connection.is_waiting());
        client.write_all(b"NG\r\n").expect("sent");
        assert_eq!(serve(&mut connection, 4), 1);
    }

    #[test]
    fn one_that_is_closing_keeps_nobody_busy() {
        let (mut connection, mut client) = pair();
        let bad = b"*x\r\nmore";
        client.write_all(bad).expect("sent");
        assert_eq!(serve(&mut connection, bad.len()), 0);
        assert!(!connection.is_waiting());
    }

    #[test]
    fn what_has_changed_is_told_behind_the_reply() {
        let (mut connection, _client) = pair();
        connection.answers.extend([None, None]);
        connection.watch(1, b"key".into());
        connection.answer(1, Reply::Simple("OK"));
        connection.write();
        assert!(!connection.hears_of(b"key"), "the one before it is not answered yet");
        connection.answer(0, Reply::Integer(1));
        connection.write();
        assert!(connection.hears_of(b"key") && !connection.hears_of(b"other"));
    }
}
