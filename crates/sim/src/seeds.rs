//! The seeds of a test, and the command that repeats a failed one.

use std::env;
use std::path::Path;

/// Returns the seeds of a test: `0..n`. `MITRA_SEEDS` replaces `n`. `MITRA_SEED` selects a single
/// seed.
///
/// # Panics
/// Panics if one of these environment variables is not a number.
pub fn seeds(n: u64) -> core::ops::Range<u64> {
    match (env_number("MITRA_SEED"), env_number("MITRA_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(n)) => 0..n,
        (None, None) => 0..n,
    }
}

pub(crate) fn env_number(name: &str) -> Option<u64> {
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
        let expected = "REPRODUCE WITH: MITRA_SEED=42 cargo test -p mitra-sim -- --exact seeds::tests::command_names_this_test";
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
}
