//! The driver's state of the completion queues: channels, arming, and completions that are visible
//! to the host.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use mitra_os_util::poll_loop::PollLoop;
use mitra_transport::Nic;
use mitra_verbs::{CompletionChannel, CqId, Error, Result, Time, Wc};

use crate::completion_channel::{PendingWakeups, SoftCompletionChannel};

/// A consumer that has polled an armed queue this many times without a completion counts as polling
/// in a loop. A consumer that is about to sleep arms the queue and polls only once more.
const MAX_POLLS_BEFORE_SLEEP: u32 = 16;

#[derive(Default)]
struct CqState {
    channel: Option<Arc<SoftCompletionChannel>>,
    arming: Arming,
    /// Completions that the NIC wrote before it began to defer completions.
    written: VecDeque<Wc>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Arming {
    #[default]
    Disarmed,
    /// Armed, and polled this many times since without a completion.
    Armed { empty_polls: u32 },
}

impl Arming {
    /// Returns whether the consumer may be asleep until the next event.
    fn may_sleep(self) -> bool {
        matches!(self, Arming::Armed { empty_polls } if empty_polls < MAX_POLLS_BEFORE_SLEEP)
    }
}

#[derive(Default)]
pub(crate) struct CompletionQueues {
    queues: HashMap<CqId, CqState>,
    channels: Vec<Weak<SoftCompletionChannel>>,
    /// Channels to wake after the NIC's lock is released.
    pub(crate) wakeups: PendingWakeups,
    /// The number of queues whose consumers may be asleep.
    sleepers: u32,
    /// The polls of all queues since a queue was last armed.
    polls: PollLoop,
    /// While the NIC defers completions, the host does not see new completions.
    deferred: bool,
    /// Whether `deferred` was ever set. Otherwise [`CqState::written`] is empty for all queues.
    was_deferred: bool,
}

impl CompletionQueues {
    pub(crate) fn add_channel(&mut self, channel: &Arc<SoftCompletionChannel>) {
        self.channels.retain(|known| known.strong_count() > 0);
        self.channels.push(Arc::downgrade(channel));
    }

    /// Returns the channel of this NIC that a trait object refers to.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the channel belongs to another NIC.
    pub(crate) fn find_channel(
        &self,
        channel: &Arc<dyn CompletionChannel>,
    ) -> Result<Arc<SoftCompletionChannel>> {
        let wanted = Arc::as_ptr(channel).cast::<()>();
        let found = self.channels.iter().find(|known| std::ptr::eq(known.as_ptr().cast(), wanted));
        found
            .and_then(Weak::upgrade)
            .ok_or(Error::Invalid("the completion channel belongs to another NIC; create one on this NIC"))
    }

    pub(crate) fn add(&mut self, cq: CqId, channel: Option<Arc<SoftCompletionChannel>>) {
        self.queues.insert(cq, CqState { channel, ..CqState::default() });
    }

    pub(crate) fn remove(&mut self, cq: CqId) {
        self.disarm(cq);
        self.queues.remove(&cq);
    }

    /// Returns the number of completions that the NIC has written and the host has not polled.
    pub(crate) fn written(&self, cq: CqId) -> usize {
        self.queues.get(&cq).map_or(0, |queue| queue.written.len())
    }

    /// Disarms all queues and detaches them from their channels. Completions that the NIC has
    /// written stay readable.
    pub(crate) fn disarm_all(&mut self) {
        for queue in self.queues.values_mut() {
            (queue.channel, queue.arming) = (None, Arming::Disarmed);
        }
        self.sleepers = 0;
    }

    /// Arms a queue. Returns whether the queue has a channel, on which its consumer may sleep.
    pub(crate) fn arm(&mut self, cq: CqId, now: Time) -> bool {
        let Some(queue) = self.queues.get_mut(&cq).filter(|queue| queue.channel.is_some()) else {
            return false;
        };
        self.sleepers += u32::from(!queue.arming.may_sleep());
        queue.arming = Arming::Armed { empty_polls: 0 };
        self.polls.end(now.as_nanos());
        true
    }

    /// Records a poll that has found completions without reading the clock.
    pub(crate) fn record_poll(&self) {
        self.polls.record_untimed_poll();
    }

    /// Records a poll that has found nothing.
    pub(crate) fn record_empty_poll(&mut self, cq: CqId, now: Time) {
        self.polls.record_poll(now.as_nanos());
        if self.sleepers == 0 {
            return;
        }
        if let Some(queue) = self.queues.get_mut(&cq)
            && let Arming::Armed { empty_polls } = queue.arming
        {
            let could_sleep = queue.arming.may_sleep();
            queue.arming = Arming::Armed { empty_polls: empty_polls.saturating_add(1) };
            self.sleepers -= u32::from(could_sleep && !queue.arming.may_sleep());
        }
    }

