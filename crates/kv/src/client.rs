//! A client that makes its changes in a session, so that a repeated change is made at most once.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::resp::{Reply, RespError};
use crate::resp_client::RespConnection;

/// The delay before the client repeats a request at the next server. After a redirection, the delay
/// is 1 ms.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The code of the error of a server that has lost a majority of the memory nodes.
const CLUSTER_DOWN: &str = "CLUSTERDOWN";

/// The reasons for which a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No leader answered within the time limit. The outcome of a change is unknown: the store may
    /// have made the change, or may still make it.
    #[error(
        "no leader was reached in {0:?}; start the store's processes, or name their client addresses: {1}"
    )]
    NoLeader(Duration, String),
    /// A server answered that a majority of the memory nodes is lost, and named them, until the
    /// time limit was over. The outcome of a change is unknown.
    #[error("the store does not answer in {0:?}: {1}; start these memory nodes again, if they have --data")]
    MajorityLost(Duration, String),
    /// No server accepted a [`Watch`].
    #[error("no server was reached; start the store's processes, or name their client addresses: {0}")]
    NoServer(String),
    /// The store expired the session, because other clients opened sessions. The change was either
    /// made before the session expired or will never be made.
    #[error("the session has expired; the change was made before that or never will be")]
    SessionExpired,
    /// The store has reached its capacity.
    #[error("the store is full: delete keys first")]
    StoreFull,
    /// The server rejected the request as invalid.
    #[error("{0}")]
    Rejected(String),
    /// The server's reply is not valid RESP2, or not of the kind that the request expects.
    #[error("unexpected reply from the server: {0}")]
    Protocol(#[from] RespError),
    /// The connection of a [`Watch`] closed, or failed.
    #[error("the connection closed; watch the key again")]
    ConnectionClosed(#[from] io::Error),
}

/// A client of a store. The client finds the leader, and repeats each request until a server
/// answers. The session ensures that the store makes a repeated change at most once.
#[derive(Debug)]
pub struct Client {
    servers: Vec<SocketAddr>,
    /// The index of the server to connect to, modulo the number of servers.
    current: usize,
    request_timeout: Duration,
    connection: Option<RespConnection>,
    session: Option<u64>,
    /// The sequence number of the last change in the session.
    sequence: u64,
}

impl Client {
    /// `servers` are the client addresses of the store's processes. Each request fails after
    /// `request_timeout`.
    pub fn new(servers: Vec<SocketAddr>, request_timeout: Duration) -> Client {
        Client { servers, current: 0, request_timeout, connection: None, session: None, sequence: 0 }
    }

    /// Returns a key's value, and the index of the log entry that changed it last. The read is
    /// linearizable.
    ///
    /// # Errors
    /// [`ClientError::NoLeader`] or [`ClientError::MajorityLost`] after the time limit,
    /// [`ClientError::Rejected`] if the server rejects the request, or [`ClientError::Protocol`] if
    /// the reply is malformed.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>, ClientError> {
        match self.request_until_answered(&[b"MITRA.GET", key])? {
            Reply::Array(found) => match <[Reply; 2]>::try_from(found) {
                Ok([Reply::Bulk(Some(value)), Reply::Integer(index)]) => Ok(Some((value, index as u64))),
                _ => Err(RespError::Syntax.into()),
            },
            Reply::Bulk(None) => Ok(None),
            other => Err(error_of(other)),
        }
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// - [`ClientError::NoLeader`] or [`ClientError::MajorityLost`] after the time limit: the
    ///   outcome is unknown.
    /// - [`ClientError::StoreFull`], [`ClientError::SessionExpired`] or [`ClientError::Rejected`]
    ///   if the server replies with that error.
    /// - [`ClientError::Protocol`] if the reply is malformed.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        self.change(&[b"PUT", key, value]).map(|_| ())
    }

    /// Deletes a key, and returns whether it had a value.
    ///
    /// # Errors
    /// See [`Client::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, ClientError> {
        self.change(&[b"DELETE", key])
    }

    /// Replaces the value of a key by `value` if the old value is `expected`, and returns whether
    /// the value was replaced. `None` stands for a key without a value.
    ///
    /// # Errors
    /// See [`Client::put`].
    pub fn cas(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<bool, ClientError> {
        let optional = |value: Option<&[u8]>| value.map_or(b"-".to_vec(), |value| [b"=", value].concat());
        self.change(&[b"CAS", key, &optional(expected), &optional(value)])
    }

    /// Returns an iterator over the later changes of a key, in the order in which the first
    /// reachable server applies them.
    ///
    /// # Errors
    /// [`ClientError::NoServer`] if no server replies to the request.
    pub fn watch(&self, key: &[u8]) -> Result<Watch, ClientError> {
        let mut last = io::Error::from(io::ErrorKind::NotConnected);
        for &server in &self.servers {
            let opened = RespConnection::connect(server).and_then(|mut connection| {
                connection.request(&[b"MITRA.WATCH", key])?;
                connection.wait_without_timeout()?;
                Ok(connection)
            });
            match opened {
                Ok(connection) => return Ok(Watch { connection }),
                Err(error) => last = error,
            }
        }
        Err(ClientError::NoServer(last.to_string()))
    }

    fn change(&mut self, change: &[&[u8]]) -> Result<bool, ClientError> {
        let session = match self.session {
            Some(session) => session,
            None => match self.request_until_answered(&[b"MITRA.OPEN"])? {
                Reply::Integer(session) => *self.session.insert(session as u64),
                other => return Err(error_of(other)),
            },
        };
        self.sequence += 1;
        let (session, sequence) = (session.to_string(), self.sequence.to_string());
        let mut words: Vec<&[u8]> = vec![b"MITRA.DO", session.as_bytes(), sequence.as_bytes()];
        words.extend_from_slice(change);
        match self.request_until_answered(&words)? {
            Reply::Integer(made) => Ok(made != 0),
            other => {
                let error = error_of(other);
                if matches!(error, ClientError::SessionExpired) {
                    (self.session, self.sequence) = (None, 0);
                }
                Err(error)
            }
        }
    }

    /// Sends a request to one server after the other, until a server replies with a result or a
    /// final error.
    fn request_until_answered(&mut self, words: &[&[u8]]) -> Result<Reply, ClientError> {
        let deadline = Instant::now() + self.request_timeout;
        let mut last_failure = "no server was tried".to_owned();
        let mut majority_lost = None;
        while Instant::now() < deadline {
            let connection = match self.connection.take() {
                Some(connection) => Ok(connection),
                None => RespConnection::connect(self.servers[self.current % self.servers.len()]),
            };
            let answered = connection.and_then(|mut c| c.request(words).map(|reply| (c, reply)));
            match answered {
                Ok((_, Reply::Error(text))) if text.starts_with("MOVED ") => {
                    let leader = text.rsplit(' ').next().and_then(|address| address.parse().ok());
                    let known = self.servers.iter().position(|&server| Some(server) == leader);
                    self.current = known.unwrap_or(self.current + 1);
                    last_failure = text;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok((connection, Reply::Error(text)))
                    if ["TRYAGAIN", "UNKNOWN", CLUSTER_DOWN].iter().any(|w| text.starts_with(w)) =>
                {
                    drop(connection);
                    self.current += 1;
                    majority_lost = text.strip_prefix(CLUSTER_DOWN).map(|why| why.trim_start().to_owned());
                    last_failure = text;
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Ok((connection, reply)) => {
                    self.connection = Some(connection);
                    return Ok(reply);
                }
                Err(error) => {
                    self.current += 1;
                    last_failure = error.to_string();
                    std::thread::sleep(RETRY_INTERVAL);
                }
            }
        }
        Err(match majority_lost {
            Some(why) => ClientError::MajorityLost(self.request_timeout, why),
            None => ClientError::NoLeader(self.request_timeout, last_failure),
        })
    }
}

fn error_of(reply: Reply) -> ClientError {
    match reply {
        Reply::Error(text) if text.starts_with("EXPIRED") => ClientError::SessionExpired,
        Reply::Error(text) if text.starts_with("OOM") => ClientError::StoreFull,
        Reply::Error(text) => ClientError::Rejected(text),
        _ => RespError::Syntax.into(),
    }
}

/// An iterator over the changes of a key. Each step blocks until the next change.
#[derive(Debug)]
pub struct Watch {
    connection: RespConnection,
}

impl Iterator for Watch {
    type Item = Result<(Option<Vec<u8>>, u64), ClientError>;

    /// Blocks until the key changes. Returns the key's new value (`None` if the key was deleted)
    /// and the index of the log entry. Returns an error if the connection has closed or the message
    /// is malformed.
    fn next(&mut self) -> Option<Self::Item> {
        Some(match self.connection.reply() {
            Ok(Reply::Array(change)) => match <[Reply; 4]>::try_from(change) {
                Ok([_, _, Reply::Bulk(value), Reply::Integer(index)]) => Ok((value, index as u64)),
                _ => Err(RespError::Syntax.into()),
            },
            Ok(_) => Err(RespError::Syntax.into()),
            Err(error) => Err(error.into()),
        })
    }
}
