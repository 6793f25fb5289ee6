//! The NIC state machine: its tables, protection domains and address handles.
//!
//! The other verbs are in `memory` (regions and windows), `queues` (completion and shared receive
//! queues), `queue_pairs`, `xrc` and `multicast`. `packet_io` is the driver's interface.

pub(crate) mod async_events;
pub(crate) mod completion_queues;
pub(crate) mod counters;
pub(crate) mod handle_table;
pub(crate) mod key_table;
mod memory;
mod multicast;
mod packet_io;
mod qp_table;
mod queue_pairs;
mod queues;
pub(crate) mod recv_queue;
pub(crate) mod shared_state;
mod timer_heap;
pub(crate) mod xrc;

use core::hash::{Hash, Hasher};
use std::collections::VecDeque;

use mitra_verbs::{AhId, AsyncEvent, Counter, DeviceAttr, Error, Gid, PdId, PortAttr, PortState, Result};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::config::MAX_SEND_WINDOW;
use crate::nic::async_events::AsyncEvents;
use crate::nic::completion_queues::CompletionQueues;
use crate::nic::counters::Counters;
use crate::nic::handle_table::HandleTable;
use crate::nic::key_table::KeyTable;
use crate::nic::multicast::MulticastGroups;
use crate::nic::packet_io::BlockedDestination;
use crate::nic::qp_table::QpTable;
use crate::nic::shared_state::{AddressHandle, SharedState};
use crate::nic::timer_heap::TimerHeap;
use crate::nic::xrc::XrcDomains;
use crate::qp::reassembly::MAX_MESSAGE;
use crate::{IpPath, NicConfig};

/// A NIC without I/O, with one address, one port, one queue pair number space and one key space.
///
/// `Nic` has the verbs of [`mitra_verbs::Provider`], with the same rules and errors.
///
/// A NIC is a value. It can be cloned, compared and hashed; equal NICs behave equally from then on.
/// Neither comparison nor hash includes the counters.
#[derive(Clone, Debug)]
pub struct Nic {
    attr: DeviceAttr,
    rng: ChaCha8Rng,
    /// The protection domains. The value is the number of objects in the domain, except memory
    /// regions and windows, which [`KeyTable::pd_in_use`] finds.
    pds: HandleTable<u32>,
    pub(crate) link_up: bool,
    pub(crate) shared: SharedState,
    pub(crate) qps: QpTable,
    pub(crate) groups: MulticastGroups,
    /// The slots of queue pairs that may have packets to send, in sending order. A slot is in the
    /// list at most once.
    pub(crate) ready: VecDeque<u32>,
    /// The destinations that take no packets now.
    pub(crate) blocked: Vec<BlockedDestination>,
    /// The slots of queue pairs with a pending acknowledgement. A slot is in the list at most once.
    pub(crate) ack_pending: Vec<u32>,
    /// The slots of queue pairs that have held back an acknowledgement. The acknowledgement may
    /// have been sent since. A slot is in the list at most once.
    pub(crate) ack_held: Vec<u32>,
    pub(crate) timers: TimerHeap,
}

impl PartialEq for Nic {
    fn eq(&self, other: &Nic) -> bool {
        self.state() == other.state() && self.shared.config == other.shared.config && self.rng == other.rng
    }
}

impl Eq for Nic {}

impl Hash for Nic {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state().hash(state);
    }
}

impl Nic {
    /// Returns the state that comparison and hash cover. `eq` also compares the configuration and
    /// the random number generator.
    fn state(&self) -> impl Eq + Hash {
        let SharedState { keys, cqs, srqs, xrc, ahs, events, .. } = &self.shared;
        let schedule = (&self.ready, &self.blocked, &self.ack_pending, &self.ack_held, &self.timers);
        (&self.pds, self.link_up, keys, cqs, (srqs, xrc), ahs, events, &self.qps, &self.groups, schedule)
    }

