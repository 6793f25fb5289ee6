//! The server's end of a client connection. The server sends replies in the order of the requests,
//! even if the replies become known in a different order.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use mio::net::TcpStream;

use crate::resp::{MAX_ARGUMENT_BYTES, Reply, RespError, parse_request};

/// The server stops reading while at least this many bytes are unparsed, and rejects an incomplete
/// request of this length.
const MAX_INPUT_BYTES: usize = 4 * MAX_ARGUMENT_BYTES;
/// The maximum number of unsent bytes. The server closes the connection if there are more.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// The maximum number of requests whose replies are not sent yet. The server stops reading while
/// this many requests wait for replies.
const MAX_REQUESTS: usize = 1024;

pub(crate) struct ClientConnection {
    stream: TcpStream,
    /// Bytes that are not parsed yet.
    input: Vec<u8>,
    /// Encoded replies and other messages.
    output: Vec<u8>,
    /// The number of bytes at the start of `output` that are sent.
    sent: usize,
    /// The replies that are not encoded yet, in the order of the requests. `None` if a reply is not
    /// known yet.
    replies: VecDeque<Option<Reply>>,
    /// The number of the request whose reply is `replies[0]`.
    first_request_number: u64,
    /// The watched key, with the number of the watch request.
    watched: Option<(u64, Vec<u8>)>,
    /// Whether the server closes the connection after it has sent all replies.
    closing: bool,
    /// Whether the client has closed the connection, or the connection has failed.
    peer_closed: bool,
    /// Whether the socket may have bytes to read.
    pub(crate) readable: bool,
    /// Whether `input` is empty or an incomplete request.
    partial: bool,
}

