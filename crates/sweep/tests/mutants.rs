//! Every mutant is found within its number of seeds, and the table in `docs/simulator.md` lists the
//! mutants.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

use mitra_model_check::transaction_worlds::WORLDS;
use mitra_mutants::Mutant;
use mitra_sweep::{MutantSearch, SearchError, Workload, find_mutant, mutant_by_name};

/// Runs the seed of the table first, which still finds most mutants after a change of a workload,
/// and then the other seeds. `MITRA_SEEDS=n` runs the first n seeds for each mutant instead.
/// `MITRA_MUTANT=text` runs only the mutants whose layer or name contains the text.
#[test]
fn every_mutant_is_found_within_its_seeds() {
    let seeds: Option<u64> =
        env::var("MITRA_SEEDS").ok().map(|text| text.parse().expect("a number of seeds"));
    let page = fs::read_to_string(page_path()).unwrap();
    let written = seeds_of_table(&page);
    let wanted = env::var("MITRA_MUTANT").unwrap_or_default();
    let is_wanted = |mutant: &&Mutant| {
        let row = mutant.row();
        row.name.contains(&wanted) || format!("{:?}", row.layer).eq_ignore_ascii_case(&wanted)
    };
    let mutants: Vec<&Mutant> = Mutant::ALL.iter().filter(is_wanted).collect();
    assert!(!mutants.is_empty(), "no mutant is {wanted:?}");
    let next = AtomicUsize::new(0);
    let survivors = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while let Some(&&mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = mutant.row();
                    let known = written
                        .get(row.name)
                        .filter(|known| seeds.is_none() && (1..=row.seeds).contains(known));
                    let search = match known.map(|&known| find_mutant(mutant, known - 1..known)) {
                        None | Some(Ok(MutantSearch { found: None, .. })) => {
                            find_mutant(mutant, 0..seeds.unwrap_or(row.seeds))
                        }
                        Some(search) => search,
                    };
                    let survives = match search {
                        Ok(search) => {
                            let checker = search.found.as_ref().map_or("survives", |(checker, _)| *checker);
                            println!(
                                "{:<32} {:>4} of {:>4} seeds  {checker}",
                                row.name, search.seeds, row.seeds
                            );
                            search
                                .found
                                .is_none()
                                .then(|| format!("{}: survives {} seeds", row.name, row.seeds))
                        }
                        Err(error) => Some(format!("{}: {error}", row.name)),
                    };
                    survivors.lock().unwrap().extend(survives);
                }
            });
        }
    });
    let survivors = survivors.into_inner().unwrap();
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}

/// The world of `mitra check transactions` whose exploration finds each mutant of transactions with
/// the fewest states.
const WORLDS_OF_MUTANTS: &[(Mutant, &str)] = &[
    (Mutant::LockedVersionUnchecked, "doubts"),
    (Mutant::ReadUnderLock, "readers"),
    (Mutant::TornRecordRead, "readers"),
    (Mutant::UndecidedLockKept, "deaths"),
    (Mutant::ValidationSkipped, "write-skew"),
    (Mutant::ValidatedUnderLock, "write-skew"),
    (Mutant::AbortedWhileLogging, "deaths"),
    (Mutant::LogWriteAssumed, "deaths"),
    (Mutant::LoggedOnce, "deaths"),
    (Mutant::ToldBeforeLogged, "lives"),
    (Mutant::PrimaryFirst, "lives"),
    (Mutant::BackupNotRepeated, "deaths"),
    (Mutant::BackupVersionFirst, "deaths"),
    (Mutant::AppliedAgainUnseen, "doubts"),
    (Mutant::UnlockedByWrite, "doubts"),
    (Mutant::RecoveredUnlocked, "doubts-and-ends"),
    (Mutant::EntryNotCompleted, "deaths"),
    (Mutant::BackupsNotRecovered, "lives"),
    (Mutant::OrphanForgotten, "deaths"),
    (Mutant::OrphanOverwritten, "deaths-of-two"),
];

#[test]
fn exploration_finds_every_mutant_of_transactions() {
    let of_layer = Mutant::ALL.iter().copied().filter(|mutant| mutant.row().workload == "transactions");
    for mutant in of_layer {
        let name = mutant.row().name;
        let (_, world) = WORLDS_OF_MUTANTS.iter().find(|(other, _)| *other == mutant).expect(name);
        let (_, config) = WORLDS.iter().find(|(other, _)| other == world).expect("a world");
        let found = mutant.run(|| config.explore());
        let (property, steps) = found.counterexample.unwrap_or_else(|| panic!("{name} survives in {world}"));
        println!("{name:<26} {world:<16} {:>7} states, {:>2} steps: {property}", found.states, steps.len());
    }
}

