//! Completion queues as the host sees them: who waits for which, and what was written.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use mitra_transport::Nic;
use mitra_verbs::{CompletionChannel, CqId, Error, Result, Wc};

use crate::channel::{Bells, Channel};

/// Polls of a queue since it was armed, in vain, that show that its user does not sleep. One that is about to sleep arms it and
/// polls once more.
const AWAKE: u32 = 16;

/// What the driver knows of each completion queue.
#[derive(Default)]
struct Queue {
    channel: Option<Arc<Channel>>,
    armed: Armed,
    /// Completions written before the NIC began to hold writes back.
    written: VecDeque<Wc>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Armed {
    #[default]
    No,
    /// And polled so often since, in vain.
    Yes { polls: u32 },
}

impl Armed {
    /// Whether somebody may sleep until there is an event.
    fn is_awaited(self) -> bool {
        matches!(self, Armed::Yes { polls } if polls < AWAKE)
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Completions {
    queues: HashMap<CqId, Queue>,
    channels: Vec<Weak<Channel>>,
    /// Those that have something to tell, once the NIC is unlocked.
    pub(crate) bells: Bells,
    /// Queues that somebody may wait for.
    awaited: u32,
    /// The NIC writes no more completions: it holds its writes back.
    holding: bool,
    /// It did so once: queues may have completions written before.
    held: bool,
}

impl Completions {
    pub(crate) fn add_channel(&mut self, channel: &Arc<Channel>) {
        self.channels.retain(|known| known.strong_count() > 0);
        self.channels.push(Arc::downgrade(channel));
    }

    /// The channel behind the trait, if it is one of this NIC's.
    pub(crate) fn own_channel(&self, channel: &Arc<dyn CompletionChannel>) -> Result<Arc<Channel>> {
        let wanted = Arc::as_ptr(channel).cast::<()>();
        let own = self.channels.iter().find(|known| std::ptr::eq(known.as_ptr().cast(), wanted));
        own.and_then(Weak::upgrade)
            .ok_or(Error::Invalid("the completion channel belongs to another NIC; make one with this NIC"))
    }

    pub(crate) fn add(&mut self, cq: CqId, channel: Option<Arc<Channel>>) {
        self.queues.insert(cq, Queue { channel, ..Queue::default() });
    }

    pub(crate) fn remove(&mut self, cq: CqId) {
        self.disarm(cq);
        self.queues.remove(&cq);
    }

    /// Nobody will be notified any more. What was written stays.
    pub(crate) fn disarm_all(&mut self) {
        for queue in self.queues.values_mut() {
            (queue.channel, queue.armed) = (None, Armed::No);
        }
        self.awaited = 0;
    }

    /// The queue was armed; says whether anybody can wait for it.
    pub(crate) fn arm(&mut self, cq: CqId) -> bool {
        let Some(queue) = self.queues.get_mut(&cq).filter(|queue| queue.channel.is_some()) else {
            return false;
        };
        self.awaited += u32::from(!queue.armed.is_awaited());
        queue.armed = Armed::Yes { polls: 0 };
        true
    }

    /// The queue was polled in vain.
    pub(crate) fn polled_in_vain(&mut self, cq: CqId) {
        if self.awaited == 0 {
            return;
        }
        if let Some(queue) = self.queues.get_mut(&cq)
            && let Armed::Yes { polls } = queue.armed
        {
            let was_awaited = queue.armed.is_awaited();
            queue.armed = Armed::Yes { polls: polls.saturating_add(1) };
            self.awaited -= u32::from(was_awaited && !queue.armed.is_awaited());
        }
    }

    /// Whether anybody waits.
    pub(crate) fn awaited(&self) -> bool {
        self.awaited > 0
    }

    /// The queue has something new.
    pub(crate) fn notify(&mut self, cq: CqId) {
        self.disarm(cq);
        if let Some(channel) = self.queues.get(&cq).and_then(|queue| queue.channel.as_ref()) {
            channel.push(cq);
            self.bells.add(channel);
        }
    }

    fn disarm(&mut self, cq: CqId) {
        if let Some(queue) = self.queues.get_mut(&cq) {
            self.awaited -= u32::from(std::mem::take(&mut queue.armed).is_awaited());
        }
    }

    /// Takes completions that were written.
    pub(crate) fn poll(&mut self, nic: &mut Nic, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        if !self.held {
            return nic.poll_cq(cq, max, out);
        }
        let written = self.queues.get_mut(&cq).map(|queue| &mut queue.written);
        match written.filter(|written| self.holding || !written.is_empty()) {
            Some(written) => {
                let count = written.len().min(max);
                out.extend(written.drain(..count));
                Ok(count)
            }
            None => nic.poll_cq(cq, max, out),
        }
    }

    /// From here on the NIC holds completions back, or no longer.
    pub(crate) fn hold(&mut self, nic: &mut Nic, holding: bool) {
        if holding && !self.holding {
            self.write(nic);
        }
        self.holding = holding;
        self.held |= holding;
    }

    /// Whether completions are held back.
    pub(crate) fn holding(&self) -> bool {
        self.holding
    }

    /// Writes what is there now.
    pub(crate) fn write(&mut self, nic: &mut Nic) {
        let mut list = Vec::new();
        for (&cq, queue) in &mut self.queues {
            list.clear();
            if nic.poll_cq(cq, usize::MAX, &mut list).is_ok() {
                queue.written.extend(&list);
            }
        }
    }
}
