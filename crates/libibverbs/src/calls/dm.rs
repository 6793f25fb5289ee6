//! Device memory. It has the rules of mlx5, because soft-RoCE has no device memory.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use mitra_verbs::{Access, Error, Result};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, find_with_context};
use super::mr;
use super::pd::Pd;
use crate::common::errno::{pointer, refuse_object, status};
use crate::program_memory::program_buffer;
use crate::rails::device_memory::{Allocation, DEVICE_MEMORY_BYTES, zero_based_buffer};
use crate::rails::rail_set::RailSet;
use mitra_verbs_abi::*;

#[repr(C)]
struct Dm {
    header: AbiHeader<ibv_dm>,
    memory: Arc<Allocation>,
    /// The value that each region of the memory clones, so that the device memory can count them.
    /// The clones of `memory` are no such count, because a NIC may keep the memory for longer than
    /// the program keeps the region.
    member: Arc<()>,
}

abi_object!(Dm: ibv_dm, "device memory", handle, context);

/// The unit of copies, in bytes. The offset and the length of a copy are multiples of the unit
/// (`ibv_memcpy_to_dm(3)` on mlx5).
const UNIT: u64 = 4;

/// The number of bytes that are copied at a time.
const CHUNK: usize = 4096;

/// The access flags that a region of device memory may have.
const REGION_FLAGS: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_OPTIONAL_RANGE;

/// A forked child may allocate device memory on the context of its parent, because the memory
/// belongs to the process. The child cannot register the memory, because it has no domain of that
/// context.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    const CALL: &str = "ibv_alloc_dm";
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let (found, attr) = unsafe { (Context::find_raw_or_inherited(context), &*attr) };
    let context = match found.and_then(|context| check(&context.rails, attr).map(|()| context)) {
        Ok(context) => context,
        Err(error) => return pointer(CALL, Err(error)),
    };
    let Some(memory) = context.rails.device_memory.allocate(attr.length) else {
        return refuse_object(
            CALL,
            libc::ENOMEM,
            "less of the device's memory is free; free some, or allocate less",
        );
    };
    let header = AbiHeader::new(ibv_dm {
        context: context.address(),
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle: memory.handle,
    });
    Dm { header, memory: Arc::new(memory), member: Arc::default() }.into_raw()
}

/// Returns the size of the device's memory. The memory has no address in the process, where a NIC
/// of the kernel could find it.
pub(super) fn size(rails: &RailSet) -> usize {
    if rails.has_on_demand_paging() { DEVICE_MEMORY_BYTES } else { 0 }
}

/// # Errors
/// `Invalid` for an empty allocation, an unknown attribute, or an alignment that no address has.
/// `Limit` for more than the device's memory. `Unsupported` if the device has none.
fn check(rails: &RailSet, attr: &ibv_alloc_dm_attr) -> Result<()> {
    if size(rails) == 0 {
        return Err(Error::Unsupported(
            "device memory over these NICs, which reach memory of the program only; register memory of the program",
        ));
    }
    if attr.comp_mask != 0 || attr.log_align_req >= u64::BITS || attr.length == 0 {
        return Err(Error::Invalid(
            "device memory has at least one byte, an alignment of at most 2^63, and no optional attributes",
        ));
    }
    if attr.length > DEVICE_MEMORY_BYTES {
        let (requested, limit) = (attr.length as u64, DEVICE_MEMORY_BYTES as u64);
        return Err(Error::Limit { attribute: "bytes of device memory", requested, limit });
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `dm` now.
    let freed = unsafe {
        Dm::destroy(dm, |object| match Arc::strong_count(&object.member) {
            1 => Ok(()),
            _ => {
                Err(Error::Busy { kind: "device memory", id: object.memory.handle, user: "a memory region" })
            }
        })
    };
    status("ibv_free_dm", freed)
}

impl Dm {
    /// Returns the range of a copy, as an index and a length.
    ///
    /// # Errors
    /// `Inaccessible` if the range exceeds the memory, or `Invalid` if it is not aligned.
    fn range(&self, offset: u64, len: usize, right: &'static str) -> Result<(usize, usize)> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.memory.bytes.len() as u64) {
            return Err(Error::Inaccessible { addr: offset, right });
        }
        if !(offset | len as u64).is_multiple_of(UNIT) {
            return Err(Error::Invalid(
                "the offset and the length of a copy are multiples of 4; copy whole words",
            ));
        }
        Ok((offset as usize, len))
    }

    /// # Errors
    /// The errors of [`Dm::range`], or `Inaccessible` if the program's memory is not mapped.
    ///
    /// # Safety
    /// The `len` bytes at `from` are memory of the program, and no Rust object is there.
    unsafe fn copy_in(&self, offset: u64, from: *const c_void, len: usize) -> Result<()> {
        let (offset, len) = self.range(offset, len, "writing")?;
        // SAFETY: the caller upholds the requirement, and the buffer is dropped before it returns.
        let host = unsafe { program_buffer(from.cast_mut().cast(), len, 0) };
        copy(len, |at, chunk| {
            let read = host.try_read_at(at, chunk);
            read.map_err(|_| Error::Inaccessible { addr: from as u64, right: "reading" })?;
            self.memory.bytes.write_at(offset + at, chunk);
            Ok(())
        })
    }

    /// # Errors
    /// The errors of [`Dm::range`], or `Inaccessible` if the program's memory is not mapped for
    /// writing.
    ///
    /// # Safety
    /// The `len` bytes at `to` are memory of the program, and no Rust object is there.
    unsafe fn copy_out(&self, to: *mut c_void, offset: u64, len: usize) -> Result<()> {
        let (offset, len) = self.range(offset, len, "reading")?;
        // SAFETY: the caller upholds the requirement, and the buffer is dropped before it returns.
        let host = unsafe { program_buffer(to.cast(), len, 0) };
        copy(len, |at, chunk| {
            self.memory.bytes.read_at(offset + at, chunk);
            let written = host.try_write_at(at, chunk);
            written.map_err(|_| Error::Inaccessible { addr: to as u64, right: "writing" })
        })
    }
}

