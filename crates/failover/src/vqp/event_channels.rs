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
    /// The armed queues. An event disarms its queue.
    armed: SmallVec<[Armed; 8]>,
    /// Whether completions of sends raise events.
    pub(super) wakes_for_sends: bool,
    /// The active rail of the last round, which took all its completions after the arming.
    pub(super) drained_rail: usize,
}

/// A completion queue with its rail, and whether only solicited completions raise an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Armed {
    rail: usize,
    cq: CqId,
    solicited_only: bool,
}

impl EventChannels {
    pub(super) fn new(nics: &[LocalNic]) -> EventChannels {
        let channel = |(rail, nic): (usize, &LocalNic)| Some((rail, nic.channel.clone()?));
        let channels = nics.iter().enumerate().filter_map(channel).collect();
        EventChannels { channels, armed: SmallVec::new(), wakes_for_sends: true, drained_rail: 0 }
    }

    pub(super) fn take_events(&mut self) -> Result<()> {
        for (rail, channel) in &self.channels {
            while let Some(cq) = channel.next_event()? {
                self.armed.retain(|armed| (armed.rail, armed.cq) != (*rail, cq));
            }
        }
        Ok(())
    }

    /// The completion queues of the rails, as they are to be armed. A control message raises an
    /// event only if the message needs an answer. A completion in error always raises one.
    fn queues(wakes_for_sends: bool, rails: &RailSet) -> impl Iterator<Item = Armed> {
        let solicited_only = !wakes_for_sends;
        rails.iter().enumerate().flat_map(move |(rail, of)| {
            [
                Armed { rail, cq: of.cq(), solicited_only },
                Armed { rail, cq: of.control_cq(), solicited_only: true },
            ]
        })
    }

    /// Returns whether a queue is armed for at least this, or has raised an event that was not
    /// taken.
    fn covers(armed: &[Armed], queue: Armed) -> bool {
        armed.contains(&queue) || armed.contains(&Armed { solicited_only: false, ..queue })
    }

    fn is_armed(&self, rails: &RailSet) -> bool {
        EventChannels::queues(self.wakes_for_sends, rails)
            .all(|queue| EventChannels::covers(&self.armed, queue))
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
        for queue in EventChannels::queues(self.wakes_for_sends, rails) {
            let Armed { rail, cq, solicited_only } = queue;
            if !EventChannels::covers(&before, queue) {
                match rails.get(rail).provider().req_notify_cq(cq, solicited_only) {
                    // A dead NIC completes nothing. Maintenance detects its death.
                    Ok(()) | Err(Error::DeviceFatal) => {}
                    Err(error) => return Err(error),
                }
            }
            self.armed.push(queue);
        }
        Ok(())
    }
}
