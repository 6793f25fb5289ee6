//! Clients: what they ask for while a batch is under way is the next batch.

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

use crate::batch::{Batch, Command, commands, put};
use crate::machine::Values;
use crate::raft::{Node, Raft};

struct Client {
    to: OwnedWriteHalf,
    output: RefCell<Vec<u8>>,
    /// Somebody waits until more can be sent.
    is_full: Cell<bool>,
}

impl Client {
    /// Sends what can be sent, and has the rest sent later.
    fn send(self: &Rc<Client>) {
        if !self.is_full.get() && self.try_send().is_err() {
            self.is_full.set(true);
            let client = Rc::clone(self);
            tokio::task::spawn_local(async move {
                while client.to.writable().await.is_ok() && client.try_send().is_err() {}
                client.is_full.set(false);
            });
        }
    }

    /// Whether all was sent, or the client has gone.
    fn try_send(&self) -> Result<(), ()> {
        let mut output = self.output.borrow_mut();
        let mut sent = 0;
        while sent < output.len() {
            match self.to.try_write(&output[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => sent = output.len(),
            }
        }
        output.drain(..sent);
        if output.is_empty() { Ok(()) } else { Err(()) }
    }
}

/// What is to be told, once the batch is done.
enum Told {
    Now(Reply),
    Ok,
    Value,
}

#[derive(Default)]
struct Pending {
    told: Vec<(Rc<Client>, Told)>,
    /// The reads and writes among them.
    bytes: Vec<u8>,
    writes: bool,
}

pub(crate) struct Clients {
    raft: Raft,
    values: Values,
    /// Where each process serves clients.
    addresses: Vec<SocketAddr>,
    pending: RefCell<Pending>,
    some: Notify,
}

impl Clients {
    pub(crate) fn new(raft: Raft, values: Values, addresses: Vec<SocketAddr>) -> Rc<Clients> {
        Rc::new(Clients { raft, values, addresses, pending: RefCell::default(), some: Notify::new() })
    }

    /// Lets clients in.
    pub(crate) async fn serve(self: Rc<Clients>, door: TcpListener) -> io::Result<()> {
        loop {
            let (stream, _) = door.accept().await?;
            stream.set_nodelay(true)?;
            let (from, to) = stream.into_split();
            let client = Rc::new(Client { to, output: RefCell::default(), is_full: Cell::new(false) });
            let clients = Rc::clone(&self);
            tokio::task::spawn_local(async move {
                // One that has gone needs nothing more.
                let _ = clients.listen(from, &client).await;
            });
        }
    }

    /// Takes a client's requests, until it goes.
    async fn listen(&self, mut from: OwnedReadHalf, client: &Rc<Client>) -> io::Result<()> {
        let mut input = Vec::with_capacity(16 << 10);
        // Less than there is room for is all that there was: then tokio does not look again in vain.
        while from.read_buf(&mut input).await? > 0 {
            let mut at = 0;
            while let Some((words, len)) = parse_request(&input[at..]).map_err(io::Error::other)? {
                self.take(client, &words);
                at += len;
            }
            input.drain(..at);
            input.reserve(4 << 10);
            self.some.notify_one();
        }
        Ok(())
    }

    fn take(&self, client: &Rc<Client>, words: &[&[u8]]) {
        let mut pending = self.pending.borrow_mut();
        let is = |name: &str| words.first().is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
        let told = match words {
            &[_, key, value] if is("SET") => {
                put(Command::Set { key, value }, &mut pending.bytes);
                pending.writes = true;
                Told::Ok
            }
            &[_, key] if is("GET") => {
                put(Command::Get { key }, &mut pending.bytes);
                Told::Value
            }
            [_] if is("PING") => Told::Now(Reply::Simple("PONG")),
            // Tools ask what there is; that nothing is said about it does not stop them.
            _ if is("COMMAND") || is("CONFIG") => Told::Now(Reply::Array(Vec::new())),
            _ => Told::Now(Reply::Error("ERR there are SET key value, GET key, and PING".into())),
        };
        pending.told.push((Rc::clone(client), told));
    }

    /// Carries out one batch after the other.
    pub(crate) async fn carry_out(&self) {
        loop {
            let Pending { told, bytes, writes } = self.pending.take();
            if told.is_empty() {
                self.some.notified().await;
                continue;
            }
            let mut done = match bytes.is_empty() {
                true => Ok(Vec::new()),
                false => self.decide(bytes, writes).await,
            }
            .map(Vec::into_iter);
            let mut last: Option<Rc<Client>> = None;
            for (client, told) in told {
                let reply = match (told, &mut done) {
                    (Told::Now(reply), _) => reply,
                    (Told::Ok, Ok(_)) => Reply::Simple("OK"),
                    (Told::Value, Ok(values)) => Reply::Bulk(values.next().flatten()),
                    (_, Err(error)) => error.clone(),
                };
                reply.encode(&mut client.output.borrow_mut());
                if let Some(last) = last.replace(Rc::clone(&client)).filter(|last| !Rc::ptr_eq(last, &client))
                {
                    last.send();
                }
            }
            last.into_iter().for_each(|client| client.send());
        }
    }

    /// What is read. Reads among writes are in the log, too; reads alone need not be: that this process still leads is confirmed by a
    /// majority after they were asked for (Raft's thesis, 6.4: read index), which trusts no clock.
    async fn decide(&self, bytes: Vec<u8>, writes: bool) -> Result<Vec<Option<Vec<u8>>>, Reply> {
        if writes {
            let batch = Batch(Arc::from(bytes));
            return match self.raft.client_write(batch).await {
                Ok(done) => Ok(done.data),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => Err(self.moved(&to)),
                Err(error) => Err(Reply::Error(format!("UNKNOWN {error}"))),
            };
        }
        match self.raft.ensure_linearizable().await {
            Ok(_) => {
                let values = self.values.borrow();
                let read = |command| match command {
                    Command::Get { key } | Command::Set { key, .. } => values.get(key).cloned(),
                };
                Ok(commands(&bytes).map(read).collect())
            }
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to))) => Err(self.moved(&to)),
            Err(error) => Err(Reply::Error(format!("TRYAGAIN {error}"))),
        }
    }

    fn moved(&self, to: &ForwardToLeader<u64, Node>) -> Reply {
        let at = to.leader_id.and_then(|leader| self.addresses.get(leader as usize));
        // As Redis' clusters say it.
        Reply::Error(at.map_or("TRYAGAIN nobody leads yet".into(), |at| format!("MOVED 0 {at}")))
    }
}
