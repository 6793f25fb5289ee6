//! The server for clients. Requests that arrive while a batch is being executed form the next
//! batch.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use mitra_kv::resp::{Reply, parse_request};
use openraft::error::{CheckIsLeaderError, ClientWriteError, ForwardToLeader, RaftError};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;

use crate::log_entry::{Batch, Command, decode, encode};
use crate::raft_node::{Node, Raft};
use crate::state_machine::Values;

struct Client {
    writer: OwnedWriteHalf,
    /// Encoded replies that are not sent yet.
    output: RefCell<Vec<u8>>,
    /// Whether a task waits until the socket accepts more bytes.
    blocked: Cell<bool>,
}

impl Client {
    /// Sends as much as the socket accepts now, and starts a task that sends the rest.
    fn flush(self: &Rc<Client>) {
        if !self.blocked.get() && self.try_flush().is_err() {
            self.blocked.set(true);
            let client = Rc::clone(self);
            tokio::task::spawn_local(async move {
                while client.writer.writable().await.is_ok() && client.try_flush().is_err() {}
                client.blocked.set(false);
            });
        }
    }

    /// Sends as much as the socket accepts now. Returns `Ok` if everything is sent or the client
    /// has disconnected.
    fn try_flush(&self) -> Result<(), ()> {
        let mut output = self.output.borrow_mut();
        let mut sent = 0;
        while sent < output.len() {
            match self.writer.try_write(&output[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => sent = output.len(),
            }
        }
        output.drain(..sent);
        if output.is_empty() { Ok(()) } else { Err(()) }
    }
}

/// The reply to a request whose batch is not executed yet.
enum PendingReply {
    /// The reply, which does not depend on the execution.
    Known(Reply),
    /// `OK`, if the execution succeeds.
    Ok,
    /// The value that the request's read finds. The values of a batch are in the order of its
    /// reads.
    Value,
}

#[derive(Default)]
struct RequestBatch {
    /// The client and the reply of each request, in the order of arrival.
    replies: Vec<(Rc<Client>, PendingReply)>,
    /// The encoded reads and writes among the requests.
    commands: Vec<u8>,
    /// Whether `commands` contains a write.
    writes: bool,
}

pub(crate) struct ClientServer {
    raft: Raft,
    values: Values,
    /// The address at which each process serves clients.
    addresses: Vec<SocketAddr>,
    /// The batch to execute next.
    pending: RefCell<RequestBatch>,
    /// Notified after requests were added to `pending`.
    work_arrived: Notify,
}

impl ClientServer {
    pub(crate) fn new(raft: Raft, values: Values, addresses: Vec<SocketAddr>) -> Rc<ClientServer> {
        Rc::new(ClientServer {
            raft,
            values,
            addresses,
            pending: RefCell::default(),
            work_arrived: Notify::new(),
        })
    }

