use smallvec::SmallVec;

use crate::request::{Outcome, Request};

/// Requests that are posted in this order on one queue pair, without waiting in between. The peer
/// executes the requests in this order, so after a failure the executed requests are a prefix.
pub type Requests = SmallVec<[Request; 4]>;

/// The next thing that an operation needs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Progress<T> {
    /// The operation needs these requests executed: at least one, at most
    /// [`MAX_REQUESTS`](crate::MAX_REQUESTS).
    Post(Requests),
    /// The operation has ended.
    Done(T),
}

impl<T> Progress<T> {
    /// Converts the result.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Progress<U> {
        match self {
            Progress::Post(requests) => Progress::Post(requests),
            Progress::Done(result) => Progress::Done(convert(result)),
        }
    }
}

/// An operation on an object, as a state machine without I/O.
///
/// The driver calls [`Operation::start`] once, executes the requests, and calls
/// [`Operation::on_outcomes`] with their outcomes. The driver repeats the last two steps until
/// [`Progress::Done`]. The machine learns of a failure only by outcomes other than
/// [`Outcome::Executed`]. The path is fenced before the machine gets such an outcome.
pub trait Operation {
    /// The result.
    type Output;

    /// Begins the operation.
    fn start(&mut self) -> Progress<Self::Output>;

    /// Continues with the outcomes of the last requests, in their order.
    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output>;
}
