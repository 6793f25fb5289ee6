//! Axes of drawings.

/// Maps values to positions in a drawing.
pub struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_logarithmic: bool,
}

impl Axis {
    /// Creates an axis with `low` at the position `from` and `high` at `to`. If `high` is not
    /// above `low`, the axis ends one above `low`.
    pub fn linear([low, high]: [f64; 2], [from, to]: [f64; 2]) -> Axis {
        Axis { low, high: if high > low { high } else { low + 1.0 }, from, to, is_logarithmic: false }
    }

    /// Creates a logarithmic axis, from a power of ten at or below `low` to one at or above `high`.
    pub fn logarithmic([low, high]: [f64; 2], [from, to]: [f64; 2]) -> Axis {
        let low = if low > 0.0 { low.log10().floor() } else { 0.0 };
        let high = if high > 0.0 { high.log10().ceil() } else { 0.0 };
        let (low, high) = (10_f64.powf(low), 10_f64.powf(high.max(low + 1.0)));
        Axis { low, high, from, to, is_logarithmic: true }
    }

    /// Returns the difference between the ends.
    pub fn range(&self) -> f64 {
        self.high - self.low
    }

    /// Returns whether a value is between the ends.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns the position of a value. Values outside the axis are at its ends.
    pub fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let part = if self.is_logarithmic {
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / self.range()
        };
        self.from + part * (self.to - self.from)
    }

    /// Returns the multiples of `step` between the ends; for a logarithmic axis, the powers of ten.
    pub fn ticks(&self, step: f64) -> Vec<f64> {
        if self.is_logarithmic {
            let powers = self.low.log10().round() as i32..=self.high.log10().round() as i32;
            return powers.map(|power| 10_f64.powi(power)).collect();
        }
        let first = (self.low / step).ceil() as i64;
        (first..).map(|count| count as f64 * step).take_while(|&tick| tick <= self.high).collect()
    }
}

/// Returns the smallest 1, 2 or 5 times a power of ten that is at least `least`, which is positive.
pub fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|&step| step >= least)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_not_below_the_least() {
        let steps = [1.0, 1.1, 2.0, 2.1, 5.0, 7.0, 84.0, 100.0, 0.03, 1_000.0, 1_000_000.0].map(round_step);
        assert_eq!(steps, [1.0, 2.0, 2.0, 5.0, 5.0, 10.0, 100.0, 100.0, 0.05, 1_000.0, 1_000_000.0]);
    }

    #[test]
    fn ticks_are_multiples_between_the_ends() {
        let axis = Axis::linear([-3.0, 18.0], [0.0, 210.0]);
        assert_eq!(axis.ticks(5.0), [0.0, 5.0, 10.0, 15.0]);
        assert_eq!([-3.0, 0.0, 18.0, 99.0].map(|value| axis.at(value)), [0.0, 30.0, 210.0, 210.0]);
    }

    #[test]
    fn logarithmic_axis_ends_at_powers_of_ten() {
        let axis = Axis::logarithmic([20.0, 2_000.0], [300.0, 0.0]);
        assert_eq!(axis.ticks(1.0), [10.0, 100.0, 1_000.0, 10_000.0]);
        assert!((axis.at(100.0) - 200.0).abs() < 1e-9);
    }
}
