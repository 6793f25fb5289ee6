//! Queue pairs whose link is held down, while that of their device stays up, and queue pairs whose
//! peer was not reached when they were connected.

use std::sync::atomic::Ordering;

use mitra_verbs::{Psn, QpAttr, QpState, QpType, Result, WcStatus};

use super::{Modified, Qp};
use crate::qp_attributes::attributes_to;

/// What the device has otherwise than the program.
#[derive(Debug, Default)]
pub(super) struct WithoutLink {
    /// The device has a connected queue pair in ERR, where it stays until a change to RESET. The
    /// program finds its state when a request has failed, as on a link that is down.
    is_cut: bool,
    /// The PSNs that the program has set since. What judges the queue pair by them must not take
    /// those of the device, which was never told.
    rq_psn: Option<Psn>,
    sq_psn: Option<Psn>,
    /// The device has another Q_Key for a datagram queue pair.
    is_muted: bool,
    /// The device has a datagram queue pair in RTS, and the program has it in RTR, in which no
    /// Q_Key can be changed.
    is_ahead: bool,
}

impl WithoutLink {
    /// Whether the state of the device is not the program's.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(super) fn rq_psn(&self, of_device: u32) -> Psn {
        self.rq_psn.unwrap_or(Psn::new(of_device))
    }

    pub(super) fn sq_psn(&self, of_device: u32) -> Psn {
        self.sq_psn.unwrap_or(Psn::new(of_device))
    }
}

impl Qp {
    /// Keeps the queue pair from the device's link. The caller has set [`Link`](crate::link::Link).
    pub(crate) fn lose_link(&self) {
        // Datagrams that are posted after the lock was free have a Q_Key that no receiver has.
        drop(self.sends.lock());
        let mut modified = self.lock();
        if modified.is_destroyed || !has_traffic(self.state()) {
            return;
        }
        if self.init.qp_type != QpType::Ud {
            if !modified.without_link.is_cut {
                // A device that refuses a change to ERR is dead.
                let _ = self.cut(&mut modified);
            }
        } else if let Some(qkey) = self.pd.context.link.received_qkey()
            && !modified.without_link.is_muted
        {
            modified.without_link.is_muted = true;
            self.set_qkey(&mut modified, qkey);
        }
    }

    /// Gives a datagram queue pair its Q_Key again. Connected queue pairs have failed for good.
    pub(crate) fn regain_link(&self) {
        let mut modified = self.lock();
        let is_muted = std::mem::take(&mut modified.without_link.is_muted);
        if let Some(qkey) = modified.attr.qkey
            && is_muted
            && !modified.is_destroyed
            && has_traffic(self.state())
        {
            self.set_qkey(&mut modified, qkey);
        }
    }

    /// Connects to a peer that the device does not reach: its requests fail as on a link that is
    /// down. `attr` is the refused change to RTR.
    pub(super) fn connect_unreached(&self, modified: &mut Modified, attr: &QpAttr) -> Result<()> {
        self.cut(modified)?;
        modified.without_link.rq_psn = attr.rq_psn;
        Ok(())
    }

    /// Moves a connected queue pair to ERR on the device.
    fn cut(&self, modified: &mut Modified) -> Result<()> {
        modified.without_link.is_cut = true;
        self.has_lost_link.store(true, Ordering::Relaxed);
        self.change_device(&QpAttr::to(QpState::Err))
    }

    /// Changes the Q_Key of a datagram queue pair on the device. Where the device refuses that, the
    /// queue pair goes to ERR.
    fn set_qkey(&self, modified: &mut Modified, qkey: u32) {
        let change = match self.state() {
            QpState::Rtr if !modified.without_link.is_ahead => {
                modified.without_link.is_ahead = true;
                QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) }
            }
            QpState::Rtr => QpAttr::to(QpState::Rts),
            state => QpAttr::to(state),
        };
        if self.change_device(&QpAttr { qkey: Some(qkey), ..change }).is_err() {
            // A device that refuses this, too, is dead.
            let _ = self.change_device(&QpAttr::to(QpState::Err));
            self.set_state(QpState::Err);
        }
    }

    fn change_device(&self, attr: &QpAttr) -> Result<()> {
        let (attributes, mask) = attributes_to(attr, || Ok(0))?;
        self.modify_raw(attributes, mask)
    }

    /// Returns the change of the device for a change `attr` by the program, or `None` if the device
    /// is not to be changed. `attr` has the new state.
    pub(super) fn change_for_device(
        &self,
        modified: &mut Modified,
        from: QpState,
        attr: &QpAttr,
    ) -> Result<Option<QpAttr>> {
        let link = &self.pd.context.link;
        let to = attr.state.unwrap_or(from);
        let mut change = *attr;
        if self.init.qp_type == QpType::Ud {
            let without_link = &mut modified.without_link;
            without_link.is_muted |= to == QpState::Rtr && link.is_down();
            if let Some(qkey) = link.received_qkey()
                && without_link.is_muted
                && (to == QpState::Rtr || attr.qkey.is_some())
            {
                change.qkey = Some(qkey);
            }
            if from == QpState::Rtr && to == QpState::Rts && without_link.is_ahead {
                change.sq_psn = None;
                without_link.is_ahead = false;
            }
            return Ok(Some(change));
        }
        if to == QpState::Err {
            // What was in flight is now flushed by the program.
            self.has_lost_link.store(false, Ordering::Relaxed);
        }
        if !has_traffic(to) {
            return Ok(Some(change));
        }
        if link.is_down() && !modified.without_link.is_cut {
            // Not by way of the new state, in which packets could arrive.
            self.cut(modified)?;
        }
        let without_link = &mut modified.without_link;
        if !without_link.is_cut {
            return Ok(Some(change));
        }
        without_link.rq_psn = attr.rq_psn.or(without_link.rq_psn);
        without_link.sq_psn = attr.sq_psn.or(without_link.sq_psn);
        Ok(None)
    }

    /// Returns the status of a send that the device has completed with the error `status`. The
    /// first that is flushed because the link is down ends as after the last retry. An unreliable
    /// connection has no retries.
    pub(crate) fn failed_send(&self, status: WcStatus) -> WcStatus {
        let is_first =
            self.has_lost_link.load(Ordering::Relaxed) && self.has_lost_link.swap(false, Ordering::Relaxed);
        if !is_first {
            return status;
        }
        let modified = self.lock();
        if modified.without_link.is_cut {
            // Receives that were posted since are flushed now. A device that refuses this is dead.
            let _ = self.change_device(&QpAttr::to(QpState::Err));
        }
        match (self.init.qp_type, status) {
            (QpType::Rc, WcStatus::Flushed) => WcStatus::RetryExceeded,
            _ => status,
        }
    }
}

/// Whether packets may arrive in a state.
fn has_traffic(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
}
