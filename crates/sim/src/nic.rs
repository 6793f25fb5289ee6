//! One NIC of a world: the transport's state machine, its faults, and its DMA pipeline.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mitra_transport::fault::{Faults, Stage, Trigger};
use mitra_transport::{Nic, TxBatch};
use mitra_verbs::{
    AsyncEvent, AtomicScope, Capabilities, CqId, Error, Gid, Psn, Qpn, RegionId, Result, Time, Wc, WcOpcode,
};
use mitra_wire::Packet;

use crate::Prng;
use crate::coverage::Operation;
use crate::dma_memory::DmaMemory;
use crate::dma_pipeline::{DmaPipeline, HostBuffer, Release};
use crate::duration_range::DurationRange;
use crate::failure_injection::FailureInjection;
use crate::packet_kind::PacketProbe;
use crate::world_state::{InFlightPacket, Queue, Unflushed};

pub(crate) struct NicState {
    pub(crate) name: String,
    pub(crate) host: usize,
    pub(crate) rail: u8,
    pub(crate) gid: Gid,
    pub(crate) address: SocketAddr,
    /// The number of times that the address has changed. At most 254.
    pub(crate) address_changes: usize,
    pub(crate) capabilities: Capabilities,
    pub(crate) nic: Nic,
    pub(crate) faults: Faults,
    pub(crate) stage_probes: Vec<StageProbe>,
    pub(crate) packet_probes: Vec<PacketProbe>,
    /// The source of [`mitra_verbs::Provider::random_u64`].
    pub(crate) secret_rng: Prng,
    pub(crate) pipeline: DmaPipeline,
    /// The buffer of each region, by region number.
    pub(crate) regions: Vec<Option<Arc<HostBuffer>>>,
    pub(crate) cqs: BTreeMap<CqId, CqView>,
    pub(crate) late_completions: Option<LateCompletions>,
    /// The time at which completions become visible, while queue pairs of the NIC are being
    /// flushed.
    pub(crate) completions_held_until: Time,
    /// The queues that are not flushed yet of queue pairs that were moved to ERR
    /// ([`NicTiming::error_flush_delay`](crate::config::NicTiming)).
    pub(crate) unflushed: BTreeMap<(Qpn, Queue), Unflushed>,
    pub(crate) flush_rng: Prng,
    pub(crate) cq_events: VecDeque<CqId>,
    pub(crate) async_events: VecDeque<AsyncEvent>,
    /// Whether the NIC was reset or replaced, after which it does nothing.
    pub(crate) detached: bool,
    /// Whether the host refuses packets to this NIC, because no process has the port of the NIC
    /// open.
    pub(crate) refuses: bool,
    /// The number of refusals in answer to packets of this NIC, by destination.
    pub(crate) port_refusals: BTreeMap<Gid, u64>,
    pub(crate) replaced: bool,
    /// Whether the NIC has died. Set by `WorldState::update_health` from `faults`, like `hung` and
    /// `link_up`.
    pub(crate) dead: bool,
    pub(crate) hung: bool,
    pub(crate) link_up: bool,
    /// The difference between this NIC's clock and the world's clock. A clock jump increases it.
    pub(crate) clock_origin: Duration,
    /// The number of readings before the clock jumps ahead, and the length of the jump. The jump
    /// imitates a suspended host.
    pub(crate) clock_jump: Option<(u32, Duration)>,
    pub(crate) egress_free: Time,
    pub(crate) cable_failures: u64,
    pub(crate) transmit_at: Option<Time>,
    /// The time for which the timer is set, and the later time at which it fires.
    pub(crate) timer: Option<(Time, Time)>,
    pub(crate) idle_at: Option<Time>,
    pub(crate) memory_at: Option<Time>,
    /// Present while the NIC's own thread gets no processor.
    pub(crate) starvation: Option<Starvation>,
    pub(crate) starvations: u64,
    pub(crate) batch: TxBatch,
    pub(crate) stats: NicStats,
}

