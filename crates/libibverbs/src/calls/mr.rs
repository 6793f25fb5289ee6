//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};

use mitra_failover::VirtualMr;
use mitra_verbs::{Access, Error, Provider, Result};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, find_with_context};
use super::pd::{Pd, PdMember};
use crate::abi::*;
use crate::common::errno::{errno_of, log_failure, pointer, set_errno, status};
use crate::common::lock::lock;
use crate::program_memory;
use crate::rails::protection_domain::MultiRailPd;
use crate::rails::rail_set::RailSet;

/// A memory region, which begins with its C structure. `ibv_rereg_mr` replaces the registration.
#[repr(C)]
pub(crate) struct Mr {
    header: AbiHeader<ibv_mr>,
    pub(crate) registration: Mutex<Registration>,
    params: Mutex<RegistrationParams>,
}

/// The parameters of a registration that are not in the C structure.
struct RegistrationParams {
    iova: u64,
    access: c_uint,
    _pd: PdMember,
}

/// A registration with the NIC, or with the NICs of all rails.
pub(crate) enum Registration {
    Nic(mitra_verbs::Mr),
    MultiRail(Arc<MultiRailPd>, VirtualMr),
}

impl Registration {
    /// Returns the registration with the NIC of rail 0. The program uses its keys.
    pub(crate) fn primary(&self) -> mitra_verbs::Mr {
        match self {
            Registration::Nic(mr) => *mr,
            Registration::MultiRail(_, mr) => mr.primary(),
        }
    }

    /// Revokes the registration. After `Ok`, no NIC accesses the memory.
    ///
    /// # Errors
    /// The error of a NIC that does not confirm the revocation. This NIC may still access the memory.
    fn revoke(&self, rails: &RailSet) -> Result<()> {
        match self {
            Registration::MultiRail(pd, mr) => pd.deregister(mr),
            Registration::Nic(mr) => match rails.nic().dereg_mr(mr.id) {
                // The NIC may be hung and still access memory. A reset ends its access.
                Err(Error::DeviceFatal) => rails.nic().reset(),
                other => other,
            },
        }
    }
}

abi_object!(Mr: ibv_mr, "memory region", handle);

/// The bits of an address that are its offset in its page. They must be equal in the memory's address and in the I/O virtual address
/// (`ibv_reg_mr_iova(3)`).
const PAGE_OFFSET_MASK: u64 = 0xfff;

/// Converts access flags.
///
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
    // `IBV_ACCESS_HUGETLB` concerns the page size, which has no effect on a software NIC.
    let ignored = IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB;
    let known = FLAGS.iter().fold(ignored, |all, (bit, _)| all | bit);
    if flags & !known != 0 {
        return Err(Error::Unsupported("zero-based regions, on-demand paging, or an unknown access flag"));
    }
    Ok(FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, right)| *right).collect())
}