/// The reduced world shows the same failure. In each kind of world, some of the first failures need
/// at most half of the operations. Other failures have their cause in the last operation.
#[test]
fn failures_of_mutants_are_shrunk_in_each_kind_of_world() {
    for (mutant, name) in [
        (Mutant::FenceIgnored, "rc"),
        (Mutant::BitIgnored, "filter"),
        (Mutant::AmbiguousWriteRepeated, "failover-cases"),
        (Mutant::AmbiguousAtomicRepeated, "objects"),
    ] {
        let workload = Workload::find(name).expect("a workload");
        let shrinks = |seed| {
            let whole = workload.run(seed, 0);
            let Some(finding) = whole.findings.first() else { return false };
            let tried = Cell::new(0);
            let has_time = || {
                tried.set(tried.get() + 1);
                tried.get() < 400
            };
            let shrunk = workload.shrink(seed, finding.checker, has_time).expect("smaller worlds");
            let run = workload.run_reduced(seed, &shrunk.reduction, 0).expect("the world has the parts");
            let what = format!("{name} {seed} {}: {}", finding.checker, shrunk.reduction);
            println!("{what}: {} of {} operations", run.operations, whole.operations);
            assert!(run.findings.iter().any(|found| found.checker == finding.checker), "{what}");
            run.operations * 2 <= whole.operations
        };
        assert!(mutant.run(|| (0..400).any(shrinks)), "{name}: no failure shrinks");
    }
}

#[test]
fn names_are_unique_and_an_unknown_one_is_an_error() {
    let names: BTreeSet<&str> = Mutant::ALL.iter().map(|mutant| mutant.row().name).collect();
    assert_eq!(names.len(), Mutant::ALL.len());
    assert_eq!(mutant_by_name("fence-ignored"), Ok(Mutant::FenceIgnored));
    assert_eq!(mutant_by_name("none"), Err(SearchError::NoSuchMutant("none".to_owned())));
}

const BEGIN: &str = "<!-- The table of mutants, written by `MITRA_WRITE_DOCS=1 cargo test -p mitra-sweep --features mutants`. -->\n";
const END: &str = "<!-- The end of the table of mutants. -->\n";

/// Returns the table of all mutants, with the seeds that each needs and the checker that finds it.
fn table() -> String {
    let mut text = "| mutant | layer | instead of the rule | workload | bound | seeds | checker |\n|---|---|---|---|---|---|---|\n".to_owned();
    for mutant in Mutant::ALL {
        let row = mutant.row();
        let search = find_mutant(*mutant, 0..row.seeds).expect("a seed that fails with the mutant only");
        let checker = search.found.map_or("survives", |(checker, _)| checker);
        let layer = format!("{:?}", row.layer).to_lowercase();
        let _ = writeln!(
            text,
            "| `{}` | {layer} | {} | `{}` | {} | {} | `{checker}` |",
            row.name, row.bug, row.workload, row.seeds, search.seeds
        );
    }
    text
}

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulator.md")
}

/// Returns the number of seeds of each row of the table on a page, by the name of the mutant.
fn seeds_of_table(page: &str) -> HashMap<&str, u64> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|line| {
        let name = line.split('`').nth(1)?;
        let seeds = line.rsplit(" | ").nth(1)?.parse().ok()?;
        Some((name, seeds))
    })
    .collect()
}

/// Returns the rows of a table without the last two columns, which each change of a workload
/// changes.
fn rules(table: &str) -> Vec<String> {
    let cut = |line: &str| line.rsplitn(4, " | ").nth(3).unwrap_or(line).to_owned();
    table.lines().filter(|line| line.starts_with("| `")).map(|line| cut(&format!("{line} "))).collect()
}

#[test]
fn documentation_has_every_mutant() {
    let path = page_path();
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the begin of the table");
    let (written, after) = rest.split_once(END).expect("the end of the table");
    if env::var_os("MITRA_WRITE_DOCS").is_some() {
        return fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
    }
    let expected: Vec<String> = Mutant::ALL
        .iter()
        .map(|mutant| {
            let row = mutant.row();
            let layer = format!("{:?}", row.layer).to_lowercase();
            format!("| `{}` | {layer} | {} | `{}` | {}", row.name, row.bug, row.workload, row.seeds)
        })
        .collect();
    assert_eq!(
        rules(written),
        expected,
        "run MITRA_WRITE_DOCS=1 cargo test -p mitra-sweep --features mutants --test mutants documentation"
    );
}
