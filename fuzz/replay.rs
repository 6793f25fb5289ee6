//! Replays the committed corpus of a fuzz target through its property. The tests of several crates
//! include this file.

use std::path::Path;

/// Runs every input of a target's corpus, which must have at least 10 inputs. The crate's directory
/// is two levels below the workspace.
pub(crate) fn replay(target: &str, run: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut count = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        // The test harness prints this line only if the test fails. It then names the input that
        // failed.
        println!("{}", path.display());
        run(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count >= 10, "only {count} inputs in {}", dir.display());
}
