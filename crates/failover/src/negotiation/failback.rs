//! Failback: the move to the preferred rail while the active rail works.

use core::time::Duration;

use mitra_verbs::Time;

use super::{Phase, RailNegotiation};

/// The rail to which a vQP moves back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Preference {
    rail: u8,
    /// The time for which both ends must have been able to use the rail.
    delay: Duration,
    /// The time since which both ends can use the rail, as far as this end knows. `None` if they cannot, or if it is active.
    usable_since: Option<Time>,
}

impl RailNegotiation {
    /// Makes the vQP move to `rail` when both ends have been able to use it for `delay`.
    pub fn prefer(&mut self, rail: usize, delay: Duration) {
        self.preference = Some(Preference { rail: rail as u8, delay, usable_since: None });
    }

    /// Proposes the preferred rail if its time has come. The vQP stays on the active rail if the peer refuses.
    pub fn drive_failback(&mut self, now: Time) {
        let Some(mut preference) = self.preference else { return };
        let is_calm = self.is_move_confirmed() && !self.is_stranded() && self.active != preference.rail;
        if is_calm && self.is_usable(preference.rail) {
            let since = *preference.usable_since.get_or_insert(now);
            if now.saturating_since(since) >= preference.delay && self.may_begin_move(now) {
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

    /// The time at which [`RailNegotiation::drive_failback`] proposes the preferred rail. `None` if both ends cannot use it, or if it is active.
    pub fn failback_at(&self) -> Option<Time> {
        let preference = self.preference?;
        Some((preference.usable_since? + preference.delay).max(self.pause_end()))
    }
}