    /// Returns whether a consumer may be asleep until the next event, and no other one polls in a
    /// loop. A consumer that polls in a loop drives the NIC, which wakes the others.
    pub(crate) fn has_sleepers(&self, now: Time) -> bool {
        self.sleepers > 0 && !self.polls.is_running(now.as_nanos())
    }

    pub(crate) fn notify(&mut self, cq: CqId) {
        self.disarm(cq);
        if let Some(channel) = self.queues.get(&cq).and_then(|queue| queue.channel.as_ref()) {
            channel.push(cq);
            self.wakeups.add(channel);
        }
    }

    fn disarm(&mut self, cq: CqId) {
        if let Some(queue) = self.queues.get_mut(&cq) {
            self.sleepers -= u32::from(std::mem::take(&mut queue.arming).may_sleep());
        }
    }

    pub(crate) fn poll(&mut self, nic: &mut Nic, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        if !self.was_deferred {
            return nic.poll_cq(cq, max, out);
        }
        let written = self.queues.get_mut(&cq).map(|queue| &mut queue.written);
        match written.filter(|written| self.deferred || !written.is_empty()) {
            Some(written) => {
                let count = written.len().min(max);
                out.extend(written.drain(..count));
                Ok(count)
            }
            None => nic.poll_cq(cq, max, out),
        }
    }

    pub(crate) fn set_deferred(&mut self, nic: &mut Nic, deferred: bool) {
        if deferred && !self.deferred {
            self.write_pending(nic);
        }
        self.deferred = deferred;
        self.was_deferred |= deferred;
    }

    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// Makes the completions that the NIC has generated so far visible to the host.
    pub(crate) fn write_pending(&mut self, nic: &mut Nic) {
        let mut list = Vec::new();
        for (&cq, queue) in &mut self.queues {
            list.clear();
            if nic.poll_cq(cq, usize::MAX, &mut list).is_ok() {
                queue.written.extend(&list);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const ARMED: [CqId; 2] = [CqId(1), CqId(2)];
    const UNARMED: CqId = CqId(3);

    fn queues() -> CompletionQueues {
        let mut queues = CompletionQueues::default();
        let channel = Arc::new(SoftCompletionChannel::new().expect("the system has a descriptor"));
        ARMED.into_iter().for_each(|cq| queues.add(cq, Some(Arc::clone(&channel))));
        queues.add(UNARMED, None);
        queues
    }

    /// Polls a queue every 10 µs.
    fn poll(queues: &mut CompletionQueues, cq: CqId, now: &mut Time, count: u32) {
        for _ in 0..count {
            *now += Duration::from_micros(10);
            queues.record_empty_poll(cq, *now);
        }
    }

    #[test]
    fn consumer_of_an_armed_queue_that_is_polled_does_not_sleep() {
        let (mut queues, mut now) = (queues(), Time::from_nanos(1 << 40));
        assert!(!queues.has_sleepers(now));
        assert!(ARMED.into_iter().all(|cq| queues.arm(cq, now)) && queues.arm(ARMED[0], now));
        assert!(!queues.arm(UNARMED, now), "without a channel");
        poll(&mut queues, ARMED[0], &mut now, MAX_POLLS_BEFORE_SLEEP);
        assert!(queues.has_sleepers(now));
        poll(&mut queues, ARMED[1], &mut now, MAX_POLLS_BEFORE_SLEEP - 1);
        assert!(queues.has_sleepers(now));
        poll(&mut queues, ARMED[1], &mut now, 1);
        assert!(!queues.has_sleepers(now));
        queues.arm(ARMED[0], now);
        assert!(queues.has_sleepers(now));
        queues.notify(ARMED[0]);
        assert!(!queues.has_sleepers(now));
    }

    #[test]
    fn polls_in_a_loop_wake_the_consumers_of_armed_queues() {
        let (mut queues, mut now) = (queues(), Time::from_nanos(1 << 40));
        for _ in 0..2 {
            queues.arm(ARMED[0], now);
            poll(&mut queues, UNARMED, &mut now, 90);
            assert!(queues.has_sleepers(now));
            poll(&mut queues, UNARMED, &mut now, 20);
            assert!(!queues.has_sleepers(now));
            now += Duration::from_micros(200);
            assert!(queues.has_sleepers(now));
        }
    }
}
