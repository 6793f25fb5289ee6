//! The NIC state machine: its tables, and the verbs on them.

pub(crate) mod async_events;
pub(crate) mod completion_queues;
pub(crate) mod counters;
pub(crate) mod handle_table;
pub(crate) mod key_table;
mod multicast;
mod packet_io;
mod qp_table;
pub(crate) mod recv_queue;
pub(crate) mod shared_state;
mod timer_heap;
pub(crate) mod xrc;

use core::hash::{Hash, Hasher};
use std::collections::VecDeque;

use mitra_verbs::{
    Access, AhId, AsyncEvent, Counter, CqId, DeviceAttr, Error, Mr, MrId, Mw, MwId, PdId, PortAttr,
    PortState, PostError, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr, RegionId, Result,
    SavedResult, SendWr, SrqId, Time, Wc, WindowType,
};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::config::MAX_SEND_WINDOW;
use crate::nic::async_events::AsyncEvents;
use crate::nic::completion_queues::CompletionQueues;
use crate::nic::counters::Counters;
use crate::nic::handle_table::HandleTable;
use crate::nic::key_table::KeyTable;
use crate::nic::multicast::MulticastGroups;
use crate::nic::qp_table::QpTable;
use crate::nic::recv_queue::{RecvPostError, RecvQueue, RecvSource, Srq};
use crate::nic::shared_state::{AddressHandle, SharedState};
use crate::nic::timer_heap::TimerHeap;
use crate::nic::xrc::{XrcDomains, used_cqs, used_pd};
use crate::qp::Qp;
use crate::qp::reassembly::MAX_MESSAGE;
use crate::qp::send_validation;
use crate::{IpPath, NicConfig};

