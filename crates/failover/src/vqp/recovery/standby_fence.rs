//! The fence of a queue pair that the home has left before its vQP has moved to it.
//!
//! A vQP binds its queue pair on the new rail when it sends its evidence, and moves there when it
//! has the peer's evidence. In between, the peer may already post requests there, and another vQP
//! may move the home away. The vQP that moves the home cannot await the markers, and this vQP may
//! wait for its peer for long. So this vQP fences the queue pair before it moves to it. It fences
//! the queue pair once more when it leaves the rail, and reads the evidence then.

use mitra_verbs::{Time, Wc, WcStatus};

use crate::data_qp::DataQp;
use crate::vqp::fence::{Fence, FenceStep};
use crate::vqp::wr_id_flags;

const POLL_BATCH: usize = 32;

#[derive(Debug, Default)]
pub(super) struct StandbyFence {
    rail: usize,
    fence: Fence,
    /// The completions of other requests than the markers, for the time after the move.
    completions: Vec<Wc>,
}

impl StandbyFence {
    pub(super) fn is_idle(&self) -> bool {
        self.fence.is_idle()
    }

    /// Drives the fence of `qp` on `rail`. Returns whether the queue pair executes nothing more.
    pub(super) fn drive(&mut self, rail: usize, qp: &DataQp, now: Time) -> bool {
        if self.rail != rail {
            self.forget(self.rail);
            self.rail = rail;
        }
        let mut step = match self.fence.is_idle() {
            true => self.fence.start(qp, now, [true; 2]),
            false => FenceStep::Pending,
        };
        let is_emptied = self.poll(qp);
        if step == FenceStep::Pending {
            step = self.fence.drive(qp, now);
        }
        if step == FenceStep::Reset {
            // If the reset fails, the vQP that moves the home finds this, too.
            self.fence.reset_nic(qp);
        }
        let is_fenced = is_emptied || step == FenceStep::Drained;
        if is_fenced {
            self.fence.clear();
        }
        is_fenced
    }

    /// Takes all completions. Returns whether a fence without markers has ended.
    fn poll(&mut self, qp: &DataQp) -> bool {
        let mut batch = Vec::new();
        // A dead NIC has no completions, and the next step of the fence resets it.
        while qp.poll_cq(POLL_BATCH, &mut batch).is_ok() && !batch.is_empty() {
            for wc in batch.drain(..) {
                let is_recv = wc.wr_id & wr_id_flags::RECV != 0;
                let is_marker = wc.wr_id & wr_id_flags::MARKER != 0;
                if is_marker {
                    self.fence.on_marker(is_recv);
                }
                // A marker that has received a message closes the vQP after the move.
                if !is_marker || is_recv && wc.status != WcStatus::Flushed {
                    self.completions.push(wc);
                }
            }
        }
        self.fence.on_empty_poll().is_some()
    }

    /// Moves the completions of `rail` to `wcs`, before those that its queue still has.
    #[inline]
    pub(super) fn take_completions(&mut self, rail: usize, wcs: &mut Vec<Wc>) {
        if !self.completions.is_empty() && self.rail == rail {
            wcs.append(&mut self.completions);
        }
    }

    /// The vQP has moved to `rail`, or has closed, and fences the queue pair there itself.
    pub(super) fn on_moved(&mut self, rail: usize) {
        self.end();
        if self.rail != rail {
            self.completions.clear();
        }
    }

    /// No queue pair is to be fenced.
    pub(super) fn end(&mut self) {
        self.fence.clear();
    }

    /// The queue pair on `rail` is connected again, and has no completions.
    pub(super) fn forget(&mut self, rail: usize) {
        if self.rail == rail {
            self.end();
            self.completions.clear();
        }
    }
}
