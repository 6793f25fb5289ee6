//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};

use mitra_verbs::{Access, Buffer, Error, Result};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, destroy_with_context, find_with_context};
use super::on_demand;
use super::pd::{Pd, PdMember};
use crate::common::errno::{errno_of, pointer, refuse, refuse_object, set_errno};
use crate::common::lock::lock;
use crate::common::refusal;
use crate::program_memory::{self, page_check};
use crate::rails::on_demand_regions::OnDemandRegion;
use crate::rails::rail_set::RailSet;
use mitra_verbs_abi::*;

/// A memory region. `ibv_rereg_mr` changes the registration and the parameters.
#[repr(C)]
pub(crate) struct Mr {
    header: AbiHeader<ibv_mr>,
    pub(crate) registration: Mutex<mitra_verbs::Mr>,
    params: Mutex<RegistrationParams>,
}

/// The parameters of a registration that are not in the C structure.
struct RegistrationParams {
    iova: u64,
    access: c_uint,
    _pd: PdMember,
    /// Present if the region is in device memory. The device memory counts its regions by the
    /// clones of this value.
    device_memory: Option<Arc<()>>,
}

abi_object!(Mr: ibv_mr, "memory region", handle, context);

impl Mr {
    pub(super) fn set_device_memory(&self, member: &Arc<()>) {
        lock(&self.params).device_memory = Some(Arc::clone(member));
    }
}

/// The bits of an address that are the offset in a page. They must be equal in the memory's address
/// and in the I/O virtual address (`ibv_reg_mr_iova(3)`).
const PAGE_OFFSET_MASK: u64 = 0xfff;

/// # Errors
/// `Unsupported` for a flag that the device does not know and may not ignore.
pub(crate) fn access(flags: c_uint) -> Result<Access> {
    const FLAGS: [(c_uint, Access); 5] = [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_MW_BIND, Access::WINDOW_BIND),
    ];
    // `IBV_ACCESS_HUGETLB` concerns the page size, which only the speed of a NIC depends on.
    // `IBV_ACCESS_ON_DEMAND` concerns the check at registration only.
    let ignored = IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB | IBV_ACCESS_ON_DEMAND;
    let known = FLAGS.iter().fold(ignored, |all, (bit, _)| all | bit);
    if flags & !known != 0 {
        return Err(Error::Unsupported(
            "zero-based regions or an unknown access flag; register with local, remote and window rights only",
        ));
    }
    Ok(FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, right)| *right).collect())
}

#[derive(Clone, Copy)]
struct ProgramRange {
    addr: *mut c_void,
    length: usize,
    /// The address of the first byte in work requests.
    iova: u64,
}

/// Checks the memory and the access flags of a region, as the kernel does for soft-RoCE.
///
/// # Errors
/// - `Invalid` for a range that overflows, for the whole address space (implicit on-demand paging),
///   or if the I/O virtual address and the memory have different offsets in their pages. `Invalid`
///   also for an empty range at the beginning of a page, because it contains no page (`ib_umem_get`
///   in the kernel's `drivers/infiniband/core/umem.c`).
/// - `TooLarge` if the memory of the machine, or with on-demand paging its address space, is
///   smaller.
/// - `Inaccessible` without on-demand paging, if a page is not mapped, or if the flags need a
///   writable page and the page is read-only.
/// - `Unsupported` for an access flag that the device does not know, or for on-demand paging if a
///   NIC does not have it (`ib_check_mr_access` in the kernel's `include/rdma/ib_verbs.h`).
///
/// # Safety
/// Until the buffer is dropped, no Rust object is in the memory, and the program permits that NICs
/// read and write it at any time as far as the access flags allow. The program may unmap it
/// earlier.
unsafe fn checked_buffer(
    rails: &RailSet,
    range: ProgramRange,
    flags: c_uint,
) -> Result<(Arc<Buffer>, Access)> {
    let ProgramRange { addr, length, iova } = range;
    let (start, len) = (addr as u64, length as u64);
    if flags & IBV_ACCESS_ON_DEMAND != 0 {
        on_demand::check_paging(rails)?;
    }
    if start.checked_add(len).is_none() || iova.checked_add(len).is_none() {
        return Err(Error::Invalid("the region ends beyond the address space; pass a smaller length"));
    }
    if len == 0 && start & PAGE_OFFSET_MASK == 0 {
        return Err(Error::Invalid(
            "an empty region cannot begin at a page; pass a length of at least one byte",
        ));
    }
    if start == 0 && len == u64::MAX {
        return Err(Error::Invalid("implicit on-demand paging is not supported; register a range"));
    }
    if (start ^ iova) & PAGE_OFFSET_MASK != 0 {
        return Err(Error::Invalid(
            "the I/O virtual address has another offset in its page than the memory; pass one with the same low 12 bits",
        ));
    }
    let access = access(flags)?;
    let on_demand = flags & IBV_ACCESS_ON_DEMAND != 0;
    page_check::check_size(len, on_demand)?;
    if !on_demand {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        unsafe { page_check::check(start, len, access.intersects(WRITES))? };
    }
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    Ok((unsafe { program_memory::program_buffer(addr.cast(), length, iova) }, access))
}

