//! Processes among each other: one connection to each, on which requests follow each other without waiting, and answers come in their
//! order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, oneshot};

use crate::raft::{Node, Raft, Types};

/// The longest message: a snapshot comes in pieces of 3 MiB.
const LONGEST: u32 = 64 << 20;

#[derive(Serialize, Deserialize)]
enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Types>),
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Append(Result<AppendEntriesResponse<u64>, RaftError<u64>>),
    Vote(Result<VoteResponse<u64>, RaftError<u64>>),
    Snapshot(Result<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>>),
}

/// A message with its length before it, for one call of the system.
fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let len = bytes.len() as u32 - 4;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

async fn next(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let len = from.read_u32_le().await?;
    if len > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len as usize];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Answers other processes.
pub(crate) async fn serve(door: TcpListener, raft: Raft) -> io::Result<()> {
    loop {
        let (stream, _) = door.accept().await?;
        let raft = raft.clone();
        // A peer that has gone comes again.
        tokio::task::spawn_local(async move { answer(stream, raft).await });
    }
}

async fn answer(stream: TcpStream, raft: Raft) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::with_capacity(64 << 10, from);
    loop {
        let request = postcard::from_bytes(&next(&mut from).await?).map_err(io::Error::other)?;
        let answer = match request {
            Request::Append(request) => Answer::Append(raft.append_entries(request).await),
            Request::Vote(request) => Answer::Vote(raft.vote(request).await),
            Request::Snapshot(request) => Answer::Snapshot(raft.install_snapshot(request).await),
        };
        to.write_all(&frame(&answer)?).await?;
    }
}

/// Who waits for an answer, in the order of the requests; none once the connection has ended.
type Waiting = Rc<RefCell<Option<VecDeque<oneshot::Sender<Vec<u8>>>>>>;

struct Connection {
    to: OwnedWriteHalf,
    waiting: Waiting,
}

impl Connection {
    async fn open(at: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(at).await?;
        stream.set_nodelay(true)?;
        let (from, to) = stream.into_split();
        let waiting: Waiting = Rc::new(RefCell::new(Some(VecDeque::new())));
        let waits = Rc::clone(&waiting);
        tokio::task::spawn_local(async move {
            let mut from = BufReader::with_capacity(64 << 10, from);
            while let Ok(answer) = next(&mut from).await {
                let waiter = waits.borrow_mut().as_mut().and_then(VecDeque::pop_front);
                // Who waited may have lost patience.
                let _ = waiter.map(|waiter| waiter.send(answer));
            }
            // Who waits hears that nothing comes.
            *waits.borrow_mut() = None;
        });
        Ok(Connection { to, waiting })
    }

    async fn send(&mut self, frame: &[u8]) -> io::Result<oneshot::Receiver<Vec<u8>>> {
        let (sender, receiver) = oneshot::channel();
        match &mut *self.waiting.borrow_mut() {
            Some(waiting) => waiting.push_back(sender),
            None => return Err(io::ErrorKind::ConnectionReset.into()),
        }
        self.to.write_all(frame).await?;
        Ok(receiver)
    }
}

struct Peer {
    at: SocketAddr,
    connection: Mutex<Option<Connection>>,
}

impl Peer {
    async fn ask(&self, request: &Request) -> io::Result<Answer> {
        let frame = frame(request)?;
        let answer = {
            let mut slot = self.connection.lock().await;
            // One that is given up in the midst of a request is of no use to the next.
            let mut connection = match slot.take() {
                Some(connection) => connection,
                None => Connection::open(self.at).await?,
            };
            let answer = connection.send(&frame).await?;
            *slot = Some(connection);
            answer
        };
        let answer = answer.await.map_err(|_| io::ErrorKind::ConnectionReset)?;
        postcard::from_bytes(&answer).map_err(io::Error::other)
    }
}

/// The other processes.
pub(crate) struct Network(Vec<Rc<Peer>>);

impl Network {
    pub(crate) fn new(processes: &[SocketAddr]) -> Network {
        Network(processes.iter().map(|&at| Rc::new(Peer { at, connection: Mutex::default() })).collect())
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Target;

    async fn new_client(&mut self, target: u64, _: &Node) -> Target {
        Target { id: target, peer: Rc::clone(&self.0[target as usize]) }
    }
}

/// One of them.
pub(crate) struct Target {
    id: u64,
    peer: Rc<Peer>,
}

type Failed<E = openraft::error::Infallible> = RPCError<u64, Node, RaftError<u64, E>>;

impl Target {
    async fn ask<T, E: std::error::Error>(
        &self,
        request: Request,
        ours: impl FnOnce(Answer) -> Option<Result<T, RaftError<u64, E>>>,
    ) -> Result<T, Failed<E>> {
        let answer = self.peer.ask(&request).await.map_err(|error| Unreachable::new(&error))?;
        let unexpected = || NetworkError::new(&io::Error::from(io::ErrorKind::InvalidData));
        ours(answer).ok_or_else(unexpected)?.map_err(|error| RemoteError::new(self.id, error).into())
    }
}

impl RaftNetwork<Types> for Target {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed> {
        let ours = |answer| if let Answer::Append(answer) = answer { Some(answer) } else { None };
        self.ask(Request::Append(request), ours).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failed<InstallSnapshotError>> {
        let ours = |answer| if let Answer::Snapshot(answer) = answer { Some(answer) } else { None };
        self.ask(Request::Snapshot(request), ours).await
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> Result<VoteResponse<u64>, Failed> {
        let ours = |answer| if let Answer::Vote(answer) = answer { Some(answer) } else { None };
        self.ask(Request::Vote(request), ours).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(50)))
    }
}
