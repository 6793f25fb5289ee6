//! Vertex expansion as an exact ratio, and the bounds on f that follow from it, in integer
//! arithmetic.

use std::cmp::Ordering;

/// The ratio |∂S|/|S| of a set S. Ratios are ordered by value.
#[derive(Clone, Copy, Debug)]
pub struct ExpansionRatio {
    /// |∂S|, the number of vertices outside S with a neighbour in S.
    pub boundary: u64,
    /// |S|, at least 1.
    pub size: u64,
}

impl ExpansionRatio {
    /// Returns the nearest `f64`, for display and JSON.
    pub fn value(self) -> f64 {
        self.boundary as f64 / self.size as f64
    }

    /// Returns the bound of the theorem (Aguilera et al., PODC 2018): the greatest f strictly below
    /// (1 − 1/(2(1+h)))·n.
    pub fn bound_f(self, n: usize) -> usize {
        let (a, b) = (u128::from(self.boundary), u128::from(self.size));
        // (1 − b/(2(a+b)))·n = (2a+b)·n / (2(a+b)) is at least n/2, so an f below it always exists.
        greatest_below((2 * a + b) * n as u128, 2 * (a + b)).unwrap_or(0)
    }

    /// Returns the bound with h in place of 1 + h, as a slide about the theorem writes it: the
    /// greatest f strictly below (1 − 1/(2h))·n, or `None` if there is none. docs/topology.md
    /// explains why this reading is wrong.
    pub fn misread_bound(self, n: usize) -> Option<usize> {
        let (a, b) = (u128::from(self.boundary), u128::from(self.size));
        greatest_below((2 * a).checked_sub(b)? * n as u128, 2 * a)
    }

    /// Returns the ratio in lowest terms.
    pub fn in_lowest_terms(self) -> ExpansionRatio {
        let mut gcd = (self.size, self.boundary);
        while gcd.1 != 0 {
            gcd = (gcd.1, gcd.0 % gcd.1);
        }
        ExpansionRatio { boundary: self.boundary / gcd.0, size: self.size / gcd.0 }
    }
}

/// Returns the greatest integer strictly below `numerator / denominator`, or `None` if it is
/// negative or the denominator is 0.
fn greatest_below(numerator: u128, denominator: u128) -> Option<usize> {
    if denominator == 0 {
        return None;
    }
    numerator.div_ceil(denominator).checked_sub(1).map(|f| f as usize)
}

impl Ord for ExpansionRatio {
    fn cmp(&self, other: &ExpansionRatio) -> Ordering {
        let cross = |a: ExpansionRatio, b: ExpansionRatio| u128::from(a.boundary) * u128::from(b.size);
        cross(*self, *other).cmp(&cross(*other, *self))
    }
}

impl PartialOrd for ExpansionRatio {
    fn partial_cmp(&self, other: &ExpansionRatio) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ExpansionRatio {
    fn eq(&self, other: &ExpansionRatio) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ExpansionRatio {}

impl std::fmt::Display for ExpansionRatio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ExpansionRatio { boundary, size } = self.in_lowest_terms();
        if size == 1 { write!(f, "{boundary}") } else { write!(f, "{boundary}/{size}") }
    }
}
