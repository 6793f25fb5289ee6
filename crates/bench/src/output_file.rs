//! A file for a result that takes long to compute.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;

use anyhow::Context;

/// A file that a command writes when its work is done. The path is checked before the work begins.
/// Until the file is written, an existing file keeps its content, and no empty file appears.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
}

impl OutputFile {
    /// Checks that a file at this path can be written.
    ///
    /// # Errors
    /// The file cannot be opened for writing, or cannot be created. The error names the path and a
    /// remedy.
    pub fn new(path: PathBuf) -> anyhow::Result<OutputFile> {
        let created = OpenOptions::new().write(true).create_new(true).open(&path);
        let checked = match created {
            Ok(_) => fs::remove_file(&path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).open(&path).map(drop)
            }
            Err(error) => Err(error),
        };
        let file = OutputFile { path };
        file.explain(checked)?;
        Ok(file)
    }

    /// Writes the file, in place of its earlier content.
    ///
    /// # Errors
    /// The file can no longer be created, or its disk is full. The error names the path and a
    /// remedy.
    pub fn write(&self, content: &str) -> anyhow::Result<()> {
        self.explain(fs::write(&self.path, content))
    }

    fn explain(&self, result: io::Result<()>) -> anyhow::Result<()> {
        let kind = result.as_ref().err().map(io::Error::kind);
        result.with_context(|| {
            let way_out = match kind {
                Some(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    "choose a file in a directory that exists"
                }
                Some(io::ErrorKind::IsADirectory) => "choose a file, not a directory",
                Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
                    "choose a file that this user may write"
                }
                Some(io::ErrorKind::StorageFull) => "choose a file on a disk with free space",
                _ => "choose another file",
            };
            format!("cannot write {}; {way_out}", self.path.display())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_changes_no_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        fs::write(&old, "a longer earlier result").expect("the directory is writable");
        let files = [&new, &old].map(|path| OutputFile::new(path.clone()).expect("the path is writable"));
        assert!(!new.exists());
        assert_eq!(fs::read_to_string(&old).expect("the file"), "a longer earlier result");
        for (file, path) in files.iter().zip([&new, &old]) {
            file.write("result").expect("the path is writable");
            assert_eq!(fs::read_to_string(path).expect("the file"), "result");
        }
    }

    #[test]
    fn error_names_path_and_way_out() {
        let error =
            |path: &str| format!("{:#}", OutputFile::new(path.into()).expect_err("the path is unusable"));
        assert!(
            error("/nonexistent/a")
                .starts_with("cannot write /nonexistent/a; choose a file in a directory that exists: ")
        );
        assert!(error("/").starts_with("cannot write /; choose a file, not a directory: "));
        let full = OutputFile::new("/dev/full".into()).expect("the device can be opened");
        let error = format!("{:#}", full.write("x").expect_err("the device is full"));
        assert!(
            error.starts_with("cannot write /dev/full; choose a file on a disk with free space: "),
            "{error}"
        );
    }
}
