//! The seeds of a test, and the command that repeats a failed one.

use std::env;
use std::ops::Range;
use std::path::Path;

use crate::mix;

/// The environment variable that selects a part of the seeds and of the variants of tests.
const ROTATION: &str = "MITRA_ROTATION";

/// A rotation has one seed where a whole run has this many.
const SEEDS_PER_ROTATED_SEED: u64 = 4;

/// Returns the seeds of a test: `0..n`. `MITRA_SEEDS` replaces `n`. `MITRA_SEED` selects a single
/// seed. `MITRA_ROTATION`, for instance a commit, selects a quarter as many seeds, rounded up,
/// which begin at a number that depends on its text: the same commit runs the same seeds each time,
/// and each commit runs others.
///
/// # Panics
/// Panics if `MITRA_SEED` or `MITRA_SEEDS` is not a number.
pub fn seeds(n: u64) -> Range<u64> {
    seeds_of_cases(1, n)
}

/// Returns the seeds of a test that takes its case from the remainder of the seed: as many for each
/// case as [`seeds`] returns for `per_case`, so that a rotation leaves no case out.
///
/// # Panics
/// Panics if `MITRA_SEED` or `MITRA_SEEDS` is not a number.
pub fn seeds_of_cases(cases: usize, per_case: u64) -> Range<u64> {
    let of_environment = (env_number("MITRA_SEED"), env_number("MITRA_SEEDS"), rotation());
    selected(cases as u64, per_case, of_environment)
}

/// Returns the seeds that the environment selects: its single seed, its number of seeds, or its
/// rotation.
fn selected(
    cases: u64,
    per_case: u64,
    of_environment: (Option<u64>, Option<u64>, Option<String>),
) -> Range<u64> {
    match of_environment {
        (Some(seed), _, _) => seed..seed + 1,
        (None, Some(n), _) => 0..n,
        (None, None, None) => 0..cases * per_case,
        (None, None, Some(rotation)) => {
            // Short enough to be typed, and far from the seeds that begin at 0.
            let first = mixed_hash(&rotation) >> 32;
            first..first + cases * per_case.div_ceil(SEEDS_PER_ROTATED_SEED)
        }
    }
}

/// Returns the times, in polls or steps, at which a test lets something fail: all of `times`, or,
/// in a rotation, every fourth from a start that depends on the rotation.
pub fn fault_times<T>(times: Range<T>) -> impl Iterator<Item = T>
where
    Range<T>: Iterator<Item = T>,
{
    of_times(times, rotation().as_deref())
}

fn of_times<T>(times: Range<T>, rotation: Option<&str>) -> impl Iterator<Item = T> + use<T>
where
    Range<T>: Iterator<Item = T>,
{
    let (first, step) = rotation.map_or((0, 1), |rotation| {
        let step = SEEDS_PER_ROTATED_SEED as usize;
        (rotated_variant(rotation, "fault times", step), step)
    });
    times.skip(first).step_by(step)
}

/// Returns the text of `MITRA_ROTATION`, if it is set and not empty.
pub fn rotation() -> Option<String> {
    env::var(ROTATION).ok().filter(|text| !text.is_empty())
}

/// Returns the variant of a test, below `count`, that a rotation selects: each rotation selects
/// one, and different tests have different variants in the same rotation.
///
/// # Panics
/// Panics if `count` is 0.
pub fn rotated_variant(rotation: &str, test: &str, count: usize) -> usize {
    assert!(count > 0, "{test} has no variant");
    (mixed_hash(&format!("{test}\n{rotation}")) % count as u64) as usize
}

/// A hash of which every bit depends on all characters.
fn mixed_hash(text: &str) -> u64 {
    mix(hash(text))
}

/// FNV-1a, which must not change.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn env_number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    match text.parse() {
        Ok(n) => Some(n),
        Err(e) => panic!("{name}={text}: {e}"),
    }
}

/// Returns the command that repeats the current test, or the current example, with this seed only.
pub fn reproduce_command(seed: u64) -> String {
    let package = env::var("CARGO_PKG_NAME").ok();
    let program = env::args().next().unwrap_or_default();
    let thread = std::thread::current();
    let test = thread.name().filter(|&name| name != "main");
    format!("REPRODUCE WITH: MITRA_SEED={seed} {}", cargo_command(package.as_deref(), &program, test))
}

