//! An XRC domain over several rails: its shared receive queues, and the queue pairs that receive
//! messages for them.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use mitra_failover::XrcDomain;
use mitra_verbs::{Error, Result, Srqn};

use super::protection_domain::MultiRailPd;
use super::queue_users::{QueueUser, QueueUsers};
use super::virtual_cq::VirtualCq;
use super::virtual_srq::VirtualSrq;
use crate::common::lock::lock;
use crate::common::random::random;

#[derive(Default)]
pub(crate) struct VirtualXrcDomain {
    /// The shared receive queues by number, from which virtual queue pairs take receives.
    pub(super) queues: Arc<XrcDomain>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The protection domain of all shared receive queues and queue pairs. A NIC checks a request
    /// against the protection domain of the queue that the request names. A virtual queue pair
    /// checks the request against its own protection domain, so all queues must be in the same
    /// protection domain. `None` while there is no queue.
    pd: Option<Arc<MultiRailPd>>,
    srqs: HashMap<Srqn, XrcSrq>,
    /// The queue pairs that receive messages for the shared receive queues.
    receivers: QueueUsers,
}

/// A shared receive queue, and the completion queue of its receives.
struct XrcSrq {
    srq: Arc<VirtualSrq>,
    cq: Arc<VirtualCq>,
}

impl State {
    /// Forgets the protection domain if nothing is in it.
    fn release_pd(&mut self) {
        if self.srqs.is_empty() && self.receivers.is_empty() {
            self.pd = None;
        }
    }
}

impl VirtualXrcDomain {
    pub(super) fn pd(&self) -> Option<Arc<MultiRailPd>> {
        lock(&self.state).pd.clone()
    }

    /// Returns a number for a new shared receive queue. It is random, so that a peer cannot guess
    /// it, and never 0.
    ///
    /// # Errors
    /// `System` if the system's random source cannot be read.
    pub(super) fn unused_number(&self) -> Result<Srqn> {
        loop {
            let number = Srqn::new(random()? as u32);
            if number.value() != 0 && self.cq(number).is_none() {
                return Ok(number);
            }
        }
    }

    /// Adds a shared receive queue, whose number no other queue of the domain has. Its receives
    /// complete in `cq`.
    ///
    /// # Errors
    /// `Unsupported` if the domain has queues in another protection domain.
    pub(super) fn add_srq(
        &self,
        number: Srqn,
        pd: &Arc<MultiRailPd>,
        srq: &Arc<VirtualSrq>,
        cq: &Arc<VirtualCq>,
    ) -> Result<()> {
        let mut state = lock(&self.state);
        if state.pd.as_ref().is_some_and(|known| !Arc::ptr_eq(known, pd)) {
            return Err(Error::Unsupported(
                "an XRC domain with shared receive queues in several protection domains, on a device with several rails; create them in one",
            ));
        }
        self.queues.insert(number, srq.queue())?;
        state.pd = Some(Arc::clone(pd));
        for receiver in state.receivers.all() {
            srq.users.add(&receiver);
            cq.users.add(&receiver);
        }
        cq.xrc_srqs.fetch_add(1, Ordering::Relaxed);
        state.srqs.insert(number, XrcSrq { srq: Arc::clone(srq), cq: Arc::clone(cq) });
        Ok(())
    }

    /// Removes a shared receive queue that is being destroyed. Its completions stay, as on a NIC.
    pub(super) fn remove_srq(&self, number: Srqn) {
        let mut state = lock(&self.state);
        self.queues.remove(number);
        let Some(removed) = state.srqs.remove(&number) else { return };
        removed.cq.xrc_srqs.fetch_sub(1, Ordering::Relaxed);
        let is_cq_used = state.srqs.values().any(|other| Arc::ptr_eq(&other.cq, &removed.cq));
        if !is_cq_used {
            state.receivers.for_each(|receiver| removed.cq.users.remove(receiver));
        }
        state.release_pd();
    }

    /// Returns the completion queue of the shared receive queue with a number.
    pub(super) fn cq(&self, number: Srqn) -> Option<Arc<VirtualCq>> {
        lock(&self.state).srqs.get(&number).map(|srq| Arc::clone(&srq.cq))
    }

    /// Returns whether `is_so` holds for the completion queue of any shared receive queue.
    pub(super) fn any_cq(&self, is_so: impl Fn(&VirtualCq) -> bool) -> bool {
        lock(&self.state).srqs.values().any(|srq| is_so(&srq.cq))
    }

    pub(super) fn add_receiver(&self, receiver: &Arc<dyn QueueUser>) {
        let state = lock(&self.state);
        for XrcSrq { srq, cq } in state.srqs.values() {
            srq.users.add(receiver);
            cq.users.add(receiver);
        }
        state.receivers.add(receiver);
    }

    /// Removes a queue pair that is being destroyed. Its completions stay, as on a NIC.
    pub(super) fn remove_receiver(&self, receiver: &dyn QueueUser) {
        let mut state = lock(&self.state);
        for XrcSrq { srq, cq } in state.srqs.values() {
            srq.users.remove(receiver);
            cq.users.remove(receiver);
        }
        state.receivers.remove(receiver);
        state.release_pd();
    }
}