/// A time in which a NIC works only when a program calls it.
#[derive(Debug)]
pub(crate) struct Starvation {
    /// The number among the starvations of the NIC, so that the scheduled end of an earlier one is
    /// ignored.
    pub(crate) number: u64,
    /// The packets that have arrived and that the NIC has not read, in order.
    pub(crate) unread: VecDeque<InFlightPacket>,
    /// Whether a call lets the NIC transmit once.
    pub(crate) may_transmit: bool,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct CqView {
    /// Completions of receives, with the later times at which they become visible. See
    /// [`World::delay_completions`](crate::World::delay_completions).
    pub(crate) late_receives: VecDeque<(Time, Wc)>,
    /// The number of completions that the NIC has written and the host has not polled.
    pub(crate) written: usize,
    /// The number of unpolled completions that are visible in host memory.
    pub(crate) visible: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct LateCompletions {
    /// The delay of completions after a queue pair has moved to ERR.
    pub(crate) flushes: DurationRange,
    /// The additional delay of completions of receives.
    pub(crate) receives: DurationRange,
    pub(crate) rng: Prng,
}

pub(crate) struct StageProbe {
    pub(crate) stage: Stage,
    /// If set, only packets of operations of this kind count. A packet can belong to several kinds.
    pub(crate) only: Option<Operation>,
    pub(crate) faults: Faults,
    pub(crate) targets: Vec<FailureInjection>,
    /// If set, the packet that reaches the stage is delayed by this time.
    pub(crate) hold: Option<Duration>,
}

/// Counters of a NIC's packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NicStats {
    /// The number of packets that the NIC sent.
    pub sent: u64,
    /// The number of packets that arrived and were passed to the transport.
    pub received: u64,
    /// The number of packets that arrived with a wrong ICRC.
    pub icrc_errors: u64,
    /// The number of packets that arrived with a correct ICRC and could not be parsed.
    pub malformed: u64,
    /// The number of packets that arrived after this NIC had died or was reset, plus the number of
    /// packets that the NIC sent to an address without a NIC.
    pub undeliverable: u64,
    /// The number of bytes that were not placed because the NIC died or was reset.
    pub placement_bytes_lost: u64,
}

impl NicState {
    /// Counts the reading, and performs a clock jump that is due.
    pub(crate) fn read_clock(&mut self, now: Time) -> Time {
        match &mut self.clock_jump {
            Some((0, duration)) => {
                self.clock_origin += *duration;
                self.clock_jump = None;
            }
            Some((readings, _)) => *readings -= 1,
            None => {}
        }
        self.local(now)
    }

    pub(crate) fn local(&self, now: Time) -> Time {
        now + self.clock_origin
    }

    pub(crate) fn global(&self, local: Time) -> Time {
        Time::ZERO + local.saturating_since(Time::ZERO + self.clock_origin)
    }

    pub(crate) fn check_access(&self) -> Result<()> {
        if self.detached || !self.faults.host_access_ok() { Err(Error::DeviceFatal) } else { Ok(()) }
    }

    /// Returns whether the NIC processes packets. A hung NIC processes packets.
    pub(crate) fn is_running(&self) -> bool {
        !self.detached && self.faults.dma_ok()
    }

    /// Moves the completions that the host sees now to `out`, at most `max`. Returns their number.
    pub(crate) fn poll_cq(&mut self, now: Time, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let is_running = self.is_running();
        let is_late = self.late_completions.is_some();
        if is_late && is_running && now < self.completions_held_until {
            return Ok(0);
        }
        let visible = self.cqs.get(&cq).map_or(0, |view| view.visible);
        let mut taken = Vec::new();
        let n = self.nic.poll_cq(cq, max.min(visible), if is_late { &mut taken } else { out })?;
        let Some(view) = self.cqs.get_mut(&cq) else { return Ok(0) };
        view.visible -= n;
        view.written -= n;
        let Some(late) = &mut self.late_completions else { return Ok(n) };
        let before = out.len();
        for wc in taken {
            if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm) {
                let earliest = view.late_receives.back().map_or(now, |&(due, _)| due);
                view.late_receives.push_back((earliest.max(now + late.receives.sample(&mut late.rng)), wc));
            } else {
                out.push(wc);
            }
        }
        // All completions of a stopped NIC are due: a NIC that acknowledges after placement has
        // written the completions before it died.
        let due = view.late_receives.iter().take_while(|&&(due, _)| due <= now || !is_running).count();
        let room = max - (out.len() - before);
        out.extend(view.late_receives.drain(..due.min(room)).map(|(_, wc)| wc));
        Ok(out.len() - before)
    }

