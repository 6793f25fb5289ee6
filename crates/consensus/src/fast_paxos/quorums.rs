//! The quorum sizes of Fast Paxos.

/// The number of acceptors, and the quorum sizes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quorums {
    pub(super) processes: u8,
    /// The size of a quorum of a classic ballot. Any two classic quorums intersect.
    pub(super) classic: usize,
    /// The size of a quorum of the fast ballot. Any two fast quorums and any classic quorum have a
    /// common acceptor.
    pub(super) fast: usize,
}

impl Quorums {
    /// Returns the quorum sizes for `processes` (n) acceptors. Up to `crashes` (f) of them may
    /// crash; the fast ballot still decides if at most `fast_crashes` (e) have crashed.
    ///
    /// Returns `None` unless n > 2f, n > 2e + f and e ≤ f.
    pub fn new(processes: u8, crashes: u8, fast_crashes: u8) -> Option<Quorums> {
        let (n, f, e) = (usize::from(processes), usize::from(crashes), usize::from(fast_crashes));
        let quorums = Quorums { processes, classic: n.checked_sub(f)?, fast: n.checked_sub(e)? };
        (n > 2 * f && n > 2 * e + f && e <= f).then_some(quorums)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns all sets of `len` out of `n` acceptors, as bit masks.
    pub(in super::super) fn sets(n: u8, len: usize) -> Vec<u16> {
        (0..1 << n).filter(|set: &u16| set.count_ones() as usize == len).collect()
    }

    #[test]
    fn quorums_exist_exactly_where_they_intersect() {
        for n in 1..=9 {
            for (f, e) in (0..=n).flat_map(|f| (0..=f).map(move |e| (f, e))) {
                let (classic, fast) = (sets(n, usize::from(n - f)), sets(n, usize::from(n - e)));
                let classic_meet = classic.iter().all(|a| classic.iter().all(|b| a & b != 0));
                let mut two_fast: Vec<u16> =
                    fast.iter().flat_map(|a| fast.iter().map(move |b| a & b)).collect();
                two_fast.sort();
                two_fast.dedup();
                let fast_meet = two_fast.iter().all(|ab| classic.iter().all(|c| ab & c != 0));
                let quorums = Quorums::new(n, f, e);
                assert_eq!(quorums.is_some(), classic_meet && fast_meet, "n={n} f={f} e={e}");
            }
        }
    }
}