/// Registers memory of the program.
///
/// # Errors
/// `Invalid` for a range that is empty or overflows, or if the I/O virtual address and the memory have different offsets in their pages.
/// `Unsupported` for an access flag that the device does not know. Otherwise the error of a NIC.
///
/// # Safety
/// Until the registration is revoked, no Rust object is in the memory, and the program permits that NICs read and write it at any time as
/// far as the access flags allow. The program may unmap it earlier.
unsafe fn register(
    context: &Context,
    pd: &Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<Registration> {
    let start = addr as u64;
    if length == 0 || start.checked_add(length as u64).is_none() || iova.checked_add(length as u64).is_none()
    {
        return Err(Error::Invalid("a region must have at least one byte, and end within the address space"));
    }
    if (start ^ iova) & PAGE_OFFSET_MASK != 0 {
        return Err(Error::Invalid(
            "the I/O virtual address must have the same offset in its page as the memory",
        ));
    }
    let access = access(flags)?;
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let memory = unsafe { program_memory::program_buffer(addr.cast(), length, iova) };
    match &pd.multi_rail {
        None => context.nic().reg_mr(pd.id, memory, access).map(Registration::Nic),
        Some(pd) => pd.register(&memory, access).map(|mr| Registration::MultiRail(Arc::clone(pd), mr)),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: rule *objects* (module `calls`): `pd` is not deallocated during the call, and its context outlives it.
    let found = unsafe { find_with_context::<Pd>(pd) };
    let made = found.and_then(|(object, context)| {
        // SAFETY: the memory belongs to the C program, which by registering it permits the access of NICs (`ibv_reg_mr(3)`).
        let registration = unsafe { register(context, object, addr, length, iova, access)? };
        let primary = registration.primary();
        let header = ibv_mr {
            context: context.address(),
            pd,
            addr,
            length,
            handle: primary.id.0,
            lkey: primary.lkey.0,
            rkey: primary.rkey.0,
        };
        let params = RegistrationParams { iova, access, _pd: PdMember::clone(&object.member) };
        let (registration, params) = (Mutex::new(registration), Mutex::new(params));
        Ok(Mr { header: AbiHeader::new(header), registration, params }.into_raw())
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

/// Fails with `EOPNOTSUPP`, because a software NIC cannot access the memory of another device.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    set_errno(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

/// Changes a region. The keys change too. If the new memory or access is refused, the region is unchanged. If a NIC does not confirm that the
/// old registration is revoked, the region may be unusable.
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
    if changes & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 || changes == 0 {
        set_errno(libc::EINVAL);
        return IBV_REREG_MR_ERR_INPUT;
    }
    // SAFETY: rule *objects* (module `calls`): `mr` is not deregistered during the call, and `pd` is a protection domain if the
    // flags change the domain.
    match unsafe { reregister(mr, changes, pd, addr, length, access as c_uint) } {
        Ok(()) => 0,
        Err(error) => {
            log_failure("ibv_rereg_mr", &error);
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
    // SAFETY: the caller passes a region that is not deregistered during the call. By rule *exclusivity* (module `calls`) no
    // other thread accesses its header, so the reference is exclusive.
    let ((object, context), header) = unsafe { (find_with_context::<Mr>(mr)?, &mut *mr) };
    let mut params = lock(&object.params);
    let (addr, length, iova) = match changes & IBV_REREG_MR_CHANGE_TRANSLATION {
        0 => (header.addr, header.length, params.iova),
        _ => (addr, length, addr as u64),
    };
    let access = if changes & IBV_REREG_MR_CHANGE_ACCESS == 0 { params.access } else { access };
    let pd = if changes & IBV_REREG_MR_CHANGE_PD == 0 { header.pd } else { pd };
    // SAFETY: the caller passes a protection domain, and the domain of a region outlives it.
    let domain = unsafe { Pd::find(pd)? };
    // SAFETY: the memory belongs to the C program, which by registering it permits the access of NICs (`ibv_reg_mr(3)`).
    let new_registration = unsafe { register(context, domain, addr, length, iova, access)? };
    let mut registration = lock(&object.registration);
    if let Err(error) = registration.revoke(&context.rails) {
        // If this fails too, the first error is reported.
        let _ = new_registration.revoke(&context.rails);
        return Err(error);
    }
    let primary = new_registration.primary();
    *registration = new_registration;
    *params = RegistrationParams { iova, access, _pd: PdMember::clone(&domain.member) };
    (header.pd, header.addr, header.length) = (pd, addr, length);
    (header.lkey, header.rkey) = (primary.lkey.0, primary.rkey.0);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `mr` is a memory region, and no other verb uses it now.
    status("ibv_dereg_mr", unsafe {
        Mr::destroy(mr, |object| lock(&object.registration).revoke(&Context::find_raw((*mr).context)?.rails))
    })
}

/// Fails with `EOPNOTSUPP`, because a software NIC cannot prefetch memory. The kernel pages memory in when the NIC accesses it.
pub(crate) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    _advice: ibv_advise_mr_advice,
    _flags: u32,
    _sg_list: *mut ibv_sge,
    _num_sges: u32,
) -> c_int {
    libc::EOPNOTSUPP
}
