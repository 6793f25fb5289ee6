use crate::cause::Cause;
use crate::close_reason::CloseReason;

/// What a part of a vQP has noticed, for the part that handles it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The vQP must leave this rail, or cannot move to it.
    Rail { rail: usize, cause: Cause },
    /// The vQP must close.
    Close(CloseReason),
}
