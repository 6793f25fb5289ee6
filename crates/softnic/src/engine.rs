//! The state that a NIC's lock protects, and one round of progress.

mod multicast;
mod port_refusals;
mod process;
mod receive;
mod receive_rings;
mod stalls;
mod transmit;

use core::time::Duration;
use std::net::IpAddr;
use std::sync::Arc;

use mitra_os_util::event_queue::EventQueue;
use mitra_transport::fault::{Failure, Faults};
use mitra_transport::{IpPath, Nic, NicConfig};
use mitra_verbs::{AsyncEvent, Counter, CqId, Error, Result, Time, Wc};

use crate::Offload;
use crate::capture::Capture;
use crate::clock;
use crate::completion_queues::CompletionQueues;
use crate::counters::DriverCounters;
use crate::delay_queue::{DelayQueue, Direction};
use crate::memory_regions::MemoryRegions;
use crate::path_cache::PathCache;
use crate::progress::{Driver, Progress};
use crate::shared_memory::SharedMemoryLinks;
use crate::thread_wakeup::{HasThread, ThreadWakeup};
use crate::udp_socket::RoceSocket;
use multicast::MulticastGroup;
use port_refusals::PortRefusals;
use receive::RxBuffer;
use transmit::{SendResult, TxQueue};

/// If a timer expired longer ago than this, the round drains the socket before it handles the
/// timer. The ACK that the timer waits for may be in the socket, and a retransmission would only
/// add load.
const LATE_TIMER: Duration = Duration::from_millis(1);
const MAX_RECEIVES_SETTLE: u32 = 256;

/// A delayed datagram that meets a full ring waits for this time.
const RING_RETRY: Duration = Duration::from_millis(1);

/// The state that a NIC's lock protects. `engine/receive.rs` and `engine/receive_rings.rs`
/// receive from the two carriers, `engine/process.rs` handles what they bring, and
/// `engine/transmit.rs` sends.
pub(crate) struct Engine {
    pub(crate) nic: Nic,
    pub(crate) memory: MemoryRegions,
    pub(crate) completion_queues: CompletionQueues,
    pub(crate) faults: Faults,
    is_interface_up: bool,
    pub(crate) progress: Progress,
    /// `None` after a reset.
    pub(crate) socket: Option<Arc<RoceSocket>>,
    pub(crate) multicast_groups: Vec<MulticastGroup>,
    pub(crate) links: SharedMemoryLinks,
    pub(crate) tx_queue: TxQueue,
    pub(crate) rx_buffer: RxBuffer,
    pub(crate) paths: PathCache,
    pub(crate) port_refusals: PortRefusals,
    pub(crate) delay_queue: DelayQueue,
    pub(crate) capture: Option<Capture>,
    pub(crate) driver_counters: DriverCounters,
    async_events: Arc<EventQueue<AsyncEvent>>,
}

impl HasThread for Engine {
    fn thread_wakeup(&mut self) -> &mut ThreadWakeup {
        &mut self.progress.thread_wakeup
    }
}

impl Engine {
    pub(crate) fn new(
        config: NicConfig,
        socket: Arc<RoceSocket>,
        offload: Offload,
        links: SharedMemoryLinks,
        capture: Option<Capture>,
        async_events: Arc<EventQueue<AsyncEvent>>,
    ) -> Engine {
        let global_atomics = config.capabilities.atomic_scope == mitra_verbs::AtomicScope::Global;
        Engine {
            memory: MemoryRegions::new(global_atomics),
            completion_queues: CompletionQueues::default(),
            faults: Faults::new(config.seed),
            is_interface_up: true,
            progress: Progress::default(),
            rx_buffer: RxBuffer::new(offload),
            paths: PathCache::new(socket.address()),
            port_refusals: PortRefusals::default(),
            delay_queue: DelayQueue::default(),
            driver_counters: DriverCounters::default(),
            nic: Nic::new(config),
            links,
            socket: Some(socket),
            multicast_groups: Vec::new(),
            tx_queue: TxQueue::new(offload),
            capture,
            async_events,
        }
    }

    /// Checks that verbs calls reach the NIC.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] if the NIC is dead, hung or reset.
    pub(crate) fn host_access(&self) -> Result<()> {
        if self.socket.is_some() && self.faults.host_access_ok() { Ok(()) } else { Err(Error::DeviceFatal) }
    }

    /// Returns whether the NIC executes packets and accesses memory. A hung NIC does.
    pub(crate) fn dma_ok(&self) -> bool {
        self.socket.is_some() && self.faults.dma_ok()
    }