/// The rights for which the pages must be writable (`ib_access_writable` in the kernel's
/// `include/rdma/ib_verbs.h`).
const WRITES: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC).union(Access::WINDOW_BIND);

/// Registers a buffer with the NICs. `addr` and `length` are for the
/// region's C structure.
///
/// # Errors
/// The error of a NIC.
pub(super) fn register(
    (pd, context): (&Pd, &Context),
    memory: Arc<Buffer>,
    access: Access,
    addr: *mut c_void,
    length: usize,
) -> Result<Mr> {
    let registration = context.rails.device.reg_mr(pd.id, memory, access)?;
    let header = ibv_mr {
        context: context.address(),
        pd: pd.header.get(),
        addr,
        length,
        handle: registration.id.0,
        lkey: registration.lkey.0,
        rkey: registration.rkey.0,
    };
    let params = RegistrationParams {
        iova: registration.addr,
        access: 0,
        _pd: PdMember::clone(&pd.member),
        device_memory: None,
    };
    let (registration, params) = (Mutex::new(registration), Mutex::new(params));
    Ok(Mr { header: AbiHeader::new(header), registration, params })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: rule *objects* (module `calls`): `pd` and its context exist during the call.
    let found = unsafe { find_with_context::<Pd>(pd) };
    let made = found.and_then(|domain| {
        let range = ProgramRange { addr, length, iova };
        // SAFETY: the memory belongs to the C program, which by registering it permits the access
        // of NICs (`ibv_reg_mr(3)`).
        let (memory, rights) = unsafe { checked_buffer(&domain.1.rails, range, access)? };
        let mr = register(domain, memory, rights, addr, length)?;
        set_on_demand(domain.1, &lock(&mr.registration), range, access);
        lock(&mr.params).access = access;
        Ok(mr.into_raw())
    });
    pointer("ibv_reg_mr", made)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the called verb has the same requirements, and gets the arguments of the program.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the called verb has the same requirements, and gets the arguments of the program.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as c_uint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    const CALL: &str = "ibv_reg_dmabuf_mr";
    const REASON: &str = "Mitra's device registers memory of the program only, because it also reads and writes it without a NIC; copy the data to memory of the program";
    if fd < 0 {
        // UCX finds out by such a call whether the device has the feature
        // (`uct_ib_md_check_dmabuf`).
        refusal::explain_if_verbose(CALL, &REASON);
        set_errno(libc::EOPNOTSUPP);
        return std::ptr::null_mut();
    }
    refuse_object(CALL, libc::EOPNOTSUPP, REASON)
}

