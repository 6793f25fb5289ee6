//! The network between processes: one connection to each peer. Requests are pipelined, and
//! responses arrive in the order of the requests.

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

use crate::raft_node::{Node, Raft, Types};

/// The largest message, in bytes. openraft sends a snapshot in chunks of 3 MiB.
const MAX_FRAME_BYTES: u32 = 64 << 20;

#[derive(Serialize, Deserialize)]
enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Types>),
}

#[derive(Serialize, Deserialize)]
enum Response {
    Append(Result<AppendEntriesResponse<u64>, RaftError<u64>>),
    Vote(Result<VoteResponse<u64>, RaftError<u64>>),
    Snapshot(Result<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>>),
}

/// Encodes a message as a frame: the length of the message in 4 bytes, and the message. One system
/// call sends both.
fn encode_frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let len = bytes.len() as u32 - 4;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let len = reader.read_u32_le().await?;
    if len > MAX_FRAME_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len as usize];
    reader.read_exact(&mut bytes).await?;
    Ok(bytes)
}

pub(crate) async fn serve(listener: TcpListener, raft: Raft) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let raft = raft.clone();
        // If the connection fails, the task ends and the peer connects again.
        tokio::task::spawn_local(async move { answer_requests(stream, raft).await });
    }
}

async fn answer_requests(stream: TcpStream, raft: Raft) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    loop {
        let request = postcard::from_bytes(&read_frame(&mut reader).await?).map_err(io::Error::other)?;
        let response = match request {
            Request::Append(request) => Response::Append(raft.append_entries(request).await),
            Request::Vote(request) => Response::Vote(raft.vote(request).await),
            Request::Snapshot(request) => Response::Snapshot(raft.install_snapshot(request).await),
        };
        writer.write_all(&encode_frame(&response)?).await?;
    }
}

/// The receivers of responses, in the order of the requests; `None` once the connection has closed.
type PendingResponses = Rc<RefCell<Option<VecDeque<oneshot::Sender<Vec<u8>>>>>>;

struct Connection {
    writer: OwnedWriteHalf,
    pending: PendingResponses,
}

impl Connection {
    async fn connect(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let pending: PendingResponses = Rc::new(RefCell::new(Some(VecDeque::new())));
        let pending_reader = Rc::clone(&pending);
        tokio::task::spawn_local(async move {
            let mut reader = BufReader::with_capacity(64 << 10, reader);
            while let Ok(response) = read_frame(&mut reader).await {
                let waiter = pending_reader.borrow_mut().as_mut().and_then(VecDeque::pop_front);
                // The receiver may have timed out.
                let _ = waiter.map(|waiter| waiter.send(response));
            }
            // Dropping the senders reports the closed connection to all receivers.
            *pending_reader.borrow_mut() = None;
        });
        Ok(Connection { writer, pending })
    }

    async fn send(&mut self, frame: &[u8]) -> io::Result<oneshot::Receiver<Vec<u8>>> {
        let (sender, receiver) = oneshot::channel();
        match &mut *self.pending.borrow_mut() {
            Some(pending) => pending.push_back(sender),
            None => return Err(io::ErrorKind::ConnectionReset.into()),
        }
        self.writer.write_all(frame).await?;
        Ok(receiver)
    }
}

struct Peer {
    address: SocketAddr,
    connection: Mutex<Option<Connection>>,
}

impl Peer {
    async fn request(&self, request: &Request) -> io::Result<Response> {
        let frame = encode_frame(request)?;
        let response = {
            let mut slot = self.connection.lock().await;
            // The connection returns to the slot only after the whole request is sent: a cancelled
            // request may leave a partial frame, after which the connection is unusable.
            let mut connection = match slot.take() {
                Some(connection) => connection,
                None => Connection::connect(self.address).await?,
            };
            let response = connection.send(&frame).await?;
            *slot = Some(connection);
            response
        };
        let response = response.await.map_err(|_| io::ErrorKind::ConnectionReset)?;
        postcard::from_bytes(&response).map_err(io::Error::other)
    }
}

/// The connections to all processes, indexed by id.
pub(crate) struct Network(Vec<Rc<Peer>>);

impl Network {
    pub(crate) fn new(processes: &[SocketAddr]) -> Network {
        Network(
            processes
                .iter()
                .map(|&address| Rc::new(Peer { address, connection: Mutex::default() }))
                .collect(),
        )
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: u64, _: &Node) -> PeerClient {
        PeerClient { id: target, peer: Rc::clone(&self.0[target as usize]) }
    }
}

pub(crate) struct PeerClient {
    id: u64,
    peer: Rc<Peer>,
}

type RpcError<E = openraft::error::Infallible> = RPCError<u64, Node, RaftError<u64, E>>;

impl PeerClient {
    async fn request<T, E: std::error::Error>(
        &self,
        request: Request,
        unwrap: impl FnOnce(Response) -> Option<Result<T, RaftError<u64, E>>>,
    ) -> Result<T, RpcError<E>> {
        let response = self.peer.request(&request).await.map_err(|error| Unreachable::new(&error))?;
        let unexpected = || NetworkError::new(&io::Error::from(io::ErrorKind::InvalidData));
        unwrap(response).ok_or_else(unexpected)?.map_err(|error| RemoteError::new(self.id, error).into())
    }
}

impl RaftNetwork<Types> for PeerClient {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcError> {
        let unwrap = |response| if let Response::Append(response) = response { Some(response) } else { None };
        self.request(Request::Append(request), unwrap).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RpcError<InstallSnapshotError>> {
        let unwrap =
            |response| if let Response::Snapshot(response) = response { Some(response) } else { None };
        self.request(Request::Snapshot(request), unwrap).await
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> Result<VoteResponse<u64>, RpcError> {
        let unwrap = |response| if let Response::Vote(response) = response { Some(response) } else { None };
        self.request(Request::Vote(request), unwrap).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(50)))
    }
}
