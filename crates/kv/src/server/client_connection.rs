//! The server's end of a client connection. The server sends replies in the order of the requests,
//! even if the replies become known in a different order.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use mio::net::TcpStream;

use super::client_state::{ClientState, ReplyForm};
use crate::command::{Command, ConnectionCommand, ReplyMode, parse};
use crate::resp::{MAX_ARGUMENT_BYTES, Reply, RespError, parse_request};

/// The server stops reading while at least this many bytes are unparsed, and rejects an incomplete
/// request of this length.
const MAX_INPUT_BYTES: usize = 4 * MAX_ARGUMENT_BYTES;
/// The server executes no more requests of a client while at least this many bytes of replies are
/// not sent. It closes the connection of a client that watches a key and lets this many wait.
const MAX_UNSENT_BYTES: usize = 1 << 20;
/// The maximum number of requests whose replies are not sent yet. The server stops reading while
/// this many requests wait for replies.
const MAX_REQUESTS: usize = 1024;
/// A buffer that is empty keeps at most this capacity, in bytes.
const MAX_IDLE_BYTES: usize = 4 << 10;

pub(crate) struct ClientConnection {
    stream: TcpStream,
    state: ClientState,
    /// Bytes that are not parsed yet.
    input: Vec<u8>,
    /// Encoded replies and other messages.
    output: Vec<u8>,
    /// The number of bytes at the start of `output` that are sent.
    sent: usize,
    /// The replies that are not encoded yet, in the order of the requests.
    replies: VecDeque<Slot>,
    /// The bytes that the known ones of `replies` take.
    held_bytes: usize,
    /// The number of the request whose reply is `replies[0]`.
    first_request_number: u64,
    /// The watched key, with the number of the watch request.
    watched: Option<(u64, Vec<u8>)>,
    /// Whether the server closes the connection after it has sent all replies.
    closing: bool,
    /// Whether the client sends no more bytes. It may still read replies.
    input_ended: bool,
    /// Whether the connection has failed, or the client reads too slowly.
    failed: bool,
    /// Whether the socket may have bytes to read.
    pub(crate) readable: bool,
    /// Whether `input` is empty or an incomplete request.
    partial: bool,
}

/// The place of a reply.
struct Slot {
    form: ReplyForm,
    /// `None` until the reply is known.
    reply: Option<Reply>,
}

impl ClientConnection {
    /// `id` is the number of the connection, from 1.
    pub(crate) fn new(stream: TcpStream, id: u64) -> ClientConnection {
        let address = |address: io::Result<std::net::SocketAddr>| {
            address.map_or_else(|_| String::new(), |address| address.to_string())
        };
        let addresses =
            format!("addr={} laddr={}", address(stream.peer_addr()), address(stream.local_addr()));
        ClientConnection {
            stream,
            state: ClientState::new(id, addresses),
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            replies: VecDeque::new(),
            held_bytes: 0,
            first_request_number: 0,
            watched: None,
            closing: false,
            input_ended: false,
            failed: false,
            readable: true,
            partial: true,
        }
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Returns how many bytes the connection holds: unparsed input and unsent output.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.input.len() + self.unsent_bytes()
    }

    /// Closes the connection, whatever is unsent.
    pub(crate) fn abort(&mut self) {
        self.failed = true;
    }

    fn unsent_bytes(&self) -> usize {
        self.output.len() - self.sent + self.held_bytes
    }

    /// Returns whether the connection may execute a further request.
    fn has_room(&self) -> bool {
        self.replies.len() < MAX_REQUESTS && self.unsent_bytes() < MAX_UNSENT_BYTES
    }

    /// Reads from the socket until it has no more bytes, or until [`MAX_INPUT_BYTES`] or the limit
    /// of waiting replies is reached.
    pub(crate) fn read(&mut self) {
        let mut chunk = [0; 16 << 10];
        while self.readable
            && self.input.len() < MAX_INPUT_BYTES
            && self.has_room()
            && !self.input_ended
            && !self.failed
        {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.input_ended = true,
                Ok(len) => {
                    self.input.extend_from_slice(&chunk[..len]);
                    self.partial = false;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.failed = true,
            }
        }
    }

