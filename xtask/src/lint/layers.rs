//! Crates that must not know the software NIC: all but the programs that choose a NIC. They know
//! NICs by the traits of `mitra-verbs`, so that another NIC can take its place.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// The crates that may depend on the software NIC, besides the program `mitra` itself. `nics` names
/// the kinds of NICs.
const MAY_CHOOSE: [&str; 2] = ["bench", "nics"];

/// The crates whose sources, with their unit tests and documentation, must not name it either.
const UNAWARE: [&str; 4] = ["control", "driver", "failover", "libibverbs"];

pub(super) fn findings(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files {
        if is_manifest_below_programs(path) && depends_on_software_nic(&super::read(path)?) {
            findings.push(format!(
                "{}: depends on mitra-softnic; take an `Arc<dyn Nic>` or `Arc<dyn Provider>` of mitra-verbs, or open NICs \
                 by its `NicSource`",
                path.display()
            ));
        }
        if is_unaware_source(path) {
            findings.extend(lines_with_software_nic(&super::read(path)?).map(|line| {
                format!("{}:{line}: names softnic; open NICs by a `NicSource` of mitra-verbs", path.display())
            }));
        }
    }
    Ok(findings)
}

fn is_manifest_below_programs(path: &Path) -> bool {
    let Ok(path) = path.strip_prefix("crates") else { return false };
    let is_free = MAY_CHOOSE.iter().any(|name| path.starts_with(name));
    path.ends_with("Cargo.toml") && !is_free
}

fn is_unaware_source(path: &Path) -> bool {
    let is_in_src = |name| path.starts_with(Path::new("crates").join(name).join("src"));
    UNAWARE.into_iter().any(is_in_src)
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

/// The numbers of the lines that name the crate.
fn lines_with_software_nic(source: &str) -> impl Iterator<Item = usize> {
    source.lines().enumerate().filter(|(_, line)| line.contains("softnic")).map(|(index, _)| index + 1)
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
        assert!(is_checked("crates/libibverbs/Cargo.toml") && !is_checked("crates/nics/Cargo.toml"));
        assert!(!is_checked("Cargo.toml") && !is_checked("crates/bench/Cargo.toml"));
        assert!(!is_checked("crates/control/README.md"));
    }

    #[test]
    fn sources_below_the_c_interface_do_not_name_the_software_nic() {
        let lines = |source| lines_with_software_nic(source).collect::<Vec<_>>();
        assert_eq!(lines("use mitra_nics::NicKind;\n/// [`mitra_softnic`]\nlet nic = softnic();\n"), [2, 3]);
        let is_checked = |path: &str| is_unaware_source(Path::new(path));
        assert!(
            is_checked("crates/libibverbs/src/rails/open.rs") && is_checked("crates/failover/src/lib.rs")
        );
        assert!(!is_checked("crates/failover/tests/it/main.rs") && !is_checked("crates/softnic/src/lib.rs"));
    }
}
