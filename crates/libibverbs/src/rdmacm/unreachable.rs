//! The explanation of `RDMA_CM_EVENT_UNREACHABLE`.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use mitra_verbs::Gid;
use nix::errno::Errno;

use super::network::Network;
use super::protocol::message::Service;
use super::rdma_port::is_local;

/// Whether this process has explained such an event.
static EXPLAINED: AtomicBool = AtomicBool::new(false);

/// Returns whether no packet travels between the device and that of a service, because one of them
/// has a loopback address and they are on two machines.
pub fn is_out_of_reach(network: &Network, device: Gid, service: &Service) -> bool {
    let has_loopback = [network.gid(), device].into_iter().any(|gid| IpAddr::from(gid).is_loopback());
    has_loopback && !is_local(service.destination)
}

/// Says why a request was not answered: on standard error the first time in this process, later at
/// debug level.
pub fn explain(network: &Network, device: Option<Gid>, service: &Service, errno: Errno) {
    let reason = match device {
        Some(device) if is_out_of_reach(network, device, service) => {
            "it is on another machine, which loopback addresses do not reach: give both ends the addresses of their NICs \
             (mitra run --rails ADDRESS)"
        }
        _ if !network.is_up() => "no port of this device is up: bring a rail up (mitra fault)",
        _ => {
            "its program does not accept, is stopped, or cannot be reached: check the ports at both ends, and that the \
             network lets UDP port 4791 pass"
        }
    };
    let peer = service.destination;
    if EXPLAINED.swap(true, Ordering::Relaxed) {
        tracing::debug!("{peer} does not answer ({errno}): {reason}");
    } else {
        tracing::warn!("{peer} does not answer ({errno}): {reason}");
    }
}
