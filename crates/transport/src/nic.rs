//! The NIC as one state machine: its tables, and the verbs on them.

use core::hash::{Hash, Hasher};
use std::collections::VecDeque;

use mitra_verbs::{
    Access, AhId, AsyncEvent, Counter, CqId, DeviceAttr, Error, Gid, Mr, MrId, Mw, MwId, PdId, PortAttr,
    PortState, PostError, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr, RegionId, Result,
    SavedResult, SendWr, SrqId, Time, Wc,
};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::NicConfig;
use crate::config::MAX_SEND_WINDOW;
use crate::counters::Counters;
use crate::cq::Cqs;
use crate::events::Events;
use crate::host::{Ah, Host};
use crate::inbound::MAX_MESSAGE;
use crate::keys::Keys;
use crate::multicast::Groups;
use crate::post;
use crate::qp::Qp;
use crate::qpn::Qps;
use crate::recv_queue::{Receives, RecvQueue, Refused, Srq};

use crate::table::Table;
use crate::timers::Timers;

/// A NIC without I/O: one address, one port, one QP-number space, one key space.
///
/// Verbs calls are those of [`mitra_verbs::Provider`], with the same rules and errors.
///
/// A value: it can be cloned and hashed, and equal NICs behave the same from here on. Counters do not count.
#[derive(Clone, Debug)]
pub struct Nic {
    attr: DeviceAttr,
    rng: ChaCha8Rng,
    /// Protection domains, with the count of objects in each but regions and windows.
    pds: Table<u32>,
    pub(crate) link_up: bool,
    pub(crate) host: Host,
    pub(crate) qps: Qps,
    pub(crate) groups: Groups,
    /// Slots of queue pairs with something to send, each once.
    pub(crate) ready: VecDeque<u32>,
    /// Slots of queue pairs that owe an acknowledgement, each once.
    pub(crate) owing: Vec<u32>,
    /// Slots of queue pairs that held one back at an idle moment, each once; it may have left since.
    pub(crate) patient: Vec<u32>,
    pub(crate) timers: Timers,
}

impl PartialEq for Nic {
    fn eq(&self, other: &Nic) -> bool {
        self.state() == other.state() && self.host.config == other.host.config && self.rng == other.rng
    }
}

impl Eq for Nic {}

impl Hash for Nic {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state().hash(state);
    }
}

impl Nic {
    /// What changes as it runs, but for the generator and the counters.
    fn state(&self) -> impl Eq + Hash {
        let Host { keys, cqs, srqs, ahs, events, .. } = &self.host;
        let work = (&self.ready, &self.owing, &self.patient, &self.timers);
        (&self.pds, self.link_up, keys, cqs, srqs, ahs, events, &self.qps, &self.groups, work)
    }

    /// A NIC with its link up and nothing in it.
    pub fn new(config: NicConfig) -> Nic {
        let mut rng = ChaCha8Rng::from_seed(config.seed);
        let mut config = config;
        config.limits.message_bytes = config.limits.message_bytes.min(MAX_MESSAGE);
        let tuning = &mut config.tuning;
        tuning.send_window = tuning.send_window.min(MAX_SEND_WINDOW);
        let (limits, quarantine) = (config.limits, config.tuning.quarantine);
        Nic {
            attr: DeviceAttr { name: config.name.clone(), limits, capabilities: config.capabilities },
            pds: Table::new("protection domain", "protection domains", limits.pds),
            link_up: true,
            host: Host {
                keys: Keys::new(&limits, quarantine, &mut rng),
                cqs: Cqs::new(limits.cqs, limits.cqe),
                srqs: Table::new("shared receive queue", "shared receive queues", limits.srqs),
                ahs: Table::new("address handle", "address handles", limits.ahs),
                events: Events::default(),
                counters: Counters::default(),
                config,
            },
            qps: Qps::new(limits.qps, quarantine, &mut rng),
            groups: Groups::default(),
            ready: VecDeque::new(),
            owing: Vec::new(),
            patient: Vec::new(),
            timers: Timers::default(),
            rng,
        }
    }

    /// Name, limits and capabilities.
    pub fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    /// The port's state, MTU and address.
    pub fn query_port(&self) -> PortAttr {
        let config = &self.host.config;
        let state = if self.link_up { PortState::Active } else { PortState::Down };
        PortAttr { state, max_mtu: config.max_mtu, gid: config.gid }
    }

    /// Counts since the NIC was made.
    pub fn counters(&self) -> Vec<Counter> {
        self.host.counters.list()
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId> {
        self.pds.insert(0).map(PdId)
    }

    /// Removes a protection domain that nothing belongs to.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<()> {
        let users = *self.pds.get(pd.0)?;
        let user = if users > 0 {
            "a queue pair, shared receive queue or address handle"
        } else if self.host.keys.pd_in_use(pd) {
            "a memory region or window"
        } else {
            return self.pds.remove(pd.0).map(drop);
        };
        Err(Error::Busy { kind: "protection domain", id: pd.0, user })
    }

