//! The files of a stopped memory node, which are then damaged: cut, overwritten, replaced or
//! removed. No damage panics the node. Accepted files have the layout's lengths and the memory's
//! incarnation, and undamaged files keep their content. When the files are opened again, they give
//! the same memory.
//!
//! The input is whether writes are synchronous and whether the machine reboots (1 byte), then the
//! incarnations of processes, and the damages.

use mitra_consensus::{LegalChange, Permissions, ProcessId, Region, RegisterKind};
use mitra_consensus_memory::{Layout, Storage, StorageError};

use super::bytes::Bytes;
use super::memory_files::MemoryFiles;

const FILES: [&str; 4] = ["memory", "lives", "region-0", "region-1"];
const INCARNATION: u64 = 7;
/// The maximum number of damages.
const DAMAGES: usize = 16;

pub(crate) fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let flags = input.byte();
    let (sync, reopened_sync) = (flags & 1 == 1, flags & 2 == 2);
    let layout = Layout::new(&regions(), 16);
    let mut files = MemoryFiles::default();
    let mut storage = open(&files, sync, &layout, INCARNATION).expect("an empty directory is a new memory");
    let processes = |input: &mut Bytes<'_>| (ProcessId(input.byte()), u64::from(input.word()));
    let connected: Vec<_> = (0..flags >> 5).map(|_| processes(&mut input)).collect();
    for &(p, incarnation) in &connected {
        storage.record_incarnation(p, incarnation).expect("memory refuses no write");
    }
    for (region, buffer) in storage.buffers().iter().enumerate() {
        buffer.write_at(0, &vec![region as u8 + 1; buffer.len()]);
    }
    drop(storage);

    let mut is_damaged = [false; FILES.len()];
    for _ in 0..DAMAGES {
        if input.0.is_empty() {
            break;
        }
        is_damaged[damage(&files, &mut input)] = true;
    }
    files.boot += flags >> 2 & 1;
    let reopened = match open(&files, reopened_sync, &layout, INCARNATION + 1) {
        Ok(storage) => storage,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let may_be_lost = matches!(error, StorageError::PossibleDataLoss(_)) && files.boot == 1 && !sync;
            assert!(may_be_lost || is_damaged.contains(&true), "{error}");
            return;
        }
    };
    if !is_damaged[0] {
        assert!(sync || files.boot == 0, "files may have lost writes");
    }
    for (region, buffer) in reopened.buffers().iter().enumerate() {
        assert_eq!(buffer.len(), layout.len(region as u8));
        let mut contents = vec![0; buffer.len()];
        buffer.read_at(0, &mut contents);
        assert!(is_damaged[2 + region] || contents.iter().all(|&byte| byte == region as u8 + 1));
    }
    if !is_damaged[1] {
        assert_eq!(reopened.process_incarnations(), connected);
    }
    // The accepted files can be opened again, with the appended record.
    let (mut again, p) = (reopened, ProcessId(1));
    let mut known = again.process_incarnations().to_vec();
    again.record_incarnation(p, 1 << 40).expect("memory refuses no write");
    known.push((p, 1 << 40));
    drop(again);
    let again =
        open(&files, reopened_sync, &layout, INCARNATION + 2).expect("the same files were opened before");
    assert_eq!(again.process_incarnations(), known);
}

fn open(
    files: &MemoryFiles,
    sync: bool,
    layout: &Layout,
    new: u64,
) -> Result<Storage<MemoryFiles>, StorageError> {
    Storage::open(files.clone(), sync, layout, new)
}

fn regions() -> Vec<Region> {
    let permissions = Permissions::single_writer(3, ProcessId(0));
    let region = |registers, kind| Region { registers, permissions, legal_change: LegalChange::Never, kind };
    vec![region(4, RegisterKind::ReadWrite), region(3, RegisterKind::WriteOnce)]
}

/// Damages a file, and returns its index.
fn damage(files: &MemoryFiles, input: &mut Bytes<'_>) -> usize {
    let choice = usize::from(input.byte());
    let (at, name) = (choice % FILES.len(), FILES[choice % FILES.len()]);
    match choice / FILES.len() % 4 {
        0 => {
            let len = usize::from(input.word());
            files.change(name, |bytes| bytes.truncate(len));
        }
        1 => {
            let (offset, byte) = (usize::from(input.word()), input.byte());
            files.change(name, |bytes| {
                let len = bytes.len().max(1);
                bytes.resize(len, 0);
                bytes[offset % len] = byte;
            });
        }
        2 => {
            let contents = input.string().to_vec();
            files.change(name, |bytes| *bytes = contents);
        }
        _ => files.remove(name),
    }
    at
}
