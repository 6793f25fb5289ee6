use core::mem;

use smallvec::SmallVec;

use crate::operation::{Operation, Progress};
use crate::path::{Path, PathError};
use crate::request::Outcome;

/// One operation under way.
///
/// [`Execution::poll`] drives the operation over a path. If the path ends for good, the execution
/// stays at the point it has reached. The caller then makes sure that the old path executes nothing
/// more, calls [`Execution::fenced`] and polls with a new path.
#[derive(Clone, Debug)]
pub struct Execution<O: Operation> {
    operation: O,
    state: State<O::Output>,
}

#[derive(Clone, Debug)]
enum State<T> {
    /// The operation has to be started or continued.
    Ready(Progress<T>),
    /// The requests are posted. The outcomes that are known so far.
    Posted(SmallVec<[Option<Outcome>; 4]>),
    Ended,
}

impl<O: Operation> Execution<O> {
    /// Begins an operation. Nothing is posted before the first [`Execution::poll`].
    pub fn new(mut operation: O) -> Execution<O> {
        let state = State::Ready(operation.start());
        Execution { operation, state }
    }

    /// Posts the operation's requests, and takes their outcomes. Returns the result once, and
    /// `None` in every other call. The path may change only after [`Execution::fenced`].
    ///
    /// # Errors
    /// A [`PathError`]. The operation has then neither succeeded nor failed. After
    /// [`PathError::Refused`], drop the execution.
    pub fn poll(&mut self, path: &mut impl Path) -> Result<Option<O::Output>, PathError> {
        loop {
            match &mut self.state {
                State::Ready(Progress::Post(requests)) => {
                    path.post(requests)?;
                    self.state = State::Posted(SmallVec::from_elem(None, requests.len()));
                    return Ok(None);
                }
                State::Posted(outcomes) => {
                    if !path.poll(outcomes)? {
                        return Ok(None);
                    }
                    self.advance();
                }
                State::Ready(Progress::Done(_)) => {
                    let State::Ready(Progress::Done(result)) = mem::replace(&mut self.state, State::Ended)
                    else {
                        return Ok(None);
                    };
                    return Ok(Some(result));
                }
                State::Ended => return Ok(None),
            }
        }
    }

    /// States that the peer executes no posted request any more: the queue pair was destroyed at
    /// both ends, or the NIC was reset. The requests without an outcome become
    /// [`Outcome::Unknown`], and the operation continues over the path of the next
    /// [`Execution::poll`].
    pub fn fenced(&mut self) {
        if let State::Posted(outcomes) = &mut self.state {
            outcomes.iter_mut().filter(|outcome| outcome.is_none()).for_each(|o| *o = Some(Outcome::Unknown));
            self.advance();
        }
    }

    fn advance(&mut self) {
        if let State::Posted(outcomes) = &self.state {
            let known: SmallVec<[Outcome; 4]> =
                outcomes.iter().map(|o| o.unwrap_or(Outcome::Unknown)).collect();
            self.state = State::Ready(self.operation.on_outcomes(&known));
        }
    }
}
