use std::sync::Arc;
use std::time::Duration;

use mitra_verbs::Provider;

/// A kind of NIC, as the cases need it: two NICs that reach each other, and the passing of time.
pub trait Fabric {
    /// Returns the name for the report.
    fn name(&self) -> String;

    /// Returns two NICs that reach each other. Each case calls this once. The NICs may be new, or
    /// the same for all cases: a case that passes destroys all objects that it has created.
    ///
    /// The traffic class of a datagram must be visible in the GRH
    /// ([`Nic::receive_traffic_classes`](mitra_verbs::Nic::receive_traffic_classes)), if the NICs
    /// can do that.
    fn nics(&self) -> [Arc<dyn Provider>; 2];

    /// Lets the NICs make progress while a case waits, without polling them. A simulator advances
    /// its clock by a microsecond or so; where NICs or threads drive themselves, the caller gives
    /// up the processor.
    fn wait(&self);

    /// Returns how long a case waits, by the clock of its NIC, before it fails. Software NICs share
    /// processors with other tests, so they have long.
    fn timeout(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Returns what a thread does while it waits, or `None` if the NICs make progress in one thread
    /// only.
    fn thread_wait(&self) -> Option<fn()> {
        None
    }
}
