//! The device of a process that has NICs and a failover domain over them.

use std::sync::Arc;

use mitra_failover::{Activity, Domain};
use mitra_metrics::{RailStatus, Snapshot};
use mitra_verbs::{Counter, Nic, Time};

use crate::{ControlledDevice, DeviceStatus, FaultAction, apply_fault, check_fault, rail_status};

/// The NICs that `mitra fault` controls, and the domain of their queue pairs. A program with NICs
/// and vQPs of its own passes this device to [`ControlServer::start`](crate::ControlServer::start),
/// so that `mitra watch` and `mitra fault` find the program.
#[derive(Clone, Debug)]
pub struct ControlledNics {
    nics: Vec<Arc<dyn Nic>>,
    domain: Arc<Domain>,
}

impl ControlledNics {
    /// `nics` has the order of the rails of `domain`.
    pub fn new(nics: impl IntoIterator<Item = Arc<dyn Nic>>, domain: Arc<Domain>) -> ControlledNics {
        ControlledNics { nics: nics.into_iter().collect(), domain }
    }
}

impl ControlledDevice for ControlledNics {
    fn check_fault(&self, rail: usize, action: FaultAction) -> Result<(), String> {
        self.nics.get(rail).map_or(Ok(()), |nic| check_fault(&**nic, action))
    }

    fn apply_fault(&mut self, rail: usize, action: FaultAction) -> Result<(), String> {
        self.nics.get(rail).map_or(Ok(()), |nic| apply_fault(&**nic, action))
    }

    fn status(&mut self) -> DeviceStatus {
        let Activity { vqps, failovers } = self.domain.activity();
        let rails = self.nics.iter().map(|nic| rail_status(&**nic)).collect();
        DeviceStatus { rails, queue_pairs: vqps, failovers }
    }

    fn snapshot(&mut self) -> Snapshot {
        let (rails, now) = nic_snapshots(self.nics.iter().map(|nic| &**nic));
        let queue_pairs = self.domain.activity().vqps;
        Snapshot::take(rails, queue_pairs, now, Some(self.domain.telemetry()))
    }
}

/// Returns the state and the counters of each NIC, and the time on their clock, for
/// [`Snapshot::take`].
pub fn nic_snapshots<'a>(
    nics: impl IntoIterator<Item = &'a dyn Nic>,
) -> (Vec<(RailStatus, Vec<Counter>)>, Time) {
    let mut now = None;
    let snapshot = |nic: &dyn Nic| {
        now.get_or_insert_with(|| nic.now());
        (rail_status(nic), nic.counters())
    };
    let rails = nics.into_iter().map(snapshot).collect();
    (rails, now.unwrap_or(Time::ZERO))
}
