//! Who drives the NIC: the caller that polls, or the progress thread.

use core::time::Duration;

use mitra_verbs::Time;

/// A poller that has gone for this long has gone. Also how often the progress thread looks after it.
pub(crate) const LEASE: Duration = Duration::from_millis(1);
/// Polls within [`WINDOW`] that make a caller a poller: one that polls once and then waits for an event is none.
const SPINS: u32 = 8;
/// See [`SPINS`]. Generous: until the lease is taken, the progress thread is in the poller's way.
const WINDOW: Duration = Duration::from_millis(4);
/// Polls within [`LEASE`] that keep the lease.
const KEEP: u32 = 8;

/// A poller that has not driven for this long is busy elsewhere. What has arrived meanwhile it has left waiting.
pub(crate) const ABSENT: Duration = Duration::from_micros(100);
/// Looks in a row that find something left waiting while the poller runs elsewhere show a program that waits for its data in
/// memory, and polls only for its own requests (`ib_write_lat`).
const LEFT_WAITING: u32 = 3;
/// Such a program is not given the lease for this long; if it is found to be one again, each time twice as long ...
const DISTRUST: Duration = Duration::from_secs(1);
/// ... up to this.
const LONGEST_DISTRUST: Duration = Duration::from_secs(16);

/// The right to drive the NIC alone. A caller that polls in a loop takes it; it lasts until the progress thread
/// finds that hardly anybody has polled since it last looked, or that its holder leaves what arrives waiting, or until
/// somebody arms a completion queue in order to wait.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    taken: bool,
    /// Polls since the progress thread last looked.
    polls: u32,
    /// Polls that drove since `since`, while not taken.
    spins: u32,
    since: Time,
    /// Looks in a row that found something left waiting while the holder ran, and the last such look.
    left_waiting: u32,
    seen: Option<(Time, Duration)>,
    /// Until then nobody takes it, and how long that was.
    distrusted: Time,
    distrust: Duration,
}

impl Lease {
    /// A poll that drove the NIC. Says whether that has just taken the lease.
    pub(crate) fn drove(&mut self, now: Time) -> bool {
        self.polls = self.polls.wrapping_add(1);
        if self.taken {
            return false;
        }
        if self.distrusts(now) {
            return false;
        }
        if now - self.since > WINDOW {
            (self.since, self.spins) = (now, 0);
        }
        self.spins += 1;
        if self.spins < SPINS {
            return false;
        }
        // The thread's first look, right after this, finds polls enough.
        (self.taken, self.polls) = (true, KEEP);
        true
    }

    /// A poll that had no need to drive.
    pub(crate) fn polled(&mut self) {
        self.polls = self.polls.wrapping_add(1);
    }

    /// Whether a poller drives the NIC.
    pub(crate) fn taken(&self) -> bool {
        self.taken
    }

    /// Somebody waits for an event: the progress thread is needed. Says whether the lease was taken.
    pub(crate) fn end(&mut self) -> bool {
        self.spins = 0;
        std::mem::take(&mut self.taken)
    }

    /// The holder was absent at a look. If something waited for it then: the processor time that it has used.
    pub(crate) fn absent(&mut self, now: Time, waited: Option<Duration>) {
        let before = core::mem::replace(&mut self.seen, waited.map(|used| (now, used)));
        let Some(used) = waited else { return self.present() };
        let Some((at, before)) = before else { return };
        // One that does not get the processor leaves things waiting too, but not because it is busy elsewhere.
        let ran = used.saturating_sub(before) * 2 > now - at;
        self.left_waiting = if ran { self.left_waiting + 1 } else { 0 };
        if self.left_waiting < LEFT_WAITING {
            return;
        }
        (self.left_waiting, self.seen) = (0, None);
        let lately = now - self.distrusted < self.distrust;
        self.distrust = if lately { (self.distrust * 2).min(LONGEST_DISTRUST) } else { DISTRUST };
        self.distrusted = now + self.distrust;
        self.end();
    }

    /// Whether a program has been found that waits for its data in memory.
    pub(crate) fn distrusts(&self, now: Time) -> bool {
        now < self.distrusted
    }

    /// The holder drove just before a look.
    pub(crate) fn present(&mut self) {
        (self.left_waiting, self.seen) = (0, None);
    }

    /// The progress thread looks: whether a poller drives the NIC.
    pub(crate) fn look(&mut self) -> bool {
        if self.taken && std::mem::take(&mut self.polls) < KEEP {
            self.end();
        }
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    #[test]
    fn a_poller_takes_it_and_loses_it_by_silence() {
        let mut lease = Lease::default();
        let taken: Vec<u64> = (0..100).filter(|&i| lease.drove(at(5000 + i))).collect();
        assert_eq!(taken, [u64::from(SPINS) - 1]);
        assert!(lease.look());
        assert!(!lease.look());
        assert!(!lease.drove(at(9000)));
    }

    #[test]
    fn a_look_at_who_has_not_taken_it_yet_changes_nothing() {
        let mut lease = Lease::default();
        for i in 1..SPINS {
            assert!(!lease.drove(at(5000)) && !lease.look(), "{i}");
        }
        assert!(lease.drove(at(5000)) && lease.look());
    }

    #[test]
    fn who_finds_completions_at_every_poll_keeps_it() {
        let mut lease = Lease::default();
        while !lease.drove(at(5000)) {}
        for _ in 0..3 {
            (0..KEEP).for_each(|_| lease.polled());
            assert!(lease.look());
        }
    }

    /// So many looks, a millisecond apart, at a holder that is absent while something waits for it.
    fn looks(lease: &mut Lease, now: &mut Time, count: u32, runs: bool) {
        for _ in 0..count {
            *now += Duration::from_millis(1);
            let used = if runs { *now - Time::ZERO } else { Duration::ZERO };
            lease.absent(*now, Some(used));
        }
    }

    #[test]
    fn who_leaves_what_arrives_waiting_does_not_get_it_for_a_while_and_then_a_longer_one() {
        let mut lease = Lease::default();
        let mut now = at(5000);
        for seconds in [1, 2, 4, 8, 16, 16] {
            while !lease.drove(now) {}
            // The first look of a row has nothing to compare with. Once in time is enough to begin anew.
            looks(&mut lease, &mut now, LEFT_WAITING, true);
            lease.absent(now, None);
            looks(&mut lease, &mut now, LEFT_WAITING, true);
            lease.present();
            looks(&mut lease, &mut now, LEFT_WAITING, true);
            assert!(lease.taken());
            looks(&mut lease, &mut now, 1, true);
            assert!(!lease.taken());
            let until = now + Duration::from_secs(seconds);
            assert!((0..100).all(|_| !lease.drove(Time::from_nanos(until.as_nanos() - 1))));
            now = until;
        }
    }

    #[test]
    fn who_does_not_get_the_processor_keeps_it() {
        let mut lease = Lease::default();
        let mut now = at(5000);
        while !lease.drove(now) {}
        looks(&mut lease, &mut now, 100, false);
        assert!(lease.taken());
    }

    #[test]
    fn slow_polls_and_polls_between_waits_do_not_take_it() {
        let mut lease = Lease::default();
        assert!((0..1000).all(|i| !lease.drove(at(5000 + i * 600))));
        for i in 0..1000 {
            assert!(!lease.drove(at(900_000 + i)));
            lease.end();
        }
    }
}
