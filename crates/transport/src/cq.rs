//! Completion queues and their notifications.

use std::collections::VecDeque;

use mitra_verbs::{CqId, Error, Key, Qpn, Result, Wc, WcOpcode, WcStatus};

use crate::table::Table;

/// All completion queues of a NIC.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Cqs {
    table: Table<Cq>,
    max_depth: u32,
    /// Queues with an event to deliver, each once.
    notify: VecDeque<CqId>,
    /// Queues that overflowed since this was last emptied.
    overflowed: Vec<CqId>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Cq {
    ring: VecDeque<Wc>,
    depth: u32,
    armed: Armed,
    /// Completions in the ring, the last ones, that came since its last event.
    unannounced: usize,
    /// Whether it is in `notify`.
    notified: bool,
    overflowed: bool,
    /// Queue pairs that complete here, counted once per direction.
    users: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

impl Cqs {
    pub(crate) fn new(limit: u32, max_depth: u32) -> Cqs {
        Cqs {
            table: Table::new("completion queue", "completion queues", limit),
            max_depth,
            notify: VecDeque::new(),
            overflowed: Vec::new(),
        }
    }

    pub(crate) fn create(&mut self, depth: u32) -> Result<CqId> {
        if depth == 0 {
            return Err(Error::Invalid("a completion queue needs at least one entry"));
        }
        if depth > self.max_depth {
            return Err(Error::Limit {
                attribute: "completion queue entries",
                requested: depth.into(),
                limit: self.max_depth.into(),
            });
        }
        let ring = VecDeque::with_capacity(depth.min(256) as usize);
        let cq = Cq {
            ring,
            depth,
            armed: Armed::No,
            unannounced: 0,
            notified: false,
            overflowed: false,
            users: 0,
        };
        self.table.insert(cq).map(CqId)
    }

    pub(crate) fn destroy(&mut self, id: CqId) -> Result<()> {
        if self.table.get(id.0)?.users > 0 {
            return Err(Error::Busy { kind: "completion queue", id: id.0, user: "a queue pair" });
        }
        self.notify.retain(|&n| n != id);
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
        cq.unannounced = cq.unannounced.min(cq.ring.len());
        Ok(n)
    }

    pub(crate) fn len(&self, id: CqId) -> Result<usize> {
        Ok(self.table.get(id.0)?.ring.len())
    }

    pub(crate) fn arm(&mut self, id: CqId, solicited_only: bool) -> Result<()> {
        let cq = self.table.get_mut(id.0)?;
        cq.armed = match (cq.armed, solicited_only) {
            // Arming for less does not take back arming for more (IBTA volume 1, 11.4.2.2).
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
        // UCX polls, arms and sleeps: what came between the first two must wake it. perftest arms with the completion that
        // it was woken for still unpolled, and counts on not being woken for that again. Of the solicited, one cannot
        // tell afterwards which they were.
        if cq.armed == Armed::Any && cq.unannounced > 0 {
            self.wake(id);
        }
        Ok(())
    }

    /// An armed queue has something: an event, once.
    fn wake(&mut self, id: CqId) {
        let Ok(cq) = self.table.get_mut(id.0) else { return };
        cq.armed = Armed::No;
        cq.unannounced = 0;
        if !cq.notified {
            cq.notified = true;
            self.notify.push_back(id);
        }
    }

    /// Adds a completion; false if it was lost because the queue is full.
    pub(crate) fn push(&mut self, id: CqId, wc: Wc, solicited: bool) -> bool {
        let Ok(cq) = self.table.get_mut(id.0) else { return false };
        if cq.overflowed || cq.ring.len() >= cq.depth as usize {
            if !cq.overflowed {
                cq.overflowed = true;
                self.overflowed.push(id);
            }
            return false;
        }
        cq.ring.push_back(Wc { solicited, ..wc });
        cq.unannounced += 1;
        let wakes = match cq.armed {
            Armed::No => false,
            Armed::Solicited => solicited || wc.status != WcStatus::Success,
            Armed::Any => true,
        };
        if wakes {
            self.wake(id);
        }
        true
    }

    pub(crate) fn next_event(&mut self) -> Option<CqId> {
        let id = self.notify.pop_front()?;
        if let Ok(cq) = self.table.get_mut(id.0) {
            cq.notified = false;
        }
        Some(id)
    }

    /// A queue that overflowed since the last call.
    pub(crate) fn take_overflowed(&mut self) -> Option<CqId> {
        self.overflowed.pop()
    }
}

/// A completion with nothing but what every completion has.
pub(crate) fn completion(wr_id: u64, status: WcStatus, opcode: WcOpcode, qpn: Qpn) -> Wc {
    Wc {
        wr_id,
        status,
        opcode,
        qpn,
        byte_len: 0,
        imm: None,
        invalidated: None::<Key>,
        src_qp: Qpn::new(0),
        solicited: false,
        vendor_err: 0,
    }
}
