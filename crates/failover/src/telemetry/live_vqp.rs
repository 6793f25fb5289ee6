use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use mitra_verbs::{Qpn, Time};

use crate::close_reason::CloseReason;
use crate::telemetry::VqpPhase;

/// The fields that a vQP publishes at each maintenance run. Each field is read and written by
/// itself, so two fields may come from two runs.
#[derive(Debug, Default)]
pub(crate) struct LiveVqp {
    qpn: AtomicU32,
    phase: AtomicU32,
    active_rail: AtomicU32,
    epoch: AtomicU32,
    posted: AtomicU64,
    completed: AtomicU64,
    rejected_messages: AtomicU64,
    published_at: AtomicU64,
    /// One more than the rail whose failure report was discarded since the last run; 0 if none was.
    discarded_rail: AtomicU32,
    closed: AtomicBool,
}

/// The values of the published fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PublishedFields {
    pub(crate) qpn: Qpn,
    pub(crate) phase: VqpPhase,
    pub(crate) active_rail: usize,
    /// 0 before the vQP is connected.
    pub(crate) epoch: u16,
    /// The number of sends that were posted.
    pub(crate) posted: u64,
    /// The number of sends that have completed.
    pub(crate) completed: u64,
    /// The number of control datagrams that were refused.
    pub(crate) rejected_messages: u64,
    /// The time of the maintenance run.
    pub(crate) now: Time,
    pub(crate) close_reason: Option<CloseReason>,
}

impl LiveVqp {
    pub(super) fn store(&self, fields: &PublishedFields) {
        let order = Ordering::Relaxed;
        self.qpn.store(fields.qpn.value(), order);
        self.phase.store(fields.phase as u32, order);
        self.active_rail.store(fields.active_rail as u32, order);
        self.epoch.store(fields.epoch.into(), order);
        self.posted.store(fields.posted, order);
        self.completed.store(fields.completed, Ordering::Release);
        self.rejected_messages.store(fields.rejected_messages, order);
        self.published_at.store(fields.now.as_nanos(), order);
    }

    /// Returns the fields, without the reason for closing.
    pub(super) fn load(&self) -> PublishedFields {
        let order = Ordering::Relaxed;
        PublishedFields {
            qpn: self.qpn(),
            phase: VqpPhase::ALL[self.phase.load(order) as usize],
            active_rail: self.active_rail.load(order) as usize,
            epoch: self.epoch.load(order) as u16,
            // The vQP stores `completed` after `posted`. Reading it first keeps it at most as
            // large.
            completed: self.completed.load(Ordering::Acquire),
            posted: self.posted.load(order),
            rejected_messages: self.rejected_messages.load(order),
            now: Time::from_nanos(self.published_at.load(order)),
            close_reason: None,
        }
    }

    pub(crate) fn qpn(&self) -> Qpn {
        Qpn::new(self.qpn.load(Ordering::Relaxed))
    }

    /// Notes that the report of a failure of this rail was discarded. The next run says whether the
    /// vQP closed or stays on the rail.
    pub(crate) fn note_discarded(&self, rail: usize) {
        self.discarded_rail.store(rail as u32 + 1, Ordering::Relaxed);
    }

    pub(super) fn take_discarded_rail(&self) -> Option<usize> {
        if self.discarded_rail.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.discarded_rail.swap(0, Ordering::Relaxed).checked_sub(1).map(|rail| rail as usize)
    }

    /// Returns whether this is the first call.
    pub(super) fn mark_closed(&self) -> bool {
        !self.closed.swap(true, Ordering::Relaxed)
    }
}
