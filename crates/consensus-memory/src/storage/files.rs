//! The traits through which the storage accesses files.

use std::fmt::Debug;
use std::io;
use std::path::Path;

/// The directory of one memory node.
pub trait Files: Debug {
    /// An open file.
    type File: StoredFile + 'static;

    /// Returns the path of the directory, for error messages.
    fn directory(&self) -> &Path;

    /// Returns a string that changes at each boot of the machine.
    ///
    /// # Errors
    /// If the operating system does not report a boot id.
    fn boot_id(&self) -> io::Result<String>;

    /// Opens a file, or creates it empty. With `sync`, a write to the file is on the disk before it
    /// returns.
    ///
    /// # Errors
    /// If the operating system does not open the file.
    fn open(&self, name: &str, sync: bool) -> io::Result<Self::File>;

    /// Returns the contents of a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the file does not exist, or another error if the operating
    /// system refuses the read.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Replaces the contents of a file, or creates the file. After a crash, the file has its old or
    /// its new contents. When `replace` returns, the new contents and all files of the directory
    /// are on the disk.
    ///
    /// # Errors
    /// If the operating system refuses the replacement. The file then has its old or its new
    /// contents.
    fn replace(&self, name: &str, contents: &[u8]) -> io::Result<()>;
}

/// An open file of a memory node.
pub trait StoredFile: Debug + Send + Sync {
    /// Sets the length of an empty file, with zeros as contents, and reserves the space on the
    /// disk. Does nothing if the file already has this length. The length is on the disk when
    /// [`StoredFile::sync`] returns.
    ///
    /// # Errors
    /// If the operating system refuses the space, for example because the disk is full.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Waits until the length and the contents of the file are on the disk.
    ///
    /// # Errors
    /// If the operating system cannot write the length or the contents.
    fn sync(&self) -> io::Result<()>;

    /// Reads `out.len()` bytes at an offset.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file is shorter, or another error if the operating
    /// system refuses the read.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at an offset.
    ///
    /// # Errors
    /// If the operating system refuses the write. Any part of `data` has possibly been written, and
    /// may reach the disk later or not.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
}
