/// How an operation ended, for a program that uses a connection and decides what to do next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// The operation was executed exactly once, and its data or value is known.
    Success,
    /// The operation was executed exactly once, and the value that it returned is lost.
    ValueLost,
    /// The operation was not executed.
    NotExecuted,
    /// The operation was executed once, in part or not at all. No evidence tells which.
    Unknown,
}
