//! The files of the packages, the tarball, the wheel, and the digests.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{GLIBC_MINOR, VERSION, bytes, date, output, own, succeed};
use crate::root;

/// The files of the repository that each package has.
const DOCUMENTS: [&str; 3] = ["README.md", LICENSES[0], LICENSES[1]];
const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The shells with a place for the completions of programs, and this place below `share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/mitra"),
    ("zsh", "zsh/site-functions/_mitra"),
    ("fish", "fish/vendor_completions.d/mitra.fish"),
];

/// Writes what is installed below a prefix such as `/usr/local`: the binary, and the manual pages
/// and completions that it prints.
pub(super) fn stage(binary: &Path, stage: &Path) -> Result<()> {
    let write = |path: &str, content: &[u8]| -> Result<()> {
        let path = stage.join(path);
        let directory = path.parent().context("a file is in a directory")?;
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    fs::create_dir_all(stage.join("bin"))?;
    fs::copy(binary, stage.join("bin/mitra")).with_context(|| format!("cannot copy {}", binary.display()))?;
    succeed(Command::new(binary).arg("man").arg(stage.join("share/man/man1")))?;
    for (shell, path) in COMPLETIONS {
        let completions = bytes(Command::new(binary).args(["completions", shell]))?;
        write(&format!("share/{path}"), &completions)?;
    }
    for document in DOCUMENTS {
        let text = fs::read(root().join(document)).with_context(|| format!("cannot read {document}"))?;
        write(&format!("share/doc/mitra/{document}"), &text)?;
    }
    Ok(())
}

/// Makes the tarball, whose files are below one directory, and returns its name.
pub(super) fn tarball(stage: &Path, out: &Path) -> Result<String> {
    let directory = format!("mitra-{VERSION}-x86_64-linux-gnu");
    let name = format!("{directory}.tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    // Permissions do not depend on the umask of whoever builds.
    tar.arg("--mode=u=rwX,go=rX").arg(format!("--mtime=@{}", date()?));
    tar.arg(format!("--transform=s,^\\.,{directory},"));
    succeed(tar.arg("--file").arg(out.join(&name)).arg("--directory").arg(stage).arg("."))?;
    Ok(name)
}

/// Makes the wheel, which has the binary as a script, and returns its name.
pub(super) fn wheel(stage: &Path, out: &Path) -> Result<String> {
    let tag = format!("py3-none-manylinux_2_{GLIBC_MINOR}_x86_64");
    let name = format!("mitra-{VERSION}-{tag}.whl");
    let mut python = Command::new("python3");
    python.arg(own("wheel.py")).arg(stage.join("bin/mitra")).args(["mitra", VERSION, &tag]);
    python.args(["RoCEv2 software NICs for unmodified verbs programs", env!("CARGO_PKG_LICENSE")]);
    python.args(LICENSES.map(|license| root().join(license))).env("SOURCE_DATE_EPOCH", date()?);
    fs::write(out.join(&name), bytes(&mut python)?).with_context(|| format!("cannot write {name}"))?;
    Ok(name)
}

/// Writes the digests of all packages to `SHA256SUMS`.
pub(super) fn sums(out: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(out)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name());
        }
    }
    names.sort();
    let sums = output(Command::new("sha256sum").arg("--").args(names).current_dir(out))?;
    fs::write(out.join("SHA256SUMS"), sums).context("cannot write SHA256SUMS")
}
