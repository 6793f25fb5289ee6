//! Crates that must not know the software NIC: all but the programs that choose a NIC. They know
//! NICs by the traits of `mitra-verbs`, so that another NIC can take its place.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// The crates that may depend on the software NIC, besides the program `mitra` itself.
const MAY_CHOOSE: [&str; 2] = ["bench", "libibverbs"];

pub(super) fn findings(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| is_manifest_below_programs(path)) {
        if depends_on_software_nic(&super::read(path)?) {
            findings.push(format!(
                "{}: depends on mitra-softnic; take an `Arc<dyn Nic>` or `Arc<dyn Provider>` of mitra-verbs",
                path.display()
            ));
        }
    }
    Ok(findings)
}

fn is_manifest_below_programs(path: &Path) -> bool {
    let Ok(path) = path.strip_prefix("crates") else { return false };
    let is_free = MAY_CHOOSE.iter().any(|name| path.starts_with(name));
    path.ends_with("Cargo.toml") && !is_free
}

/// Whether a manifest has the dependency. Tests may use any NIC.
fn depends_on_software_nic(manifest: &str) -> bool {
    let mut is_dependencies = false;
    manifest.lines().any(|line| {
        if line.starts_with('[') {
            is_dependencies = line.trim() == "[dependencies]";
        }
        is_dependencies && line.starts_with("mitra-softnic")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dependencies_of_lower_crates_count() {
        assert!(depends_on_software_nic(
            "[lints]\n[dependencies]\nnix = 1\nmitra-softnic.workspace = true\n"
        ));
        assert!(!depends_on_software_nic("[dependencies]\nnix = 1\n[dev-dependencies]\nmitra-softnic = 1\n"));
        let is_checked = |path: &str| is_manifest_below_programs(Path::new(path));
        assert!(is_checked("crates/control/Cargo.toml") && is_checked("crates/model-check/tests/Cargo.toml"));
        assert!(!is_checked("Cargo.toml") && !is_checked("crates/bench/Cargo.toml"));
        assert!(!is_checked("crates/control/README.md"));
    }
}
