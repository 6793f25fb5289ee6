//! The XRC domains of a process, and the files that they are associated with.
//!
//! Contexts of one process share a domain if they open it with the same file. Each process has NICs
//! of its own, so a domain is never shared between processes.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;

use mitra_verbs::{Result, XrcdId};

use super::device::Device;

/// The device and the number of an inode.
type Inode = (u64, u64);

#[derive(Default)]
pub(crate) struct XrcDomains {
    open: HashMap<XrcdId, OpenDomain>,
}

struct OpenDomain {
    /// The number of `ibv_xrcd`s.
    handles: usize,
    /// The file that the domain is associated with. It is kept open, so that its inode is not used
    /// again.
    file: Option<(Inode, File)>,
}

/// The flags `O_CREAT` and `O_EXCL` of `ibv_open_xrcd(3)`.
#[derive(Clone, Copy)]
pub(crate) struct OpenFlags {
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
}

pub(crate) enum OpenXrcdError {
    /// The descriptor refers to no open file.
    BadDescriptor,
    /// No domain of this process is associated with the file, and `O_CREAT` is not set.
    NoDomain,
    /// A domain is associated with the file, and `O_EXCL` is set.
    Exists,
    Nic(mitra_verbs::Error),
}

impl XrcDomains {
    /// Opens the domain that is associated with `file`. If there is none, creates a domain of
    /// the device.
    ///
    /// # Errors
    /// See [`OpenXrcdError`].
    pub(crate) fn open(
        &mut self,
        device: &dyn Device,
        file: Option<BorrowedFd<'_>>,
        flags: OpenFlags,
    ) -> Result<XrcdId, OpenXrcdError> {
        let file = match file {
            None => None,
            Some(fd) => {
                let file = fd.try_clone_to_owned().map(File::from);
                let opened = file.and_then(|file| Ok((file.metadata()?, file)));
                let (metadata, file) = opened.map_err(|_| OpenXrcdError::BadDescriptor)?;
                Some(((metadata.dev(), metadata.ino()), file))
            }
        };
        if let Some((inode, _)) = &file {
            let is_of_file =
                |domain: &OpenDomain| domain.file.as_ref().is_some_and(|(known, _)| known == inode);
            match self.open.iter_mut().find(|(_, domain)| is_of_file(domain)) {
                Some(_) if flags.exclusive => return Err(OpenXrcdError::Exists),
                Some((id, domain)) => {
                    domain.handles += 1;
                    return Ok(*id);
                }
                None if !flags.create => return Err(OpenXrcdError::NoDomain),
                None => {}
            }
        }
        let id = device.alloc_xrcd().map_err(OpenXrcdError::Nic)?;
        self.open.insert(id, OpenDomain { handles: 1, file });
        Ok(id)
    }

    /// Closes one handle of a domain. Closing the last handle destroys the domain.
    ///
    /// # Errors
    /// The errors of [`Device::dealloc_xrcd`]. The domain is then open as before.
    pub(crate) fn close(&mut self, device: &dyn Device, id: XrcdId) -> Result<()> {
        let Some(domain) = self.open.get_mut(&id) else { return Ok(()) };
        if domain.handles > 1 {
            domain.handles -= 1;
            return Ok(());
        }
        device.dealloc_xrcd(id)?;
        self.open.remove(&id);
        Ok(())
    }
}
