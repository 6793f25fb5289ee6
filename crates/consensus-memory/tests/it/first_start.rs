//! A first start that ends before the files are on the disk does no harm to the next starts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use mitra_consensus::{LegalChange, Permissions, Region, RegisterKind};
use mitra_consensus_memory::{Files, Layout, Storage, StorageError, StoredFile};

/// The length and contents of a file in the page cache, and on the disk.
#[derive(Debug, Default)]
struct Contents {
    cached: Vec<u8>,
    durable: Vec<u8>,
}

/// A disk. The process that uses the disk dies at a chosen call of [`StoredFile::sync`].
#[derive(Clone, Debug, Default)]
struct Disk {
    files: Arc<Mutex<BTreeMap<String, Contents>>>,
    syncs_left: Arc<Mutex<RefCell<Option<u32>>>>,
}

impl Disk {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Contents>> {
        self.files.lock().unwrap()
    }

    /// Lets this number of calls of `sync` succeed. The process dies at the next call.
    fn die_after(&self, syncs: Option<u32>) {
        self.syncs_left.lock().unwrap().replace(syncs);
    }

    /// Discards everything that is only in the page cache.
    fn lose_power(&self) {
        self.files().values_mut().for_each(|file| file.cached = file.durable.clone());
    }
}

impl Files for Disk {
    type File = DiskFile;

    fn directory(&self) -> &Path {
        Path::new("memory")
    }

    fn boot_id(&self) -> io::Result<String> {
        Ok("1".to_owned())
    }

    fn open(&self, name: &str, _sync: bool) -> io::Result<DiskFile> {
        self.files().entry(name.to_owned()).or_default();
        Ok(DiskFile { disk: self.clone(), name: name.to_owned() })
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let files = self.files();
        files.get(name).map(|file| file.cached.clone()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn replace(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let file = Contents { cached: contents.to_vec(), durable: contents.to_vec() };
        self.files().insert(name.to_owned(), file);
        Ok(())
    }
}

#[derive(Debug)]
struct DiskFile {
    disk: Disk,
    name: String,
}

impl DiskFile {
    fn with<T>(&self, access: impl FnOnce(&mut Contents) -> T) -> T {
        access(self.disk.files().entry(self.name.clone()).or_default())
    }
}

impl StoredFile for DiskFile {
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.with(|file| file.cached.resize(len as usize, 0));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let left = self.disk.syncs_left.lock().unwrap().get_mut().as_mut().map(|left| {
            *left = left.wrapping_sub(1);
            *left
        });
        if left == Some(u32::MAX) {
            return Err(io::Error::other("the process dies"));
        }
        self.with(|file| file.durable = file.cached.clone());
        Ok(())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|file| {
            let bytes = file.cached.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
            out.copy_from_slice(bytes.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|file| {
            for contents in [&mut file.cached, &mut file.durable] {
                contents.resize(contents.len().max(offset as usize + data.len()), 0);
                contents[offset as usize..][..data.len()].copy_from_slice(data);
            }
        });
        Ok(())
    }
}

#[test]
fn power_loss_after_an_interrupted_first_start_damages_nothing() {
    let region = Region {
        registers: 4,
        permissions: Permissions::read_only(2),
        legal_change: LegalChange::ExclusiveWriter,
        kind: RegisterKind::ReadWrite,
    };
    let layout = Layout::new(&[region.clone(), region], 64);
    let open = |disk: &Disk| Storage::open(disk.clone(), true, &layout, 7);
    for died_at in 0..2 {
        let disk = Disk::default();
        disk.die_after(Some(died_at));
        assert!(matches!(open(&disk), Err(StorageError::Io { .. })), "the first start ends early");
        disk.die_after(None);
        open(&disk).expect("the directory has no header, so it is new");
        disk.lose_power();
        open(&disk).expect("the second start has returned, so its files are on the disk");
    }
}
