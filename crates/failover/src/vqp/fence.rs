//! The fence of this end: after the fence, the old rail executes nothing more, and its evidence can
//! be read.
//!
//! The fence moves the queue pair to ERR and posts a marker to each of its two queues, behind all
//! other requests. A NIC flushes each queue in order, so the completions of both markers come after
//! all earlier completions. A NIC that does not answer, or does not flush the queues in time, is
//! reset.

use core::time::Duration;

use mitra_mutants::Mutant;
use mitra_verbs::{Data, QpState, RecvWr, SendOp, SendWr, SgeList, Time};

use crate::data_qp::DataQp;
use crate::vqp::wr_id_flags;

/// The time that a NIC may take to flush the queues of a queue pair in ERR.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);
/// After [`DRAIN_TIMEOUT`], the NIC is reset at this many polls without a completion. The time
/// alone does not show that the NIC has stalled, because this process may have been suspended.
const MAX_EMPTY_POLLS: u32 = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Marker {
    /// Not posted yet, because the queue may be full.
    Unposted,
    Posted,
    Flushed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// The queue pair is in ERR, and completions are polled up to the markers.
    Draining {
        send: Marker,
        recv: Marker,
        deadline: Time,
        /// Polls without a completion since the deadline.
        empty_polls: u32,
    },
    /// The vQP does not fence, and waits before it reads the evidence.
    Waiting {
        until: Time,
    },
    /// The fence has no markers, because the NIC was reset or the vQP does not fence. The fence
    /// ends at the first poll without a completion.
    Emptying {
        nic_alive: bool,
    },
    Done {
        nic_alive: bool,
    },
}

/// The next step of a fence in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FenceStep {
    /// The caller polls for more completions.
    Pending,
    /// The queue pair is drained: the caller calls [`Fence::finish`].
    Drained,
    /// The NIC does not answer or does not flush the queues: the caller calls [`Fence::reset_nic`].
    Reset,
}

#[derive(Debug, Default)]
pub(super) struct Fence(State);

impl Fence {
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.0 == State::Idle
    }

    /// Returns whether the queue pair is in ERR and its flushed requests are polled.
    #[inline]
    pub(super) fn is_draining(&self) -> bool {
        matches!(self.0, State::Draining { .. })
    }

    /// Returns whether the rail is fenced and the vQP has not moved yet.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.0, State::Done { .. })
    }

    /// Returns whether the fence is done with a live NIC, which has placed all data that it
    /// received.
    pub(super) fn is_done_with_live_nic(&self) -> bool {
        self.0 == State::Done { nic_alive: true }
    }

    /// Starts to fence `qp`. `used` says whether the send queue and the receive queue may have
    /// requests whose completions have not been polled. A queue without such requests needs no
    /// marker.
    pub(super) fn start(&mut self, qp: &DataQp, now: Time, used: [bool; 2]) -> FenceStep {
        if qp.modify_to(QpState::Err).is_err() {
            // The NIC is dead, or it hangs and may still access memory.
            return FenceStep::Reset;
        }
        let deadline = now + DRAIN_TIMEOUT;
        let used = if Mutant::FenceAwaitsSendQueueOnly.is_on() { [used[0], false] } else { used };
        let [send, recv] = used.map(|used| if used { Marker::Unposted } else { Marker::Flushed });
        self.0 = State::Draining { send, recv, deadline, empty_polls: 0 };
        // The fence does not query the NIC here. The query costs a system call on a software NIC,
        // and the next poll drains most queues.
        self.post_markers(qp);
        if used == [false; 2] { FenceStep::Drained } else { FenceStep::Pending }
    }

    /// Skips the fence under a baseline policy or on a rail without a queue pair, and only empties
    /// the completion queue.
    pub(super) fn skip(&mut self) {
        self.0 = State::Emptying { nic_alive: true };
    }

    /// Like [`Fence::skip`], but begins to empty the completion queue only at the given time.
    pub(super) fn skip_at(&mut self, until: Time) {
        self.0 = State::Waiting { until };
    }

    /// The time at which [`Fence::drive`] is due even if nothing completes.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        if let State::Waiting { until } = self.0 { Some(until) } else { None }
    }

    /// Resets the NIC of `qp`, which destroys all queue pairs of the NIC. Returns false if the NIC
    /// does not confirm the reset.
    pub(super) fn reset_nic(&mut self, qp: &DataQp) -> bool {
        let confirmed = qp.provider().reset().is_ok();
        if confirmed {
            self.0 = State::Emptying { nic_alive: false };
        }
        confirmed
    }

    /// Posts the markers that are not posted yet, ends a wait that is over, and returns the next
    /// step. A marker does not fit into a full queue until completions of flushed requests have
    /// been polled.
    pub(super) fn drive(&mut self, qp: &DataQp, now: Time) -> FenceStep {
        self.post_markers(qp);
        if self.poll_timeout().is_some_and(|until| now >= until) {
            self.0 = State::Emptying { nic_alive: qp.provider().query_port().is_ok() };
        }
        let State::Draining { send, recv, deadline, empty_polls } = &mut self.0 else {
            return FenceStep::Pending;
        };
        if now <= *deadline {
            *empty_polls = 0;
        }
        if (*send, *recv) == (Marker::Flushed, Marker::Flushed) {
            FenceStep::Drained
        } else if qp.provider().query_port().is_err() || *empty_polls >= MAX_EMPTY_POLLS {
            FenceStep::Reset
        } else {
            FenceStep::Pending
        }
    }

    fn post_markers(&mut self, qp: &DataQp) {
        let State::Draining { send, recv, .. } = &mut self.0 else { return };
        if *send == Marker::Unposted
            && qp.post_send(&[SendWr::new(wr_id_flags::MARKER, SendOp::Send, Data::empty())]).is_ok()
        {
            *send = Marker::Posted;
        }
        if *recv == Marker::Unposted {
            let wr = RecvWr { wr_id: wr_id_flags::MARKER | wr_id_flags::RECV, sges: SgeList::new() };
            if qp.post_recv(&[wr]).is_ok() {
                *recv = Marker::Posted;
            }
        }
    }

    pub(super) fn on_marker(&mut self, is_recv: bool) {
        if let State::Draining { send, recv, .. } = &mut self.0 {
            *(if is_recv { recv } else { send }) = Marker::Flushed;
        }
    }

    /// Records a poll that found no completion. If the fence ends with this poll, returns whether
    /// the NIC is alive. The caller must then call [`Fence::finish`].
    #[inline]
    pub(super) fn on_empty_poll(&mut self) -> Option<bool> {
        match &mut self.0 {
            State::Emptying { nic_alive } => return Some(*nic_alive),
            State::Draining { .. } if Mutant::FenceEndsAtEmptyPoll.is_on() => return Some(true),
            State::Draining { empty_polls, .. } => *empty_polls = empty_polls.saturating_add(1),
            State::Idle | State::Waiting { .. } | State::Done { .. } => {}
        }
        None
    }

    pub(super) fn finish(&mut self, nic_alive: bool) {
        self.0 = State::Done { nic_alive };
    }

    pub(super) fn clear(&mut self) {
        self.0 = State::Idle;
    }
}
