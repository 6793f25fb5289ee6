//! Reads the files whose contents only their owner may know.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, ensure};

/// The largest secret, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// The permissions of the group and of others, as in chmod(2).
const NOT_OWNER: u32 = 0o077;

/// Returns the contents of a file that only its owner may access.
///
/// # Errors
/// Fails if the file cannot be read, is longer than 64 KiB, or has permissions for others. The
/// error names the file.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let mode = file.metadata().with_context(|| format!("cannot read {name}"))?.mode() & 0o7777;
    ensure!(
        mode & NOT_OWNER == 0,
        "{name} has mode {mode:04o}, so others than its owner can use the secret; run: chmod 600 {name}"
    );
    let mut secret = Vec::new();
    // One byte more shows that the file is too long. A device may have no end.
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut secret);
    read.with_context(|| format!("cannot read {name}"))?;
    ensure!(secret.len() as u64 <= MAX_BYTES, "{name} has more than {MAX_BYTES} bytes");
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secret_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secret");
        write(&path, "word").expect("written");
        for (mode, is_refused) in
            [(0o600, false), (0o400, false), (0o644, true), (0o640, true), (0o620, true)]
        {
            set_permissions(&path, Permissions::from_mode(mode)).expect("the file is the test's");
            match read(&path) {
                Ok(secret) => assert!(!is_refused && secret == b"word", "{mode:o}"),
                Err(error) => {
                    let text = error.to_string();
                    let chmod = format!("chmod 600 {}", path.display());
                    assert!(
                        is_refused && text.contains(&format!("mode {mode:04o}")) && text.contains(&chmod),
                        "{text}"
                    );
                }
            }
        }
        set_permissions(&path, Permissions::from_mode(0o600)).expect("the file is the test's");
        write(&path, vec![0; MAX_BYTES as usize + 1]).expect("written");
        assert!(read(&path).is_err());
    }
}