/// A NIC without I/O, with one address, one port, one queue pair number space and one key space.
///
/// The verbs are those of [`mitra_verbs::Provider`], with the same rules and errors.
///
/// A NIC is a value. It can be cloned, compared and hashed; equal NICs behave equally from then on. Neither comparison
/// nor hash includes the counters.
#[derive(Clone, Debug)]
pub struct Nic {
    attr: DeviceAttr,
    rng: ChaCha8Rng,
    /// The protection domains. The value is the number of objects in the domain, without memory regions and windows.
    /// [`KeyTable::pd_in_use`] finds those.
    pds: HandleTable<u32>,
    pub(crate) link_up: bool,
    pub(crate) shared: SharedState,
    pub(crate) qps: QpTable,
    pub(crate) groups: MulticastGroups,
    /// The slots of queue pairs that may have packets to send, in sending order. A slot is in the list at most once.
    pub(crate) ready: VecDeque<u32>,
    /// The slots of queue pairs with a pending acknowledgement. A slot is in the list at most once.
    pub(crate) ack_pending: Vec<u32>,
    /// The slots of queue pairs that have held back an acknowledgement. The acknowledgement may have been sent since. A
    /// slot is in the list at most once.
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
    /// Returns the state that comparison and hash cover. `eq` also compares the configuration and the random number
    /// generator.
    fn state(&self) -> impl Eq + Hash {
        let SharedState { keys, cqs, srqs, xrc, ahs, events, .. } = &self.shared;
        let schedule = (&self.ready, &self.ack_pending, &self.ack_held, &self.timers);
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

    /// Registers a memory region at the addresses `addr .. addr + len`. The NIC passes `region` to [`crate::Memory`].
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain does not exist.
    /// - [`Error::Invalid`]: `access` has remote write or remote atomic rights without local write, or the region ends
    ///   beyond the last address.
    /// - [`Error::Limit`]: the NIC has the maximum number of regions, or all free keys are quarantined.
    pub fn reg_mr(
        &mut self,
        now: Time,
        pd: PdId,
        region: RegionId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr> {
        self.pds.get(pd.0)?;
        self.shared.keys.reg_mr(now, &mut self.rng, pd, region, addr, len, access)
    }

    /// Revokes a memory region and returns its [`RegionId`]. From then on the key is invalid, and the NIC does not
    /// access the region's memory.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the region does not exist.
    /// - [`Error::Busy`]: a memory window is bound to the region.
    pub fn dereg_mr(&mut self, now: Time, mr: MrId) -> Result<RegionId> {
        self.shared.keys.dereg_mr(now, mr)
    }

    /// Replaces the protection domain, the memory and the rights of a region. Its keys stay. Returns the region and the
    /// [`RegionId`] of the earlier memory, which the NIC no longer accesses.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain or the region does not exist.
    /// - [`Error::Invalid`]: as [`Nic::reg_mr`].
    /// - [`Error::Busy`]: a memory window is bound to the region.
    pub fn rereg_mr(
        &mut self,
        mr: MrId,
        pd: PdId,
        region: RegionId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(Mr, RegionId)> {
        self.pds.get(pd.0)?;
        self.shared.keys.rereg_mr(mr, pd, region, addr, len, access)
    }

    /// Creates an unbound memory window.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain does not exist.
    /// - [`Error::Unsupported`]: the configuration disables memory windows.
    /// - [`Error::Limit`]: the NIC has the maximum number of windows, or all free keys are quarantined.
    pub fn alloc_mw(&mut self, now: Time, pd: PdId, window_type: WindowType) -> Result<Mw> {
        self.pds.get(pd.0)?;
        if !self.attr.capabilities.windows {
            return Err(Error::Unsupported("memory windows"));
        }
        self.shared.keys.alloc_mw(now, pd, window_type)
    }

    /// Revokes and removes a memory window.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the window does not exist.
    pub fn dealloc_mw(&mut self, now: Time, mw: MwId) -> Result<()> {
        self.shared.keys.dealloc_mw(now, mw)
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

    /// Creates a completion queue of `depth` entries.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `depth` is 0.
    /// - [`Error::Limit`]: `depth` is too large, or the NIC has the maximum number of completion queues.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId> {
        self.shared.cqs.create(depth)
    }

    /// Changes the number of entries of a completion queue. `waiting` is the number of completions that the driver has
    /// taken and not yet delivered.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the completion queue does not exist.
    /// - [`Error::Invalid`]: `depth` is 0, or less than the number of completions in the queue.
    /// - [`Error::Limit`]: `depth` is too large.
    pub fn resize_cq(&mut self, cq: CqId, depth: u32, waiting: usize) -> Result<()> {
        self.shared.cqs.resize(cq, depth, waiting)
    }

    /// Removes a completion queue.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the completion queue does not exist.
    /// - [`Error::Busy`]: a queue pair or an XRC shared receive queue uses the completion queue.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<()> {
        self.shared.cqs.destroy(cq)?;
        self.shared.events.remove_cq(cq);
        Ok(())
    }

    /// Moves up to `max` completions to the end of `out`, oldest first, and returns their number.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the completion queue does not exist.
    pub fn poll_cq(&mut self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        self.shared.cqs.poll(cq, max, out)
    }

    /// Returns the number of completions that are not yet polled.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the completion queue does not exist.
    pub fn cq_len(&self, cq: CqId) -> Result<usize> {
        self.shared.cqs.len(cq)
    }

    /// Arms the completion queue for one event. The event is raised by the next completion, or, if `solicited_only` is
    /// set, by the next completion that is solicited or failed.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the completion queue does not exist.
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<()> {
        self.shared.cqs.arm(cq, solicited_only)
    }

    /// Creates a shared receive queue of `depth` entries.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain does not exist.
    /// - [`Error::Limit`]: `depth` is too large, or the NIC has the maximum number of shared receive queues.
    pub fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId> {
        self.pds.get(pd.0)?;
        let limits = self.attr.limits;
        check_limit("shared receive queue entries", depth, limits.wrs)?;
        let queue = RecvQueue::new(depth, limits.sges);
        let srq = self.shared.srqs.insert(Srq { pd, queue, limit: 0, users: 0, xrc: None }).map(SrqId)?;
        *self.pds.get_mut(pd.0)? += 1;
        Ok(srq)
    }

    /// Arms [`AsyncEvent::SrqLimitReached`], which the NIC raises once when the queue holds fewer than `limit`
    /// receives. A limit of 0 disarms the event.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the shared receive queue does not exist.
    /// - [`Error::Limit`]: `limit` exceeds the depth of the queue.
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<()> {
        let queue = self.shared.srqs.get_mut(srq.0)?;
        check_limit("limit of a shared receive queue", limit, queue.queue.depth())?;
        queue.limit = limit;
        self.shared.check_srq_limit(srq);
        Ok(())
    }

    /// Changes the number of entries of a shared receive queue. Its receives stay.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the shared receive queue does not exist.
    /// - [`Error::Limit`]: `depth` is too large.
    /// - [`Error::Invalid`]: `depth` is 0, less than the number of receives in the queue, or less than the armed limit.
    pub fn resize_srq(&mut self, srq: SrqId, depth: u32) -> Result<()> {
        check_limit("shared receive queue entries", depth, self.attr.limits.wrs)?;
        let srq = self.shared.srqs.get_mut(srq.0)?;
        if depth == 0 || depth < srq.limit || (depth as usize) < srq.queue.len() {
            return Err(Error::Invalid(
                "a shared receive queue has at least as many entries as receives, and as its limit, and one; choose a larger size",
            ));
        }
        srq.queue.set_depth(depth);
        Ok(())
    }

    /// Removes a shared receive queue.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the shared receive queue does not exist.
    /// - [`Error::Busy`]: a queue pair uses the shared receive queue.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        if self.shared.srqs.get(srq.0)?.users > 0 {
            return Err(Error::Busy { kind: "shared receive queue", id: srq.0, user: "a queue pair" });
        }
        let removed = self.shared.srqs.remove(srq.0)?;
        *self.pds.get_mut(removed.pd.0)? -= 1;
        if let Some(xrc) = removed.xrc {
            self.shared.xrc.remove_srq(&xrc);
            self.shared.cqs.remove_user(xrc.cq);
        }
        self.shared.events.remove_srq(srq);
        Ok(())
    }