    /// Accepts clients, and starts a task for each client, which reads the client's requests.
    pub(crate) async fn serve(self: Rc<ClientServer>, listener: TcpListener) -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (reader, writer) = stream.into_split();
            let client = Rc::new(Client { writer, output: RefCell::default(), blocked: Cell::new(false) });
            let server = Rc::clone(&self);
            tokio::task::spawn_local(async move {
                // An error needs no handling: the client has disconnected or its request is
                // malformed.
                let _ = server.read_requests(reader, &client).await;
            });
        }
    }

    /// Queues a client's requests until it disconnects.
    async fn read_requests(&self, mut reader: OwnedReadHalf, client: &Rc<Client>) -> io::Result<()> {
        let mut input = Vec::with_capacity(16 << 10);
        // If a read does not fill the buffer, tokio omits the next read, which would return
        // EWOULDBLOCK. The buffer is therefore larger than usual input.
        while reader.read_buf(&mut input).await? > 0 {
            let mut parsed = 0;
            while let Some((arguments, len)) = parse_request(&input[parsed..]).map_err(io::Error::other)? {
                self.queue(client, &arguments);
                parsed += len;
            }
            input.drain(..parsed);
            input.reserve(4 << 10);
            self.work_arrived.notify_one();
        }
        Ok(())
    }

    fn queue(&self, client: &Rc<Client>, arguments: &[&[u8]]) {
        let mut pending = self.pending.borrow_mut();
        let is = |name: &str| {
            arguments.first().is_some_and(|argument| argument.eq_ignore_ascii_case(name.as_bytes()))
        };
        let reply = match arguments {
            &[_, key, value] if is("SET") => {
                encode(Command::Set { key, value }, &mut pending.commands);
                pending.writes = true;
                PendingReply::Ok
            }
            &[_, key] if is("GET") => {
                encode(Command::Get { key }, &mut pending.commands);
                PendingReply::Value
            }
            [_] if is("PING") => PendingReply::Known(Reply::Simple("PONG")),
            // Client libraries query the available commands when they connect, and accept an empty
            // answer.
            _ if is("COMMAND") || is("CONFIG") => PendingReply::Known(Reply::Array(Vec::new())),
            _ => PendingReply::Known(Reply::Error(
                "ERR unknown command: use SET key value, GET key, or PING".into(),
            )),
        };
        pending.replies.push((Rc::clone(client), reply));
    }

    /// Executes one batch after the other, and never returns.
    pub(crate) async fn execute_batches(&self) {
        loop {
            let RequestBatch { replies, commands, writes } = self.pending.take();
            if replies.is_empty() {
                self.work_arrived.notified().await;
                continue;
            }
            let mut results = match commands.is_empty() {
                true => Ok(Vec::new()),
                false => self.execute(commands, writes).await,
            }
            .map(Vec::into_iter);
            let mut previous: Option<Rc<Client>> = None;
            for (client, pending) in replies {
                let reply = match (pending, &mut results) {
                    (PendingReply::Known(reply), _) => reply,
                    (PendingReply::Ok, Ok(_)) => Reply::Simple("OK"),
                    (PendingReply::Value, Ok(values)) => Reply::Bulk(values.next().flatten()),
                    (_, Err(error)) => error.clone(),
                };
                reply.encode(&mut client.output.borrow_mut());
                if let Some(previous) =
                    previous.replace(Rc::clone(&client)).filter(|previous| !Rc::ptr_eq(previous, &client))
                {
                    previous.flush();
                }
            }
            previous.into_iter().for_each(|client| client.flush());
        }
    }

    /// Executes a batch, and returns the values that its reads found. A batch with writes is
    /// appended to the log, including its reads. A batch of reads is not appended: after the reads
    /// have arrived, a majority confirms that this process is still the leader (read index, Raft
    /// dissertation 6.4). Reads therefore do not rely on clocks.
    async fn execute(&self, commands: Vec<u8>, writes: bool) -> Result<Vec<Option<Vec<u8>>>, Reply> {
        if writes {
            let batch = Batch(Arc::from(commands));
            return match self.raft.client_write(batch).await {
                Ok(results) => Ok(results.data),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                    Err(self.redirect(&forward))
                }
                Err(error) => Err(Reply::Error(format!("UNKNOWN {error}"))),
            };
        }
        match self.raft.ensure_linearizable().await {
            Ok(_) => {
                let values = self.values.borrow();
                let read = |command| match command {
                    Command::Get { key } | Command::Set { key, .. } => values.get(key).cloned(),
                };
                Ok(decode(&commands).map(read).collect())
            }
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward))) => {
                Err(self.redirect(&forward))
            }
            Err(error) => Err(Reply::Error(format!("TRYAGAIN {error}"))),
        }
    }

    fn redirect(&self, forward: &ForwardToLeader<u64, Node>) -> Reply {
        let address = forward.leader_id.and_then(|leader| self.addresses.get(leader as usize));
        // The redirection of Redis Cluster.
        Reply::Error(
            address.map_or("TRYAGAIN there is no leader yet".into(), |address| format!("MOVED 0 {address}")),
        )
    }
}
