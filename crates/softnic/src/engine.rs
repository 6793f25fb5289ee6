//! Everything behind a NIC's lock: the state machine, the memory, the faults and the socket, driven as one.

use core::time::Duration;
use std::sync::Arc;

use mitra_transport::fault::{Failure, Faults};
use mitra_transport::{Nic, NicConfig};
use mitra_verbs::{AsyncEvent, Counter, CqId, Error, Result, Time, Wc};

use crate::Offload;
use crate::attention::{Runner, Spin};
use crate::capture::Capture;
use crate::channel::EventQueue;
use crate::completions::Completions;
use crate::counts::Counts;
use crate::delayed::{Delayed, Way};
use crate::groups::Group;
use crate::lease::Lease;
use crate::memory::Regions;
use crate::paths::Paths;
use crate::receive::Inbox;
use crate::socket::Socket;
use crate::transmit::Outbox;

/// Who comes so late to a time-out looks first at what has arrived meanwhile: the answer may be among it, and sending
/// all again would only make more of it.
const LATE: Duration = Duration::from_millis(1);
/// Receives of one round then.
const CATCH_UP: u32 = 256;
/// Receives of one round of the progress thread, before others get the lock.
const THREAD_ROUND: u32 = 4;
/// Receives of one round of a poller, at most. It wants to know what each receive brought, so the first are single; one that
/// finds something round after round is behind, and what waits is worth more than what it would do in between.
const POLLER_ROUND: u32 = 16;

/// What one lock guards. `receive.rs` has the way in, `transmit.rs` the way out.
pub(crate) struct Engine {
    pub(crate) nic: Nic,
    pub(crate) memory: Regions,
    pub(crate) completions: Completions,
    pub(crate) faults: Faults,
    pub(crate) lease: Lease,
    /// When the progress thread wakes of itself; none if it does not.
    pub(crate) thread_wakes: Option<Time>,
    /// When the NIC last had something to do.
    pub(crate) active: Time,
    /// The completion queue whose poller drove last, and when.
    pub(crate) driven: Option<(CqId, Time)>,
    /// The thread that polled last.
    pub(crate) poller: Option<Runner>,
    /// When the host called last.
    pub(crate) called: Time,
    pub(crate) spin: Spin,
    /// Receives of a poller's next round.
    backlog: u32,
    /// None after a reset.
    pub(crate) socket: Option<Arc<Socket>>,
    /// The multicast groups that it is in.
    pub(crate) groups: Vec<Group>,
    pub(crate) outbox: Outbox,
    pub(crate) inbox: Inbox,
    pub(crate) paths: Paths,
    pub(crate) delayed: Delayed,
    pub(crate) capture: Option<Capture>,
    pub(crate) counts: Counts,
    events: Arc<EventQueue<AsyncEvent>>,
}

/// Who drives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Driver {
    /// A caller that polls: it wants to know what each receive brought, and will be back soon.
    Poller,
    /// The progress thread: it sleeps when there is nothing.
    Thread,
}

impl Engine {
    pub(crate) fn new(
        config: NicConfig,
        socket: Arc<Socket>,
        offload: Offload,
        capture: Option<Capture>,
        events: Arc<EventQueue<AsyncEvent>>,
    ) -> Engine {
        let global_atomics = config.capabilities.atomic_scope == mitra_verbs::AtomicScope::Global;
        Engine {
            memory: Regions::new(global_atomics),
            completions: Completions::default(),
            faults: Faults::new(config.seed),
            lease: Lease::default(),
            thread_wakes: None,
            active: Time::ZERO,
            driven: None,
            poller: None,
            called: Time::ZERO,
            spin: Spin::default(),
            backlog: 1,
            inbox: Inbox::new(offload),
            paths: Paths::new(socket.address()),
            delayed: Delayed::default(),
            counts: Counts::default(),
            nic: Nic::new(config),
            socket: Some(socket),
            groups: Vec::new(),
            outbox: Outbox::new(offload),
            capture,
            events,
        }
    }

    /// Whether verbs calls reach the NIC.
    pub(crate) fn host_access(&self) -> Result<()> {
        if self.socket.is_some() && self.faults.host_access_ok() { Ok(()) } else { Err(Error::DeviceFatal) }
    }

    /// Whether the NIC still executes packets and touches memory.
    pub(crate) fn dma_ok(&self) -> bool {
        self.socket.is_some() && self.faults.dma_ok()
    }

