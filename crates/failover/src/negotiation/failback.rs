//! Failback: the move to the preferred rail while the active rail works.

use core::time::Duration;

use mitra_verbs::Time;

use super::{Phase, RailNegotiation};

/// The longest pause before a failback. A longer delay or peer timeout replaces it.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A shorter delay doubles from here, because 0 would never grow.
const SHORTEST_DOUBLED: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Preference {
    rail: u8,
    /// How long both ends must have been able to use the rail.
    delay: Duration,
    /// The time since which both ends can use the rail, as far as this end knows. `None` if the
    /// rail is active.
    usable_since: Option<Time>,
    is_away: bool,
    /// The time of the vQP's return to the rail. `None` if the vQP is away or never left.
    back_since: Option<Time>,
    /// The number of short stays on the rail in a row. Each doubles the delay of the next failback.
    /// Otherwise a rail that fails again and again, or a home rail that another vQP cannot use,
    /// would cost an epoch each time.
    short_stays: u32,
}

impl Preference {
    /// `delay`, doubled for each short stay.
    fn pause(&self, peer_timeout: Duration) -> Duration {
        if self.short_stays == 0 {
            return self.delay;
        }
        let longest = LONGEST_PAUSE.max(self.delay).max(peer_timeout);
        self.delay.max(SHORTEST_DOUBLED).saturating_mul(1 << self.short_stays.min(30)).min(longest)
    }

    fn note_active(&mut self, now: Time, is_on_rail: bool, peer_timeout: Duration) {
        if is_on_rail && core::mem::take(&mut self.is_away) {
            self.back_since = Some(now);
        }
        let long_stay = self.pause(peer_timeout).max(peer_timeout);
        if self.back_since.is_some_and(|since| now.saturating_since(since) >= long_stay) {
            (self.back_since, self.short_stays) = (None, 0);
        }
        if !is_on_rail {
            self.is_away = true;
            self.short_stays = self.short_stays.saturating_add(u32::from(self.back_since.take().is_some()));
        }
    }
}

impl RailNegotiation {
    /// Makes the vQP move to `rail` when both ends have been able to use it for `delay`. Each short
    /// stay on the rail doubles the delay of the next move to it, up to a limit. A stay that is as
    /// long as this delay and the peer timeout ends the doubling.
    pub fn prefer(&mut self, rail: usize, delay: Duration) {
        let rail = rail as u8;
        self.preference = Some(Preference {
            rail,
            delay,
            usable_since: None,
            is_away: false,
            back_since: None,
            short_stays: 0,
        });
    }

    /// Proposes the preferred rail when it is due. The vQP stays on the active rail if the peer
    /// refuses.
    pub fn drive_failback(&mut self, now: Time) {
        let Some(mut preference) = self.preference else { return };
        preference.note_active(now, self.active == preference.rail, self.peer_timeout);
        let is_calm = self.is_move_confirmed() && !self.is_stranded() && self.active != preference.rail;
        if is_calm && self.is_usable(preference.rail) {
            let since = *preference.usable_since.get_or_insert(now);
            if now.saturating_since(since) >= preference.pause(self.peer_timeout) && self.may_begin_move(now)
            {
                preference.usable_since = None; // after a refusal, the delay begins again
                self.propose_rail(now, preference.rail);
                if let Phase::Moving(m) = &mut self.phase {
                    m.is_failback = true;
                }
            }
        } else {
            preference.usable_since = None;
        }
        self.preference = Some(preference);
    }

    /// Whether the move in progress leads to the preferred rail although, as far as this end knows,
    /// the active one works.
    pub fn is_failback(&self) -> bool {
        matches!(&self.phase, Phase::Moving(m) if m.is_failback)
    }

    /// Whether this end treats a proposal of `rail` as a failback: the active rail works here, and
    /// both ends have been able to use `rail` for half of the delay. The proposal itself does not
    /// contain its reason.
    pub(super) fn is_failback_due(&self, now: Time, rail: u8) -> bool {
        let Some(preference) = self.preference.filter(|preference| preference.rail == rail) else {
            return false;
        };
        let half = preference.pause(self.peer_timeout) / 2;
        !self.has_active_failed()
            && preference.usable_since.is_some_and(|since| now.saturating_since(since) >= half)
    }

    /// The time at which [`RailNegotiation::drive_failback`] proposes the preferred rail. `None` if
    /// an end cannot use the rail, or if the rail is active.
    pub fn failback_at(&self) -> Option<Time> {
        let preference = self.preference?;
        Some((preference.usable_since? + preference.pause(self.peer_timeout)).max(self.pause_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn preference(short_stays: u32) -> Preference {
        let delay = Duration::from_secs(1);
        Preference { rail: 0, delay, usable_since: None, is_away: false, back_since: None, short_stays }
    }

    #[test]
    fn each_short_stay_doubles_the_pause_until_a_long_one() {
        let mut preference = preference(0);
        for (second, is_on_rail, pause) in [
            (0, false, 1), // the first stay does not count
            (1, true, 1),
            (2, false, 2),
            (3, true, 2),
            (4, false, 4),
            (10, true, 4),
            (14, true, 4),
            (15, true, 1), // the vQP has been on the rail for the peer timeout
            (16, false, 1),
        ] {
            preference.note_active(Time::ZERO + Duration::from_secs(second), is_on_rail, TIMEOUT);
            assert_eq!(preference.pause(TIMEOUT), Duration::from_secs(pause), "at {second} s");
        }
    }

    #[test]
    fn pause_of_a_delay_of_zero_grows() {
        let of = |short_stays| Preference { delay: Duration::ZERO, ..preference(short_stays) };
        assert_eq!(
            [0, 1, 2].map(|short_stays| of(short_stays).pause(TIMEOUT)),
            [0, 2, 4].map(Duration::from_millis)
        );
    }

    #[test]
    fn pause_has_a_limit() {
        assert_eq!(preference(100).pause(TIMEOUT), LONGEST_PAUSE);
        assert_eq!(preference(100).pause(2 * LONGEST_PAUSE), 2 * LONGEST_PAUSE);
    }
}
