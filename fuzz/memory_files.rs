//! The files of a memory node, in memory.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use mitra_consensus_memory::{Files, StoredFile};

/// The directory. A copy of this value is the same directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryFiles {
    files: Arc<Mutex<HashMap<String, OpenFile>>>,
    /// The number of reboots.
    pub(crate) boot: u8,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct OpenFile(Arc<Mutex<Vec<u8>>>);

impl MemoryFiles {
    /// Changes the contents of a file, or creates it.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.file(name).0.lock().expect("no thread panics"));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.files.lock().expect("no thread panics").remove(name);
    }

    fn file(&self, name: &str) -> OpenFile {
        self.files.lock().expect("no thread panics").entry(name.to_owned()).or_default().clone()
    }
}

impl Files for MemoryFiles {
    type File = OpenFile;

    fn directory(&self) -> &Path {
        Path::new("files")
    }

    fn boot_id(&self) -> io::Result<String> {
        Ok(self.boot.to_string())
    }

    fn open(&self, name: &str, _: bool) -> io::Result<OpenFile> {
        Ok(self.file(name))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let files = self.files.lock().expect("no thread panics");
        let file = files.get(name).ok_or(io::ErrorKind::NotFound)?;
        let contents = file.0.lock().expect("no thread panics").clone();
        Ok(contents)
    }

    fn replace(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.change(name, |file| *file = contents.to_vec());
        Ok(())
    }
}

impl StoredFile for OpenFile {
    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut bytes = self.0.lock().expect("no thread panics");
        let len = bytes.len().max(len as usize);
        bytes.resize(len, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock().expect("no thread panics");
        let found = bytes.get(offset as usize..).and_then(|bytes| bytes.get(..out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock().expect("no thread panics");
        let end = offset as usize + data.len();
        let len = bytes.len().max(end);
        bytes.resize(len, 0);
        bytes[offset as usize..end].copy_from_slice(data);
        Ok(())
    }
}
