//! The interface for an end that does not poll all the time, but sleeps until one of the vQP's own
//! completion channels reports an event.

use core::time::Duration;
use std::sync::Arc;

use mitra_verbs::{CompletionChannel, Result, Time};

use super::VirtualQp;
use crate::completion::Completion;

/// The time between two rounds during a failover, or while NICs execute a bind or an invalidation.
/// Both need polling: the fence counts polls, and the queue pairs for type 1 windows raise no
/// events.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

impl VirtualQp {
    /// The vQP's own completion channels in the order of rails, if it was built with
    /// [`own_channels`](crate::VirtualQpBuilder::own_channels). A descriptor becomes readable when
    /// the vQP has something to handle ([`VirtualQp::handle_events`]).
    pub fn event_channels(&self) -> impl Iterator<Item = &Arc<dyn CompletionChannel>> {
        self.failover.events.iter().flat_map(|events| &events.channels).map(|(_, channel)| channel)
    }

    /// Handles all completions and messages, takes part in a failover, and runs expired timers.
    /// Then arms the completion queues again. [`VirtualQp::take_completions`] returns the
    /// completions. To be called:
    ///
    /// - when a descriptor of [`VirtualQp::event_channels`] is readable;
    /// - when a NIC has reported an asynchronous event;
    /// - at [`VirtualQp::event_timeout`].
    ///
    /// # Errors
    /// Any error of a completion channel or a NIC other than
    /// [`Error::DeviceFatal`](mitra_verbs::Error::DeviceFatal).
    pub fn handle_events(&mut self) -> Result<()> {
        if self.failover.is_destroyed {
            return Ok(());
        }
        self.post_slots();
        if let Some(events) = &mut self.failover.events {
            events.take_events()?;
        }
        loop {
            // Completions and messages that arrive after the arming raise an event for the next
            // call. The rest of the round handles what arrived before the arming.
            if let Some(events) = &mut self.failover.events {
                events.arm(&self.datapath.rails)?;
            }
            let rail = self.failover.recovery.active_rail();
            while self.failover.recovery.poll_active_rail(&mut self.datapath) {}
            self.failover.maintenance.run(&mut self.failover.recovery, &mut self.datapath, true);
            // If the vQP has moved in this round, the events of the new rail's completions may have
            // come before the move, so another round handles them. A failover may also have made
            // completion queues that are not armed.
            let active_rail = self.failover.recovery.active_rail();
            let is_done = match &mut self.failover.events {
                Some(events) => {
                    events.drained_rail = rail;
                    events.may_sleep(&self.datapath.rails, active_rail)
                }
                None => active_rail == rail,
            };
            if is_done {
                return Ok(());
            }
        }
    }

    /// The time at which [`VirtualQp::handle_events`] is due without an event: at once if a post or
    /// a poll has moved the vQP since the last call. `None` if no timer is running.
    pub fn event_timeout(&self) -> Option<Time> {
        if self.failover.is_destroyed {
            return None;
        }
        let active_rail = self.failover.recovery.active_rail();
        let mut events = self.failover.events.iter();
        if !events.all(|events| events.may_sleep(&self.datapath.rails, active_rail)) {
            return Some(self.datapath.now());
        }
        let polls = self.failover.recovery.replay.is_failover_in_progress() || self.datapath.windows.is_busy;
        let last_round = self.failover.maintenance.schedule.last_maintenance;
        let next_round = polls.then(|| last_round + POLL_INTERVAL);
        [self.poll_timeout(), next_round].into_iter().flatten().min()
    }

    /// Sets whether completions of sends raise events on [`VirtualQp::event_channels`]; they do by
    /// default. Otherwise only errors and messages do that were sent as solicited
    /// ([`SendFlags::SOLICITED`](mitra_verbs::SendFlags::SOLICITED)), for an application that polls
    /// for its completions at times of its own. After the events were switched on,
    /// [`VirtualQp::event_timeout`] is due at once.
    pub fn wake_for_sends(&mut self, on: bool) {
        if let Some(events) = &mut self.failover.events {
            events.wakes_for_sends = on;
        }
    }

    /// Returns whether [`VirtualQp::take_completions`] would return a completion.
    pub fn has_completions(&self) -> bool {
        self.datapath.has_completions()
    }

    /// Appends the completions that are ready to `out`, without driving the vQP. Returns their
    /// number.
    pub fn take_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        self.deliver(out)
    }
}