    /// Posts receives to a shared receive queue.
    ///
    /// # Errors
    /// A [`PostError`] with the index of the first receive that was not posted. The cause is [`Error::NoSuchObject`],
    /// [`Error::Limit`] for a receive that is too long or has too many entries, or [`Error::Invalid`] for a full queue.
    pub fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        let limits = self.attr.limits;
        let queue = self.shared.srqs.get_mut(srq.0).map_err(|error| PostError { index: 0, error })?;
        for (index, wr) in wrs.iter().enumerate() {
            queue.queue.post(wr, &limits).map_err(|error| PostError {
                index,
                error: match error {
                    RecvPostError::Error(error) => error,
                    RecvPostError::Full => {
                        Error::Invalid("the shared receive queue is full; create it larger")
                    }
                },
            })?;
        }
        Ok(())
    }

    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain, a completion queue, the shared receive queue or the XRC domain does
    ///   not exist.
    /// - [`Error::Invalid`]: an XRC queue pair has a shared receive queue, or another one has an XRC shared receive queue.
    /// - [`Error::Limit`]: a capacity is too large, the NIC has the maximum number of queue pairs, or all free queue
    ///   pair numbers are quarantined.
    /// - [`Error::Busy`]: another GSI queue pair exists.
    pub fn create_qp(&mut self, now: Time, init: &QpInitAttr) -> Result<Qpn> {
        let limits = self.attr.limits;
        let cap = init.cap;
        check_limit("send queue entries", cap.send_wrs, limits.wrs)?;
        check_limit("receive queue entries", cap.recv_wrs, limits.wrs)?;
        check_limit("gather entries of a send", cap.send_sges, limits.sges)?;
        check_limit("scatter entries of a receive", cap.recv_sges, limits.sges)?;
        check_limit("bytes of inline data", cap.inline, limits.inline)?;
        if let Some(pd) = used_pd(init) {
            self.pds.get(pd.0)?;
        }
        let (receives, recv_pd) = self.recv_source(init)?;
        let qpn = match init.qp_type {
            QpType::Gsi => self.qps.reserve_gsi()?,
            _ => self.qps.reserve(now, &mut self.rng)?,
        };
        for (n, cq) in used_cqs(init).enumerate() {
            if let Err(e) = self.shared.cqs.add_user(cq) {
                used_cqs(init).take(n).for_each(|added| self.shared.cqs.remove_user(added));
                return Err(e);
            }
        }
        // An `XrcRecv` queue pair has no completion queues, so nothing is to be undone if its domain does not exist.
        if let QpType::XrcRecv(domain) = init.qp_type {
            self.shared.xrc.add_user(domain)?;
        }
        if let RecvSource::Shared(srq) = receives {
            self.shared.srqs.get_mut(srq.0)?.users += 1;
        }
        if let Some(pd) = used_pd(init) {
            *self.pds.get_mut(pd.0)? += 1;
        }
        self.qps.insert(Qp::new(qpn, init, recv_pd, receives));
        Ok(qpn)
    }

    /// Returns the queue from which a new queue pair takes its receives, and the protection domain of these receives.
    fn recv_source(&self, init: &QpInitAttr) -> Result<(RecvSource, PdId)> {
        match init.srq {
            None if init.qp_type.is_xrc() => Ok((RecvSource::Xrc(None), init.pd)),
            None => Ok((RecvSource::Own(RecvQueue::new(init.cap.recv_wrs, init.cap.recv_sges)), init.pd)),
            Some(_) if init.qp_type.is_xrc() => Err(Error::Invalid(
                "an XRC queue pair has no shared receive queue of its own; its messages name one",
            )),
            Some(srq) => {
                let queue = self.shared.srqs.get(srq.0)?;
                if queue.xrc.is_some() {
                    return Err(Error::Invalid("only XRC messages reach an XRC shared receive queue"));
                }
                Ok((RecvSource::Shared(srq), queue.pd))
            }
        }
    }

    /// Changes the state and the attributes of a queue pair.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the queue pair does not exist.
    /// - [`Error::Modify`]: the transition or an attribute is invalid. The queue pair is unchanged.
    pub fn modify_qp(&mut self, _now: Time, qp: Qpn, attr: &QpAttr) -> Result<()> {
        let result = self.qps.get_mut(qp)?.modify(attr, &mut self.shared);
        self.reschedule(self.qps.slot(qp));
        result
    }

    /// Returns the state and the attributes of a queue pair.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the queue pair does not exist.
    pub fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        self.qps.get(qp).map(Qp::status)
    }

    /// Removes a queue pair. Its outstanding requests do not complete.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the queue pair does not exist.
    /// - [`Error::Busy`]: the queue pair is attached to a multicast group.
    pub fn destroy_qp(&mut self, now: Time, qp: Qpn) -> Result<()> {
        if self.groups.contains_qp(qp) {
            return Err(Error::Busy { kind: "queue pair", id: qp.value(), user: "a multicast group" });
        }
        let slot = self.qps.slot(qp);
        let removed = self.qps.remove(now, qp)?;
        self.timers.remove(slot);
        if removed.in_ready {
            self.ready.retain(|&s| s != slot);
        }
        if removed.in_ack_pending {
            self.ack_pending.retain(|&s| s != slot);
        }
        if removed.in_ack_held {
            self.ack_held.retain(|&s| s != slot);
        }
        self.shared.keys.unbind_windows_of(qp);
        self.shared.events.remove_qp(qp);
        let init = removed.attrs.init;
        used_cqs(&init).for_each(|cq| self.shared.cqs.remove_user(cq));
        if let Some(srq) = init.srq {
            self.shared.srqs.get_mut(srq.0)?.users -= 1;
        }
        if let QpType::XrcRecv(domain) = init.qp_type {
            self.shared.xrc.remove_user(domain);
        }
        if let Some(pd) = used_pd(&init) {
            *self.pds.get_mut(pd.0)? -= 1;
        }
        Ok(())
    }

    /// Posts sends. [`Nic::poll_transmit`] sends their packets.
    ///
    /// # Errors
    /// A [`PostError`] with the index of the first send that was not posted; the sends before it are posted. The cause
    /// is [`Error::NoSuchObject`], [`Error::WrongState`], [`Error::QueueFull`], [`Error::Limit`],
    /// [`Error::Unsupported`] or [`Error::Invalid`]. The NIC checks keys and bounds later, when it executes the send.
    pub fn post_send(&mut self, _now: Time, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        let queue_pair = self.qps.get_mut(qp).map_err(|error| PostError { index: 0, error })?;
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            match send_validation::validate_send(queue_pair, &self.attr, &self.shared.ahs, wr, 0) {
                Ok(destination) => queue_pair.push_send(wr.clone(), destination),
                Err(error) => {
                    result = Err(PostError { index, error });
                    break;
                }
            }
        }
        queue_pair.flush_posted(&mut self.shared);
        self.reschedule(self.qps.slot(qp));
        result
    }

    /// Posts all of the sends, or none.
    ///
    /// # Errors
    /// The same as for [`Nic::post_send`], but no send is posted.
    pub fn post_send_all(&mut self, now: Time, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        for (index, wr) in wrs.iter().enumerate() {
            self.qps
                .get(qp)
                .and_then(|queue_pair| {
                    send_validation::validate_send(queue_pair, &self.attr, &self.shared.ahs, wr, index)
                })
                .map_err(|error| PostError { index, error })?;
        }
        self.post_send(now, qp, wrs)
    }

    /// Posts receives to the receive queue of a queue pair.
    ///
    /// # Errors
    /// A [`PostError`] with the index of the first receive that was not posted. The cause is [`Error::NoSuchObject`],
    /// [`Error::WrongState`], [`Error::QueueFull`], [`Error::Limit`], or [`Error::Invalid`] for a queue pair with a
    /// shared receive queue.
    pub fn post_recv(&mut self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        let post_error = |index, error| Err(PostError { index, error });
        let queue_pair = match self.qps.get_mut(qp) {
            Ok(queue_pair) => queue_pair,
            Err(error) => return post_error(0, error),
        };
        let state = queue_pair.attrs.state;
        if state == QpState::Reset {
            return post_error(
                0,
                Error::WrongState { call: "post_recv", qpn: qp, needs: "INIT or later", state },
            );
        }
        let RecvSource::Own(queue) = &mut queue_pair.receives else {
            return post_error(
                0,
                Error::Invalid("this queue pair has no receive queue of its own; post to a shared one"),
            );
        };
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            result = queue.post(wr, &self.attr.limits).or_else(|error| {
                post_error(
                    index,
                    match error {
                        RecvPostError::Error(error) => error,
                        RecvPostError::Full => {
                            Error::QueueFull { queue: "receive queue", qpn: qp, depth: queue.depth() }
                        }
                    },
                )
            });
            if result.is_err() {
                break;
            }
        }
        queue_pair.flush_posted(&mut self.shared);
        self.reschedule(self.qps.slot(qp));
        result
    }

    /// Returns the atomic results that the responder saves for duplicate requests, oldest first.
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: the configuration disables saved results.
    /// - [`Error::NoSuchObject`]: the queue pair does not exist.
    pub fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>> {
        if !self.attr.capabilities.saved_results {
            return Err(Error::Unsupported("saved results"));
        }
        self.qps.get(qp).map(Qp::saved_results)
    }

    /// Removes and returns the next completion queue with an event. The queue was disarmed when the NIC raised the
    /// event.
    pub fn poll_cq_event(&mut self) -> Option<CqId> {
        self.shared.cqs.next_event()
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
