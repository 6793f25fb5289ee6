//! `cargo xtask features`: checks crates with one feature at a time.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::root;

/// Checks every crate that has features: without features, and with each feature alone.
///
/// # Errors
/// Fails if a crate does not compile, or compiles with warnings.
pub(crate) fn run() -> Result<()> {
    let metadata = ["metadata", "--format-version=1", "--no-deps", "--locked"];
    let output = Command::new("cargo").args(metadata).current_dir(root()).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let builds = builds(&serde_json::from_slice(&output.stdout)?)?;
    ensure!(!builds.is_empty(), "no crate has features");
    for (package, feature) in builds {
        println!("{package} with {}", if feature.is_empty() { "no feature" } else { &feature });
        let status = Command::new("cargo")
            .args([
                "clippy",
                "--quiet",
                "--package",
                &package,
                "--no-default-features",
                "--features",
                &feature,
            ])
            .args(["--", "--deny=warnings"])
            .current_dir(root())
            .status()?;
        ensure!(status.success(), "{package} with only the features `{feature}` fails, see above");
    }
    Ok(())
}

/// Returns each crate that has features, first with an empty name, then with the name of each
/// feature.
fn builds(metadata: &Value) -> Result<Vec<(String, String)>> {
    let mut builds = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata lists no packages")? {
        let name = package["name"].as_str().context("a package has no name")?;
        let features = package["features"].as_object().context("a package lists no features")?;
        if !features.is_empty() {
            let alone = features.keys().filter(|&feature| feature != "default");
            let names = [""].into_iter().chain(alone.map(String::as_str));
            builds.extend(names.map(|feature| (name.to_owned(), feature.to_owned())));
        }
    }
    Ok(builds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_alone_once() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "features": {"default": ["x"], "x": [], "y": []}},
            {"name": "b", "features": {}},
        ]});
        let builds = builds(&metadata).expect("packages have names and features");
        let builds: Vec<(&str, &str)> = builds.iter().map(|(name, feature)| (&**name, &**feature)).collect();
        assert_eq!(builds, [("a", ""), ("a", "x"), ("a", "y")]);
    }
}
