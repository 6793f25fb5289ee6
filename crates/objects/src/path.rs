use mitra_failover::CloseReason;
use mitra_verbs::{Error, WcStatus};

use crate::execution::Execution;
use crate::operation::Operation;
use crate::request::{Outcome, Request};

/// The error of a path, after which an [`Execution`](crate::Execution) cannot go on by itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The RC queue pair failed. The peer's NIC may still execute its requests.
    #[error(
        "the queue pair failed ({0}); destroy both of its ends or reset the NIC, then call fenced() and go on over a new path"
    )]
    Lost(WcStatus),
    /// The virtual queue pair closed before it could decide the requests.
    #[error(
        "the virtual queue pair closed: {0}; make sure that its peer executes nothing more from it, then call fenced() and go on over a new path"
    )]
    Closed(CloseReason),
    /// The peer's NIC or the local NIC refused a request.
    #[error(
        "a request was refused ({0}); correct the object's address, its key and the peer's access rights"
    )]
    Refused(WcStatus),
    /// A verb failed.
    #[error("a verb failed: {0}")]
    Verb(#[from] Error),
}

/// A queue pair that executes the requests of one operation at a time.
pub trait Path {
    /// Posts requests in order. All earlier requests must have ended.
    ///
    /// # Errors
    /// A [`PathError`]. None of the requests was posted then.
    fn post(&mut self, requests: &[Request]) -> Result<(), PathError>;

    /// Drives the queue pair, and stores the outcomes of the posted requests as they become known.
    /// Returns whether all are known.
    ///
    /// # Errors
    /// A [`PathError`]. The outcomes that are still `None` stay unknown until the path is fenced.
    fn poll(&mut self, outcomes: &mut [Option<Outcome>]) -> Result<bool, PathError>;

    /// Runs one operation to its end, and returns its result. The thread polls, and yields between
    /// polls. To run several operations side by side, or to continue over another path after this
    /// path has ended, use an [`Execution`].
    ///
    /// # Errors
    /// A [`PathError`]. The operation has then neither succeeded nor failed.
    fn run<O: Operation>(&mut self, operation: O) -> Result<O::Output, PathError>
    where
        Self: Sized,
    {
        let mut execution = Execution::new(operation);
        loop {
            if let Some(result) = execution.poll(self)? {
                return Ok(result);
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_word::ReadWord;
    use crate::request::Word;
    use mitra_verbs::{Key, RemoteAddr};

    /// The results of `poll`, last first.
    struct Scripted(Vec<Result<Option<Outcome>, PathError>>);

    impl Path for Scripted {
        fn post(&mut self, _requests: &[Request]) -> Result<(), PathError> {
            Ok(())
        }

        fn poll(&mut self, outcomes: &mut [Option<Outcome>]) -> Result<bool, PathError> {
            outcomes[0] = self.0.pop().expect("no poll after the end")?;
            Ok(outcomes[0].is_some())
        }
    }

    #[test]
    fn operation_runs_to_its_end_over_repeated_requests_and_idle_polls() {
        let read = ReadWord(Word::new(RemoteAddr { addr: 64, rkey: Key(7) }).unwrap());
        let executed = Outcome::Executed { value: 5 };
        let mut path =
            Scripted(vec![Ok(Some(executed)), Ok(None), Ok(Some(Outcome::Unknown)), Ok(None), Ok(None)]);
        assert_eq!(path.run(read.clone()), Ok(5));
        assert!(path.0.is_empty());
        let mut path = Scripted(vec![Err(PathError::Closed(CloseReason::PeerUnreachable)), Ok(None)]);
        assert_eq!(path.run(read), Err(PathError::Closed(CloseReason::PeerUnreachable)));
    }
}
