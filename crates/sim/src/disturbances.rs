//! What the faults of a world did to its rails, for the count of false alarms.

use std::collections::BTreeMap;

use mitra_verbs::Time;

/// The injected faults and the losses of each rail.
#[derive(Clone, Default, Debug)]
pub(crate) struct Disturbances(BTreeMap<u8, RailDisturbances>);

#[derive(Clone, Copy, Default, Debug)]
struct RailDisturbances {
    /// The first time at which a NIC of the rail failed, lost its link, got another address, was
    /// reset or held placements back.
    first_failure: Option<Time>,
    /// The last time at which a packet was lost, late or corrupted.
    last_loss: Option<Time>,
}

impl Disturbances {
    pub(crate) fn on_failure(&mut self, rail: u8, now: Time) {
        self.0.entry(rail).or_default().first_failure.get_or_insert(now);
    }

    pub(crate) fn on_loss(&mut self, rail: u8, at: Time) {
        let last = &mut self.0.entry(rail).or_default().last_loss;
        *last = (*last).max(Some(at));
    }

    /// Returns whether the rail had a failure before `to`, or lost a packet after `from`.
    pub(crate) fn affected(&self, rail: u8, from: Time, to: Time) -> bool {
        self.0.get(&rail).is_some_and(|of_rail| {
            of_rail.first_failure.is_some_and(|at| at <= to) || of_rail.last_loss.is_some_and(|at| at >= from)
        })
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn failures_count_for_ever_and_losses_for_a_time() {
        let at = |micros: u64| Time::ZERO + Duration::from_micros(micros);
        let mut disturbances = Disturbances::default();
        disturbances.on_loss(0, at(50));
        disturbances.on_loss(0, at(40)); // a packet that is late until 50 may be lost before
        disturbances.on_failure(1, at(30));
        disturbances.on_failure(1, at(90));
        for (rail, from, to, expected) in [
            (0, 45, 100, true),
            (0, 50, 100, true),
            (0, 51, 100, false),
            (1, 95, 100, true),
            (1, 20, 29, false),
            (2, 0, 100, false),
        ] {
            assert_eq!(disturbances.affected(rail, at(from), at(to)), expected, "rail {rail} from {from}");
        }
    }
}