    /// Records that a queue pair enters ERR or RESET. ERR flushes its requests (`is_flushed`), and
    /// RESET removes its completions.
    pub(crate) fn on_revoked(&mut self, now: Time, qp: Qpn, is_flushed: bool) {
        let Some(late) = &mut self.late_completions else { return };
        if is_flushed {
            self.completions_held_until = now + late.flushes.sample(&mut late.rng);
        } else {
            self.cqs.values_mut().for_each(|view| view.late_receives.retain(|(_, wc)| wc.qpn != qp));
        }
    }

    /// Records that a queue pair no longer executes packets, because it was reset or destroyed.
    pub(crate) fn forget_unflushed(&mut self, qp: Qpn) {
        self.unflushed.retain(|(of, _), _| *of != qp);
    }

    pub(crate) fn with_memory(&mut self, now: Time) -> (&mut Nic, DmaMemory<'_>, &mut TxBatch) {
        let memory = DmaMemory {
            pipeline: &mut self.pipeline,
            regions: &self.regions,
            now,
            global_atomics: self.capabilities.atomic_scope == AtomicScope::Global,
        };
        (&mut self.nic, memory, &mut self.batch)
    }

    /// Makes the released completions visible, and drops the released packets, because the NIC
    /// stops.
    pub(crate) fn flush_completions(&mut self) {
        for release in self.pipeline.take_released() {
            if let Release::Completion(cq) = release {
                self.show_completion(cq);
            }
        }
    }

    pub(crate) fn show_completion(&mut self, cq: CqId) {
        if let Some(view) = self.cqs.get_mut(&cq) {
            view.visible = (view.visible + 1).min(view.written);
        }
    }

    /// Removes a region. The pending placements keep its buffer.
    pub(crate) fn drop_region(&mut self, region: RegionId) {
        if let Some(slot) = self.regions.get_mut(region.0 as usize) {
            *slot = None;
        }
    }

    /// Reports an executed packet to the faults and the probes. Returns the failures that the
    /// packet triggers.
    pub(crate) fn executed(&mut self, number: usize, packet: &Packet<'_>) -> Vec<FailureInjection> {
        let mut injections = Vec::new();
        if self.faults.executed(packet).is_some() {
            injections.push(FailureInjection::already_recorded(number));
        }
        for i in (0..self.stage_probes.len()).rev() {
            let probe = &mut self.stage_probes[i];
            if probe.observes(packet) && probe.faults.executed(packet).is_some() {
                injections.extend(self.stage_probes.remove(i).targets);
            }
        }
        injections
    }

    /// Returns the PSN that a queue pair expects next, which changes when the queue pair executes a
    /// request packet. Returns `None` if no fault or probe observes packets, because then no caller
    /// needs the PSN.
    pub(crate) fn expected_psn(&self, qpn: Qpn) -> Option<Psn> {
        if self.is_observed() { self.nic.query_qp(qpn).ok().map(|s| s.rq_psn) } else { None }
    }

    pub(crate) fn is_observed(&self) -> bool {
        !self.stage_probes.is_empty() || !self.packet_probes.is_empty() || !self.faults.is_idle()
    }
}

impl StageProbe {
    pub(crate) fn new(
        trigger: Trigger,
        only: Option<Operation>,
        targets: Vec<FailureInjection>,
        hold: Option<Duration>,
    ) -> StageProbe {
        let mut faults = Faults::new([0; 32]);
        faults.arm(trigger);
        StageProbe { stage: trigger.stage, only, faults, targets, hold }
    }

    pub(crate) fn observes(&self, packet: &Packet<'_>) -> bool {
        // At `Stage::NotPlaced` every response counts, because the response for which the probe
        // waits may acknowledge operations of other kinds too.
        let is_late_answer = self.stage == Stage::NotPlaced && !packet.message.is_request();
        is_late_answer || self.only.is_none_or(|operation| operation.may_have_sent(&packet.message))
    }
}
