//! The verbs on queue pairs.

use mitra_verbs::{
    Error, PdId, PostError, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr, Result, SavedResult,
    SendWr, Time, check_qp_cap, check_recv_state,
};

use crate::Nic;
use crate::nic::recv_queue::{RecvPostError, RecvQueue, RecvSource};
use crate::nic::xrc::{used_cqs, used_pd};
use crate::qp::{Qp, send_validation};

impl Nic {
    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain, a completion queue, the shared receive
    ///   queue or the XRC domain does not exist.
    /// - [`Error::Invalid`]: an XRC queue pair has a shared receive queue, or a queue pair of
    ///   another service has an XRC shared receive queue.
    /// - [`Error::Limit`]: a capacity is too large, the NIC has the maximum number of queue pairs,
    ///   or all free queue pair numbers are quarantined.
    /// - [`Error::Busy`]: another GSI queue pair exists.
    pub fn create_qp(&mut self, now: Time, init: &QpInitAttr) -> Result<Qpn> {
        check_qp_cap(&init.cap, &self.attr.limits)?;
        if let Some(pd) = used_pd(init) {
            self.pds.get(pd.0)?;
        }
        let (receives, recv_pd) = self.recv_source(init)?;
        let qpn = match init.qp_type {
            QpType::Gsi => self.qps.reserve_gsi()?,
            _ => self.qps.reserve(now, &mut self.rng)?,
        };
        for (n, cq) in used_cqs(init).enumerate() {
            if let Err(e) = self.shared.cqs.add_user(cq) {
                used_cqs(init).take(n).for_each(|added| self.shared.cqs.remove_user(added));
                return Err(e);
            }
        }
        // An `XrcRecv` queue pair uses no completion queues, so the loop above has added no user.
        // If the domain does not exist, there is nothing to undo.
        if let QpType::XrcRecv(domain) = init.qp_type {
            self.shared.xrc.add_user(domain)?;
        }
        if let RecvSource::Shared(srq) = receives {
            self.shared.srqs.get_mut(srq.0)?.users += 1;
        }
        if let Some(pd) = used_pd(init) {
            *self.pds.get_mut(pd.0)? += 1;
        }
        self.qps.insert(Qp::new(qpn, init, recv_pd, receives));
        Ok(qpn)
    }

    /// Returns the queue from which a new queue pair takes its receives, and the protection domain
    /// of these receives.
    fn recv_source(&self, init: &QpInitAttr) -> Result<(RecvSource, PdId)> {
        match init.srq {
            None if init.qp_type.is_xrc() => Ok((RecvSource::Xrc(None), init.pd)),
            None => Ok((RecvSource::Own(RecvQueue::new(init.cap.recv_wrs, init.cap.recv_sges)), init.pd)),
            Some(_) if init.qp_type.is_xrc() => Err(Error::Invalid(
                "an XRC queue pair has no shared receive queue of its own; its messages name one",
            )),
            Some(srq) => {
                let queue = self.shared.srqs.get(srq.0)?;
                if queue.xrc.is_some() {
                    return Err(Error::Invalid(
                        "only XRC messages reach an XRC shared receive queue; use another one",
                    ));
                }
                Ok((RecvSource::Shared(srq), queue.pd))
            }
        }
    }

    /// Changes the state and the attributes of a queue pair.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the queue pair does not exist.
    /// - [`Error::Modify`]: the transition or an attribute is invalid. The queue pair is unchanged.
    pub fn modify_qp(&mut self, _now: Time, qp: Qpn, attr: &QpAttr) -> Result<()> {
        let result = self.qps.get_mut(qp)?.modify(attr, &mut self.shared);
        self.reschedule(self.qps.slot(qp));
        result
    }

    /// Moves a queue pair to ERR like a NIC that executes packets while a verb runs. The queue pair
    /// sends nothing more. It executes requests until [`Nic::flush_receives_of_error`], and handles
    /// responses until [`Nic::flush_sends_of_error`]. A queue pair that executes nothing moves as
    /// by [`Nic::modify_qp`].
    ///
    /// Returns whether the two calls are due.
    ///
    /// # Errors
    /// The errors of [`Nic::modify_qp`].
    pub fn begin_error(&mut self, now: Time, qp: Qpn) -> Result<bool> {
        let queue_pair = self.qps.get_mut(qp)?;
        if queue_pair.is_flush_pending() {
            return Ok(true);
        }
        let executes = queue_pair.executes_packets();
        if executes {
            queue_pair.begin_error();
        } else {
            self.modify_qp(now, qp, &QpAttr::to(QpState::Err))?;
        }
        Ok(executes)
    }

    /// Ends the requester of a queue pair after [`Nic::begin_error`], and flushes its sends. Has no
    /// effect if they were flushed, or the queue pair was reset or destroyed, meanwhile.
    pub fn flush_sends_of_error(&mut self, qp: Qpn) {
        if let Ok(queue_pair) = self.qps.get_mut(qp) {
            queue_pair.flush_sends_of_error(&mut self.shared);
        }
        self.reschedule(self.qps.slot(qp));
    }

    /// Ends the responder of a queue pair after [`Nic::begin_error`], and flushes its receives. Has
    /// no effect if they were flushed, or the queue pair was reset or destroyed, meanwhile.
    pub fn flush_receives_of_error(&mut self, qp: Qpn) {
        if let Ok(queue_pair) = self.qps.get_mut(qp) {
            queue_pair.flush_receives_of_error(&mut self.shared);
        }
        self.reschedule(self.qps.slot(qp));
    }