/// Calls `piece` with the start of each chunk of `len` bytes, and with a buffer of the chunk's
/// length.
///
/// # Errors
/// The first error of `piece`.
fn copy(len: usize, mut piece: impl FnMut(usize, &mut [u8]) -> Result<()>) -> Result<()> {
    let mut chunk = [0; CHUNK];
    (0..len).step_by(CHUNK).try_for_each(|at| piece(at, &mut chunk[..CHUNK.min(len - at)]))
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let copied = unsafe { Dm::find(dm).and_then(|object| object.copy_in(offset, from, length)) };
    status("ibv_memcpy_to_dm", copied)
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let copied = unsafe { Dm::find(dm).and_then(|object| object.copy_out(to, offset, length)) };
    status("ibv_memcpy_from_dm", copied)
}

/// In work requests, the first byte of a region of device memory has the address 0.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: rule *objects* (module `calls`): `pd` and `dm` are not deallocated during the call,
    // and their contexts outlive them.
    let found = unsafe { find_with_context::<Pd>(pd).and_then(|pd| Ok((pd, find_with_context::<Dm>(dm)?))) };
    let made = found.and_then(|((domain, context), (object, of_dm))| {
        if of_dm.address() != context.address() {
            return Err(Error::NoSuchObject { kind: Dm::KIND, id: object.memory.handle });
        }
        let (offset, rights) = object.region(dm_offset, length, access)?;
        let memory = zero_based_buffer(&object.memory, offset, length);
        let region = mr::register((domain, context), memory, rights, std::ptr::null_mut(), length)?;
        region.set_device_memory(&object.member);
        Ok(region.into_raw())
    });
    pointer("ibv_reg_dm_mr", made)
}

impl Dm {
    /// Returns the offset of a region as an index, and its rights.
    ///
    /// # Errors
    /// `Invalid` if the region exceeds the memory, or for access flags that it cannot have.
    fn region(&self, offset: u64, len: usize, flags: c_uint) -> Result<(usize, Access)> {
        if flags & IBV_ACCESS_ZERO_BASED == 0 || flags & !REGION_FLAGS != 0 {
            return Err(Error::Invalid(
                "a region of device memory needs IBV_ACCESS_ZERO_BASED, and has local and remote rights only",
            ));
        }
        if offset.checked_add(len as u64).is_none_or(|end| end > self.memory.bytes.len() as u64) {
            return Err(Error::Invalid("a region of device memory must end within it; allocate more"));
        }
        let rights = mr::access(flags & !IBV_ACCESS_ZERO_BASED)?;
        if rights.contains(Access::REMOTE_ATOMIC) && !offset.is_multiple_of(8) {
            return Err(Error::Invalid(
                "a region of device memory for atomics begins at a multiple of 8; pass such an offset",
            ));
        }
        Ok((offset as usize, rights))
    }
}
