use std::sync::{Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Qpn, Time};

use crate::close_reason::CloseReason;
use crate::telemetry::VqpPhase;

/// The state that a vQP publishes when it is made, at each maintenance run and when it closes.
#[derive(Debug, Default)]
pub(crate) struct LiveVqp(Mutex<Live>);

#[derive(Debug, Default)]
struct Live {
    fields: PublishedFields,
    /// The rail whose failure report was discarded since the last run.
    discarded_rail: Option<usize>,
}

/// `posted` and `completed` count sends. `rejected_messages` counts refused control datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PublishedFields {
    pub(crate) qpn: Qpn,
    pub(crate) phase: VqpPhase,
    pub(crate) active_rail: usize,
    /// 0 before the vQP is connected.
    pub(crate) epoch: u16,
    pub(crate) posted: u64,
    pub(crate) completed: u64,
    pub(crate) rejected_messages: u64,
    /// The time at which the vQP published the fields.
    pub(crate) now: Time,
    pub(crate) close_reason: Option<CloseReason>,
}

impl LiveVqp {
    /// Returns the fields of the last run, and the rail whose failure report was discarded since.
    pub(super) fn replace(&self, fields: &PublishedFields) -> (PublishedFields, Option<usize>) {
        let mut live = self.lock();
        (core::mem::replace(&mut live.fields, *fields), live.discarded_rail.take())
    }

    pub(super) fn fields(&self) -> PublishedFields {
        self.lock().fields
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.lock().fields.qpn
    }

    /// Notes that the failure report of this rail was discarded. The next run tells whether the vQP
    /// has closed or stays on the rail.
    pub(crate) fn note_discarded(&self, rail: usize) {
        self.lock().discarded_rail = Some(rail);
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
