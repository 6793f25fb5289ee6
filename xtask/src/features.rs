//! `cargo xtask features`: checks crates with one feature at a time.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use mitra_prng::rotated_variant;
use serde_json::Value;

use crate::{root, suite};

/// Checks every crate that has features: without features, and with one feature alone, which the
/// rotation selects, or with each feature alone.
///
/// # Errors
/// Fails if a crate does not compile, or compiles with warnings.
pub(crate) fn run(is_all: bool) -> Result<()> {
    let metadata = ["metadata", "--format-version=1", "--no-deps", "--locked"];
    let output = Command::new("cargo").args(metadata).current_dir(root()).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let rotation = if is_all { None } else { suite::rotation() };
    let builds = builds(&serde_json::from_slice(&output.stdout)?, rotation.as_deref())?;
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

/// Returns each crate that has features, first with an empty name, then with the names of its
/// features, or of the one that the rotation selects.
fn builds(metadata: &Value, rotation: Option<&str>) -> Result<Vec<(String, String)>> {
    let mut builds = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata lists no packages")? {
        let name = package["name"].as_str().context("a package has no name")?;
        let features = package["features"].as_object().context("a package lists no features")?;
        let mut alone: Vec<&str> = features.keys().map(String::as_str).collect();
        alone.retain(|&feature| feature != "default");
        if let (Some(rotation), false) = (rotation, alone.is_empty()) {
            alone = vec![alone[rotated_variant(rotation, name, alone.len())]];
        }
        if !features.is_empty() {
            let names = [""].into_iter().chain(alone);
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
        let builds = |rotation: Option<&str>| {
            let builds = builds(&metadata, rotation).expect("packages have names and features");
            builds.into_iter().map(|(name, feature)| format!("{name} {feature}")).collect::<Vec<_>>()
        };
        assert_eq!(builds(None), ["a ", "a x", "a y"]);
        let rotated: Vec<_> = (0..20).map(|n| builds(Some(&n.to_string()))).collect();
        assert!(rotated.contains(&vec!["a ".to_owned(), "a x".to_owned()]), "{rotated:?}");
        assert!(rotated.iter().all(|builds| builds.len() == 2), "{rotated:?}");
    }
}
