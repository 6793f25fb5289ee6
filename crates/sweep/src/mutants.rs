//! The search for a mutant: its workload, seed by seed.

use core::fmt;
use core::ops::Range;

use mitra_mutants::Mutant;

use crate::Workload;

/// The result of the search for a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MutantSearch {
    /// The seed after the last seed that ran, which found the mutant if any seed did. For a search
    /// from seed 0, the number of seeds that ran.
    pub seeds: u64,
    /// The checker that found the mutant, and the text of its finding. `None` if the mutant
    /// survived.
    pub found: Option<(&'static str, String)>,
}

/// The reason why a search shows nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SearchError {
    /// No mutant has this name.
    NoSuchMutant(String),
    /// The mutant names a workload that does not exist.
    NoSuchWorkload(String),
    /// The workload finds something at this seed without the mutant too.
    FailsWithoutMutant {
        seed: u64,
        /// The description of the finding.
        detail: String,
    },
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SearchError::NoSuchMutant(name) => {
                write!(f, "there is no mutant {name:?}; `mitra sim --mutants` lists them")
            }
            SearchError::NoSuchWorkload(text) => f.write_str(text),
            SearchError::FailsWithoutMutant { seed, detail } => {
                write!(
                    f,
                    "seed {seed} fails without the mutant too, so it shows nothing; mend that first: {detail}"
                )
            }
        }
    }
}

impl std::error::Error for SearchError {}

/// Returns the mutant with this name.
///
/// # Errors
/// [`SearchError::NoSuchMutant`].
pub fn mutant_by_name(name: &str) -> Result<Mutant, SearchError> {
    let found = Mutant::ALL.iter().copied().find(|mutant| mutant.row().name == name);
    found.ok_or_else(|| SearchError::NoSuchMutant(name.to_owned()))
}

/// Runs the workload of a mutant from these seeds until a checker finds the mutant. The same seed
/// must find nothing without the mutant.
///
/// # Errors
/// [`SearchError::NoSuchWorkload`], [`SearchError::FailsWithoutMutant`].
pub fn find_mutant(mutant: Mutant, seeds: Range<u64>) -> Result<MutantSearch, SearchError> {
    let workload = Workload::find(mutant.row().workload).map_err(SearchError::NoSuchWorkload)?;
    let end = seeds.end;
    for seed in seeds {
        let Some(finding) = mutant.run(|| workload.run(seed, 0)).findings.into_iter().next() else {
            continue;
        };
        if let Some(finding) = workload.run(seed, 0).findings.first() {
            return Err(SearchError::FailsWithoutMutant { seed, detail: finding.detail.clone() });
        }
        return Ok(MutantSearch { seeds: seed + 1, found: Some((finding.checker, finding.detail)) });
    }
    Ok(MutantSearch { seeds: end, found: None })
}
