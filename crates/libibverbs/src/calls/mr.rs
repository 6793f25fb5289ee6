//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;

use mitra_failover::VirtualMr;
use mitra_verbs::{Access, Error, PdId, Provider, Result};

use super::abi_object::{AbiHeader, AbiObject};
use super::context::Context;
use super::pd::{Member, Pd};
use crate::abi::*;
use crate::common::errno::{errno_of, log_failure, pointer, set_errno, status};
use crate::common::lock::lock;
use crate::memory;
use crate::rails::rail_set::RailSet;

/// A memory region. Registering it anew gives it another name on the NIC.
#[repr(C)]
pub(crate) struct Mr {
    header: AbiHeader<ibv_mr>,
    pub(crate) registered: Mutex<Registered>,
    terms: Mutex<Terms>,
}

/// What it was registered with, beside what its header says.
struct Terms {
    iova: u64,
    access: c_uint,
    _pd: Member,
}

/// How the NIC, or all of them, know it.
pub(crate) enum Registered {
    Nic(mitra_verbs::Mr),
    MultiRail(VirtualMr),
}

impl Registered {
    /// As on rail 0, whose names the program uses.
    pub(crate) fn primary(&self) -> mitra_verbs::Mr {
        match self {
            Registered::Nic(mr) => *mr,
            Registered::MultiRail(mr) => mr.primary(),
        }
    }

    /// Revokes it: on return no NIC touches the memory any more.
    fn revoke(&self, rails: &RailSet) -> Result<()> {
        match (self, &rails.multi_rail) {
            (Registered::MultiRail(mr), Some(multi_rail)) => multi_rail.domain().deregister(mr),
            _ => match rails.nic().dereg_mr(self.primary().id) {
                // It may be hung, and still write: only a reset makes sure.
                Err(Error::DeviceFatal) => rails.nic().reset(),
                other => other,
            },
        }
    }
}

// SAFETY: `repr(C)`, header first.
unsafe impl AbiObject for Mr {
    type C = ibv_mr;
}

/// An address's offset in its page, in which an I/O virtual address must be like it (`ibv_reg_mr_iova(3)`).
const IN_PAGE: u64 = 0xfff;

/// The rights that a program asks for.
///
/// # Errors
/// Bits that the device does not know and that are not among those it may ignore.
pub(crate) fn access(flags: c_uint) -> Result<Access> {
    const PLAIN: [(c_uint, Access); 5] = [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_MW_BIND, Access::WINDOW_BIND),
    ];
    // What sizes its pages have does not matter here.
    let ignored = IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB;
    let known = PLAIN.iter().fold(ignored, |all, (bit, _)| all | bit);
    if flags & !known != 0 {
        return Err(Error::Unsupported("zero-based regions, on-demand paging or an access bit beyond them"));
    }
    Ok(PLAIN.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, right)| *right).collect())
}

/// Registers memory of the program.
///
/// # Safety
/// The memory is the program's to lend: as with a real NIC, it is written behind the back of the program's compiler.
unsafe fn register(
    context: &Context,
    pd: PdId,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<Registered> {
    let start = addr as u64;
    if length == 0 || start.checked_add(length as u64).is_none() || iova.checked_add(length as u64).is_none()
    {
        return Err(Error::Invalid("a region has at least one byte, and ends within the address space"));
    }
    if (start ^ iova) & IN_PAGE != 0 {
        return Err(Error::Invalid("an I/O virtual address has the same offset in its page as the memory"));
    }
    let access = access(flags)?;
    // SAFETY: the caller's promise.
    let memory = unsafe { memory::lend(addr.cast(), length, iova) };
    match &context.rails.multi_rail {
        None => context.nic().reg_mr(pd, memory, access).map(Registered::Nic),
        Some(multi_rail) => multi_rail.domain().register(&memory, access).map(Registered::MultiRail),
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
    // SAFETY: a protection domain and its device.
    let (found, context) = unsafe { (Pd::of(pd), Context::of((*pd).context)) };
    // SAFETY: what registering memory promises.
    let made = unsafe { register(context, found.id, addr, length, iova, access) }.map(|registered| {
        let named = registered.primary();
        let header = ibv_mr {
            context: context.address(),
            pd,
            addr,
            length,
            handle: named.id.0,
            lkey: named.lkey.0,
            rkey: named.rkey.0,
        };
        let terms = Terms { iova, access, _pd: Member::clone(&found.member) };
        Mr { header: AbiHeader::new(header), registered: Mutex::new(registered), terms: Mutex::new(terms) }
            .give()
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
    // SAFETY: passed on.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: passed on.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as c_uint) }
}

/// Memory of another device is out of reach.
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

/// Changes a region. Its keys change with it. A refusal leaves it as it was.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let asked = flags as c_uint;
    if asked & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 || asked == 0 {
        set_errno(libc::EINVAL);
        return IBV_REREG_MR_ERR_INPUT;
    }
    // SAFETY: a region, its domain and device, and another domain where the flags say so.
    match unsafe { reregister(mr, asked, pd, addr, length, access as c_uint) } {
        Ok(()) => 0,
        Err(error) => {
            log_failure("ibv_rereg_mr", &error);
            set_errno(errno_of(&error));
            IBV_REREG_MR_ERR_CMD
        }
    }
}

/// # Safety
/// As for `ibv_rereg_mr`.
unsafe fn reregister(
    mr: *mut ibv_mr,
    asked: c_uint,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> Result<()> {
    // SAFETY: the caller's promise; the program uses the region nowhere else meanwhile.
    let (found, header) = unsafe { (Mr::of(mr), &mut *mr) };
    // SAFETY: a region's device.
    let context = unsafe { Context::of(header.context) };
    let mut terms = lock(&found.terms);
    let (addr, length, iova) = match asked & IBV_REREG_MR_CHANGE_TRANSLATION {
        0 => (header.addr, header.length, terms.iova),
        _ => (addr, length, addr as u64),
    };
    let access = if asked & IBV_REREG_MR_CHANGE_ACCESS == 0 { terms.access } else { access };
    let pd = if asked & IBV_REREG_MR_CHANGE_PD == 0 { header.pd } else { pd };
    // SAFETY: a protection domain.
    let domain = unsafe { Pd::of(pd) };
    // SAFETY: what registering memory promises.
    let fresh = unsafe { register(context, domain.id, addr, length, iova, access)? };
    let mut registered = lock(&found.registered);
    if let Err(error) = registered.revoke(&context.rails) {
        // Best effort: the first error is the one to tell.
        let _ = fresh.revoke(&context.rails);
        return Err(error);
    }
    let named = fresh.primary();
    *registered = fresh;
    *terms = Terms { iova, access, _pd: Member::clone(&domain.member) };
    (header.pd, header.addr, header.length) = (pd, addr, length);
    (header.handle, header.lkey, header.rkey) = (named.id.0, named.lkey.0, named.rkey.0);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: a region and its device.
    let (found, context) = unsafe { (Mr::of(mr), Context::of((*mr).context)) };
    let revoked = lock(&found.registered).revoke(&context.rails);
    if revoked.is_err() {
        return status("ibv_dereg_mr", revoked);
    }
    // SAFETY: the program gives it back.
    drop(unsafe { Mr::take(mr) });
    0
}

/// There is nothing to prefetch: memory is paged in when it is touched.
pub(crate) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    _advice: ibv_advise_mr_advice,
    _flags: u32,
    _sg_list: *mut ibv_sge,
    _num_sges: u32,
) -> c_int {
    libc::EOPNOTSUPP
}
