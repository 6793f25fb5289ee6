use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use mitra_verbs::{Qpn, Time};

use crate::close_reason::CloseReason;
use crate::telemetry::VqpPhase;

/// The fields that a vQP publishes at each maintenance run. Each is read and written alone, so a
/// reader may see fields of two runs.
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
    /// 1 + the rail whose failure report was discarded since the last run, or 0.
    discarded_rail: AtomicU32,
    closed: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PublishedFields {
    pub(crate) qpn: Qpn,
    pub(crate) phase: VqpPhase,
    pub(crate) active_rail: usize,
    /// 0 before the vQP is connected.
    pub(crate) epoch: u16,
    pub(crate) posted: u64,
    pub(crate) completed: u64,
    /// Refused control datagrams.
    pub(crate) rejected_messages: u64,
    /// Of the maintenance run.
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

    /// Returns no reason for closing.
    pub(super) fn load(&self) -> PublishedFields {
        let order = Ordering::Relaxed;
        PublishedFields {
            qpn: self.qpn(),
            phase: VqpPhase::ALL[self.phase.load(order) as usize],
            active_rail: self.active_rail.load(order) as usize,
            epoch: self.epoch.load(order) as u16,
            // The vQP stores `completed` after `posted`, so `completed` is read first and stays at
            // most as large.
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

    /// Notes that the failure report of this rail was discarded. The next run tells whether the vQP
    /// has closed or stays on the rail.
    pub(crate) fn note_discarded(&self, rail: usize) {
        self.discarded_rail.store(rail as u32 + 1, Ordering::Relaxed);
    }

    pub(super) fn take_discarded_rail(&self) -> Option<usize> {
        if self.discarded_rail.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.discarded_rail.swap(0, Ordering::Relaxed).checked_sub(1).map(|rail| rail as usize)
    }

    /// True at the first call.
    pub(super) fn mark_closed(&self) -> bool {
        !self.closed.swap(true, Ordering::Relaxed)
    }
}
