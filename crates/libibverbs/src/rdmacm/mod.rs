//! librdmacm: connections between QPs, by IP address, as `man 7 rdma_cm` describes.
//!
//! Two programs' managers talk over ordinary sockets of the addresses that the programs give, and tell each other the GIDs of
//! their NICs, so that the two need not have anything in common: a connection over TCP, which stays open and so tells of a
//! peer that died; a lookup of a datagram service in UDP datagrams.
//!
//! - No I/O: [`message`] (the bytes), [`connection`] and [`lookup`] (the protocols), [`attributes`] (what a QP is to be told).
//! - Sockets: [`socket`], [`service`] (between them and the protocols), [`manager`] (lock and thread), [`state`], [`fork`].
//! - The calls: [`channel`] and [`event`] (what is reported), [`identifier`], [`resolve`], [`connect`], [`queue_pair`],
//!   [`multicast`], [`endpoint`] (synchronous programs), [`addrinfo`], [`device`], [`unsupported`].
//!
//! What a call has to tell later waits as a report in the identifier's channel and becomes an event, with all its effects on
//! the identifier and its QP, when the program reads it: so that memory and QPs of the program change in its own calls only.
mod address;
mod addrinfo;
mod attributes;
mod channel;
mod connect;
mod connection;
mod device;
mod endpoint;
mod event;
mod fork;
mod identifier;
mod lookup;
mod manager;
mod message;
mod multicast;
mod queue_pair;
mod resolve;
mod service;
mod socket;
mod state;
mod unsupported;

use std::ffi::c_int;

use nix::errno::Errno;

use crate::common::errno::minus_one;

/// What a call returns: 0, or -1 with `errno` set.
fn answer(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => minus_one(errno as c_int),
    }
}

/// The result of a verb that returns an error number.
fn checked(returned: c_int) -> Result<(), Errno> {
    if returned == 0 { Ok(()) } else { Err(Errno::from_raw(returned)) }
}

/// The result of a verb that returns an object, or null with `errno` set.
fn made<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(Errno::last()) } else { Ok(object) }
}

/// A number that nobody can guess.
fn random() -> u64 {
    // getrandom(2) does not fail for eight bytes once the kernel has booted.
    getrandom::u64().unwrap_or_default()
}
