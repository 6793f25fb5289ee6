//! Expansion as an exact ratio, and the two forms of the bound on f: whole numbers only, nothing is rounded.

use std::cmp::Ordering;

/// A vertex expansion: `boundary` vertices around `size` of them. Ordered by value.
#[derive(Clone, Copy, Debug)]
pub struct ExpansionRatio {
    /// |∂S|.
    pub boundary: u64,
    /// |S|, at least 1.
    pub size: u64,
}

impl ExpansionRatio {
    /// The nearest `f64`, for eyes and for JSON.
    pub fn value(self) -> f64 {
        self.boundary as f64 / self.size as f64
    }

    /// The theorem's bound (Aguilera et al., PODC 2018): the greatest f strictly below (1 − 1/(2(1+h)))·n.
    pub fn bound_f(self, n: usize) -> usize {
        let (a, b) = (u128::from(self.boundary), u128::from(self.size));
        // (1 − b/(2(a+b)))·n = (2a+b)·n / (2(a+b)), at least n/2: there is always an f below it.
        below((2 * a + b) * n as u128, 2 * (a + b)).unwrap_or(0)
    }

    /// The bound as the slide writes it: the greatest f strictly below (1 − 1/(2h))·n; none if not even 0 is.
    pub fn misread_bound(self, n: usize) -> Option<usize> {
        let (a, b) = (u128::from(self.boundary), u128::from(self.size));
        below((2 * a).checked_sub(b)? * n as u128, 2 * a)
    }

    /// The ratio in lowest terms.
    pub fn in_lowest_terms(self) -> ExpansionRatio {
        let mut gcd = (self.size, self.boundary);
        while gcd.1 != 0 {
            gcd = (gcd.1, gcd.0 % gcd.1);
        }
        ExpansionRatio { boundary: self.boundary / gcd.0, size: self.size / gcd.0 }
    }
}

/// The greatest whole number strictly below `numerator / denominator`; none if that is negative, or there is no quotient.
fn below(numerator: u128, denominator: u128) -> Option<usize> {
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
