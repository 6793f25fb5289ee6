//! A blocking client connection to a RESP server.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::resp::{Reply, encode_request};

/// The time limit for connecting, and for each read from and write to the socket.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A blocking connection to any RESP server. The connection neither follows redirections nor
/// repeats requests, unlike [`Client`](crate::Client).
#[derive(Debug)]
pub struct RespConnection {
    stream: TcpStream,
    /// Bytes that the connection has received and not parsed.
    input: Vec<u8>,
}

impl RespConnection {
    /// Connects to a server.
    ///
    /// # Errors
    /// The operating system's error, or a time-out after 1 s.
    pub fn connect(address: SocketAddr) -> io::Result<RespConnection> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(RespConnection { stream, input: Vec::new() })
    }

    /// Sends a request and returns the reply.
    ///
    /// # Errors
    /// An error if the connection has closed, no bytes arrive for 1 s, or the reply is malformed.
    /// Afterwards the connection is unusable.
    pub fn request(&mut self, arguments: &[&[u8]]) -> io::Result<Reply> {
        self.send(&[arguments])?;
        self.reply()
    }

    /// Sends several requests at once and returns their replies in order.
    ///
    /// # Errors
    /// See [`RespConnection::request`].
    pub fn pipeline(&mut self, requests: &[&[&[u8]]]) -> io::Result<Vec<Reply>> {
        self.send(requests)?;
        requests.iter().map(|_| self.reply()).collect()
    }

    pub(crate) fn wait_without_timeout(&self) -> io::Result<()> {
        self.stream.set_read_timeout(None)
    }

    fn send(&mut self, requests: &[&[&[u8]]]) -> io::Result<()> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|arguments| encode_request(arguments, &mut bytes));
        self.stream.write_all(&bytes)
    }

    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
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