    /// Returns whether there is input to read or parse now. An incomplete request cannot be parsed
    /// before more input arrives.
    pub(crate) fn has_work(&self) -> bool {
        let may_read = self.readable && !self.input_ended;
        !self.closing && !self.failed && self.has_room() && (may_read || !self.partial)
    }

    /// Parses the complete requests in the input, executes those about the connection, and passes
    /// the others with their numbers to `on_command`. Stops at the limit of waiting replies.
    /// Returns the number of requests.
    pub(crate) fn drain_requests(&mut self, mut on_command: impl FnMut(u64, Command)) -> u64 {
        let input = std::mem::take(&mut self.input);
        let (mut at, mut requests) = (0, 0);
        while !self.closing && !self.failed && self.has_room() {
            match parse_request(&input[at..]) {
                Ok(Some((arguments, len))) => {
                    at += len;
                    if !arguments.is_empty() {
                        requests += 1;
                        self.begin(parse(&arguments), &mut on_command);
                    }
                }
                Ok(None) if input.len() - at < MAX_INPUT_BYTES => {
                    self.partial = true;
                    break;
                }
                Ok(None) => self.reject(RespError::TooLarge),
                Err(error) => self.reject(error),
            }
        }
        self.input = input;
        self.input.drain(..at);
        release(&mut self.input);
        requests
    }

    /// Makes a place for the reply of a command. Answers at once a refused command, or one
    /// that needs no store, and passes the others to `on_command`.
    fn begin(&mut self, command: Command, on_command: &mut impl FnMut(u64, Command)) {
        use ConnectionCommand::{ClientReply, Discard, Exec, Multi, Quit, Reset};
        let ends_transaction = matches!(&command, Command::Connection(Multi | Exec | Discard | Reset | Quit));
        let is_skip = command == Command::Connection(ClientReply(ReplyMode::Skip));
        let number = self.first_request_number + self.replies.len() as u64;
        let (reply, later) = match (self.state.refusal(), command) {
            (Some(refusal), _) if !ends_transaction => (Some(refusal), None),
            (_, Command::Connection(command)) => {
                self.closing = command == Quit;
                if command == Reset {
                    self.watched = None;
                }
                (Some(self.state.execute(command)), None)
            }
            (_, Command::Local(reply)) => (Some(reply), None),
            (_, command) => (None, Some(command)),
        };
        let form = self.state.reply_form(is_skip);
        self.replies.push_back(Slot { form, reply: None });
        reply.into_iter().for_each(|reply| self.reply_to(number, reply));
        later.into_iter().for_each(|command| on_command(number, command));
    }

    fn reject(&mut self, error: RespError) {
        let number = self.first_request_number + self.replies.len() as u64;
        let form = self.state.reply_form(false);
        self.replies.push_back(Slot { form, reply: None });
        self.reply_to(number, Reply::Error(format!("ERR Protocol error: {error}")));
        self.closing = true;
    }

    pub(crate) fn reply_to(&mut self, number: u64, reply: Reply) {
        let slot = number
            .checked_sub(self.first_request_number)
            .and_then(|at| self.replies.get_mut(at as usize))
            .filter(|slot| slot.reply.is_none());
        if let Some(slot) = slot {
            self.held_bytes += reply.held_bytes();
            slot.reply = Some(reply);
        }
    }