    /// Drives one round: receives datagrams, handles timers, sends packets and reports events.
    /// Returns the number of receive calls that returned data, and of datagrams through shared
    /// memory.
    pub(crate) fn drive(&mut self, now: Time, driver: Driver) -> u32 {
        if !self.dma_ok() {
            return 0;
        }
        self.progress.begin_round(now);
        self.release_delayed(now);
        let due = self.nic.poll_timeout().filter(|&due| due <= now);
        let is_late = due.is_some_and(|due| now - due > LATE_TIMER);
        let max_receives = self.progress.max_receives(driver, is_late);
        let from_links = if is_late { self.empty_links(now) } else { self.receive_from_links(now) };
        self.send_probes(now);
        let skips_socket = driver == Driver::Poller
            && !is_late
            && self.links.incoming_count() > 0
            && self.progress.may_skip_socket(now);
        let mut received = 0;
        if !skips_socket {
            while received < max_receives && self.receive(now) {
                received += 1;
            }
            received += self.receive_multicast(now, max_receives);
            self.progress.record_receives(now, driver, received, max_receives);
        }
        received += from_links;
        if due.is_some() {
            self.nic.handle_timeout(now);
        }
        if received > 0 {
            if self.completion_queues.has_sleepers(now) {
                // The program waits for events. It does not poll again before it sleeps, and may
                // send no answer.
                self.nic.flush_acks();
            } else {
                self.nic.handle_delivery();
            }
        }
        if received == 0 {
            match driver {
                // The application waits for data in memory. The pending ACKs are sent with its next
                // post, or when their timer expires. An earlier ACK would let the peer continue
                // before this application has sent its answer. The peer would then wait for the
                // answer in its own memory, where only its progress thread delivers data.
                _ if self.progress.waits_in_memory(now) => {}
                Driver::Poller => self.nic.handle_idle(now),
                Driver::Thread => self.nic.flush_acks(),
            }
        }
        self.flush(now);
        received
    }

    /// Sends the packets and reports the events that a verbs call has caused. Drives a round if no
    /// thread has driven the NIC for long ([`Progress::must_call_drive`]).
    pub(crate) fn flush_call(&mut self, now: Time) {
        self.flush(now);
        if self.progress.must_call_drive(now) {
            self.drive(now, Driver::Thread);
        }
    }

    /// Sends the packets and reports the events that the NIC has produced.
    pub(crate) fn flush(&mut self, now: Time) {
        if !self.dma_ok() {
            return;
        }
        let first = self.next_cq_event();
        if first.is_some() {
            // The consumer is asleep, so send the ACK now instead of waiting for the consumer's
            // response. Programs that use events expect their sends to be acknowledged before the
            // response (`ib_send_lat -e`).
            self.nic.flush_acks();
        }
        self.transmit(now);
        // An unacknowledged message (UD, UC) completes when it is sent, so `transmit` can cause
        // further events.
        let mut next = first.or_else(|| self.next_cq_event());
        if next.is_some() {
            self.progress.record_event(now);
        }
        while let Some(cq) = next {
            self.completion_queues.notify(cq);
            next = self.next_cq_event();
        }
        while let Some(event) = self.nic.poll_async_event() {
            self.async_events.push(event);
        }
    }

    /// Returns the next completion queue with an event. Returns `None` while the NIC defers
    /// completions, because it then defers their events too.
    fn next_cq_event(&mut self) -> Option<CqId> {
        if self.completion_queues.is_deferred() { None } else { self.nic.poll_cq_event() }
    }

    /// Takes completions that are visible to the host, without driving the NIC.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a reset, when the host has taken all completions that the NIC
    /// wrote before the reset. These completions are in host memory, and may be the only evidence
    /// that a receive was executed.
    pub(crate) fn poll_cq(&mut self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let count = self.completion_queues.poll(&mut self.nic, cq, max, out)?;
        if count == 0 && self.socket.is_none() { Err(Error::DeviceFatal) } else { Ok(count) }
    }

    /// Returns when the NIC next has work even if no datagram arrives.
    pub(crate) fn next_due(&self) -> Option<Time> {
        if !self.dma_ok() {
            return None;
        }
        let last = self.progress.last_drive();
        let (links, stalled) = (self.links.next_due(last), self.tx_queue.stalls.next_check(last));
        let due = [self.nic.poll_timeout(), self.delay_queue.next_due(), links, stalled];
        due.into_iter().flatten().min()
    }

