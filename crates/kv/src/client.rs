//! A client that keeps a session: what it retries is done once.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::resp::{Reply, RespError, encode_request};

/// How long a server may be silent before another is asked.
const SILENCE: Duration = Duration::from_secs(1);
/// Between two rounds of asking.
const AGAIN: Duration = Duration::from_millis(20);

/// Why something could not be done, or not be known.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody who leads was found in time. A change that was asked for may have been made, and may yet be.
    #[error("no leader was reached in {0:?}: {1}")]
    NoLeader(Duration, String),
    /// The session has ended, because it was not used while many others were opened. The change may have been made before that, and will not be now.
    #[error("the session has ended; the change may have been made before that")]
    SessionExpired,
    /// The store has no room for it.
    #[error("the store has no room for it: delete something first")]
    StoreFull,
    /// The server says that the request is wrong.
    #[error("{0}")]
    Rejected(String),
    /// The server does not speak as it should.
    #[error("the server does not speak as it should: {0}")]
    Protocol(#[from] RespError),
    /// A watched connection ended.
    #[error("the connection ended: {0}")]
    ConnectionClosed(#[from] io::Error),
}

/// A client of a store. It finds the leader, and goes on asking until it is answered; a change that it asks for again is not made again.
#[derive(Debug)]
pub struct Client {
    servers: Vec<SocketAddr>,
    at: usize,
    timeout: Duration,
    connection: Option<RespConnection>,
    session: Option<u64>,
    sequence: u64,
}

/// A connection to a server that speaks RESP, and no more than that: it knows of no leader, and retries nothing.
#[derive(Debug)]
pub struct RespConnection {
    stream: TcpStream,
    input: Vec<u8>,
}

impl RespConnection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody is there, or says so in time.
    pub fn connect(at: SocketAddr) -> io::Result<RespConnection> {
        let stream = TcpStream::connect_timeout(&at, SILENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(RespConnection { stream, input: Vec::new() })
    }

    /// What the server replies to a request.
    ///
    /// # Errors
    /// The connection has ended, nothing came in time, or what came is no reply. Then it is of no use any more.
    pub fn request(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.send(&[words])?;
        self.reply()
    }

    /// What the server replies to requests that are sent at once.
    ///
    /// # Errors
    /// As of [`RespConnection::request`].
    pub fn pipeline(&mut self, requests: &[&[&[u8]]]) -> io::Result<Vec<Reply>> {
        self.send(requests)?;
        requests.iter().map(|_| self.reply()).collect()
    }

    fn send(&mut self, requests: &[&[&[u8]]]) -> io::Result<()> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|words| encode_request(words, &mut bytes));
        self.stream.write_all(&bytes)
    }

    fn reply(&mut self) -> io::Result<Reply> {
        loop {
            let read =
                Reply::parse(&self.input).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            if let Some((reply, len)) = read {
                self.input.drain(..len);
                return Ok(reply);
            }
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.input.extend_from_slice(&chunk[..len]),
            }
        }
    }
}

impl Client {
    /// A client of the store that these processes serve; each thing that it asks for it asks for until `timeout` ends.
    pub fn new(servers: Vec<SocketAddr>, timeout: Duration) -> Client {
        Client { servers, at: 0, timeout, connection: None, session: None, sequence: 0 }
    }

