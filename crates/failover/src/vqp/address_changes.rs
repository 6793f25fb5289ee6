//! Changes of the addresses of NICs, at either end.
//!
//! A NIC may have another address when its link comes up again. The queue pairs that are connected
//! to it are then dead: they accept packets from its old address only. This end tells the peer the
//! new address on every rail, until the peer knows it. The peer sends its control messages there,
//! and connects its data queue pair to it. On a standby rail, that is the same queue pair, which
//! has carried no data and is reset. On the active rail, or the one to which the vQP moves, the
//! queue pair has failed and is replaced after a move.

use core::{array, mem};
use std::net::IpAddr;

use mitra_verbs::{Gid, Time};

use crate::cause::Cause;
use crate::config::MAX_RAILS;
use crate::control_message::{Address, Body, Message};
use crate::domain::Domain;
use crate::vqp::datapath::Datapath;
use crate::vqp::recovery::Recovery;

/// The addresses of one rail.
#[derive(Clone, Copy, Debug, Default)]
struct RailAddresses {
    /// The number of changes at this end when it was last looked at.
    changes: u32,
    /// The address of this end, if the peer does not know it yet.
    unknown: Option<Gid>,
    /// The highest [`Address::change`] of the peer.
    peer_change: u32,
    /// Whether the data queue pair is connected to an old address of the peer, and was in use when
    /// the address changed.
    is_stale: bool,
}

#[derive(Debug)]
pub(super) struct AddressChanges {
    rails: [RailAddresses; MAX_RAILS],
    /// The time at which the addresses that the peer does not know are sent again.
    next_send: Time,
}

impl AddressChanges {
    /// Creates the state of a vQP that is made after this call.
    pub(super) fn new(domain: &Domain) -> AddressChanges {
        let of = |rail| RailAddresses { changes: domain.gid_changes(rail), ..RailAddresses::default() };
        AddressChanges { rails: array::from_fn(of), next_send: Time::ZERO }
    }

    /// The time at which an address is to be sent again. `None` if the peer knows all.
    pub(super) fn timeout(&self) -> Option<Time> {
        self.rails.iter().any(|rail| rail.unknown.is_some()).then_some(self.next_send)
    }

    /// Handles the changes at this end, and sends the addresses that the peer does not know.
    pub(super) fn run(&mut self, now: Time, recovery: &mut Recovery, dp: &mut Datapath) {
        for rail in 0..dp.rails.len() {
            let changes = dp.domain.gid_changes(rail);
            if mem::replace(&mut self.rails[rail].changes, changes) == changes {
                continue;
            }
            self.rails[rail].unknown = dp.rails.refresh_gid(rail);
            self.next_send = now;
            // The peer cannot use the rail before it knows the address.
            recovery.rail_failed(dp, rail, Cause::Address);
        }
        for rail in 0..dp.rails.len() {
            if self.rails[rail].is_stale && !is_in_use(rail, recovery, dp) {
                self.rails[rail].is_stale = false;
                reconnect(now, rail, recovery, dp);
            }
        }
        if self.timeout().is_none_or(|at| at > now) {
            return;
        }
        self.next_send = now + dp.detector().heartbeat_interval;
        for (rail, addresses) in self.rails.iter().enumerate() {
            if let Some(gid) = addresses.unknown {
                let change = addresses.changes;
                send(Body::Address(Address { rail: rail as u8, change, gid }), recovery, dp);
            }
        }
    }

    /// Handles a message of the peer about an address.
    pub(super) fn on_message(&mut self, now: Time, body: &Body, recovery: &mut Recovery, dp: &mut Datapath) {
        match *body {
            Body::Address(address) => self.on_address(now, address, recovery, dp),
            Body::AddressKnown { rail, change } => {
                let Some(addresses) = self.rails.get_mut(usize::from(rail)) else { return };
                let rail = usize::from(rail);
                let is_active = rail == recovery.active_rail();
                if addresses.changes != change
                    || !is_active && is_in_use(rail, recovery, dp) // it has failed; the peer is told again when it is not in use
                    || addresses.unknown.take().is_none()
                {
                    return;
                }
                if !is_active && !dp.rails.is_down(rail) {
                    recovery.rail_usable(dp, now, rail);
                }
            }
            _ => {}
        }
    }

    fn on_address(&mut self, now: Time, address: Address, recovery: &mut Recovery, dp: &mut Datapath) {
        let Address { rail, change, gid } = address;
        let rail = usize::from(rail);
        let ip = IpAddr::from(gid);
        if rail >= dp.rails.len() || ip.is_multicast() || ip.is_unspecified() {
            return;
        }
        if change > self.rails[rail].peer_change {
            // An error may be a temporary lack of resources, or the NIC is dead. The peer sends the
            // address again.
            let Ok(changed) = dp.rails.set_peer_gid(rail, gid) else { return };
            self.rails[rail].peer_change = change;
            if changed && is_in_use(rail, recovery, dp) {
                self.rails[rail].is_stale = true;
                recovery.rail_failed(dp, rail, Cause::Address);
            } else if changed {
                reconnect(now, rail, recovery, dp);
            }
        }
        if change == self.rails[rail].peer_change {
            send(Body::AddressKnown { rail: rail as u8, change }, recovery, dp);
        }
    }
}

/// Returns whether the data queue pair of a rail may have carried data: the rail is active, or the
/// vQP moves to it.
fn is_in_use(rail: usize, recovery: &Recovery, dp: &Datapath) -> bool {
    rail == recovery.active_rail() || rail == dp.recv.rail()
}

/// Connects the data queue pair of a rail that is not in use to the peer's new address.
fn reconnect(now: Time, rail: usize, recovery: &mut Recovery, dp: &mut Datapath) {
    let Some(control) = recovery.control() else { return };
    if !dp.config().requires_fence() {
        return; // the queue pair may still execute requests
    }
    // Otherwise, the next queue pair of the rail is connected to the new address.
    if !control.negotiation().is_local_qp_missing(rail) {
        match dp.rails.get(rail).reconnect_unused(dp.config()) {
            Ok(()) => dp.on_qp_connected(rail),
            Err(_) => return recovery.rail_failed(dp, rail, Cause::Device),
        }
    }
    if !dp.rails.is_down(rail) {
        recovery.rail_usable(dp, now, rail);
    }
}

fn send(body: Body, recovery: &Recovery, dp: &Datapath) {
    if let Some(control) = recovery.control() {
        recovery.broadcast(dp, &Message { ballot: control.negotiation().ballot(), body });
    }
}
