use crate::cause::Cause;
use crate::close_reason::CloseReason;

/// A failure that one part of a vQP notices and another part handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The vQP must leave this rail, or cannot move to it.
    Rail { rail: usize, cause: Cause },
    /// The vQP must close.
    Close(CloseReason),
}