    /// Sends or executes the delayed datagrams that are due.
    fn release_delayed(&mut self, now: Time) {
        while let Some(delayed) = self.delay_queue.pop_due(now) {
            if !self.faults.link_up() || !self.dma_ok() {
                self.driver_counters.fault_dropped += 1;
                continue;
            }
            match delayed.direction {
                Direction::Transmit(class) => {
                    let sent = self.send_one(now, delayed.peer, class, &delayed.datagram, None);
                    if !matches!(sent, SendResult::Consumed(_)) {
                        // The ring of the peer, or the socket, is full.
                        let later = now + RING_RETRY;
                        self.delay_queue.push(later, delayed.direction, delayed.peer, &delayed.datagram);
                    }
                }
                Direction::Receive(group, traffic_class) => {
                    let peer = IpPath { address: delayed.peer, traffic_class };
                    self.execute_delayed(now, peer, group, &delayed.datagram);
                }
            }
        }
    }

    pub(crate) fn handle_failure(&mut self, failure: Option<Failure>) {
        match failure {
            Some(Failure::LinkDown) => self.update_link(),
            Some(Failure::NicDead) => self.async_events.push(AsyncEvent::DeviceFatal),
            Some(Failure::NicHung | Failure::NotPlaced) | None => {}
        }
        self.update_placement();
    }

    /// `None` after a reset.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.socket.as_ref().map(|socket| socket.address().ip())
    }

    /// Updates the link state after a change of the interface that has `address`, unless the NIC
    /// has another address by now.
    pub(crate) fn set_interface_up(&mut self, address: IpAddr, is_up: bool) {
        if self.address() == Some(address) {
            self.is_interface_up = is_up;
            self.update_link();
        }
    }

    pub(crate) fn update_link(&mut self) {
        if self.dma_ok() {
            self.nic.handle_link(self.is_interface_up && self.faults.link_up());
        }
    }

    /// Defers, places or discards writes and completions as the injected faults require.
    pub(crate) fn update_placement(&mut self) {
        if !self.faults.dma_ok() {
            self.memory.discard_deferred();
            return;
        }
        let deferred = !self.faults.placement_ok();
        self.memory.set_deferred(deferred);
        self.completion_queues.set_deferred(&mut self.nic, deferred);
    }

    /// Places the acknowledged writes and the completions that a fault defers. The fault stays, and
    /// defers later writes and completions.
    pub(crate) fn fence(&mut self) {
        if self.completion_queues.is_deferred() && self.dma_ok() {
            self.memory.place_deferred();
            self.completion_queues.write_pending(&mut self.nic);
        }
    }

    /// Executes the datagrams that wait in the socket and sends pending ACKs, unless the NIC has
    /// failed. The caller does this before a queue pair or the process ends. A hardware NIC would
    /// have done both by then.
    pub(crate) fn settle(&mut self, now: Time) {
        if self.dma_ok() {
            for _ in 0..MAX_RECEIVES_SETTLE {
                if self.receive_from_links(now) == 0 && !self.receive(now) {
                    break;
                }
            }
            self.nic.flush_acks();
            self.transmit(now);
        }
    }

    /// Replaces the socket by one that is bound to another address, and joins the multicast groups
    /// there. If the NIC cannot join a group there, it still receives the group on the old
    /// interface.
    pub(crate) fn replace_socket(&mut self, socket: Arc<RoceSocket>, links: SharedMemoryLinks) {
        self.transmit(clock::now());
        if self.socket.as_ref().is_some_and(|old| old.receives_traffic_classes()) {
            socket.receive_traffic_classes();
        }
        let address = socket.address();
        self.paths = PathCache::new(address);
        self.rx_buffer.use_new_socket();
        self.rejoin_multicast(address.ip());
        self.links.close_all();
        self.links = links;
        self.socket = Some(socket);
        self.nic.change_gid(address.ip().into());
    }

    /// Releases the sockets and the memory of the NIC permanently. Returns the NIC's own socket, or
    /// `None` if the NIC was closed before.
    pub(crate) fn close(&mut self) -> Option<Arc<RoceSocket>> {
        self.multicast_groups.clear();
        self.links.close_listener();
        self.memory.clear();
        self.completion_queues.disarm_all();
        self.flush_capture();
        self.socket.take()
    }

    pub(crate) fn flush_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
    }

    pub(crate) fn counters(&self) -> Vec<Counter> {
        let mut list = self.nic.counters();
        self.driver_counters.append_to(&mut list);
        list.push(Counter { name: "rx_links", value: self.links.accepted_count() });
        list
    }
}
