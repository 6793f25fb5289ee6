//! The file of qualifications.

use std::fs;

use mitra_qualify::{FenceCounts, Hardware, Qualification, QualificationStore, StoreError};
use tempfile::TempDir;

fn hardware(firmware: &str) -> Hardware {
    Hardware { driver: "mlx5".to_owned(), vendor_id: 0x2c9, part_id: 4121, firmware: firmware.to_owned() }
}

fn counts(equal: u32) -> FenceCounts {
    FenceCounts { fences: 60, cut_off: 50, equal, ahead: 60 - equal, ..FenceCounts::default() }
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("the temporary directory is writable")
}

#[test]
fn results_are_found_by_all_that_names_the_hardware() {
    let directory = directory();
    let path = directory.path().join("a directory/qualified.json");
    let mut store = QualificationStore::load(&path).expect("no file is an empty store");
    assert!(store.iter().next().is_none() && !store.permits_psn(&hardware("1")));

    let exact = Qualification { writes: counts(60), atomics: FenceCounts::default() };
    let ahead = Qualification { writes: counts(59), atomics: counts(60) };
    store.insert(hardware("1"), ahead);
    store.insert(hardware("1"), exact);
    store.insert(hardware("2"), ahead);
    store.save().expect("the directory is writable");

    let read = QualificationStore::load(&path).expect("the file is whole");
    assert_eq!(read, store);
    assert_eq!(read.get(&hardware("2")), Some(&ahead));
    assert!(read.permits_psn(&hardware("1")) && !read.permits_psn(&hardware("2")));
    for unknown in [
        hardware("3"),
        Hardware { driver: "irdma".to_owned(), ..hardware("1") },
        Hardware { vendor_id: 1, ..hardware("1") },
        Hardware { part_id: 1, ..hardware("1") },
    ] {
        assert!(read.get(&unknown).is_none() && !read.permits_psn(&unknown));
    }
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file is left");
}

#[test]
fn nic_without_fence_is_named() {
    let directory = directory();
    let mut store = QualificationStore::load(&directory.path().join("file")).expect("there is no file");
    let mut writes = counts(60);
    writes.late_after_marker = 1;
    store.insert(hardware("1"), Qualification { writes, atomics: counts(60) });
    assert!(store.lacks_fence(&hardware("1")) && !store.permits_psn(&hardware("1")));
    assert!(!store.lacks_fence(&hardware("2")));
}

#[test]
fn damaged_file_is_refused_and_kept() {
    let directory = directory();
    let path = directory.path().join("qualified.json");
    let mut store = QualificationStore::load(&path).expect("there is no file");
    store.insert(hardware("1"), Qualification { writes: counts(60), atomics: counts(60) });
    store.save().expect("the directory is writable");
    let whole = fs::read_to_string(&path).unwrap();
    let entry = &whole[whole.find('[').unwrap() + 1..whole.rfind(']').unwrap()];

    for (damaged, reason) in [
        (String::new(), "EOF"),
        (whole[..whole.len() / 2].to_owned(), "EOF"),
        (whole.replace("\"version\": 1", "\"version\": 2"), "its version is 2, and this program knows 1"),
        (whole.replace("\"equal\": 60", "\"equal\": 61"), "a count of mlx5 0x2c9:0x1019 exceeds its fences"),
        (whole.replace("\"ahead\"", "\"a head\""), "unknown field"),
        (whole.replace(entry, &format!("{entry},{entry}")), "is listed twice"),
    ] {
        assert_ne!(damaged, whole, "{reason}");
        fs::write(&path, &damaged).unwrap();
        let error = QualificationStore::load(&path).expect_err(reason);
        let message = error.to_string();
        assert!(matches!(error, StoreError::Damaged { .. }), "{message}");
        assert!(message.contains(reason) && message.contains("qualified.json: is damaged"), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    }
}

/// The new file cannot take the place of a directory, so the save fails at its last step.
#[test]
fn failed_save_leaves_no_file() {
    let directory = directory();
    let path = directory.path().join("qualified.json");
    let store = QualificationStore::load(&path).expect("there is no file");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("file"), "").unwrap();
    assert!(matches!(store.save(), Err(StoreError::Write { .. })));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
