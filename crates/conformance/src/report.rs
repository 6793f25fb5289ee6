use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cases::{CASES, Case};
use crate::{Fabric, Stop};

/// How a case ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The NIC does what the case expects.
    Passed,
    /// The NIC does not offer this, and says so by
    /// [`Error::Unsupported`](mitra_verbs::Error::Unsupported) or by its attributes.
    Refused(String),
    /// The NIC does something else, or does not answer.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => f.write_str("passed"),
            Outcome::Refused(what) => write!(f, "not offered by this NIC: {what}"),
            Outcome::Failed(why) => write!(f, "FAILED: {why}"),
        }
    }
}

/// An outcome other than [`Outcome::Passed`] that is expected of a kind of NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    case: &'static str,
    is_refusal: bool,
    text: &'static str,
    why: &'static str,
}

impl Difference {
    /// A case whose operation the NIC does not offer. The refusal contains `what`.
    pub const fn refused(case: &'static str, what: &'static str) -> Difference {
        Difference { case, is_refusal: true, text: what, why: "" }
    }

    /// A case that fails on this kind of NIC, and why the NIC does otherwise. The failure contains
    /// `text`.
    pub const fn fails(case: &'static str, text: &'static str, why: &'static str) -> Difference {
        Difference { case, is_refusal: false, text, why }
    }

    /// Returns the name of the case.
    pub const fn case(&self) -> &'static str {
        self.case
    }

    fn matches(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Passed => false,
            Outcome::Refused(what) => self.is_refusal && what.contains(self.text),
            Outcome::Failed(why) => !self.is_refusal && why.contains(self.text),
        }
    }
}

/// The outcomes of all cases over one kind of NIC. Its text has a line for each case.
#[derive(Debug)]
pub struct Report {
    /// The name of the fabric.
    pub fabric: String,
    /// The name and the outcome of each case, in the order of [`CASES`].
    pub outcomes: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// Compares the outcomes with those that are expected, and returns a line for each that is not:
    /// a failure or refusal without a difference, and a difference that did not occur.
    pub fn unexpected(&self, differences: &[Difference]) -> Vec<String> {
        let unknown = differences.iter().filter(|d| !self.outcomes.iter().any(|(name, _)| *name == d.case));
        let mut lines: Vec<_> = unknown.map(|d| format!("{}: no case has this name", d.case)).collect();
        for (name, outcome) in &self.outcomes {
            let expected: Vec<_> = differences.iter().filter(|d| d.case == *name).collect();
            match expected[..] {
                [] if *outcome == Outcome::Passed => {}
                [] => lines.push(format!("{name}: {outcome}")),
                [one] if one.matches(outcome) => {}
                [one] => lines.push(format!("{name}: {outcome}; expected: {one}")),
                [..] => lines.push(format!("{name}: has several differences")),
            }
        }
        lines
    }

    /// Prints the report, and fails if an outcome is unexpected.
    ///
    /// # Panics
    /// If [`Report::unexpected`] is not empty. The message has its lines.
    pub fn assert_expected(&self, differences: &[Difference]) {
        println!("{self}");
        let unexpected = self.unexpected(differences);
        assert!(unexpected.is_empty(), "{}:\n{}", self.fabric, unexpected.join("\n"));
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_refusal {
            true => write!(f, "not offered: {}", self.text),
            false => write!(f, "a failure with \"{}\", because {}", self.text, self.why),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.fabric)?;
        self.outcomes.iter().try_for_each(|(name, outcome)| writeln!(f, "  {name}: {outcome}"))
    }
}

/// Runs one case.
pub fn run(fabric: &dyn Fabric, case: &Case) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| (case.run)(fabric))) {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(Stop::Refused(what))) => Outcome::Refused(what),
        Ok(Err(Stop::Failed(why))) => Outcome::Failed(why),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Outcome::Failed(text.unwrap_or_else(|| "a panic without a text".to_owned()))
        }
    }
}

/// Runs all cases whose names contain `filter`, in the order of [`CASES`].
pub fn run_all(fabric: &dyn Fabric, filter: &str) -> Report {
    let cases = CASES.iter().filter(|case| case.name.contains(filter));
    let outcomes = cases.map(|case| (case.name, run(fabric, case))).collect();
    Report { fabric: fabric.name(), outcomes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[(&'static str, Outcome)]) -> Report {
        Report { fabric: "test".to_owned(), outcomes: outcomes.to_vec() }
    }

    #[test]
    fn differences_are_checked_both_ways() {
        let refused = |what: &str| Outcome::Refused(what.to_owned());
        let failed = |why: &str| Outcome::Failed(why.to_owned());
        let report = report(&[
            ("a", Outcome::Passed),
            ("b", refused("inline data")),
            ("c", failed("left: 1, right: 2")),
        ]);
        let b = Difference::refused("b", "inline");
        let c = Difference::fails("c", "left: 1", "the NIC counts otherwise");
        assert_eq!(report.unexpected(&[b, c]), [""; 0]);
        assert_eq!(
            report.unexpected(&[]),
            ["b: not offered by this NIC: inline data", "c: FAILED: left: 1, right: 2"]
        );
        let a = Difference::refused("a", "inline");
        assert_eq!(report.unexpected(&[a, b, c]), ["a: passed; expected: not offered: inline"]);
        let other = Difference::refused("b", "windows");
        assert_eq!(report.unexpected(&[other, c]).len(), 1);
        let failure = Difference::fails("b", "inline", "it fails");
        assert_eq!(report.unexpected(&[failure, c]).len(), 1);
        assert_eq!(report.unexpected(&[b, c, c]), ["c: has several differences"]);
        let gone = Difference::refused("gone", "x");
        assert_eq!(report.unexpected(&[gone, b, c]), ["gone: no case has this name"]);
    }
}
