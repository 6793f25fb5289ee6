use std::sync::Arc;

use mitra_verbs::{CompletionChannel, CqId, Error, Result};
use smallvec::SmallVec;

use crate::local_nic::LocalNic;
use crate::vqp::rail_set::RailSet;

/// The completion channels of a vQP that sleeps until something happens, and its armed completion
/// queues.
#[derive(Debug)]
pub(super) struct EventChannels {
    /// The channels with their rails, in the order of rails. A NIC that was dead when the vQP was
    /// created has no channel.
    pub(super) channels: Vec<(usize, Arc<dyn CompletionChannel>)>,
    /// The armed queues with their rails. An event disarms its queue.
    armed: SmallVec<[(usize, CqId); 8]>,
    /// The active rail of the last round, which took all its completions after the arming.
    pub(super) drained_rail: usize,
}

impl EventChannels {
    pub(super) fn new(nics: &[LocalNic]) -> EventChannels {
        let channel = |(rail, nic): (usize, &LocalNic)| Some((rail, nic.channel.clone()?));
        let channels = nics.iter().enumerate().filter_map(channel).collect();
        EventChannels { channels, armed: SmallVec::new(), drained_rail: 0 }
    }

    pub(super) fn take_events(&mut self) -> Result<()> {
        for (rail, channel) in &self.channels {
            while let Some(cq) = channel.next_event()? {
                self.armed.retain(|armed| *armed != (*rail, cq));
            }
        }
        Ok(())
    }

    /// The completion queues of the rails. The boolean says whether only solicited completions
    /// raise an event. A control message raises an event only if the message needs an answer. Every
    /// completion of an operation raises an event.
    fn queues(rails: &RailSet) -> impl Iterator<Item = ((usize, CqId), bool)> {
        rails
            .iter()
            .enumerate()
            .flat_map(|(i, rail)| [((i, rail.cq()), false), ((i, rail.control_cq()), true)])
    }

    /// Returns whether every completion queue is armed, or has raised an event that was not taken.
    pub(super) fn is_armed(&self, rails: &RailSet) -> bool {
        EventChannels::queues(rails).all(|(queue, _)| self.armed.contains(&queue))
    }

    /// Returns whether everything that the vQP may have to handle raises an event, or has raised
    /// one. A post or a poll may have moved the vQP since the last round. The completions that lay
    /// on the new rail before raise no event, and a replaced queue pair has a queue that is not
    /// armed.
    pub(super) fn may_sleep(&self, rails: &RailSet, active_rail: usize) -> bool {
        self.drained_rail == active_rail && self.is_armed(rails)
    }

    pub(super) fn arm(&mut self, rails: &RailSet) -> Result<()> {
        let before = core::mem::take(&mut self.armed);
        for ((rail, cq), solicited_only) in EventChannels::queues(rails) {
            if !before.contains(&(rail, cq)) {
                match rails.get(rail).provider().req_notify_cq(cq, solicited_only) {
                    // A dead NIC completes nothing. Maintenance detects its death.
                    Ok(()) | Err(Error::DeviceFatal) => {}
                    Err(error) => return Err(error),
                }
            }
            self.armed.push((rail, cq));
        }
        Ok(())
    }
}