    /// A key's value, and the entry that changed it last: at some time between the call and the return.
    ///
    /// # Errors
    /// No leader in time.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>, ClientError> {
        match self.until_answered(&[b"MITRA.GET", key])? {
            Reply::Array(found) => match <[Reply; 2]>::try_from(found) {
                Ok([Reply::Bulk(Some(value)), Reply::Integer(index)]) => Ok(Some((value, index as u64))),
                _ => Err(RespError::Syntax.into()),
            },
            Reply::Bulk(None) => Ok(None),
            other => Err(refusal(other)),
        }
    }

    /// Gives a key a value.
    ///
    /// # Errors
    /// No room, or no leader in time: then it may have been done, and may yet be.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        self.change(&[b"PUT", key, value]).map(|_| ())
    }

    /// Takes a key's value away. Says whether it had one.
    ///
    /// # Errors
    /// As of [`Client::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, ClientError> {
        self.change(&[b"DELETE", key])
    }

    /// Gives a key another value, or none, if it has the expected one, or none. Says whether it had.
    ///
    /// # Errors
    /// As of [`Client::put`].
    pub fn cas(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<bool, ClientError> {
        let word = |value: Option<&[u8]>| value.map_or(b"-".to_vec(), |value| [b"=", value].concat());
        self.change(&[b"CAS", key, &word(expected), &word(value)])
    }

    /// Hears of a key's changes from now on.
    ///
    /// # Errors
    /// No server is reached.
    pub fn watch(&self, key: &[u8]) -> Result<Watch, ClientError> {
        let mut last = io::Error::from(io::ErrorKind::NotConnected);
        for &server in &self.servers {
            let opened = RespConnection::connect(server).and_then(|mut connection| {
                connection.request(&[b"MITRA.WATCH", key])?;
                connection.stream.set_read_timeout(None)?;
                Ok(connection)
            });
            match opened {
                Ok(connection) => return Ok(Watch { connection }),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    fn change(&mut self, change: &[&[u8]]) -> Result<bool, ClientError> {
        let session = match self.session {
            Some(session) => session,
            None => match self.until_answered(&[b"MITRA.OPEN"])? {
                Reply::Integer(session) => *self.session.insert(session as u64),
                other => return Err(refusal(other)),
            },
        };
        self.sequence += 1;
        let (session, sequence) = (session.to_string(), self.sequence.to_string());
        let mut words: Vec<&[u8]> = vec![b"MITRA.DO", session.as_bytes(), sequence.as_bytes()];
        words.extend_from_slice(change);
        match self.until_answered(&words)? {
            Reply::Integer(made) => Ok(made != 0),
            other => {
                let error = refusal(other);
                if matches!(error, ClientError::SessionExpired) {
                    (self.session, self.sequence) = (None, 0);
                }
                Err(error)
            }
        }
    }

    /// Asks until somebody who leads answers.
    fn until_answered(&mut self, words: &[&[u8]]) -> Result<Reply, ClientError> {
        let end = Instant::now() + self.timeout;
        let mut why = "none was asked".to_owned();
        while Instant::now() < end {
            let connection = match self.connection.take() {
                Some(connection) => Ok(connection),
                None => RespConnection::connect(self.servers[self.at % self.servers.len()]),
            };
            let answered = connection.and_then(|mut c| c.request(words).map(|reply| (c, reply)));
            match answered {
                Ok((_, Reply::Error(text))) if text.starts_with("MOVED ") => {
                    let leader = text.rsplit(' ').next().and_then(|at| at.parse().ok());
                    let known = self.servers.iter().position(|&server| Some(server) == leader);
                    self.at = known.unwrap_or(self.at + 1);
                    why = text;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok((connection, Reply::Error(text)))
                    if ["TRYAGAIN", "UNKNOWN"].iter().any(|w| text.starts_with(w)) =>
                {
                    drop(connection);
                    self.at += 1;
                    why = text;
                    std::thread::sleep(AGAIN);
                }
                Ok((connection, reply)) => {
                    self.connection = Some(connection);
                    return Ok(reply);
                }
                Err(error) => {
                    self.at += 1;
                    why = error.to_string();
                    std::thread::sleep(AGAIN);
                }
            }
        }
        Err(ClientError::NoLeader(self.timeout, why))
    }
}

fn refusal(reply: Reply) -> ClientError {
    match reply {
        Reply::Error(text) if text.starts_with("EXPIRED") => ClientError::SessionExpired,
        Reply::Error(text) if text.starts_with("OOM") => ClientError::StoreFull,
        Reply::Error(text) => ClientError::Rejected(text),
        _ => RespError::Syntax.into(),
    }
}

/// Changes of a key, as they are made.
#[derive(Debug)]
pub struct Watch {
    connection: RespConnection,
}

impl Iterator for Watch {
    type Item = Result<(Option<Vec<u8>>, u64), ClientError>;

    /// The next change: what the key has then, and by which entry. Waits for it.
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
