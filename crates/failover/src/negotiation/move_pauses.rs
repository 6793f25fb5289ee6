use core::time::Duration;

use mitra_verbs::Time;

const MOVES_WITHOUT_PAUSE: u32 = 8;

/// The pauses between moves. Each move uses up an epoch and interrupts the traffic. If the rails of
/// a vQP fail in turn, the vQP therefore waits longer before each further move. The active rail may
/// recover during the wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct MovePauses {
    pub(super) last_move: Time,
    /// The number of moves in a row, each less than `calm` after the move before it.
    moves: u32,
}

impl MovePauses {
    /// After a time of `calm` without a move, moves have no pauses again.
    pub(super) fn on_move(&mut self, now: Time, calm: Duration) {
        let is_calm = now.saturating_since(self.last_move) >= calm;
        self.moves = if is_calm { 1 } else { self.moves.saturating_add(1) };
        self.last_move = now;
    }

    /// The earliest time of the next move. Pauses double from `first` to `max`.
    pub(super) fn next_move(&self, first: Duration, max: Duration) -> Time {
        let doublings = match self.moves.checked_sub(MOVES_WITHOUT_PAUSE) {
            None | Some(0) => return Time::ZERO,
            Some(moves) => (moves - 1).min(16),
        };
        self.last_move + (first * (1 << doublings)).min(max)
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
            pauses.on_move(now, calm);
            let expected = if pause == 0 { Time::ZERO } else { now + millis(pause) };
            assert_eq!(pauses.next_move(millis(1), millis(10)), expected);
            now += millis(99);
        }
        pauses.on_move(now + millis(1), calm);
        assert_eq!(pauses.next_move(millis(1), millis(10)), Time::ZERO);
    }
}
