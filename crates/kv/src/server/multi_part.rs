//! Requests that the server splits into several commands.

use mitra_consensus::kv_store::Reply as KvReply;

use crate::command::ReplyStyle;
use crate::resp::Reply;
use mitra_consensus::replicated_store::Outcome;

/// The state of a client request that consists of one or more commands (its parts), such as
/// `DEL a b c`, until each part has an outcome.
pub(super) struct MultiPart {
    pending_parts: usize,
    /// The number of changes that were made, or of keys that were found.
    count: i64,
    style: ReplyStyle,
    /// The first error reply.
    error: Option<Reply>,
    refused: bool,
    /// Whether a part was executed, or was possibly executed.
    maybe_executed: bool,
}

impl MultiPart {
    pub(super) fn new(pending_parts: usize, style: ReplyStyle) -> MultiPart {
        MultiPart { pending_parts, count: 0, style, error: None, refused: false, maybe_executed: false }
    }

    /// Records the outcome of a part, and its error reply if it is not a success. Returns the
    /// result of the request after the last part.
    pub(super) fn finish_part(&mut self, outcome: &Outcome, error: Option<Reply>) -> Option<MultiPartResult> {
        self.pending_parts -= 1;
        match outcome {
            Outcome::Refused(_) => self.refused = true,
            Outcome::Reply(_) | Outcome::Unknown => self.maybe_executed = true,
        }
        match outcome {
            Outcome::Reply(KvReply::Changed(true) | KvReply::Value(Some(_))) => self.count += 1,
            _ => self.error = self.error.take().or(error),
        }
        if self.pending_parts > 0 {
            return None;
        }
        Some(match self.error.take() {
            // The error reply of a refusal would say that no part was executed.
            Some(_) if self.refused && self.maybe_executed => MultiPartResult::PartlyRefused,
            Some(error) => MultiPartResult::Reply(error),
            None => MultiPartResult::Reply(match self.style {
                ReplyStyle::Count => Reply::Integer(self.count),
                ReplyStyle::OkOrNil if self.count == 0 => Reply::Bulk(None),
                ReplyStyle::Ok | ReplyStyle::OkOrNil => Reply::Simple("OK"),
            }),
        })
    }
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum MultiPartResult {
    Reply(Reply),
    /// At least one part was refused, and at least one part was executed or was possibly executed.
    PartlyRefused,
}

#[cfg(test)]
mod tests {
    use mitra_consensus::log::LogError;

    use super::*;

    fn result_of(outcomes: &[Outcome]) -> Option<MultiPartResult> {
        let mut request = MultiPart::new(outcomes.len(), ReplyStyle::Count);
        let error = |outcome: &Outcome| match outcome {
            Outcome::Refused(_) => Some(Reply::Error("MOVED".into())),
            Outcome::Unknown => Some(Reply::Error("UNKNOWN".into())),
            Outcome::Reply(_) => None,
        };
        outcomes.iter().fold(None, |_, outcome| request.finish_part(outcome, error(outcome)))
    }

    /// After MOVED or TRYAGAIN, a client repeats the request at another server, because these
    /// replies mean that no part of the request was executed.
    #[test]
    fn partly_executed_request_is_not_reported_as_refused() {
        let (done, refused) = (Outcome::Reply(KvReply::Changed(true)), Outcome::Refused(LogError::NotLeader));
        for other in [&done, &Outcome::Reply(KvReply::Changed(false)), &Outcome::Unknown] {
            assert_eq!(result_of(&[other.clone(), refused.clone()]), Some(MultiPartResult::PartlyRefused));
            assert_eq!(result_of(&[refused.clone(), other.clone()]), Some(MultiPartResult::PartlyRefused));
        }
        let moved = MultiPartResult::Reply(Reply::Error("MOVED".into()));
        assert_eq!(result_of(&[refused.clone(), refused]), Some(moved));
        assert_eq!(result_of(&[done.clone(), done]), Some(MultiPartResult::Reply(Reply::Integer(2))));
    }
}
