use std::sync::Arc;

use mitra_verbs::{CompletionChannel, PdId, Provider};

/// A NIC of a [`Domain`](crate::Domain) and the objects that the domain made on it.
#[derive(Clone, Debug)]
pub struct LocalNic {
    /// The NIC.
    pub provider: Arc<dyn Provider>,
    /// The protection domain of the queue pairs and the memory.
    pub pd: PdId,
    /// The completion channel of the data queue pairs, if [`Domain::with_completion_channels`] made
    /// it.
    ///
    /// [`Domain::with_completion_channels`]: crate::Domain::with_completion_channels
    pub channel: Option<Arc<dyn CompletionChannel>>,
}
