use std::sync::Arc;

use mitra_verbs::{Access, Buffer, Result, Sge};

use crate::domain::Domain;
use crate::memory_region::VirtualMr;

/// A buffer that is registered with a [`Domain`] for as long as the value lives. Only local work
/// requests may access it. Close the queue pairs that use the buffer first.
#[derive(Debug)]
pub struct OwnedRegion {
    domain: Arc<Domain>,
    buffer: Arc<Buffer>,
    mr: VirtualMr,
}

impl OwnedRegion {
    /// Allocates and registers `bytes` zeroed bytes.
    ///
    /// # Errors
    /// The errors of [`Domain::register`].
    pub fn new(domain: &Arc<Domain>, bytes: usize) -> Result<OwnedRegion> {
        let buffer = Arc::new(Buffer::new(bytes));
        let mr = domain.register(&buffer, Access::LOCAL_WRITE)?;
        Ok(OwnedRegion { domain: Arc::clone(domain), buffer, mr })
    }

    /// The domain that holds the registration.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Returns a scatter/gather entry of `len` bytes at `offset`.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        self.mr.sge(offset as u64, len as u32)
    }

    /// Returns a copy of `len` bytes at `offset`.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read_into(offset, &mut bytes);
        bytes
    }

    /// Copies the bytes at `offset` to `out`.
    pub fn read_into(&self, offset: usize, out: &mut [u8]) {
        self.buffer.read_at(offset, out);
    }

    /// Stores `bytes` at `offset`.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.buffer.write_at(offset, bytes);
    }
}

impl Drop for OwnedRegion {
    fn drop(&mut self) {
        // Only a dead NIC does not confirm the deregistration. Its accesses stay safe, because the
        // buffer is not freed while a NIC refers to it.
        let _ = self.domain.deregister(&self.mr);
    }
}
