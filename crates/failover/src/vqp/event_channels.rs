//! The interface of an end that sleeps until something happens, instead of polling: the vQP's own completion channels, and the handling of
//! everything that their events announce.

use core::time::Duration;
use std::sync::Arc;

use mitra_verbs::{CompletionChannel, CqId, Error, Result, Time};
use smallvec::SmallVec;

use crate::completion::Completion;
use crate::domain::LocalNic;
use crate::vqp::VirtualQp;
use crate::vqp::rail_set::RailSet;

/// The time between two rounds while a failover is in progress, or while NICs execute a bind or an invalidation. The fence counts polls, which no
/// event announces, and the queue pairs for type 1 windows raise no events.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The completion channels of one vQP, and its armed completion queues.
#[derive(Debug)]
pub(super) struct EventChannels {
    /// The channels in the order of rails, with their rails. A NIC that was dead has none.
    channels: Vec<(usize, Arc<dyn CompletionChannel>)>,
    /// The armed queues with their rails. An event disarms its queue.
    armed: SmallVec<[(usize, CqId); 8]>,
}

impl EventChannels {
    /// Returns the channels of these NICs.
    pub(super) fn new(nics: &[LocalNic]) -> EventChannels {
        let channel = |(rail, nic): (usize, &LocalNic)| Some((rail, nic.channel.clone()?));
        let channels = nics.iter().enumerate().filter_map(channel).collect();
        EventChannels { channels, armed: SmallVec::new() }
    }

    /// Removes all events.
    fn take_events(&mut self) -> Result<()> {
        for (rail, channel) in &self.channels {
            while let Some(cq) = channel.next_event()? {
                self.armed.retain(|armed| *armed != (*rail, cq));
            }
        }
        Ok(())
    }

    /// Returns the completion queues of the rails with their rails, and whether only solicited completions of the queue raise an event: those
    /// of operations for each completion, those of control messages for messages that need an answer.
    fn queues(rails: &RailSet) -> impl Iterator<Item = ((usize, CqId), bool)> {
        rails
            .iter()
            .enumerate()
            .flat_map(|(i, rail)| [((i, rail.cq()), false), ((i, rail.control_cq()), true)])
    }

    /// Returns whether every completion queue of the rails is armed, or has raised an event that was not taken.
    fn is_armed(&self, rails: &RailSet) -> bool {
        EventChannels::queues(rails).all(|(queue, _)| self.armed.contains(&queue))
    }

    /// Arms every completion queue of the rails that is not armed.
    fn arm(&mut self, rails: &RailSet) -> Result<()> {
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

impl VirtualQp {
    /// The vQP's own completion channels in the order of rails, if it was built with
    /// [`own_channels`](crate::VirtualQpBuilder::own_channels). A descriptor is readable when the vQP has to handle something
    /// ([`VirtualQp::handle_events`]).
    pub fn event_channels(&self) -> impl Iterator<Item = &Arc<dyn CompletionChannel>> {
        self.events.iter().flat_map(|events| &events.channels).map(|(_, channel)| channel)
    }

    /// Handles all that has arrived, takes part in a failover, runs the timers that have expired, and arms the completion queues again. The
    /// completions can then be taken with [`VirtualQp::take_completions`]. To be called when a descriptor of
    /// [`VirtualQp::event_channels`] is readable, when a NIC has reported an asynchronous event, and at [`VirtualQp::event_timeout`].
    ///
    /// # Errors
    /// Any error of a completion channel or a NIC other than [`Error::DeviceFatal`].
    pub fn handle_events(&mut self) -> Result<()> {
        if self.is_destroyed {
            return Ok(());
        }
        self.post_slots();
        if let Some(events) = &mut self.events {
            events.take_events()?;
        }
        loop {
            // Completions and messages that arrive after this raise an event for the next call. The ones that arrived before are handled below.
            if let Some(events) = &mut self.events {
                events.arm(self.datapath.rails())?;
            }
            let rail = self.recovery.active_rail();
            while self.recovery.poll_active_rail(&mut self.datapath) {}
            self.maintenance.run_full(&mut self.recovery, &mut self.datapath);
            // After a move, the completions of the new rail may have raised their event before. A failover may have replaced queue pairs,
            // and with them completion queues.
            let is_armed = self.events.as_ref().is_none_or(|events| events.is_armed(self.datapath.rails()));
            if is_armed && self.recovery.active_rail() == rail {
                return Ok(());
            }
        }
    }

    /// The time at which [`VirtualQp::handle_events`] is due without an event. `None` if no timer is running.
    pub fn event_timeout(&self) -> Option<Time> {
        let polls = self.recovery.is_failover_in_progress() || self.datapath.windows().is_busy();
        let next_round = polls.then(|| self.datapath.now() + POLL_INTERVAL);
        [self.poll_timeout(), next_round].into_iter().flatten().min()
    }

    /// Returns whether [`VirtualQp::take_completions`] would return a completion.
    pub fn has_completions(&self) -> bool {
        self.datapath.has_completions()
    }

    /// Appends the completions that are ready to `out` and returns their number, without driving the vQP.
    pub fn take_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        self.deliver(out)
    }
}
