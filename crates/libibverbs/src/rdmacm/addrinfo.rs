//! `rdma_getaddrinfo`: the system's `getaddrinfo`, in terms of RDMA.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};
use nix::errno::Errno;

use super::answer;
use crate::abi::*;

/// `rdma_getaddrinfo`: 0, -1 with `errno` set, or a code of `getaddrinfo`. One result, the system's first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the program's strings and hints.
    unsafe {
        if node.is_null() && service.is_null() && hints.is_null() {
            return answer(Err(Errno::EINVAL));
        }
        let result: *mut rdma_addrinfo = libc::calloc(1, size_of::<rdma_addrinfo>()).cast();
        if result.is_null() {
            return answer(Err(Errno::ENOMEM));
        }
        let code = fill(&mut *result, node, service, hints.as_ref());
        if code == 0 {
            *res = result;
        } else {
            rdma_freeaddrinfo(result);
        }
        code
    }
}

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
    let of_kind = |given: c_int, datagram: u32, connected: u32| match given {
        0 => (if is_datagram { datagram } else { connected }) as c_int,
        given => given,
    };
    result.ai_flags = flags & RAI_PASSIVE;
    result.ai_qp_type = of_kind(qp_type, IBV_QPT_UD, IBV_QPT_RC);
    result.ai_port_space = of_kind(port_space, RDMA_PS_UDP, RDMA_PS_TCP);
    // SAFETY: the caller's strings, and addresses that are as long as is said.
    unsafe {
        if !node.is_null() || !service.is_null() {
            // SAFETY: integers and pointers, for which zeros are valid.
            let mut asked: addrinfo = std::mem::zeroed();
            let flag = |rai: c_int, ai: c_int| if flags & rai != 0 { ai } else { 0 };
            asked.ai_flags =
                flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST);
            asked.ai_family = match hints {
                Some(hints) if flags & RAI_FAMILY != 0 => hints.ai_family,
                _ => libc::AF_UNSPEC,
            };
            asked.ai_socktype = if is_datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
            let mut found: *mut addrinfo = ptr::null_mut();
            let code = libc::getaddrinfo(node, service, &raw const asked, &raw mut found);
            if code != 0 {
                return code;
            }
            result.ai_family = (*found).ai_family;
            let (address, length) = if flags & RAI_PASSIVE != 0 {
                (&mut result.ai_src_addr, &mut result.ai_src_len)
            } else {
                (&mut result.ai_dst_addr, &mut result.ai_dst_len)
            };
            (*address, *length) = copy((*found).ai_addr, (*found).ai_addrlen);
            libc::freeaddrinfo(found);
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

/// A copy for `rdma_freeaddrinfo` to free; of nothing, or where there is no memory, nothing.
unsafe fn copy(address: *const sockaddr, length: socklen_t) -> (*mut sockaddr, socklen_t) {
    if address.is_null() || length == 0 {
        return (ptr::null_mut(), 0);
    }
    // SAFETY: the caller's address is `length` bytes long, and the copy as well.
    unsafe {
        let copy = libc::malloc(length as usize);
        if copy.is_null() {
            return (ptr::null_mut(), 0);
        }
        ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast(), length as usize);
        (copy.cast(), length)
    }
}

/// `rdma_freeaddrinfo`. Programs add parts of their own (libfabric does), so all of it is `malloc`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    while !next.is_null() {
        // SAFETY: the program got the list from `rdma_getaddrinfo`.
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