impl ClientConnection {
    pub(crate) fn new(stream: TcpStream) -> ClientConnection {
        ClientConnection {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            replies: VecDeque::new(),
            first_request_number: 0,
            watched: None,
            closing: false,
            peer_closed: false,
            readable: true,
            partial: true,
        }
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Reads from the socket until it has no more bytes, or until [`MAX_INPUT_BYTES`] or
    /// [`MAX_REQUESTS`] is reached.
    pub(crate) fn read(&mut self) {
        let mut chunk = [0; 16 << 10];
        while self.readable
            && self.input.len() < MAX_INPUT_BYTES
            && self.replies.len() < MAX_REQUESTS
            && !self.peer_closed
        {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.peer_closed = true,
                Ok(len) => {
                    self.input.extend_from_slice(&chunk[..len]);
                    self.partial = false;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.peer_closed = true,
            }
        }
    }

    /// Returns whether there is input to read or parse now. An incomplete request cannot be parsed
    /// before more input arrives.
    pub(crate) fn has_work(&self) -> bool {
        !self.closing && self.replies.len() < MAX_REQUESTS && (self.readable || !self.partial)
    }

    /// Parses the complete requests in the input, and passes each with its number to `on_request`.
    /// Stops at [`MAX_REQUESTS`].
    pub(crate) fn drain_requests(&mut self, mut on_request: impl FnMut(u64, &[&[u8]])) {
        let mut at = 0;
        while !self.closing && self.replies.len() < MAX_REQUESTS {
            match parse_request(&self.input[at..]) {
                Ok(Some((arguments, len))) => {
                    at += len;
                    if !arguments.is_empty() {
                        let number = self.first_request_number + self.replies.len() as u64;
                        self.replies.push_back(None);
                        on_request(number, &arguments);
                    }
                }
                Ok(None) if self.input.len() - at < MAX_INPUT_BYTES => {
                    self.partial = true;
                    break;
                }
                Ok(None) => self.reject(RespError::TooLarge),
                Err(error) => self.reject(error),
            }
        }
        self.input.drain(..at);
    }

    fn reject(&mut self, error: RespError) {
        self.replies.push_back(Some(Reply::Error(format!("ERR {error}"))));
        self.closing = true;
    }

    pub(crate) fn reply_to(&mut self, number: u64, reply: Reply) {
        if let Some(slot) =
            number.checked_sub(self.first_request_number).and_then(|at| self.replies.get_mut(at as usize))
        {
            *slot = Some(reply);
        }
    }

    /// Replaces the key that the client watches. `number` is the number of the request.
    pub(crate) fn watch(&mut self, number: u64, key: Vec<u8>) {
        self.watched = Some((number, key));
    }

    /// Reports of changes begin only after the reply to the watch request, because the client would
    /// mistake an earlier report for the reply.
    pub(crate) fn is_watching(&self, key: &[u8]) -> bool {
        matches!(&self.watched, Some((number, watched)) if *number < self.first_request_number && watched == key)
    }

    /// Queues a message that is not a reply.
    pub(crate) fn push(&mut self, reply: &Reply) {
        reply.encode(&mut self.output);
    }

    pub(crate) fn close_after_replies(&mut self) {
        self.closing = true;
    }

    /// Encodes the known replies before the first unknown reply, and sends as much as the socket
    /// accepts.
    pub(crate) fn write(&mut self) {
        while let Some(Some(reply)) = self.replies.front() {
            reply.encode(&mut self.output);
            self.replies.pop_front();
            self.first_request_number += 1;
        }
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Discards the bytes already sent. Otherwise the buffer would grow without
                    // bound for a client that never reads everything.
                    self.output.drain(..std::mem::take(&mut self.sent));
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.peer_closed = true;
                    return;
                }
            }
        }
        self.output.clear();
        self.sent = 0;
    }

    /// Returns whether the server must drop the connection: the client has closed it, the server
    /// closes it and has sent all replies, or the client reads too slowly.
    pub(crate) fn is_finished(&self) -> bool {
        let all_sent = self.replies.is_empty() && self.output.is_empty();
        self.peer_closed || self.closing && all_sent || self.output.len() - self.sent > MAX_OUTPUT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected_pair() -> (ClientConnection, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let client = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
        let (stream, _) = listener.accept().expect("a client");
        stream.set_nonblocking(true).expect("a socket");
        (ClientConnection::new(TcpStream::from_std(stream)), client)
    }

    /// Reads until `bytes` bytes have arrived, and returns the number of complete requests among
    /// them.
    fn read_all(connection: &mut ClientConnection, bytes: usize) -> usize {
        let mut requests = 0;
        let mut read = 0;
        while read < bytes {
            let before = connection.input.len();
            connection.readable = true;
            connection.read();
            read += connection.input.len() - before;
            connection.drain_requests(|_, _| requests += 1);
        }
        requests
    }

    #[test]
    fn incomplete_request_is_not_work() {
        let (mut connection, mut client) = connected_pair();
        let half = b"*1\r\n$4\r\nPI";
        client.write_all(half).expect("the socket buffer has room");
        assert_eq!(read_all(&mut connection, half.len()), 0);
        assert!(!connection.has_work());
        client.write_all(b"NG\r\n").expect("the socket buffer has room");
        assert_eq!(read_all(&mut connection, 4), 1);
    }

    #[test]
    fn closing_connection_has_no_work() {
        let (mut connection, mut client) = connected_pair();
        let bad = b"*x\r\nmore";
        client.write_all(bad).expect("the socket buffer has room");
        assert_eq!(read_all(&mut connection, bad.len()), 0);
        assert!(!connection.has_work());
    }

    #[test]
    fn changes_are_sent_after_the_reply_to_watch() {
        let (mut connection, _client) = connected_pair();
        connection.replies.extend([None, None]);
        connection.watch(1, b"key".into());
        connection.reply_to(1, Reply::Simple("OK"));
        connection.write();
        assert!(!connection.is_watching(b"key"), "an earlier request has no reply yet");
        connection.reply_to(0, Reply::Integer(1));
        connection.write();
        assert!(connection.is_watching(b"key") && !connection.is_watching(b"other"));
    }
}
