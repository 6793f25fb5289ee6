//! The transport's access to host memory, through the DMA pipeline of a NIC.

use std::sync::Arc;

use mitra_transport::{AtomicOp, Memory, MemoryFault};
use mitra_verbs::{Buffer, RegionId, Time};

use crate::dma_pipeline::DmaPipeline;

/// Host memory as a NIC's transport accesses it.
pub(crate) struct DmaMemory<'a> {
    pub(crate) pipeline: &'a mut DmaPipeline,
    pub(crate) regions: &'a [Option<Arc<Buffer>>],
    pub(crate) now: Time,
    /// Whether atomics are also atomic with respect to other NICs.
    pub(crate) global_atomics: bool,
}

impl DmaMemory<'_> {
    fn buffer(
        &self,
        region: RegionId,
        offset: u64,
        len: usize,
    ) -> Result<(&Arc<Buffer>, usize), MemoryFault> {
        let Some(buffer) = self.regions.get(region.0 as usize).and_then(Option::as_ref) else {
            // The contract of [`Memory`] forbids this access, because all keys of the region are revoked.
            panic!("the transport accesses {region} after it was revoked");
        };
        let offset = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= buffer.len());
        if fits { Ok((buffer, offset)) } else { Err(MemoryFault) }
    }
}

impl Memory for DmaMemory<'_> {
    fn place(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let (buffer, offset) = self.buffer(region, offset, data.len())?;
        let buffer = Arc::clone(buffer);
        self.pipeline.place(self.now, &buffer, offset, data);
        Ok(())
    }

    fn fetch(&mut self, region: RegionId, offset: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let (buffer, offset) = self.buffer(region, offset, out.len())?;
        let buffer = Arc::clone(buffer);
        self.pipeline.read_through(&buffer, offset, out);
        Ok(())
    }

    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let (buffer, offset) = self.buffer(region, offset, 8)?;
        if offset % 8 != 0 {
            return Err(MemoryFault);
        }
        let buffer = Arc::clone(buffer);
        Ok(self.pipeline.atomic(self.now, &buffer, offset, op, self.global_atomics))
    }
}
