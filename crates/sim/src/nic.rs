//! One NIC of the world: the transport's state machine, its faults, and its way to memory.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mitra_transport::fault::{Failure, Faults, Trigger};
use mitra_transport::{Nic, TxBatch};
use mitra_verbs::{AsyncEvent, AtomicScope, Buffer, Capabilities, CqId, Error, Gid, Psn, Qpn, Result, Time};
use mitra_wire::Packet;

use crate::pipeline::{Pipeline, Port, Release};

/// Everything of a NIC that the world's lock guards.
pub(crate) struct NicState {
    pub(crate) name: String,
    pub(crate) host: usize,
    pub(crate) rail: u8,
    pub(crate) gid: Gid,
    pub(crate) address: SocketAddr,
    pub(crate) capabilities: Capabilities,
    pub(crate) nic: Nic,
    pub(crate) faults: Faults,
    pub(crate) probes: Vec<Probe>,
    pub(crate) pipeline: Pipeline,
    /// By region number.
    pub(crate) regions: Vec<Option<Arc<Buffer>>>,
    pub(crate) cqs: BTreeMap<CqId, CqView>,
    pub(crate) cq_events: VecDeque<CqId>,
    pub(crate) async_events: VecDeque<AsyncEvent>,
    /// Reset, or replaced: nothing works any more.
    pub(crate) gone: bool,
    /// Replaced by a new one in its place.
    pub(crate) retired: bool,
    /// What of its faults has been carried out.
    pub(crate) dead: bool,
    pub(crate) hung: bool,
    pub(crate) link_up: bool,
    /// What this NIC's clock shows at the world's origin.
    pub(crate) origin: Duration,
    /// So many readings of the clock from now, its host sleeps for so long.
    pub(crate) sleep: Option<(u32, Duration)>,
    /// When its cable is free for the next packet.
    pub(crate) egress_free: Time,
    /// How often its cable failed.
    pub(crate) cable_failures: u64,
    pub(crate) pump_at: Option<Time>,
    /// What the timer is set for, and when it will fire.
    pub(crate) timer: Option<(Time, Time)>,
    pub(crate) idle_at: Option<Time>,
    pub(crate) memory_at: Option<Time>,
    pub(crate) batch: TxBatch,
    pub(crate) stats: NicStats,
}

/// A completion queue, as the host sees it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CqView {
    /// Completions that the NIC has written, and the host not yet polled.
    pub(crate) written: usize,
    /// Those of them that have reached host memory.
    pub(crate) visible: usize,
}

/// Watches for a stage at this NIC, and then fails others.
pub(crate) struct Probe {
    pub(crate) faults: Faults,
    pub(crate) targets: Vec<Strike>,
    /// Hold back the packet at which it strikes for so long, instead of losing it or letting it pass.
    pub(crate) hold: Option<Duration>,
}

/// A failure on its way to a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Strike {
    pub(crate) nic: usize,
    /// `None`: the NIC's faults know already.
    pub(crate) failure: Option<Failure>,
    /// It may place again what it held back, if it is still alive.
    pub(crate) let_go: bool,
}

/// What became of a NIC's packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NicStats {
    /// Left the NIC.
    pub sent: u64,
    /// Were handed to the transport.
    pub received: u64,
    /// Arrived with a wrong ICRC.
    pub icrc_errors: u64,
    /// Arrived with a good ICRC, but were no packet.
    pub malformed: u64,
    /// Reached a NIC that could not take them, or had no way to their destination.
    pub undeliverable: u64,
    /// Bytes that were on their way to memory when the NIC died or was reset.
    pub placements_lost: u64,
}

impl NicState {
    /// The host reads the clock.
    pub(crate) fn read_clock(&mut self, now: Time) -> Time {
        match &mut self.sleep {
            Some((0, duration)) => {
                self.origin += *duration;
                self.sleep = None;
            }
            Some((readings, _)) => *readings -= 1,
            None => {}
        }
        self.local(now)
    }

    /// This NIC's clock at a time of the world's.
    pub(crate) fn local(&self, now: Time) -> Time {
        now + self.origin
    }

    /// The world's time at a time of this NIC's clock.
    pub(crate) fn global(&self, local: Time) -> Time {
        Time::ZERO + local.saturating_since(Time::ZERO + self.origin)
    }

    /// Refuses verbs on a NIC that is dead, hung or reset.
    pub(crate) fn check_access(&self) -> Result<()> {
        if self.gone || !self.faults.host_access_ok() { Err(Error::DeviceFatal) } else { Ok(()) }
    }

    /// Whether it still does anything by itself.
    pub(crate) fn runs(&self) -> bool {
        !self.gone && self.faults.dma_ok()
    }

    /// The transport, and the memory that it is to use.
    pub(crate) fn with_memory(&mut self, now: Time) -> (&mut Nic, Port<'_>, &mut TxBatch) {
        let port = Port {
            pipeline: &mut self.pipeline,
            regions: &self.regions,
            now,
            global_atomics: self.capabilities.atomic_scope == AtomicScope::Global,
        };
        (&mut self.nic, port, &mut self.batch)
    }

    /// Names a new region.
    pub(crate) fn add_region(&mut self, buffer: Arc<Buffer>) -> mitra_verbs::RegionId {
        self.regions.push(Some(buffer));
        mitra_verbs::RegionId(self.regions.len() as u32 - 1)
    }

    /// The NIC stops: completions that came out before are in host memory, packets leave no more.
    pub(crate) fn land_completions(&mut self) {
        for release in self.pipeline.take_released() {
            if let Release::Completion(cq) = release
                && let Some(view) = self.cqs.get_mut(&cq)
            {
                view.visible = (view.visible + 1).min(view.written);
            }
        }
    }

    /// Forgets a region: its memory lives on where placements are still under way.
    pub(crate) fn drop_region(&mut self, region: mitra_verbs::RegionId) {
        if let Some(slot) = self.regions.get_mut(region.0 as usize) {
            *slot = None;
        }
    }

    /// A packet was really executed: the failures that this sets off.
    pub(crate) fn executed(&mut self, number: usize, packet: &Packet<'_>) -> Vec<Strike> {
        let mut strikes = Vec::new();
        if self.faults.executed(packet).is_some() {
            strikes.push(Strike::known(number));
        }
        for at in (0..self.probes.len()).rev() {
            if self.probes[at].faults.executed(packet).is_some() {
                strikes.extend(self.probes.remove(at).targets);
            }
        }
        strikes
    }

    /// The PSN that a queue pair expects: it moves when a request is executed.
    pub(crate) fn expected(&self, qpn: Qpn) -> Option<Psn> {
        if self.watched() { self.nic.query_qp(qpn).ok().map(|s| s.rq_psn) } else { None }
    }

    /// Whether any fault or probe wants to see packets.
    pub(crate) fn watched(&self) -> bool {
        !self.probes.is_empty() || !self.faults.is_idle()
    }
}

impl Strike {
    /// One that the NIC's own faults have noted.
    pub(crate) fn known(nic: usize) -> Strike {
        Strike { nic, failure: None, let_go: false }
    }
}

impl Probe {
    pub(crate) fn new(trigger: Trigger, targets: Vec<Strike>, hold: Option<Duration>) -> Probe {
        let mut faults = Faults::new([0; 32]);
        faults.arm(trigger);
        Probe { faults, targets, hold }
    }
}