    /// Replies to all requests that have no reply yet.
    pub(crate) fn reply_to_all(&mut self, reply: &Reply) {
        for number in (self.first_request_number..).take(self.replies.len()) {
            self.reply_to(number, reply.clone());
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
        if self.unsent_bytes() < MAX_UNSENT_BYTES {
            reply.encode_as(self.state.protocol(), &mut self.output);
        } else {
            self.failed = true;
        }
    }

    /// Encodes the known replies before the first unknown reply, and sends as much as the socket
    /// accepts.
    pub(crate) fn write(&mut self) {
        while let Some(Slot { form, reply: Some(reply) }) = self.replies.front() {
            self.held_bytes -= reply.held_bytes();
            if !form.is_silent {
                reply.encode_as(form.protocol, &mut self.output);
            }
            self.replies.pop_front();
            self.first_request_number += 1;
        }
        if self.replies.is_empty() && self.replies.capacity() * size_of::<Slot>() > MAX_IDLE_BYTES {
            self.replies = VecDeque::new();
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
                    self.failed = true;
                    return;
                }
            }
        }
        self.output.clear();
        self.sent = 0;
        release(&mut self.output);
    }

    /// Returns whether the server must drop the connection: it has failed, or one side closes it
    /// and the client has all replies. A client that only sends no more still gets its replies.
    pub(crate) fn is_finished(&self) -> bool {
        let all_sent = self.replies.is_empty() && self.output.is_empty();
        let all_executed = self.closing || self.input_ended && self.partial;
        self.failed || all_executed && all_sent
    }
}

/// Frees the memory of an empty buffer that has been large.
fn release(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > MAX_IDLE_BYTES {
        *buffer = Vec::new();
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
        (ClientConnection::new(TcpStream::from_std(stream), 1), client)
    }

    /// Reads until `bytes` bytes have arrived, and returns the number of complete requests among
    /// them.
    fn read_all(connection: &mut ClientConnection, bytes: usize) -> u64 {
        let (mut requests, mut read) = (0, 0);
        while read < bytes {
            let before = connection.input.len();
            connection.readable = true;
            connection.read();
            read += connection.input.len() - before;
            requests += connection.drain_requests(|_, _| {});
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
        let form = connection.state.reply_form(false);
        connection.replies.extend([Slot { form, reply: None }, Slot { form, reply: None }]);
        connection.watch(1, b"key".into());
        connection.reply_to(1, Reply::Simple("OK"));
        connection.write();
        assert!(!connection.is_watching(b"key"), "an earlier request has no reply yet");
        connection.reply_to(0, Reply::Integer(1));
        connection.write();
        assert!(connection.is_watching(b"key") && !connection.is_watching(b"other"));
    }

    /// A connection that has been busy and is idle again costs what it cost at first.
    #[test]
    fn idle_connection_keeps_no_buffer() {
        let (mut connection, mut client) = connected_pair();
        let mut bytes = Vec::new();
        crate::resp::encode_request(&[b"ECHO", &[b'x'; 10_000]], &mut bytes);
        client.write_all(&bytes.repeat(3)).expect("the socket buffer has room");
        assert_eq!(read_all(&mut connection, 3 * bytes.len()), 3);
        connection.write();
        assert!(connection.replies.is_empty() && connection.output.is_empty());
        let kept = connection.input.capacity()
            + connection.output.capacity()
            + connection.replies.capacity() * size_of::<Slot>();
        assert!(kept <= 3 * MAX_IDLE_BYTES, "{kept} bytes");
        assert_eq!(connection.held_bytes, 0);
    }

    /// Changes that a client does not read are bounded, and so are replies.
    #[test]
    fn client_that_does_not_read_holds_bounded_memory() {
        let (mut connection, _client) = connected_pair();
        let change = Reply::Push(vec![Reply::bulk(vec![b'x'; 4000])]);
        let pushed = (0..100_000).take_while(|_| {
            connection.push(&change);
            connection.write();
            !connection.is_finished()
        });
        assert!((200..10_000).contains(&pushed.count()));
        assert!(connection.buffered_bytes() <= MAX_UNSENT_BYTES + 4100);
        let (mut connection, _client) = connected_pair();
        let form = connection.state.reply_form(false);
        connection.replies.push_back(Slot { form, reply: None });
        let mut executed = 0;
        while connection.has_room() {
            connection.begin(Command::Local(change.clone()), &mut |_, _| {});
            executed += 1;
        }
        assert!(executed < 300 && !connection.is_finished(), "{executed} replies wait for the first");
    }
}
