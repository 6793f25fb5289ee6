use core::time::Duration;

use mitra_verbs::Time;

const MOVES_WITHOUT_PAUSE: u32 = 8;

/// The pauses between moves. Each move uses up an epoch and interrupts the traffic. If the rails of
/// a vQP fail in turn, the vQP therefore waits longer before each further move. The active rail may
/// recover during the wait.
///
/// A failback, and the move that leaves its rail again, neither count nor wait here: each such pair
/// of moves waits for the delay of the failback, which doubles itself
/// ([`Preference`](super::Preference)). Otherwise a vQP whose preferred rail has flapped would wait
/// although another rail works.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct MovePauses {
    pub(super) last_move: Time,
    /// The time of the last move that counts.
    last_counted: Time,
    /// The number of counted moves in a row, each less than `calm` after the one before it.
    moves: u32,
    /// Whether the last move was a failback.
    is_back: bool,
}

impl MovePauses {
    /// After a time of `calm` without a counted move, moves have no pauses again.
    pub(super) fn on_move(&mut self, now: Time, calm: Duration, is_failback: bool) {
        self.last_move = now;
        let was_back = core::mem::replace(&mut self.is_back, is_failback);
        if is_failback || was_back {
            return;
        }
        let is_calm = now.saturating_since(self.last_counted) >= calm;
        self.moves = if is_calm { 1 } else { self.moves.saturating_add(1) };
        self.last_counted = now;
    }

    /// The earliest time of the next move. Pauses double from `first` to `max`.
    pub(super) fn next_move(&self, first: Duration, max: Duration) -> Time {
        let doublings = match self.moves.checked_sub(MOVES_WITHOUT_PAUSE) {
            _ if self.is_back => return Time::ZERO,
            None | Some(0) => return Time::ZERO,
            Some(moves) => (moves - 1).min(16),
        };
        self.last_counted + (first * (1 << doublings)).min(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_in_a_row_wait_ever_longer_until_a_calm_time() {
        let millis = Duration::from_millis;
        let (calm, mut pauses) = (millis(100), MovePauses::default());
        let mut now = Time::ZERO + calm;
        for pause in [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 10, 10] {
            pauses.on_move(now, calm, false);
            let expected = if pause == 0 { Time::ZERO } else { now + millis(pause) };
            assert_eq!(pauses.next_move(millis(1), millis(10)), expected);
            now += millis(99);
        }
        pauses.on_move(now + millis(1), calm, false);
        assert_eq!(pauses.next_move(millis(1), millis(10)), Time::ZERO);
    }

    #[test]
    fn failback_and_the_move_that_leaves_its_rail_do_not_count() {
        let millis = Duration::from_millis;
        let (calm, mut pauses, mut now) = (millis(100), MovePauses::default(), Time::ZERO);
        let next = |pauses: &MovePauses| pauses.next_move(millis(1), millis(10));
        for number in 0..40 {
            now += millis(1);
            pauses.on_move(now, calm, number % 2 == 1);
            assert_eq!(next(&pauses), Time::ZERO, "move {number}");
        }
        // The last failback has been left, so these moves count, as the first one did.
        (0..9).for_each(|_| pauses.on_move(now, calm, false));
        assert_eq!(next(&pauses), now + millis(1));
        // A failback that the peer has proposed during the pause.
        pauses.on_move(now, calm, true);
        assert_eq!(next(&pauses), Time::ZERO);
        pauses.on_move(now, calm, false);
        assert_eq!(next(&pauses), now + millis(1));
    }
}
