//! Changes of the addresses of NICs, at either end.
//!
//! A NIC may have a new address when its link comes up again. Queue pairs that are connected to the
//! old address are then dead, because they accept packets from that address only. This end sends
//! the new address to the peer on every rail until the peer confirms. The peer sends its control
//! messages to the new address, and connects its data queue pair:
//!
//! - On a standby rail, the peer resets and connects the same queue pair, which has carried no
//!   data.
//! - On the active rail, or the rail to which the vQP moves, the queue pair has failed. A new queue
//!   pair replaces it after a move.

use core::{array, mem};
use std::net::IpAddr;

use mitra_verbs::{Gid, Time};

use crate::cause::Cause;
use crate::config::MAX_RAILS;
use crate::control_message::{Address, Body, Message};
use crate::domain::Domain;
use crate::vqp::datapath::Datapath;
use crate::vqp::recovery::Recovery;

#[derive(Clone, Copy, Debug, Default)]
struct RailAddresses {
    /// The number of address changes at this end up to the last run.
    changes: u32,
    /// The address of this end, if the peer does not know it yet.
    unknown: Option<Gid>,
    /// The highest [`Address::change`] of the peer.
    peer_change: u32,
    /// Whether the data queue pair is connected to an old address of the peer. Set only if the
    /// queue pair was in use when the address changed.
    is_stale: bool,
}

#[derive(Debug)]
pub(super) struct AddressChanges {
    rails: [RailAddresses; MAX_RAILS],
    /// The time at which the addresses that the peer does not know are sent again.
    next_send: Time,
}

impl AddressChanges {
    /// To be called before the rails of the vQP read their addresses.
    pub(super) fn new(domain: &Domain) -> AddressChanges {
        let of = |rail| RailAddresses { changes: domain.gid_changes(rail), ..RailAddresses::default() };
        AddressChanges { rails: array::from_fn(of), next_send: Time::ZERO }
    }

    /// `None` if the peer knows all addresses.
    pub(super) fn timeout(&self) -> Option<Time> {
        self.rails.iter().any(|rail| rail.unknown.is_some()).then_some(self.next_send)
    }

    /// Handles changes at this end, and sends the addresses that the peer does not know.
    pub(super) fn run(&mut self, now: Time, recovery: &mut Recovery, dp: &mut Datapath) {
        for rail in 0..dp.rails.len() {
            let changes = dp.domain.gid_changes(rail);
            if mem::replace(&mut self.rails[rail].changes, changes) == changes {
                continue;
            }
            self.rails[rail].unknown = dp.rails.get_mut(rail).refresh_gid();
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

    pub(super) fn on_message(&mut self, now: Time, body: &Body, recovery: &mut Recovery, dp: &mut Datapath) {
        match *body {
            Body::Address(address) => self.on_address(now, address, recovery, dp),
            Body::AddressKnown { rail, change } => {
                let Some(addresses) = self.rails.get_mut(usize::from(rail)) else { return };
                let rail = usize::from(rail);
                let is_active = rail == recovery.active_rail();
                if addresses.changes != change
                    || !is_active && is_in_use(rail, recovery, dp) // the rail has failed; this end sends the address again later
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
            // An error means that resources are lacking for a time, or that the NIC is dead. This
            // end then does not confirm the address, and the peer sends it again.
            let Ok(changed) = dp.rails.get_mut(rail).set_peer_gid(gid) else { return };
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
/// vQP moves to the rail.
fn is_in_use(rail: usize, recovery: &Recovery, dp: &Datapath) -> bool {
    rail == recovery.active_rail() || rail == dp.recv.rail()
}

/// Connects the data queue pair of a rail that is not in use to the peer's new address.
fn reconnect(now: Time, rail: usize, recovery: &mut Recovery, dp: &mut Datapath) {
    let Some(negotiation) = recovery.negotiation() else { return };
    if !dp.config().requires_fence() {
        return; // without a fence, the queue pair may still execute requests
    }
    // A missing queue pair is later connected to the new address anyway.
    if !negotiation.is_local_qp_missing(rail) && recovery.reconnect_unused(dp, rail).is_err() {
        return recovery.rail_failed(dp, rail, Cause::Device);
    }
    if !dp.rails.is_down(rail) {
        recovery.rail_usable(dp, now, rail);
    }
}

fn send(body: Body, recovery: &Recovery, dp: &Datapath) {
    if let Some(negotiation) = recovery.negotiation() {
        recovery.broadcast(dp, &Message { ballot: negotiation.ballot(), body });
    }
}
