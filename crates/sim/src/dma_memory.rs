//! The transport's access to host memory, through the DMA pipeline of a NIC.

use std::sync::Arc;

use mitra_transport::{AtomicOp, Memory, MemoryFault};
use mitra_verbs::{RegionId, Time};

use crate::dma_pipeline::{DmaPipeline, HostBuffer};

pub(crate) struct DmaMemory<'a> {
    pub(crate) pipeline: &'a mut DmaPipeline,
    pub(crate) regions: &'a [Option<Arc<HostBuffer>>],
    pub(crate) now: Time,
    /// Whether atomics are also atomic with respect to other NICs.
    pub(crate) global_atomics: bool,
}

impl DmaMemory<'_> {
    fn memory(
        &self,
        region: RegionId,
        offset: u64,
        len: usize,
    ) -> Result<(Arc<HostBuffer>, usize), MemoryFault> {
        let Some(memory) = self.regions.get(region.0 as usize).and_then(Option::as_ref) else {
            // The contract of [`Memory`] forbids this access, because all keys of the region are
            // revoked.
            panic!("the transport accesses {region} after it was revoked");
        };
        let offset = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= memory.buffer.len());
        if fits { Ok((Arc::clone(memory), offset)) } else { Err(MemoryFault) }
    }
}

impl Memory for DmaMemory<'_> {
    fn place(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let (memory, offset) = self.memory(region, offset, data.len())?;
        self.pipeline.place(self.now, &memory, offset, data);
        Ok(())
    }

    fn fetch(&mut self, region: RegionId, offset: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let (memory, offset) = self.memory(region, offset, out.len())?;
        self.pipeline.read_through(&memory, offset, out);
        Ok(())
    }

    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let (memory, offset) = self.memory(region, offset, 8)?;
        if offset % 8 != 0 {
            return Err(MemoryFault);
        }
        Ok(self.pipeline.atomic(self.now, &memory, offset, op, self.global_atomics))
    }
}