fn set_on_demand(context: &Context, mr: &mitra_verbs::Mr, range: ProgramRange, flags: c_uint) {
    let mut regions = lock(&context.rails.on_demand);
    if flags & IBV_ACCESS_ON_DEMAND == 0 {
        regions.remove(&mr.lkey);
    } else {
        let region = OnDemandRegion {
            pd: mr.pd,
            start: range.addr as u64,
            len: range.length as u64,
            iova: range.iova,
            writable: access(flags).is_ok_and(|rights| rights.intersects(WRITES)),
        };
        regions.insert(mr.lkey, region);
    }
}

/// Changes a region. The keys stay. If the new memory, domain or access is refused, the region is
/// unchanged. If a NIC does not confirm the change, the region may be unusable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let changes = flags as c_uint;
    let translation = changes & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let refused = match () {
        () if changes & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 || changes == 0 => {
            "the flags must be one or more of enum ibv_rereg_mr_flags; set what changes"
        }
        () if translation && (addr.is_null() || length == 0) => {
            "the new memory must have an address and a length; pass both"
        }
        () if access != 0 && changes & IBV_REREG_MR_CHANGE_ACCESS == 0 => {
            "new access flags need IBV_REREG_MR_CHANGE_ACCESS; set it too"
        }
        () => "",
    };
    if !refused.is_empty() {
        refuse("ibv_rereg_mr", libc::EINVAL, refused);
        return IBV_REREG_MR_ERR_INPUT;
    }
    // SAFETY: rule *objects* (module `calls`): `mr` is not deregistered during the call, and `pd`
    // is a protection domain if the flags change the domain.
    match unsafe { reregister(mr, changes, pd, addr, length, access as c_uint) } {
        Ok(()) => 0,
        Err(error) => {
            refusal::explain("ibv_rereg_mr", &error);
            set_errno(errno_of(&error));
            IBV_REREG_MR_ERR_CMD
        }
    }
}

/// # Safety
/// The rules of [`super`] for `ibv_rereg_mr`.
unsafe fn reregister(
    mr: *mut ibv_mr,
    changes: c_uint,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> Result<()> {
    // SAFETY: the caller passes a region that is not deregistered during the call. No other thread
    // accesses its header (rule *exclusivity* of module `calls`).
    let ((mr, context), header) = unsafe { (find_with_context::<Mr>(mr)?, &mut *mr) };
    let mut params = lock(&mr.params);
    if params.device_memory.is_some() {
        return Err(Error::Invalid(
            "a region of device memory cannot be changed; deregister it, and register another",
        ));
    }
    let range = match changes & IBV_REREG_MR_CHANGE_TRANSLATION {
        0 => ProgramRange { addr: header.addr, length: header.length, iova: params.iova },
        _ => ProgramRange { addr, length, iova: addr as u64 },
    };
    let flags = if changes & IBV_REREG_MR_CHANGE_ACCESS == 0 { params.access } else { access };
    let pd = if changes & IBV_REREG_MR_CHANGE_PD == 0 { header.pd } else { pd };
    // SAFETY: the caller passes a protection domain, and the domain of a region outlives it.
    let domain = unsafe { Pd::find(pd)? };
    // SAFETY: the memory belongs to the C program, which by registering it permits the access of
    // NICs (`ibv_reg_mr(3)`).
    let (memory, rights) = unsafe { checked_buffer(&context.rails, range, flags)? };
    let mut registration = lock(&mr.registration);
    *registration = context.rails.device.rereg_mr(&registration, domain.id, memory, rights)?;
    set_on_demand(context, &registration, range, flags);
    *params = RegistrationParams {
        iova: range.iova,
        access: flags,
        _pd: PdMember::clone(&domain.member),
        device_memory: None,
    };
    (header.pd, header.addr, header.length) = (pd, range.addr, range.length);
    (header.lkey, header.rkey) = (registration.lkey.0, registration.rkey.0);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `mr` now.
    unsafe {
        destroy_with_context::<Mr>("ibv_dereg_mr", mr, |mr, context| {
            let registration = lock(&mr.registration);
            context.rails.device.dereg_mr(&registration)?;
            lock(&context.rails.on_demand).remove(&registration.lkey);
            Ok(())
        })
    }
}
