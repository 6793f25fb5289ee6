//! One request to one memory node, over TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use mitra_handshake::dial;
use mitra_txn::NodeId;

use crate::hello::{Answer, Hello, Refusal};

/// The delay before a failed attempt is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Why a request to a memory node failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The node refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The node did not answer in time.
    #[error("no answer from {address}: {error}; check that the node runs")]
    Unreachable {
        /// The address of the node.
        address: SocketAddr,
        /// The last error.
        error: io::Error,
    },
    /// The answer does not match the request.
    #[error("the answer is none to the question; run the same version of Mitra everywhere")]
    Answer,
    /// The NIC refused the connection that the node has made.
    #[error("the NIC: {0}; give both ends the same configuration")]
    Connect(mitra_verbs::Error),
}

/// A request, which is repeated while the node is unreachable, until the deadline.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) node: NodeId,
    address: SocketAddr,
    hello: Hello,
    answer: Receiver<io::Result<Answer>>,
    /// No attempt begins after this time. With `None`, attempts go on until the node answers.
    deadline: Option<Instant>,
}

impl Call {
    /// Sends the request. If the deadline is over, the request is sent once.
    pub(crate) fn new(address: SocketAddr, hello: Hello, deadline: Option<Instant>) -> Call {
        let answer = dial(address, hello.clone(), Duration::ZERO, || ());
        Call { node: NodeId(hello.node), address, hello, answer, deadline }
    }

    /// Returns the answer, if there is one. Does not block.
    pub(crate) fn poll(&mut self) -> Option<Result<Answer, CallError>> {
        let error = match self.answer.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Ok(Ok(Answer::Refused(refusal))) => return Some(Err(refusal.into())),
            Ok(Ok(answer)) => return Some(Ok(answer)),
            Ok(Err(error)) => error,
            Err(TryRecvError::Disconnected) => io::Error::other("the system refused a thread"),
        };
        if self.deadline.is_some_and(|deadline| Instant::now() + RETRY_INTERVAL > deadline) {
            return Some(Err(CallError::Unreachable { address: self.address, error }));
        }
        self.answer = dial(self.address, self.hello.clone(), RETRY_INTERVAL, || ());
        None
    }
}
