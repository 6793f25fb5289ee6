//! The fence of this end: after the fence, the old rail executes nothing more, and its evidence can
//! be read.
//!
//! The fence moves the queue pair to ERR and posts a marker to each of its two queues, behind all
//! other requests. ERR alone is no fence: a NIC may finish a packet that it has begun after the
//! call has returned. The completion of the receive marker shows that no request of the peer is
//! executed any more. The completion of the send marker shows that no response changes local memory
//! any more. A NIC flushes each queue in order, so both come after all earlier completions.
//!
//! If a marker does not complete in time, the fence takes the next of these steps:
//!
//! 1. It moves the queue pair to ERR again.
//! 2. It destroys the queue pair. When the call returns, the queue pair executes nothing more. Its
//!    PSN is lost.
//! 3. It resets the NIC, which ends all queue pairs of the NIC. A NIC that does not answer is reset
//!    at once.
//! 4. If the reset fails, the vQP closes with `Unfenced`.

use core::time::Duration;

use mitra_mutants::Mutant;
use mitra_verbs::{Data, Error, QpState, RecvWr, SendOp, SendWr, SgeList, Time};

use crate::data_qp::DataQp;
use crate::vqp::wr_id_flags;

/// The time that a NIC may take to flush the queues of a queue pair in ERR.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);
/// After [`DRAIN_TIMEOUT`], the fence takes its next step at this many polls without a completion.
/// The time alone does not show that the NIC has stalled, because this process may have been
/// suspended.
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
        /// Whether the queue pair was moved to ERR a second time.
        is_repeated: bool,
    },
    /// The vQP does not fence, and waits before it reads the evidence.
    Waiting {
        until: Time,
    },
    /// The fence has no markers, because the NIC was reset, the queue pair was destroyed, or the
    /// vQP does not fence. The fence ends at the first poll without a completion.
    Emptying {
        /// Whether the queue pair exists on a live NIC.
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
    /// The NIC does not answer, or can neither flush nor destroy the queue pair: the caller calls
    /// [`Fence::reset_nic`].
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

    /// Starts to fence `qp`. `used` says whether the send queue may have requests whose completions
    /// have not been polled, and whether the peer may have sent requests. Otherwise the queue needs
    /// no marker.
    pub(super) fn start(&mut self, qp: &DataQp, now: Time, used: [bool; 2]) -> FenceStep {
        if qp.is_ended() {
            self.0 = State::Emptying { nic_alive: false };
            return FenceStep::Pending;
        }
        if let Err(error) = qp.modify_to(QpState::Err) {
            return self.on_refused_change(&error);
        }
        let deadline = now + DRAIN_TIMEOUT;
        let used = if Mutant::FenceAwaitsSendQueueOnly.is_on() { [used[0], false] } else { used };
        let [send, recv] = used.map(|used| if used { Marker::Unposted } else { Marker::Flushed });
        self.0 = State::Draining { send, recv, deadline, empty_polls: 0, is_repeated: false };
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

    /// Destroys `qp`, whose markers do not complete. Returns false if the NIC refuses.
    pub(super) fn destroy_qp(&mut self, qp: &DataQp) -> bool {
        let is_destroyed = qp.end().is_ok();
        if is_destroyed {
            self.0 = State::Emptying { nic_alive: false };
        }
        is_destroyed
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
        if self.is_draining() && qp.is_ended() {
            self.0 = State::Emptying { nic_alive: false };
        }
        let State::Draining { send, recv, deadline, empty_polls, is_repeated } = &mut self.0 else {
            return FenceStep::Pending;
        };
        if now <= *deadline {
            *empty_polls = 0;
        }
        if (*send, *recv) == (Marker::Flushed, Marker::Flushed) {
            return FenceStep::Drained;
        }
        if qp.provider().query_port().is_err() {
            return FenceStep::Reset;
        }
        if *empty_polls < MAX_EMPTY_POLLS {
            return FenceStep::Pending;
        }
        if core::mem::replace(is_repeated, true) {
            return if self.destroy_qp(qp) { FenceStep::Pending } else { FenceStep::Reset };
        }
        (*deadline, *empty_polls) = (now + DRAIN_TIMEOUT, 0);
        qp.modify_to(QpState::Err)
            .map_or_else(|error| self.on_refused_change(&error), |()| FenceStep::Pending)
    }

    /// Another vQP may have destroyed the queue pair, because it moves the home rail. Otherwise the
    /// NIC is dead, or it hangs and may still access memory.
    fn on_refused_change(&mut self, error: &Error) -> FenceStep {
        if !matches!(error, Error::NoSuchObject { .. }) {
            return FenceStep::Reset;
        }
        self.0 = State::Emptying { nic_alive: false };
        FenceStep::Pending
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

    /// Returns whether a vQP that closes waits for more markers: until [`DRAIN_TIMEOUT`] after
    /// `began`, and for [`MAX_EMPTY_POLLS`] polls even if the clock stands still.
    pub(super) fn waits_to_close(polls: u32, began: Time, now: Time) -> bool {
        polls < MAX_EMPTY_POLLS || began < now && now < began + DRAIN_TIMEOUT
    }

    pub(super) fn finish(&mut self, nic_alive: bool) {
        self.0 = State::Done { nic_alive };
    }

    pub(super) fn clear(&mut self) {
        self.0 = State::Idle;
    }
}
