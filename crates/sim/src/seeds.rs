//! The seeds of a test, and the command that repeats a failed one.

use std::env;
use std::path::Path;

/// Returns the seeds of a test: `0..n`. `MITRA_SEEDS` replaces `n`. `MITRA_SEED` selects a single seed.
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

/// Returns the value of an environment variable, or `None` if it is not set.
pub(crate) fn env_number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    match text.parse() {
        Ok(n) => Some(n),
        Err(e) => panic!("{name}={text}: {e}"),
    }
}

/// Returns the command that repeats the current test with this seed only.
pub fn reproduce_command(seed: u64) -> String {
    let package = env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "mitra-sim".to_owned());
    let mut command = format!("REPRODUCE WITH: MITRA_SEED={seed} cargo test -p {package}");
    if let Some(binary) = env::args().next().as_deref().and_then(test_binary) {
        command.push_str(&format!(" --test {binary}"));
    }
    match std::thread::current().name() {
        Some(test) if test != "main" => command.push_str(&format!(" -- --exact {test}")),
        _ => {}
    }
    command
}

/// Returns the name of an integration test from the path of its binary: `rc` for
/// `/target/debug/deps/rc-0123456789abcdef`. Returns `None` for the unit tests of a library.
fn test_binary(path: &str) -> Option<String> {
    let stem = Path::new(path).file_stem()?.to_str()?;
    let (name, hash) = stem.rsplit_once('-')?;
    let in_deps = Path::new(path).parent()?.file_name()? == "deps";
    let is_library = name.starts_with("mitra");
    (in_deps && hash.len() == 16 && !is_library).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_names_this_test() {
        let command = reproduce_command(42);
        assert!(command.starts_with("REPRODUCE WITH: MITRA_SEED=42 cargo test -p mitra-sim"), "{command}");
        assert!(command.contains("command_names_this_test"), "{command}");
        assert_eq!(test_binary("/t/debug/deps/rc-0123456789abcdef"), Some("rc".to_owned()));
        assert_eq!(test_binary("/usr/bin/tool-box"), None);
    }
}
