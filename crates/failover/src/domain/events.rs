//! The asynchronous events that a domain consumes.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mitra_verbs::{AsyncEvent, Provider, Qpn};

use super::{Domain, lock};
use crate::config::MAX_RAILS;

/// The maximum number of stored errors of queue pairs, and of stored first packets of queue pairs
/// in RTR. If there are more, the oldest is dropped.
const MAX_QP_ERRORS: usize = 1024;

#[derive(Default, Debug)]
pub(super) struct Events {
    /// Bit i: the port of rail i is down.
    ports_down: u8,
    /// Bit i: the NIC of rail i has reported a fatal error.
    nics_failed: u8,
    /// The number of address changes of each rail's NIC.
    gid_changes: [u32; MAX_RAILS],
    /// Errors of queue pairs with their rails, oldest first. At most [`MAX_QP_ERRORS`].
    qp_errors: Vec<(usize, Qpn, AsyncEvent)>,
    /// Queue pairs in RTR that have received their first packet, with their rails. At most
    /// [`MAX_QP_ERRORS`].
    established: Vec<(usize, Qpn)>,
}

/// What a NIC said last, if it counts its changes ([`Provider::generation`]).
///
/// [`Provider::generation`]: mitra_verbs::Provider::generation
#[derive(Debug)]
pub(super) struct LastHeard {
    /// The NIC's number before the calls. [`LastHeard::NOTHING`] if there were none.
    generation: AtomicU64,
    is_down: AtomicBool,
    answers: AtomicBool,
}

impl LastHeard {
    const NOTHING: u64 = u64::MAX;

    /// Whether no call can have another result now.
    fn is_current(&self, provider: &dyn Provider) -> bool {
        provider.generation().is_some_and(|now| now == self.generation.load(Ordering::Acquire))
    }
}

impl Default for LastHeard {
    fn default() -> LastHeard {
        let generation = AtomicU64::new(LastHeard::NOTHING);
        LastHeard { generation, is_down: AtomicBool::default(), answers: AtomicBool::default() }
    }
}

fn push<T>(events: &mut Vec<T>, event: T) {
    if events.len() == MAX_QP_ERRORS {
        events.remove(0);
    }
    events.push(event);
}

impl Domain {
    /// Consumes the events of all NICs. Every driven vQP does so too.
    pub fn poll_events(&self) {
        for rail in 0..self.nics.len() {
            self.poll_rail_down(rail);
        }
    }

    /// Consumes the events of one NIC. Returns whether its port is down or the NIC has failed.
    pub(crate) fn poll_rail_down(&self, rail: usize) -> bool {
        let (provider, heard) = (&self.nics[rail].provider, &self.shared.heard[rail]);
        if heard.is_current(&**provider) {
            return heard.is_down.load(Ordering::Relaxed);
        }
        let group = &self.shared.group;
        let mut events = lock(&self.shared.events);
        // Read before the events, so that one that comes meanwhile is not passed over.
        let generation = provider.generation();
        while let Some(event) = provider.poll_async_event() {
            match event {
                AsyncEvent::PortError
                | AsyncEvent::PortActive
                | AsyncEvent::GidChange
                | AsyncEvent::DeviceFatal => group.wake_all(),
                AsyncEvent::QpFatal(qpn)
                | AsyncEvent::QpAccessError(qpn)
                | AsyncEvent::QpRequestError(qpn)
                | AsyncEvent::CommunicationEstablished(qpn) => group.wake(rail, qpn),
                _ => {}
            }
            match event {
                AsyncEvent::PortError => events.ports_down |= 1 << rail,
                AsyncEvent::PortActive => events.ports_down &= !(1 << rail),
                AsyncEvent::GidChange => {
                    events.gid_changes[rail] = events.gid_changes[rail].saturating_add(1);
                    let _ = self.port(rail); // reads the new address; a NIC that has died keeps the old one
                }
                AsyncEvent::DeviceFatal => events.nics_failed |= 1 << rail,
                AsyncEvent::QpFatal(qpn)
                | AsyncEvent::QpAccessError(qpn)
                | AsyncEvent::QpRequestError(qpn) => push(&mut events.qp_errors, (rail, qpn, event)),
                AsyncEvent::CommunicationEstablished(qpn) => push(&mut events.established, (rail, qpn)),
                _ => {}
            }
        }
        let is_down = (events.ports_down | events.nics_failed) & (1 << rail) != 0;
        if let Some(generation) = generation {
            heard.is_down.store(is_down, Ordering::Relaxed);
            heard.answers.store(provider.query_port().is_ok(), Ordering::Relaxed);
            heard.generation.store(generation, Ordering::Release);
        }
        is_down
    }

    /// Whether a NIC is alive. A NIC may die without an event.
    pub(crate) fn nic_answers(&self, rail: usize) -> bool {
        let (provider, heard) = (&self.nics[rail].provider, &self.shared.heard[rail]);
        if heard.is_current(&**provider) {
            return heard.answers.load(Ordering::Relaxed);
        }
        provider.query_port().is_ok()
    }

    /// The number of address changes among the consumed events.
    pub(crate) fn gid_changes(&self, rail: usize) -> u32 {
        lock(&self.shared.events).gid_changes[rail]
    }

    /// Removes the record that a queue pair in RTR has received its first packet. Returns whether
    /// there was one.
    pub(crate) fn take_established(&self, rail: usize, qpn: Qpn) -> bool {
        let mut events = lock(&self.shared.events);
        let before = events.established.len();
        events.established.retain(|known| *known != (rail, qpn));
        events.established.len() < before
    }

    /// Removes the oldest event that says that a queue pair has refused a request of its peer.
    pub(crate) fn take_refusal(&self, rail: usize, qpn: Qpn) -> Option<AsyncEvent> {
        let mut events = lock(&self.shared.events);
        let is_refusal =
            |event| matches!(event, AsyncEvent::QpAccessError(_) | AsyncEvent::QpRequestError(_));
        let at = events.qp_errors.iter().position(|(r, q, e)| (*r, *q) == (rail, qpn) && is_refusal(*e))?;
        Some(events.qp_errors.remove(at).2)
    }

    /// Removes all stored errors of a queue pair and returns the oldest.
    pub(crate) fn take_qp_error(&self, rail: usize, qpn: Qpn) -> Option<AsyncEvent> {
        let mut events = lock(&self.shared.events);
        let found =
            events.qp_errors.iter().find(|(r, q, _)| (*r, *q) == (rail, qpn)).map(|(.., event)| *event);
        events.qp_errors.retain(|(r, q, _)| (*r, *q) != (rail, qpn));
        found
    }
}