/// Returns the command that runs a test of a package, or an example. `program` is the path of the
/// running program.
fn cargo_command(package: Option<&str>, program: &str, test: Option<&str>) -> String {
    let of_package = package.map(|package| format!(" -p {package}")).unwrap_or_default();
    let path = Path::new(program);
    let directory = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let file = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    if directory == Some("examples") {
        return format!("cargo run{of_package} --example {file}");
    }
    let mut command = format!("cargo test{of_package}");
    // The program of the unit tests of a library has the name of its package.
    let is_unit_test = |name: &str| package.is_some_and(|package| package.replace('-', "_") == name);
    if directory == Some("deps")
        && let Some((name, hash)) = file.rsplit_once('-')
        && hash.len() == 16
        && !is_unit_test(name)
    {
        command.push_str(&format!(" --test {name}"));
    }
    if let Some(test) = test {
        command.push_str(&format!(" -- --exact {test}"));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_names_this_test() {
        let command = reproduce_command(42);
        let expected = "REPRODUCE WITH: MITRA_SEED=42 cargo test -p mitra-prng -- --exact seeds::tests::command_names_this_test";
        assert_eq!(command, expected);
    }

    #[test]
    fn command_names_the_running_program() {
        let test = |program| cargo_command(Some("my-store"), program, Some("register"));
        let of_file = test("/t/debug/deps/faults-0123456789abcdef");
        assert_eq!(of_file, "cargo test -p my-store --test faults -- --exact register");
        let of_library = test("/t/debug/deps/my_store-0123456789abcdef");
        assert_eq!(of_library, "cargo test -p my-store -- --exact register");
        let example = cargo_command(Some("my-store"), "/t/debug/examples/register", None);
        assert_eq!(example, "cargo run -p my-store --example register");
        assert_eq!(cargo_command(None, "/usr/bin/tool-box", None), "cargo test");
    }

    #[test]
    fn rotation_selects_a_quarter_of_the_seeds() {
        let rotated =
            |per_case, rotation: &str| selected(1, per_case, (None, None, Some(rotation.to_owned())));
        let [a, b] = ["27b30150", "9eb92d2f"].map(|commit| rotated(400, commit));
        assert_eq!((a.end - a.start, b.end - b.start), (100, 100));
        assert_ne!(a.start, b.start);
        assert_eq!(a, rotated(400, "27b30150"));
        assert_eq!(rotated(3, "27b30150").count(), 1);
        let commit = || Some("27b30150".to_owned());
        assert_eq!(selected(1, 400, (Some(7), None, commit())), 7..8);
        assert_eq!(selected(1, 400, (None, Some(9), commit())), 0..9);
        assert_eq!(selected(1, 400, (None, None, None)), 0..400);
    }

    #[test]
    fn rotation_leaves_no_case_out() {
        for (cases, per_case, count) in [(7, 1, 7), (7, 4, 7), (7, 5, 14)] {
            let seeds = selected(cases, per_case, (None, None, Some("27b30150".to_owned())));
            assert_eq!(seeds.clone().count() as u64, count);
            assert!((0..cases).all(|case| seeds.clone().any(|seed| seed % cases == case)));
        }
        assert_eq!(selected(7, 4, (None, None, None)), 0..28);
    }

    #[test]
    fn rotations_select_each_fault_time() {
        assert!(of_times(3..9, None).eq(3..9));
        let mut selected = [0; 12];
        for commit in 0..100 {
            of_times(0..12, Some(&commit.to_string())).for_each(|time| selected[time] += 1);
        }
        assert_eq!(selected.iter().sum::<usize>(), 300);
        assert!(selected.iter().all(|&times| times >= 10), "{selected:?} of 100");
    }

    #[test]
    fn rotations_select_each_variant_of_a_test() {
        for count in 1..=6 {
            let mut selected = vec![0; count];
            for commit in 0..100 {
                selected[rotated_variant(&format!("{commit:040x}"), "ib_write_lat -F", count)] += 1;
            }
            assert!(selected.iter().all(|&times| times >= 50 / count), "{selected:?} of 100");
        }
    }
}
