//! The result of a qualification, and what follows from it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The fences at most for each that was asked for, as not every fence cuts its stream off.
pub(crate) const MAX_FENCES: u32 = 8;

/// What the fences of one kind of stream showed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceCounts {
    /// The fences.
    pub fences: u32,
    /// The fences that cut the stream off: in the middle of a WRITE, or before the last atomic.
    /// Only these can show a PSN that runs ahead.
    pub cut_off: u32,
    /// The fences after which the PSN counted exactly the packets in memory.
    pub equal: u32,
    /// The fences after which the PSN counted a packet that was not in memory. Failover would lose
    /// its operation.
    pub ahead: u32,
    /// The fences after which the PSN did not count a packet that was in memory. Failover would
    /// repeat its operation, and an atomic takes effect twice.
    pub behind: u32,
    /// The fences after which the PSN changed behind the marker.
    pub psn_changed: u32,
    /// The fences after which memory changed between the return of the change to ERR and the
    /// marker. Hardware does that, so failover waits for the marker.
    pub late_before_marker: u32,
    /// The fences after which memory changed behind the marker.
    pub late_after_marker: u32,
    /// The fences whose marker did not arrive in time.
    pub missing_markers: u32,
}

/// What [`qualify`](crate::qualify) found out about a NIC as responder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Qualification {
    /// The fences under WRITEs of 64 KiB.
    pub writes: FenceCounts,
    /// The fences under atomics. There are none if the NIC has no atomics.
    pub atomics: FenceCounts,
}

impl FenceCounts {
    /// Whether the counts can be those of one qualification.
    pub(crate) fn is_possible(&self) -> bool {
        let FenceCounts {
            fences,
            cut_off,
            equal,
            ahead,
            behind,
            psn_changed,
            late_before_marker,
            late_after_marker,
            missing_markers,
        } = *self;
        let parts = [
            cut_off,
            equal,
            ahead,
            behind,
            psn_changed,
            late_before_marker,
            late_after_marker,
            missing_markers,
        ];
        parts.into_iter().all(|part| part <= fences)
    }
}

/// How far failover may trust a NIC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// A change to ERR with its flushed marker is not a fence. The NIC cannot be used as it is.
    NoFence,
    /// The fence holds, and the PSN is not exact. The completion log and the receiver record
    /// decide.
    RecordsOnly,
    /// Too few fences cut a stream off. The records decide until a qualification shows more.
    Inconclusive,
    /// The fence holds, and the PSN counts exactly the packets in memory: it is evidence.
    PsnExact,
}

impl Verdict {
    /// Whether failover may decide by the responder's PSN.
    pub fn permits_psn(self) -> bool {
        self == Verdict::PsnExact
    }

    /// Returns the name for scripts.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::NoFence => "no-fence",
            Verdict::RecordsOnly => "records-only",
            Verdict::Inconclusive => "inconclusive",
            Verdict::PsnExact => "psn-exact",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::NoFence => "not usable: memory changed behind the fence, or its marker did not arrive",
            Verdict::RecordsOnly => "log and receiver record only: the responder PSN is not exact",
            Verdict::Inconclusive => "log and receiver record only: too few fences cut a message off",
            Verdict::PsnExact => "the responder PSN is exact",
        })
    }
}

impl Qualification {
    /// Returns what follows from the counts.
    ///
    /// The PSN must neither be ahead of memory nor behind it. A packet that it counts without data
    /// would be lost; an atomic that it does not count would be executed again.
    pub fn verdict(&self) -> Verdict {
        let kinds = [self.writes, self.atomics];
        if kinds.iter().any(|counts| counts.late_after_marker > 0 || counts.missing_markers > 0) {
            Verdict::NoFence
        } else if kinds.iter().any(|counts| counts.equal < counts.fences || counts.psn_changed > 0) {
            Verdict::RecordsOnly
        } else if self.writes.fences == 0
            || kinds.iter().any(|counts| counts.cut_off < counts.fences / MAX_FENCES)
        {
            Verdict::Inconclusive
        } else {
            Verdict::PsnExact
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: FenceCounts = FenceCounts {
        fences: 20,
        cut_off: 15,
        equal: 20,
        ahead: 0,
        behind: 0,
        psn_changed: 0,
        late_before_marker: 3,
        late_after_marker: 0,
        missing_markers: 0,
    };

    fn verdict(change: impl Fn(&mut FenceCounts)) -> [Verdict; 2] {
        let mut changed = EXACT;
        change(&mut changed);
        [(changed, EXACT), (EXACT, changed)]
            .map(|(writes, atomics)| Qualification { writes, atomics }.verdict())
    }

    #[test]
    fn one_difference_of_either_kind_decides() {
        use Verdict::{Inconclusive, NoFence, PsnExact, RecordsOnly};

        assert_eq!(verdict(|_| ()), [PsnExact; 2]);
        assert_eq!(verdict(|counts| (counts.equal, counts.ahead) = (19, 1)), [RecordsOnly; 2]);
        assert_eq!(verdict(|counts| (counts.equal, counts.behind) = (19, 1)), [RecordsOnly; 2]);
        assert_eq!(verdict(|counts| counts.psn_changed = 1), [RecordsOnly; 2]);
        assert_eq!(verdict(|counts| counts.late_after_marker = 1), [NoFence; 2]);
        assert_eq!(verdict(|counts| counts.missing_markers = 1), [NoFence; 2]);
        assert_eq!(verdict(|counts| counts.cut_off = 1), [Inconclusive; 2]);
    }

    #[test]
    fn nic_without_atomics_can_be_exact_and_one_without_fences_cannot() {
        let none = FenceCounts::default();
        assert!(Qualification { writes: EXACT, atomics: none }.verdict().permits_psn());
        assert_eq!(Qualification { writes: none, atomics: EXACT }.verdict(), Verdict::Inconclusive);
        assert_eq!(Qualification::default().verdict(), Verdict::Inconclusive);
    }
}
