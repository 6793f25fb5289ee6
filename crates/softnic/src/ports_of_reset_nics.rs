//! The sockets of NICs that were reset. They stay bound and receive nothing.
//!
//! If no process has the port open, the host reports "port unreachable", and peers conclude that
//! this process has ended. A reset ends only the NIC. The port therefore stays bound until the NIC
//! is dropped, or until this process opens another NIC with the address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::udp_socket::RoceSocket;

/// The held sockets by address. The number distinguishes successive holds of an address.
static HELD: Mutex<BTreeMap<IpAddr, (u64, Arc<RoceSocket>)>> = Mutex::new(BTreeMap::new());

/// Keeps a socket bound for the lifetime of this value.
#[derive(Debug)]
pub(crate) struct HeldPort {
    address: IpAddr,
    number: u64,
}

impl HeldPort {
    pub(crate) fn new(socket: Arc<RoceSocket>) -> HeldPort {
        socket.stop_receiving();
        let address = socket.address().ip();
        let mut held = lock();
        let number = held.values().map(|(number, _)| number + 1).max().unwrap_or(0);
        held.insert(address, (number, socket));
        HeldPort { address, number }
    }
}

impl Drop for HeldPort {
    fn drop(&mut self) {
        let mut held = lock();
        if held.get(&self.address).is_some_and(|(number, _)| *number == self.number) {
            held.remove(&self.address);
        }
    }
}

/// Closes the socket that is held for an address, if there is one.
pub(crate) fn release(address: IpAddr) {
    lock().remove(&address);
}

fn lock() -> MutexGuard<'static, BTreeMap<IpAddr, (u64, Arc<RoceSocket>)>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
