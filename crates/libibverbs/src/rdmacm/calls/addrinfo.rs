//! `rdma_getaddrinfo`, on top of the C library's `getaddrinfo`.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};
use nix::errno::Errno;

use crate::common::cancellation;
use crate::rdmacm::return_code::return_code;
use mitra_verbs_abi::*;

/// Returns 0, −1 with `errno` set, or an error code of `getaddrinfo`. The list has one element,
/// from the first result of `getaddrinfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: `rdma_getaddrinfo` requires strings and hints that are null or valid, and a valid
    // pointer for the result. Zeroed memory of `calloc` is valid for `rdma_addrinfo`.
    unsafe {
        if node.is_null() && service.is_null() && hints.is_null() {
            return return_code("rdma_getaddrinfo", || Err(Errno::EINVAL));
        }
        let result: *mut rdma_addrinfo = libc::calloc(1, size_of::<rdma_addrinfo>()).cast();
        if result.is_null() {
            return return_code("rdma_getaddrinfo", || Err(Errno::ENOMEM));
        }
        let code = cancellation::held_off(|| fill(&mut *result, node, service, hints.as_ref()));
        if code == 0 {
            *res = result;
        } else {
            rdma_freeaddrinfo(result);
        }
        code
    }
}

/// Returns 0 or an error code of `getaddrinfo`.
///
/// # Safety
/// As `rdma_getaddrinfo` requires.
unsafe fn fill(
    result: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> c_int {
    let (flags, qp_type, port_space) =
        hints.map_or((0, 0, 0), |hints| (hints.ai_flags, hints.ai_qp_type, hints.ai_port_space));
    let is_datagram = qp_type as ibv_qp_type == IBV_QPT_UD
        || (qp_type == 0 && port_space as rdma_port_space == RDMA_PS_UDP);
    let or_default = |given: c_int, datagram: u32, connected: u32| match given {
        0 => (if is_datagram { datagram } else { connected }) as c_int,
        given => given,
    };
    result.ai_flags = flags & RAI_PASSIVE;
    result.ai_qp_type = or_default(qp_type, IBV_QPT_UD, IBV_QPT_RC);
    result.ai_port_space = or_default(port_space, RDMA_PS_UDP, RDMA_PS_TCP);
    // SAFETY: by the contract the strings and hints are valid. After success `result_list` is a
    // list of `getaddrinfo`, which is freed once.
    unsafe {
        if !node.is_null() || !service.is_null() {
            // SAFETY: `addrinfo` consists of integers and pointers, for which zeros are valid.
            let mut ai_hints: addrinfo = std::mem::zeroed();
            let flag = |rai: c_int, ai: c_int| if flags & rai != 0 { ai } else { 0 };
            ai_hints.ai_flags =
                flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST);
            ai_hints.ai_family = match hints {
                Some(hints) if flags & RAI_FAMILY != 0 => hints.ai_family,
                _ => libc::AF_UNSPEC,
            };
            ai_hints.ai_socktype = if is_datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
            let mut result_list: *mut addrinfo = ptr::null_mut();
            let code = libc::getaddrinfo(node, service, &raw const ai_hints, &raw mut result_list);
            if code != 0 {
                return code;
            }
            result.ai_family = (*result_list).ai_family;
            let (address, length) = if flags & RAI_PASSIVE != 0 {
                (&mut result.ai_src_addr, &mut result.ai_src_len)
            } else {
                (&mut result.ai_dst_addr, &mut result.ai_dst_len)
            };
            (*address, *length) = copy((*result_list).ai_addr, (*result_list).ai_addrlen);
            libc::freeaddrinfo(result_list);
        } else if let Some(hints) = hints {
            result.ai_family = hints.ai_family;
            (result.ai_dst_addr, result.ai_dst_len) = copy(hints.ai_dst_addr, hints.ai_dst_len);
        }
        if let Some(hints) = hints
            && result.ai_src_addr.is_null()
        {
            (result.ai_src_addr, result.ai_src_len) = copy(hints.ai_src_addr, hints.ai_src_len);
        }
    }
    0
}

/// Copies an address to memory of `malloc`. Returns null for a null or empty address, or if
/// `malloc` fails.
///
/// # Safety
/// `address` is null or points to `length` bytes.
unsafe fn copy(address: *const sockaddr, length: socklen_t) -> (*mut sockaddr, socklen_t) {
    if address.is_null() || length == 0 {
        return (ptr::null_mut(), 0);
    }
    // SAFETY: the source has `length` bytes by the contract, and the copy has `length` bytes.
    unsafe {
        let copy = libc::malloc(length as usize);
        if copy.is_null() {
            return (ptr::null_mut(), 0);
        }
        ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast(), length as usize);
        (copy.cast(), length)
    }
}

/// Programs such as libfabric add elements and addresses of their own, so `malloc` allocates every
/// part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    while !next.is_null() {
        // SAFETY: every part is null or memory of `malloc`, and is freed once.
        unsafe {
            let info = *next;
            for part in [info.ai_src_addr.cast(), info.ai_dst_addr.cast(), info.ai_route, info.ai_connect] {
                libc::free(part);
            }
            libc::free(info.ai_src_canonname.cast());
            libc::free(info.ai_dst_canonname.cast());
            libc::free(next.cast());
            next = info.ai_next;
        }
    }
}
