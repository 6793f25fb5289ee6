//! What a vQP replays after a failure, up to which operation, and how it posts meanwhile.

/// The limit of one posted list of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostLimit {
    /// The number of requests with entries of the completion log. A list is longer by one if its
    /// last request is such an entry.
    pub(super) per_list: usize,
    /// Whether a list has either replays or one new request.
    pub(super) is_new_alone: bool,
}

impl PostLimit {
    /// The list is long enough for the NIC to send several packets with one system call, and short
    /// enough not to delay the first completion.
    pub(super) const BURST: PostLimit = PostLimit { per_list: 16, is_new_alone: false };
}

/// The operations that were in flight at a failure. Sequence numbers name them.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// During a failover: the sequence number after the last operation that was in flight when the
    /// failure was detected.
    fails_below: Option<u64>,
    /// After the move: the operations below this sequence number are replayed, until all of them
    /// have completed.
    replays_below: Option<u64>,
}

impl Replay {
    /// Begins a failover, unless one is in progress. Returns whether it has begun. `next_seq` is
    /// the sequence number after the last operation in flight.
    pub(super) fn on_detected(&mut self, next_seq: u64) -> bool {
        let begins = self.fails_below.is_none();
        self.fails_below.get_or_insert(next_seq);
        begins
    }

    /// Ends a failover without a move. Returns whether one was in progress.
    pub(super) fn on_stay(&mut self) -> bool {
        self.fails_below.take().is_some()
    }

    /// Begins to replay on the new rail. Returns whether a failover was in progress.
    pub(super) fn on_move(&mut self) -> bool {
        let below = self.fails_below.take();
        self.replays_below = below.or(self.replays_below);
        below.is_some()
    }

    /// Returns whether the last replay ends. `first_seq` is the sequence number of the oldest
    /// outstanding operation.
    #[inline]
    pub(super) fn on_progress(&mut self, first_seq: u64) -> bool {
        self.replays_below.take_if(|below| first_seq >= *below).is_some()
    }

    /// Returns whether a failover is in progress or the active rail has failed.
    #[inline]
    pub(super) fn is_failover_in_progress(&self) -> bool {
        self.fails_below.is_some()
    }

    /// Returns whether an operation that was in flight at the last failure has not completed.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.replays_below.is_some()
    }

    /// The limit of the list that a poll posts. The NIC sends a whole list before the next poll, so
    /// several new requests in a list would delay the completions of the replays.
    #[inline]
    pub(super) fn limit_of_poll(&self) -> PostLimit {
        PostLimit { is_new_alone: self.is_pending(), ..PostLimit::BURST }
    }

    /// The limit of the list that a call of the application posts. `None` while operations are
    /// replayed: new requests wait for a poll.
    #[inline]
    pub(super) fn limit_of_call(&self) -> Option<PostLimit> {
        self.replays_below.is_none().then_some(PostLimit::BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_lasts_until_the_last_operation_in_flight_completes() {
        let mut replay = Replay::default();
        assert!(!replay.on_progress(0) && !replay.limit_of_poll().is_new_alone);
        assert!(replay.on_detected(5) && !replay.on_detected(9), "operations 5 to 8 came after the failure");
        assert!(replay.is_failover_in_progress() && !replay.is_pending());
        assert!(replay.on_move() && !replay.is_failover_in_progress());
        assert!(!replay.on_progress(4) && replay.limit_of_poll().is_new_alone);
        assert!(replay.limit_of_call().is_none());
        assert!(replay.on_progress(5) && !replay.on_progress(6), "it ends once");
        assert!(!replay.is_pending());
    }

    #[test]
    fn failover_during_a_replay_continues_it() {
        let mut replay = Replay::default();
        assert!(replay.on_detected(5) && replay.on_move());
        assert!(replay.on_detected(9) && replay.on_stay() && !replay.on_stay());
        assert!(replay.is_pending() && !replay.on_move(), "the vQP has stayed");
        assert!(replay.on_detected(9) && replay.on_move());
        assert!(!replay.on_progress(5) && replay.on_progress(9));
    }
}