    /// Returns the state and the attributes of a queue pair.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the queue pair does not exist.
    pub fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        self.qps.get(qp).map(Qp::status)
    }

    /// Returns the state and the attributes of each queue pair, in no particular order.
    pub fn queue_pairs(&self) -> impl Iterator<Item = QpStatus> {
        self.qps.iter().map(Qp::status)
    }

    /// Removes a queue pair. Its outstanding requests do not complete.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the queue pair does not exist.
    /// - [`Error::Busy`]: the queue pair is attached to a multicast group.
    pub fn destroy_qp(&mut self, now: Time, qp: Qpn) -> Result<()> {
        if self.groups.contains_qp(qp) {
            return Err(Error::Busy { kind: "queue pair", id: qp.value(), user: "a multicast group" });
        }
        let slot = self.qps.slot(qp);
        let removed = self.qps.remove(now, qp)?;
        self.timers.remove(slot);
        if removed.in_ready {
            self.ready.retain(|&s| s != slot);
            self.blocked.iter_mut().for_each(|blocked| blocked.waiting.retain(|&s| s != slot));
        }
        if removed.in_ack_pending {
            self.ack_pending.retain(|&s| s != slot);
        }
        if removed.in_ack_held {
            self.ack_held.retain(|&s| s != slot);
        }
        self.shared.keys.unbind_windows_of(qp);
        self.shared.events.remove_qp(qp);
        let init = removed.attrs.init;
        used_cqs(&init).for_each(|cq| self.shared.cqs.remove_user(cq));
        if let Some(srq) = init.srq {
            self.shared.srqs.get_mut(srq.0)?.users -= 1;
        }
        if let QpType::XrcRecv(domain) = init.qp_type {
            self.shared.xrc.remove_user(domain);
        }
        if let Some(pd) = used_pd(&init) {
            *self.pds.get_mut(pd.0)? -= 1;
        }
        Ok(())
    }

    /// Posts sends. [`Nic::poll_transmit`] sends their packets.
    ///
    /// # Errors
    /// A [`PostError`] with the index of the first send that was not posted; the sends before it
    /// are posted. The cause is [`Error::NoSuchObject`], [`Error::WrongState`],
    /// [`Error::QueueFull`], [`Error::Limit`], [`Error::Unsupported`] or [`Error::Invalid`]. The
    /// NIC checks keys and bounds later, when it executes the send.
    pub fn post_send(&mut self, _now: Time, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        let queue_pair = self.qps.get_mut(qp).map_err(|error| PostError { index: 0, error })?;
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            match send_validation::validate_send(queue_pair, &self.attr, &self.shared.ahs, wr, 0) {
                Ok(destination) => queue_pair.push_send(wr.clone(), destination),
                Err(error) => {
                    result = Err(PostError { index, error });
                    break;
                }
            }
        }
        queue_pair.flush_posted(&mut self.shared);
        self.reschedule(self.qps.slot(qp));
        result
    }

    /// Posts all of the sends, or none.
    ///
    /// # Errors
    /// The same as for [`Nic::post_send`], but no send is posted.
    pub fn post_send_all(&mut self, now: Time, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        for (index, wr) in wrs.iter().enumerate() {
            self.qps
                .get(qp)
                .and_then(|queue_pair| {
                    send_validation::validate_send(queue_pair, &self.attr, &self.shared.ahs, wr, index)
                })
                .map_err(|error| PostError { index, error })?;
        }
        self.post_send(now, qp, wrs)
    }

    /// Posts receives to the receive queue of a queue pair.
    ///
    /// # Errors
    /// A [`PostError`] with the index of the first receive that was not posted. The cause is
    /// [`Error::NoSuchObject`], [`Error::WrongState`], [`Error::QueueFull`], [`Error::Limit`], or
    /// [`Error::Invalid`] for a queue pair with a shared receive queue.
    pub fn post_recv(&mut self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        let post_error = |index, error| Err(PostError { index, error });
        let queue_pair = match self.qps.get_mut(qp) {
            Ok(queue_pair) => queue_pair,
            Err(error) => return post_error(0, error),
        };
        if let Err(error) = check_recv_state(qp, queue_pair.attrs.state) {
            return post_error(0, error);
        }
        let RecvSource::Own(queue) = &mut queue_pair.receives else {
            return post_error(
                0,
                Error::Invalid("this queue pair has no receive queue of its own; post to a shared one"),
            );
        };
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            result = queue.post(wr, &self.attr.limits).or_else(|error| {
                post_error(
                    index,
                    match error {
                        RecvPostError::Error(error) => error,
                        RecvPostError::Full => {
                            Error::QueueFull { queue: "receive queue", qpn: qp, depth: queue.depth() }
                        }
                    },
                )
            });
            if result.is_err() {
                break;
            }
        }
        queue_pair.flush_posted(&mut self.shared);
        self.reschedule(self.qps.slot(qp));
        result
    }

    /// Returns the atomic results that the responder saves for duplicate requests, oldest first.
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: the configuration disables saved results.
    /// - [`Error::NoSuchObject`]: the queue pair does not exist.
    pub fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>> {
        if !self.attr.capabilities.saved_results {
            return Err(Error::Unsupported("saved results"));
        }
        self.qps.get(qp).map(Qp::saved_results)
    }
}