    /// Creates a NIC without objects. Its link is up.
    pub fn new(config: NicConfig) -> Nic {
        let mut rng = ChaCha8Rng::from_seed(config.seed);
        let mut config = config;
        config.limits.message_bytes = config.limits.message_bytes.min(MAX_MESSAGE);
        let tuning = &mut config.tuning;
        tuning.send_window = tuning.send_window.min(MAX_SEND_WINDOW);
        let (limits, quarantine) = (config.limits, config.tuning.quarantine);
        Nic {
            attr: DeviceAttr { name: config.name.clone(), limits, capabilities: config.capabilities },
            pds: HandleTable::new("protection domain", "protection domains", limits.pds),
            link_up: true,
            shared: SharedState {
                keys: KeyTable::new(&limits, quarantine, &mut rng),
                cqs: CompletionQueues::new(limits.cqs, limits.cqe),
                srqs: HandleTable::new("shared receive queue", "shared receive queues", limits.srqs),
                xrc: XrcDomains::new(limits.pds),
                ahs: HandleTable::new("address handle", "address handles", limits.ahs),
                events: AsyncEvents::default(),
                counters: Counters::default(),
                config,
            },
            qps: QpTable::new(limits.qps, quarantine, &mut rng),
            groups: MulticastGroups::default(),
            ready: VecDeque::new(),
            blocked: Vec::new(),
            ack_pending: Vec::new(),
            ack_held: Vec::new(),
            timers: TimerHeap::default(),
            rng,
        }
    }

    /// Returns the name, the limits and the capabilities of the device.
    pub fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    /// Returns the state, the largest MTU and the address of the port.
    pub fn query_port(&self) -> PortAttr {
        let config = &self.shared.config;
        let state = if self.link_up { PortState::Active } else { PortState::Down };
        PortAttr { state, max_mtu: config.max_mtu, gid: config.gid }
    }

    /// Changes the address of the port, and reports the change as an event. Packets leave from the
    /// new address from now on. Queue pairs keep their state. The peer of a connected queue pair
    /// drops the packets, because it accepts only packets from the old address.
    pub fn change_gid(&mut self, gid: Gid) {
        self.shared.config.gid = gid;
        self.shared.events.raise(AsyncEvent::GidChange);
    }

    /// Returns all counters. They begin at 0 when the NIC is created.
    pub fn counters(&self) -> Vec<Counter> {
        self.shared.counters.list()
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`Error::Limit`]: the NIC has the maximum number of protection domains.
    pub fn alloc_pd(&mut self) -> Result<PdId> {
        self.pds.insert(0).map(PdId)
    }

    /// Removes an empty protection domain.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain does not exist.
    /// - [`Error::Busy`]: an object belongs to the protection domain.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<()> {
        let users = *self.pds.get(pd.0)?;
        let user = if users > 0 {
            "a queue pair, shared receive queue or address handle"
        } else if self.shared.keys.pd_in_use(pd) {
            "a memory region or window"
        } else {
            return self.pds.remove(pd.0).map(drop);
        };
        Err(Error::Busy { kind: "protection domain", id: pd.0, user })
    }

    /// Creates an address handle for UD sends to `destination`.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain does not exist.
    /// - [`Error::Limit`]: the NIC has the maximum number of address handles.
    pub fn create_ah(&mut self, pd: PdId, destination: impl Into<IpPath>) -> Result<AhId> {
        self.pds.get(pd.0)?;
        let ah = self.shared.ahs.insert(AddressHandle { pd, path: destination.into() }).map(AhId)?;
        *self.pds.get_mut(pd.0)? += 1;
        Ok(ah)
    }

    /// Removes an address handle. Posted sends keep their destination.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the address handle does not exist.
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<()> {
        let pd = self.shared.ahs.remove(ah.0)?.pd;
        *self.pds.get_mut(pd.0)? -= 1;
        Ok(())
    }

    /// Removes and returns the next asynchronous event.
    pub fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        self.shared.events.next()
    }
}

fn check_limit(attribute: &'static str, requested: u32, limit: u32) -> Result<()> {
    if requested > limit {
        return Err(Error::Limit { attribute, requested: requested.into(), limit: limit.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mitra_verbs::Gid;

    use super::*;

    #[test]
    fn send_window_limit_keeps_psns_unambiguous() {
        let mut config = NicConfig::new("wide", Gid([0; 16]), [0; 32]);
        config.tuning.send_window = u32::MAX;
        let window = Nic::new(config).shared.config.tuning.send_window;
        let smallest_mtu = mitra_verbs::Mtu::ALL.map(mitra_verbs::Mtu::bytes).into_iter().min().unwrap();
        assert!(2 * window / (smallest_mtu as u32) < 1 << 22);
        assert!(window >= 1 << 20);
    }
}
