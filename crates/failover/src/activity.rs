use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::telemetry::Telemetry;

/// How many virtual queue pairs a [`Domain`](crate::Domain) and the other domains on its NICs have,
/// and how often these have moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity {
    /// The number of vQPs that are neither closed nor dropped.
    pub vqps: usize,
    /// The number of moves to another rail, including moves of closed vQPs.
    pub failovers: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    vqps: AtomicUsize,
    failovers: AtomicU64,
    telemetry: Arc<Telemetry>,
}

impl Counters {
    /// Counts one more vQP until the returned guard is dropped.
    pub(crate) fn count_vqp(self: &Arc<Self>) -> CountedVqp {
        self.vqps.fetch_add(1, Ordering::Relaxed);
        CountedVqp(Arc::clone(self))
    }

    pub(crate) fn count_failover(&self) {
        self.failovers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    pub(crate) fn read(&self) -> Activity {
        Activity {
            vqps: self.vqps.load(Ordering::Relaxed),
            failovers: self.failovers.load(Ordering::Relaxed),
        }
    }
}

#[derive(Debug)]
pub(crate) struct CountedVqp(Arc<Counters>);

impl Drop for CountedVqp {
    fn drop(&mut self) {
        self.0.vqps.fetch_sub(1, Ordering::Relaxed);
    }
}
