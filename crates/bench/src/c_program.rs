//! The C programs that benchmarks run under `mitra run`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use tempfile::TempDir;

/// A compiled C program. Its file is removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct CProgram {
    folder: TempDir,
    name: &'static str,
}

impl CProgram {
    /// Compiles a source and links it with libibverbs.
    pub(crate) fn compile(name: &'static str, source: &str) -> anyhow::Result<CProgram> {
        let folder = tempfile::tempdir().context("cannot create a folder for the program")?;
        let file = folder.path().join(name).with_extension("c");
        fs::write(&file, source).context("cannot write the program")?;
        let program = CProgram { folder, name };
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).arg(program.path()).arg(&file).arg("-libverbs");
        let output = cc.output().context("cannot run cc, the C compiler")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "cannot compile the program (is libibverbs-dev installed?): {errors}"
        );
        Ok(program)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(self.name)
    }
}

/// Returns the number in a line `NAME NUMBER` that a program has printed.
pub(crate) fn figure(printed: &str, name: &str) -> anyhow::Result<f64> {
    let found = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(found.with_context(|| format!("the program does not print `{name}`"))?.parse()?)
}
