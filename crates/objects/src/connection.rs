//! A connection as a path.

use mitra_driver::{Connection, ConnectionError, Event};
use mitra_failover::{VirtualQp, WritePolicy};
use mitra_verbs::{Ended, Error, SendOp, WcStatus};

use crate::path::{Path, PathError};
use crate::request::{Outcome, Request, WordOp};

/// The maximum number of requests that an operation posts at once.
pub const MAX_REQUESTS: usize = 8;

const WORD_BYTES: usize = size_of::<u64>();

/// The registered memory that a [`Connection`] needs as a path, in bytes: one word for each
/// request.
pub const STAGING_BYTES: usize = WORD_BYTES * MAX_REQUESTS;

/// A path over a virtual queue pair or an RC queue pair. The connection needs room for
/// [`MAX_REQUESTS`] requests, and [`STAGING_BYTES`] bytes.
///
/// A virtual queue pair decides nearly all requests after a failure, and the operation decides the
/// others. When an RC queue pair fails, nothing tells which requests the peer executed, and the
/// peer may still execute requests. The path then ends as [`PathError::Lost`]. The caller fences:
/// it destroys the queue pair at the *peer*, whose NIC executes the requests, or resets that NIC.
///
/// While an operation is under way, nothing else may be pushed on the connection. The path drops
/// messages of the peer.
impl Path for Connection {
    fn post(&mut self, requests: &[Request]) -> Result<(), PathError> {
        if !(1..=MAX_REQUESTS).contains(&requests.len()) {
            return Err(Error::Invalid("an operation posts 1 to 8 requests at once").into());
        }
        if !self.is_idle() {
            // The operation before was dropped, and nobody waits for its outcomes.
            Connection::poll(self, |_| ())?;
        }
        let has_room = self.is_idle()
            && self.free_slots() >= requests.len()
            && self.staging_bytes() >= WORD_BYTES * requests.len();
        // With room for all, the connection takes all or, if it has ended, none.
        if !has_room || !(0..).zip(requests).all(|(id, request)| push(self, id, request)) {
            return Err(refusal(self));
        }
        Ok(Connection::post(self)?)
    }

    fn poll(&mut self, outcomes: &mut [Option<Outcome>]) -> Result<bool, PathError> {
        let polled = Connection::poll(self, |event| {
            if let Event::Ended { id, ended, fetched } = event
                && let Some(outcome) = outcomes.get_mut(id as usize)
            {
                *outcome = Some(match ended {
                    Ended::Success => Outcome::Executed { value: fetched.word().unwrap_or(0) },
                    Ended::ValueLost => Outcome::ValueLost,
                    Ended::NotExecuted => Outcome::NotExecuted,
                    Ended::Unknown => Outcome::Unknown,
                });
            }
        });
        let are_known = outcomes.iter().all(Option::is_some);
        match polled {
            Err(ConnectionError::Closed(_)) if are_known => Ok(true),
            polled => Ok(polled.map(|()| are_known)?),
        }
    }
}

/// Pushes a request. The number of the request is its position in the list. Returns false if the
/// connection does not take the request.
fn push(connection: &mut Connection, id: u64, request: &Request) -> bool {
    let remote = request.word.remote();
    let op = match request.op {
        WordOp::Write(value) => {
            let policy = connection.vqp().map_or(WritePolicy::Strict, |vqp| vqp.config().write_policy);
            return connection.put(id, SendOp::Write(remote), &value.to_ne_bytes(), policy);
        }
        WordOp::Read => SendOp::Read(remote),
        WordOp::CompareSwap { compare, swap } => SendOp::CompareSwap { remote, compare, swap },
        WordOp::FetchAdd(add) => SendOp::FetchAdd { remote, add },
    };
    connection.fetch(id, op, WORD_BYTES)
}

/// Returns why a connection does not take the requests of an operation.
fn refusal(connection: &mut Connection) -> PathError {
    if let Some(reason) = connection.vqp().and_then(VirtualQp::close_reason) {
        return PathError::Closed(reason);
    }
    match connection.post() {
        Err(lost) => lost.into(),
        Ok(()) => Error::Invalid(
            "a path needs room for the requests of an operation, or requests of an operation that was dropped are under way; poll the connection until it is idle",
        )
        .into(),
    }
}

impl From<ConnectionError> for PathError {
    fn from(error: ConnectionError) -> PathError {
        match error {
            ConnectionError::Closed(reason) => PathError::Closed(reason),
            // An RC queue pair flushes the requests behind the first failed request, whether or not
            // the peer executed them.
            ConnectionError::Request(status @ (WcStatus::RetryExceeded | WcStatus::Flushed)) => {
                PathError::Lost(status)
            }
            ConnectionError::Request(status) => PathError::Refused(status),
            ConnectionError::Nic(error) => PathError::Verb(error),
        }
    }
}