    /// Registers `len` bytes that work requests name from `addr` on; `region` is the driver's name for them.
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
        self.host.keys.reg_mr(now, &mut self.rng, pd, region, addr, len, access)
    }

    /// Revokes the region: on return its key is dead and `Memory` is not called for it any more.
    pub fn dereg_mr(&mut self, now: Time, mr: MrId) -> Result<RegionId> {
        self.host.keys.dereg_mr(now, mr)
    }

    /// Makes an unbound type-2 memory window.
    pub fn alloc_mw(&mut self, now: Time, pd: PdId) -> Result<Mw> {
        self.pds.get(pd.0)?;
        if !self.attr.capabilities.windows {
            return Err(Error::Unsupported("memory windows"));
        }
        self.host.keys.alloc_mw(now, pd)
    }

    /// Revokes and removes a window.
    pub fn dealloc_mw(&mut self, now: Time, mw: MwId) -> Result<()> {
        self.host.keys.dealloc_mw(now, mw)
    }

    /// Makes an address handle.
    pub fn create_ah(&mut self, pd: PdId, destination: Gid) -> Result<AhId> {
        self.pds.get(pd.0)?;
        let ah = self.host.ahs.insert(Ah { pd, destination }).map(AhId)?;
        *self.pds.get_mut(pd.0)? += 1;
        Ok(ah)
    }

    /// Removes an address handle.
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<()> {
        let pd = self.host.ahs.remove(ah.0)?.pd;
        *self.pds.get_mut(pd.0)? -= 1;
        Ok(())
    }

    /// Makes a completion queue of `depth` entries.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId> {
        self.host.cqs.create(depth)
    }

    /// Removes a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<()> {
        self.host.cqs.destroy(cq)?;
        self.host.events.forget_cq(cq);
        Ok(())
    }

    /// Appends up to `max` completions to `out`, oldest first.
    pub fn poll_cq(&mut self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        self.host.cqs.poll(cq, max, out)
    }

    /// How many completions wait to be polled.
    pub fn cq_len(&self, cq: CqId) -> Result<usize> {
        self.host.cqs.len(cq)
    }

    /// Arms the queue for one event.
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<()> {
        self.host.cqs.arm(cq, solicited_only)
    }

    /// Makes a shared receive queue.
    pub fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId> {
        self.pds.get(pd.0)?;
        let limits = self.attr.limits;
        check_limit("shared receive queue entries", depth, limits.wrs)?;
        let queue = RecvQueue::new(depth, limits.sges);
        let srq = self.host.srqs.insert(Srq { pd, queue, limit: 0, users: 0 }).map(SrqId)?;
        *self.pds.get_mut(pd.0)? += 1;
        Ok(srq)
    }

    /// Arms [`AsyncEvent::SrqLimitReached`].
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<()> {
        let queue = self.host.srqs.get_mut(srq.0)?;
        check_limit("limit of a shared receive queue", limit, queue.queue.depth())?;
        queue.limit = limit;
        self.host.check_srq_limit(srq);
        Ok(())
    }

    /// Removes a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        if self.host.srqs.get(srq.0)?.users > 0 {
            return Err(Error::Busy { kind: "shared receive queue", id: srq.0, user: "a queue pair" });
        }
        let pd = self.host.srqs.remove(srq.0)?.pd;
        *self.pds.get_mut(pd.0)? -= 1;
        self.host.events.forget_srq(srq);
        Ok(())
    }

    /// Posts receives to a shared receive queue.
    pub fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        let limits = self.attr.limits;
        let queue = self.host.srqs.get_mut(srq.0).map_err(|error| PostError { index: 0, error })?;
        for (index, wr) in wrs.iter().enumerate() {
            queue.queue.post(wr, &limits).map_err(|refused| PostError {
                index,
                error: match refused {
                    Refused::Error(error) => error,
                    Refused::Full => Error::Invalid("the shared receive queue is full; create it larger"),
                },
            })?;
        }
        Ok(())
    }

    /// Makes a queue pair in RESET.
    pub fn create_qp(&mut self, now: Time, init: &QpInitAttr) -> Result<Qpn> {
        let limits = self.attr.limits;
        let cap = init.cap;
        check_limit("send queue entries", cap.send_wrs, limits.wrs)?;
        check_limit("receive queue entries", cap.recv_wrs, limits.wrs)?;
        check_limit("gather entries of a send", cap.send_sges, limits.sges)?;
        check_limit("scatter entries of a receive", cap.recv_sges, limits.sges)?;
        check_limit("bytes of inline data", cap.inline, limits.inline)?;
        self.pds.get(init.pd.0)?;
        let (receives, recv_pd) = match init.srq {
            Some(srq) => (Receives::Shared(srq), self.host.srqs.get(srq.0)?.pd),
            None => (Receives::Own(RecvQueue::new(cap.recv_wrs, cap.recv_sges)), init.pd),
        };
        let qpn = match init.qp_type {
            QpType::Gsi => self.qps.reserve_gsi()?,
            _ => self.qps.reserve(now, &mut self.rng)?,
        };
        self.host.cqs.add_user(init.send_cq)?;
        if let Err(e) = self.host.cqs.add_user(init.recv_cq) {
            self.host.cqs.remove_user(init.send_cq);
            return Err(e);
        }
        if let Some(srq) = init.srq {
            self.host.srqs.get_mut(srq.0)?.users += 1;
        }
        *self.pds.get_mut(init.pd.0)? += 1;
        self.qps.occupy(Qp::new(qpn, init, recv_pd, receives));
        Ok(qpn)
    }

    /// Changes state or attributes.
    pub fn modify_qp(&mut self, _now: Time, qp: Qpn, attr: &QpAttr) -> Result<()> {
        let done = self.qps.get_mut(qp)?.modify(attr, &mut self.host);
        self.settle(self.qps.slot(qp));
        done
    }

    /// State and attributes.
    pub fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        self.qps.get(qp).map(Qp::status)
    }

    /// Removes a queue pair that no multicast group has; its outstanding requests vanish without completion.
    pub fn destroy_qp(&mut self, now: Time, qp: Qpn) -> Result<()> {
        if self.groups.have(qp) {
            return Err(Error::Busy { kind: "queue pair", id: qp.value(), user: "a multicast group" });
        }
        let slot = self.qps.slot(qp);
        let gone = self.qps.remove(now, qp)?;
        self.timers.remove(slot);
        if gone.queued {
            self.ready.retain(|&s| s != slot);
        }
        if gone.owing {
            self.owing.retain(|&s| s != slot);
        }
        if gone.patient {
            self.patient.retain(|&s| s != slot);
        }
        self.host.keys.release(qp);
        self.host.events.forget_qp(qp);
        let init = gone.common.init;
        self.host.cqs.remove_user(init.send_cq);
        self.host.cqs.remove_user(init.recv_cq);
        if let Some(srq) = init.srq {
            self.host.srqs.get_mut(srq.0)?.users -= 1;
        }
        *self.pds.get_mut(init.pd.0)? -= 1;
        Ok(())
    }

    /// Queues the requests; `poll_transmit` sends them.
    pub fn post_send(&mut self, _now: Time, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        let queue = self.qps.get_mut(qp).map_err(|error| PostError { index: 0, error })?;
        let mut done = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            match post::admit(queue, &self.attr, &self.host.ahs, wr, 0) {
                Ok(destination) => queue.push_send(wr.clone(), destination),
                Err(error) => {
                    done = Err(PostError { index, error });
                    break;
                }
            }
        }
        queue.flush_posted(&mut self.host);
        self.settle(self.qps.slot(qp));
        done
    }

    /// Queues all of the requests, or none.
    pub fn post_send_all(&mut self, now: Time, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        for (index, wr) in wrs.iter().enumerate() {
            self.qps
                .get(qp)
                .and_then(|queue| post::admit(queue, &self.attr, &self.host.ahs, wr, index))
                .map_err(|error| PostError { index, error })?;
        }
        self.post_send(now, qp, wrs)
    }

    /// Posts receives.
    pub fn post_recv(&mut self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        let refused = |index, error| Err(PostError { index, error });
        let owner = match self.qps.get_mut(qp) {
            Ok(owner) => owner,
            Err(error) => return refused(0, error),
        };
        let state = owner.common.state;
        if state == QpState::Reset {
            return refused(
                0,
                Error::WrongState { call: "post_recv", qpn: qp, needs: "Init or later", state },
            );
        }
        let Receives::Own(queue) = &mut owner.receives else {
            return refused(0, Error::Invalid("this queue pair has a shared receive queue; post to that"));
        };
        let mut done = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            done = queue.post(wr, &self.attr.limits).or_else(|why| {
                refused(
                    index,
                    match why {
                        Refused::Error(error) => error,
                        Refused::Full => {
                            Error::QueueFull { queue: "receive queue", qpn: qp, depth: queue.depth() }
                        }
                    },
                )
            });
            if done.is_err() {
                break;
            }
        }
        owner.flush_posted(&mut self.host);
        self.settle(self.qps.slot(qp));
        done
    }

    /// The responder's saved atomic results, oldest first.
    pub fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>> {
        if !self.attr.capabilities.saved_results {
            return Err(Error::Unsupported("saved results"));
        }
        self.qps.get(qp).map(Qp::saved_results)
    }

    /// An armed completion queue that has something new; disarmed by this call.
    pub fn poll_cq_event(&mut self) -> Option<CqId> {
        self.host.cqs.next_event()
    }

    /// The next asynchronous event.
    pub fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        self.host.events.next()
    }
}

fn check_limit(what: &'static str, asked: u32, limit: u32) -> Result<()> {
    if asked > limit {
        return Err(Error::Limit { attribute: what, requested: asked.into(), limit: limit.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_window_is_far_from_where_psns_become_ambiguous() {
        let mut config = NicConfig::new("wide", Gid([0; 16]), [0; 32]);
        config.tuning.send_window = u32::MAX;
        let window = Nic::new(config).host.config.tuning.send_window;
        let smallest = mitra_verbs::Mtu::ALL.map(mitra_verbs::Mtu::bytes).into_iter().min().unwrap();
        assert!(2 * window / (smallest as u32) < 1 << 22);
        assert!(window >= 1 << 20);
    }
}
