//! Completion queues (CQs) and their completion events.

use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{CqId, Error, Qpn, Result, Wc, WcStatus};

use crate::nic::handle_table::HandleTable;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CompletionQueues {
    table: HandleTable<Cq>,
    max_depth: u32,
    /// Queues with an undelivered completion event. A queue is in the list at most once.
    pending_events: VecDeque<CqId>,
    /// Queues that have lost a completion, and were not yet reported by
    /// [`CompletionQueues::take_overflowed`].
    overflowed: Vec<CqId>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Cq {
    ring: VecDeque<Wc>,
    depth: u32,
    armed: Armed,
    /// The number of completions, at the end of the ring, that arrived after the last event.
    unreported: usize,
    event_pending: bool,
    overflowed: bool,
    /// The number of send queues, receive queues and XRC shared receive queues that complete here.
    users: u32,
}

/// Which completions raise an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Armed {
    No,
    /// Solicited completions and errors.
    Solicited,
    Any,
}

impl CompletionQueues {
    pub(crate) fn new(limit: u32, max_depth: u32) -> CompletionQueues {
        CompletionQueues {
            table: HandleTable::new("completion queue", "completion queues", limit),
            max_depth,
            pending_events: VecDeque::new(),
            overflowed: Vec::new(),
        }
    }

    fn check_depth(&self, depth: u32) -> Result<()> {
        if depth == 0 {
            return Err(Error::Invalid("a completion queue needs at least one entry; pass a depth from 1"));
        }
        if depth > self.max_depth {
            return Err(Error::Limit {
                attribute: "completion queue entries",
                requested: depth.into(),
                limit: self.max_depth.into(),
            });
        }
        Ok(())
    }

    pub(crate) fn create(&mut self, depth: u32) -> Result<CqId> {
        self.check_depth(depth)?;
        // A queue pair on a standby rail completes nothing, so the queue allocates memory at the
        // first completion.
        let ring = VecDeque::new();
        let cq = Cq {
            ring,
            depth,
            armed: Armed::No,
            unreported: 0,
            event_pending: false,
            overflowed: false,
            users: 0,
        };
        self.table.insert(cq).map(CqId)
    }

    pub(crate) fn resize(&mut self, id: CqId, depth: u32, waiting: usize) -> Result<()> {
        self.check_depth(depth)?;
        let cq = self.table.get_mut(id.0)?;
        if cq.ring.len() + waiting > depth as usize {
            return Err(Error::Invalid(
                "the queue holds more completions than the new size; poll them first",
            ));
        }
        cq.depth = depth;
        Ok(())
    }

    pub(crate) fn destroy(&mut self, id: CqId) -> Result<()> {
        if self.table.get(id.0)?.users > 0 {
            return Err(Error::Busy {
                kind: "completion queue",
                id: id.0,
                user: "a queue pair or an XRC shared receive queue",
            });
        }
        self.pending_events.retain(|&n| n != id);
        self.table.remove(id.0).map(drop)
    }

    pub(crate) fn add_user(&mut self, id: CqId) -> Result<()> {
        self.table.get_mut(id.0)?.users += 1;
        Ok(())
    }

    pub(crate) fn remove_user(&mut self, id: CqId) {
        if let Ok(cq) = self.table.get_mut(id.0) {
            cq.users -= 1;
        }
    }

    pub(crate) fn poll(&mut self, id: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let cq = self.table.get_mut(id.0)?;
        let n = max.min(cq.ring.len());
        out.extend(cq.ring.drain(..n));
        cq.unreported = cq.unreported.min(cq.ring.len());
        Ok(n)
    }

    /// Removes the completions of a queue pair that is reset.
    pub(crate) fn discard(&mut self, id: CqId, qpn: Qpn) {
        let Ok(cq) = self.table.get_mut(id.0) else { return };
        let reported = cq.ring.len() - cq.unreported;
        cq.unreported = cq.ring.iter().skip(reported).filter(|wc| wc.qpn != qpn).count();
        cq.ring.retain(|wc| wc.qpn != qpn);
    }

    pub(crate) fn len(&self, id: CqId) -> Result<usize> {
        Ok(self.table.get(id.0)?.ring.len())
    }

    pub(crate) fn arm(&mut self, id: CqId, solicited_only: bool) -> Result<()> {
        let cq = self.table.get_mut(id.0)?;
        cq.armed = match (cq.armed, solicited_only) {
            // A request for solicited events does not replace one for all events (IBTA volume 1,
            // 11.4.2.2).
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
        // UCX polls, arms and sleeps, so completions that arrive between poll and arm must raise an
        // event. perftest arms while the completion of the last event is still in the queue and
        // expects no second event for it. Arming for solicited events raises none here, because the
        // queue does not count unreported solicited completions.
        if cq.armed == Armed::Any && cq.unreported > 0 {
            self.raise_event(id);
        }
        Ok(())
    }

    fn raise_event(&mut self, id: CqId) {
        let Ok(cq) = self.table.get_mut(id.0) else { return };
        cq.armed = Armed::No;
        cq.unreported = 0;
        if !cq.event_pending {
            cq.event_pending = true;
            self.pending_events.push_back(id);
        }
    }

    /// Adds a completion. Returns false if the queue is full; the completion is then lost.
    pub(crate) fn push(&mut self, id: CqId, wc: Wc, solicited: bool) -> bool {
        let Ok(cq) = self.table.get_mut(id.0) else { return false };
        if cq.overflowed || cq.ring.len() >= cq.depth as usize {
            // A queue pair that begins to use an overflowed queue must not report success to its
            // peer. The queue pairs that have failed lose only flushed completions.
            if (!cq.overflowed || wc.status == WcStatus::Success) && !self.overflowed.contains(&id) {
                self.overflowed.push(id);
            }
            cq.overflowed = true;
            return false;
        }
        let solicited = solicited && !Mutant::SolicitedEventLost.is_on();
        cq.ring.push_back(Wc { solicited, ..wc });
        cq.unreported += 1;
        let raises_event = match cq.armed {
            Armed::No => false,
            Armed::Solicited => {
                solicited || wc.status != WcStatus::Success && !Mutant::ErrorRaisesNoEvent.is_on()
            }
            Armed::Any => true,
        };
        if raises_event {
            self.raise_event(id);
        }
        true
    }

    pub(crate) fn next_event(&mut self) -> Option<CqId> {
        let id = self.pending_events.pop_front()?;
        if let Ok(cq) = self.table.get_mut(id.0) {
            cq.event_pending = false;
        }
        Some(id)
    }

    pub(crate) fn take_overflowed(&mut self) -> Option<CqId> {
        self.overflowed.pop()
    }
}
