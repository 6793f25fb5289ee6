//! Decides when a process believes the heartbeats that its leader has failed: replacing a leader
//! that waits for a processor costs more than waiting for it.

use std::time::{Duration, Instant};

use mitra_consensus::ProcessId;
use mitra_consensus::heartbeat::{MAX_SCORE, SUSPECT_SCORE};
use mitra_consensus_rdma::ExtraTimeout;

/// The longest extra timeout, unless heartbeats themselves take longer to suspect a leader.
const MAX_EXTRA_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct LeaderChoice {
    leader: Option<ProcessId>,
    /// The time after which heartbeats suspect a leader.
    suspicion_time: Duration,
    /// The time for which this process waits once heartbeats suspect its leader.
    extra_timeout: ExtraTimeout,
    /// The leader that the heartbeats suspect, or suspected last, and since when.
    suspected: Option<(ProcessId, Instant)>,
}

impl LeaderChoice {
    pub(super) fn new(heartbeat_interval: Duration, now: Instant) -> LeaderChoice {
        let suspicion_time = heartbeat_interval * u32::from(MAX_SCORE - SUSPECT_SCORE);
        LeaderChoice {
            leader: None,
            suspicion_time,
            extra_timeout: ExtraTimeout::new(suspicion_time / 2, MAX_EXTRA_TIMEOUT.max(suspicion_time), now),
            suspected: None,
        }
    }

    pub(super) fn leader(&self) -> Option<ProcessId> {
        self.leader
    }

    /// Takes the leader that the heartbeats name now, and returns the leader to follow. The caller
    /// calls this every few milliseconds, if it has a processor.
    pub(super) fn step(&mut self, named: Option<ProcessId>, now: Instant) -> Option<ProcessId> {
        self.extra_timeout.step(now);
        // Heartbeats name the trusted process with the lowest id. If they name a higher one, they
        // suspect the leader.
        let suspects = self.leader.filter(|leader| named.is_none_or(|named| named > *leader));
        if let Some(leader) = suspects {
            let since = match self.suspected {
                Some((suspected, since)) if suspected == leader => since,
                _ => now,
            };
            self.suspected = Some((leader, since));
            if now.saturating_duration_since(since) < self.extra_timeout.current() {
                return self.leader;
            }
        } else if let Some((_, since)) = self.suspected.take_if(|(suspected, _)| named == Some(*suspected)) {
            // The suspected leader is trusted again. After a long time, the suspicion was right.
            let elapsed = now.saturating_duration_since(since);
            if elapsed < self.extra_timeout.max() {
                self.extra_timeout
                    .raise(2 * elapsed.max(self.extra_timeout.current()).max(self.suspicion_time), now);
            }
        }
        self.leader = named;
        self.leader
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: Option<ProcessId> = Some(ProcessId(0));
    const P1: Option<ProcessId> = Some(ProcessId(1));
    const MS: Duration = Duration::from_millis(1);

    struct Run {
        choice: LeaderChoice,
        now: Instant,
    }

    impl Run {
        fn new() -> Run {
            let now = Instant::now();
            let mut run = Run { choice: LeaderChoice::new(5 * MS, now), now };
            assert_eq!(run.step(P0), P0);
            run
        }

        fn step(&mut self, named: Option<ProcessId>) -> Option<ProcessId> {
            self.now += MS;
            self.choice.step(named, self.now)
        }

        /// Returns after how many milliseconds the process follows `named`.
        fn time_to_follow(&mut self, named: Option<ProcessId>) -> usize {
            (0..10_000).find(|_| self.step(named) == named).expect("the extra timeout is bounded")
        }
    }

    #[test]
    fn failed_leader_is_replaced_at_once_on_an_idle_machine() {
        let mut run = Run::new();
        (0..100_000).for_each(|_| assert_eq!(run.step(P0), P0));
        assert_eq!(run.time_to_follow(P1), 0);
    }

    /// Each pause of the leader is as long as the last or longer, and few change the leader.
    #[test]
    fn pauses_of_the_leader_stop_changing_it() {
        let mut run = Run::new();
        let mut changes = 0;
        for pause in (0..300).map(|nth| 50 + nth) {
            changes += usize::from((0..pause).any(|_| run.step(P1) == P1));
            assert_eq!(run.time_to_follow(P0), 0, "a trusted process with a lower id leads at once");
            (0..500).for_each(|_| _ = run.step(P0));
        }
        assert!((1..=3).contains(&changes), "{changes} changes");
    }

    #[test]
    fn extra_timeout_is_bounded_and_ends() {
        let mut run = Run::new();
        for _ in 0..20 {
            (0..900).for_each(|_| _ = run.step(P1));
            run.step(P0);
        }
        let longest = run.time_to_follow(P1);
        assert!((1000..=1100).contains(&longest), "{longest} ms");
        assert_eq!(run.step(P0), P0);
        (0..130_000).for_each(|_| _ = run.step(P0));
        assert!(run.time_to_follow(P1) <= 1, "the machine has been calm for long");
    }

    /// A process that waited for a processor itself waits before any suspicion.
    #[test]
    fn late_process_waits() {
        let mut run = Run::new();
        run.now += 100 * MS;
        run.step(P0);
        assert!((350..450).contains(&run.time_to_follow(P1)));
    }

    /// A leader that failed, and is back after a long time, was rightly replaced.
    #[test]
    fn right_suspicion_adds_no_time() {
        let mut run = Run::new();
        (0..5_000).for_each(|_| _ = run.step(P1));
        assert_eq!(run.step(P0), P0);
        assert_eq!(run.time_to_follow(P1), 0);
    }
}
