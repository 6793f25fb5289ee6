//! What a device sends and receives its datagrams with on a rail: queue pair 1 of the NIC, if the
//! NIC lets programs have it, and UDP sockets, by which NICs of the kernel are reached.

use std::collections::HashSet;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use mitra_failover::LocalNic;
use mitra_verbs::{CqId, Error, Gid, PortState, Result, SrqId};

use super::control_socket::ControlSocket;
use super::gsi_qp::GsiQp;
use crate::rails::rail_address::{Endpoint, Endpoints, RailAddress};

/// Why a NIC of the kernel does not reach its peers' processes.
const NO_SOCKET: Error = Error::Invalid(
    "no UDP port from 19796 to 20051 is free at the addresses of all rails; end other programs of Mitra there",
);

pub(super) struct ControlPort {
    nic: LocalNic,
    gsi_qp: Option<GsiQp>,
    socket: Option<ControlSocket>,
    /// The addresses from which datagrams have come by queue pair 1. Nothing goes to sockets there.
    heard_by_gsi: HashSet<Gid>,
}

/// The number of addresses in [`ControlPort::heard_by_gsi`]. More are forgotten together.
const MAX_HEARD: usize = 1 << 10;

impl ControlPort {
    /// Opens queue pair 1, as [`GsiQp::new`] does, or uses the socket alone.
    ///
    /// # Errors
    /// The error of the NIC if there is no socket.
    pub(super) fn new(
        nic: &LocalNic,
        srq: Option<SrqId>,
        socket: Option<ControlSocket>,
    ) -> Result<ControlPort> {
        let gsi_qp = match GsiQp::new(nic, srq) {
            Ok(gsi_qp) => Some(gsi_qp),
            Err(Error::Unsupported(_)) if socket.is_none() => return Err(NO_SOCKET),
            Err(error) if socket.is_none() => return Err(error),
            Err(_) => None,
        };
        Ok(ControlPort { nic: nic.clone(), gsi_qp, socket, heard_by_gsi: HashSet::new() })
    }

    /// Opens the sockets of a device whose NICs may have peers that the sockets alone reach: not
    /// those at loopback addresses. `None` for a rail without.
    pub(super) fn open_sockets<'a>(nics: impl Iterator<Item = &'a LocalNic>) -> Vec<Option<ControlSocket>> {
        let addresses: Vec<_> =
            nics.map(|nic| nic.provider.query_port().map(|port| IpAddr::from(port.gid))).collect();
        let reached: Vec<_> =
            addresses.iter().flatten().copied().filter(|address| !address.is_loopback()).collect();
        let claimed = ControlSocket::claim(&reached).inspect_err(|error| {
            tracing::warn!("peers on NICs of the kernel do not reach this device: {error}")
        });
        let mut sockets = claimed.unwrap_or_default().into_iter();
        let mut socket_of = |address: &Result<IpAddr>| match address {
            Ok(address) if !address.is_loopback() => sockets.next(),
            _ => None,
        };
        addresses.iter().map(&mut socket_of).collect()
    }

    pub(super) fn endpoints(&self) -> Endpoints {
        let port = self.socket.as_ref().map(ControlSocket::port);
        Endpoints { has_queue_pair_1: self.gsi_qp.is_some(), port }
    }

    /// The sockets, for a thread that waits until one is readable.
    pub(super) fn sockets(&self) -> impl Iterator<Item = Arc<UdpSocket>> {
        self.socket.iter().flat_map(ControlSocket::sockets)
    }

    /// As [`GsiQp::arm`]. The sockets need no request.
    ///
    /// # Errors
    /// The error of the NIC.
    pub(super) fn arm(&self) -> Result<()> {
        self.gsi_qp.as_ref().map_or(Ok(()), GsiQp::arm)
    }

    pub(super) fn receives_in(&self, cq: CqId) -> bool {
        self.gsi_qp.as_ref().is_some_and(|gsi_qp| gsi_qp.receives_in(cq))
    }

    /// As [`GsiQp::join_group`]. The socket is a member already.
    ///
    /// # Errors
    /// The error of the NIC.
    pub(super) fn join_group(&self) -> Result<()> {
        self.gsi_qp.as_ref().map_or(Ok(()), GsiQp::join_group)
    }

    pub(super) fn is_up(&self) -> bool {
        self.nic.provider.query_port().is_ok_and(|port| port.state == PortState::Active)
    }

    /// Sends a datagram, which may be lost. The peer's endpoint may be that of another rail.
    pub(super) fn send(&mut self, to: Gid, endpoint: Endpoint, bytes: &[u8]) {
        let endpoint = match endpoint {
            Endpoint::Any if self.heard_by_gsi.contains(&to) => Endpoint::QueuePair1,
            Endpoint::QueuePair1 if self.gsi_qp.is_none() => Endpoint::Any,
            Endpoint::Socket(_) if self.socket.is_none() => Endpoint::Any,
            endpoint => endpoint,
        };
        if let (Some(gsi_qp), Endpoint::Any | Endpoint::QueuePair1) = (&mut self.gsi_qp, endpoint) {
            gsi_qp.send(to, bytes);
        }
        // The socket shares the link of its NIC, and so its faults.
        if endpoint != Endpoint::QueuePair1 && self.socket.is_some() && self.is_up() {
            match (&mut self.socket, endpoint) {
                (Some(socket), Endpoint::Socket(port)) => socket.send(to, port, bytes),
                (Some(socket), _) => socket.send_to_all(to, bytes),
                (None, _) => {}
            }
        }
    }

    /// Returns a number that changes when the host at an address says that no process has the port
    /// of the socket. `None` for queue pair 1.
    pub(super) fn refusals(&self, at: RailAddress) -> Option<u64> {
        match (&self.socket, at.endpoint) {
            (Some(socket), Endpoint::Socket(port)) => Some(socket.refusals(at.gid, port)),
            _ => None,
        }
    }

    pub(super) fn send_to_group(&mut self, bytes: &[u8]) {
        if let Some(gsi_qp) = &mut self.gsi_qp {
            gsi_qp.send_to_group(bytes);
        }
        if let Some(socket) = self.socket.as_ref().filter(|_| self.is_up()) {
            socket.send_to_group(bytes);
        }
    }

    /// Calls `on_datagram` with the source and the content of each datagram that has arrived.
    pub(super) fn poll(&mut self, mut on_datagram: impl FnMut(Gid, Endpoint, &[u8])) {
        let Self { gsi_qp, heard_by_gsi, .. } = self;
        if let Some(gsi_qp) = gsi_qp {
            gsi_qp.poll(|from, bytes| {
                if heard_by_gsi.len() >= MAX_HEARD {
                    heard_by_gsi.clear();
                }
                heard_by_gsi.insert(from);
                on_datagram(from, Endpoint::QueuePair1, bytes);
            });
        }
        let is_up = self.socket.is_some() && self.is_up();
        if let Some(socket) = &mut self.socket {
            socket.poll(|from, port, bytes| {
                if is_up {
                    on_datagram(from, Endpoint::Socket(port), bytes);
                }
            });
        }
    }
}