    /// One round: timers, some receives, what there is to send, what there is to report. Says how many receives brought
    /// something.
    pub(crate) fn drive(&mut self, now: Time, driver: Driver) -> u32 {
        if !self.dma_ok() {
            return 0;
        }
        self.late(now);
        let due = self.nic.poll_timeout().filter(|&due| due <= now);
        let late = due.is_some_and(|due| now - due > LATE);
        let most = match driver {
            _ if late => CATCH_UP,
            Driver::Poller => self.backlog,
            Driver::Thread => THREAD_ROUND,
        };
        let mut received = 0;
        while received < most && self.receive(now) {
            received += 1;
        }
        received += self.receive_multicast(now, most);
        if driver == Driver::Poller {
            self.backlog = if received == 0 { 1 } else { (self.backlog * 2).min(POLLER_ROUND) };
        }
        if due.is_some() {
            self.nic.handle_timeout(now);
        }
        if received == 0 {
            match driver {
                // What it owes goes behind what it posts next, or in time. Else its peer would go on before there is anything for
                // it, and wait for that in its memory, where only the thread could bring it.
                _ if self.lease.distrusts(now) => {}
                Driver::Poller => self.nic.handle_idle(now),
                Driver::Thread => self.nic.flush_acks(),
            }
        } else {
            self.active = now;
        }
        self.settle(now);
        received
    }

    /// Sends and reports what there is.
    pub(crate) fn settle(&mut self, now: Time) {
        if !self.dma_ok() {
            return;
        }
        let first = self.cq_event();
        if first.is_some() {
            // Who sleeps takes long to answer: no reason to let the acknowledgement wait for that, and programs with
            // events expect their sends to be acknowledged before they are answered (`ib_send_lat -e`).
            self.nic.flush_acks();
        }
        self.transmit(now);
        // What is not acknowledged completes when it is sent: such events come only now.
        let mut woken = first.or_else(|| self.cq_event());
        while let Some(cq) = woken {
            self.completions.notify(cq);
            woken = self.cq_event();
        }
        while let Some(event) = self.nic.poll_async_event() {
            self.events.push(event);
        }
    }

    /// A queue whose user is to be woken. Events are written like completions: not while writes are held back.
    fn cq_event(&mut self) -> Option<CqId> {
        if self.completions.holding() { None } else { self.nic.poll_cq_event() }
    }

    /// Takes completions that the host can see, without driving.
    pub(crate) fn poll_cq(&mut self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let found = self.completions.poll(&mut self.nic, cq, max, out)?;
        // What was written before a reset is host memory, and may be all that a peer's receives are known by.
        if found == 0 && self.socket.is_none() { Err(Error::DeviceFatal) } else { Ok(found) }
    }

    /// When something is due without anything arriving.
    pub(crate) fn next_due(&self) -> Option<Time> {
        if !self.dma_ok() {
            return None;
        }
        [self.nic.poll_timeout(), self.delayed.next_due()].into_iter().flatten().min()
    }

    /// Datagrams that a noisy rail held back and that are due.
    fn late(&mut self, now: Time) {
        while let Some(late) = self.delayed.pop_due(now) {
            if !self.faults.link_up() || !self.dma_ok() {
                self.counts.fault_dropped += 1;
                continue;
            }
            match late.way {
                Way::Out => self.send_alone(late.peer, &mut late.datagram.into_vec(), None),
                Way::In(group) => self.execute_late(now, late.peer, group, &late.datagram),
            }
        }
    }

    /// Acts on what has just failed, if anything.
    pub(crate) fn react(&mut self, failed: Option<Failure>) {
        match failed {
            Some(Failure::LinkDown) => self.nic.handle_link(false),
            Some(Failure::NicDead) => self.events.push(AsyncEvent::DeviceFatal),
            Some(Failure::NicHung | Failure::NotPlaced) | None => {}
        }
        self.place_or_hold();
    }

    /// Brings the memory in line with the faults.
    pub(crate) fn place_or_hold(&mut self) {
        if !self.faults.dma_ok() {
            self.memory.lose_held();
            return;
        }
        let holding = !self.faults.placement_ok();
        self.memory.hold(holding);
        self.completions.hold(&mut self.nic, holding);
    }

    /// A fence: what was acknowledged is placed and completed, even on a NIC that otherwise holds it back.
    pub(crate) fn fence(&mut self) {
        if self.completions.holding() && self.dma_ok() {
            self.memory.place_held();
            self.completions.write(&mut self.nic);
        }
    }

    /// The last words of a NIC in good health, or of a queue pair: acknowledgements that it owes. Who has received may leave at
    /// once, and the sender is to know.
    pub(crate) fn last_words(&mut self, now: Time) {
        if self.dma_ok() {
            self.nic.flush_acks();
            self.transmit(now);
        }
    }

    /// The NIC touches nothing any more, for good.
    pub(crate) fn close(&mut self) {
        self.socket = None;
        self.groups.clear();
        self.memory.clear();
        self.completions.disarm_all();
        self.flush_capture();
    }

    /// Brings the capture file up to date.
    pub(crate) fn flush_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
    }

    pub(crate) fn counters(&self) -> Vec<Counter> {
        let mut list = self.nic.counters();
        self.counts.append_to(&mut list);
        list
    }
}
