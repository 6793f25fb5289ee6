//! State transitions and attribute changes of a queue pair.

use mitra_mutants::Mutant;
use mitra_verbs::{ModifyError, QpAttr, QpAttribute, QpState, Result, SqDrain, check_modify};

use super::{Qp, QpAttributes, Service};
use crate::nic::recv_queue::RecvSource;
use crate::nic::shared_state::SharedState;
use crate::qp::responder::Responder;
use crate::qp::uc_receiver::UcReceiver;
use crate::qp::unreliable_sender::UnreliableSender;

impl Qp {
    /// If a check fails, the queue pair does not change.
    pub(crate) fn modify(&mut self, attr: &QpAttr, nic: &mut SharedState) -> Result<()> {
        let from = self.attrs.state;
        let to = check_modify(self.attrs.init.qp_type, from, attr)?;
        check_device_limits(attr, nic)?;
        if attr.max_rd_atomic == Some(0)
            && matches!(&self.service, Service::Rc { requester, .. } if requester.has_fetches())
        {
            let rule = "at least 1 while READs or atomics are posted";
            return Err(ModifyError::OutOfRange { attribute: QpAttribute::MaxRdAtomic, rule }.into());
        }
        let attrs = &mut self.attrs;
        attrs.modified.update(attr);
        if let Some(mtu) = attr.path_mtu {
            attrs.mtu = mtu.bytes();
        }
        if let Some(gid) = attr.dest_gid {
            attrs.dest_gid = gid;
        }
        if let Some(qpn) = attr.dest_qpn {
            attrs.dest_qpn = qpn;
        }
        match (from, to) {
            (_, QpState::Reset) => self.reset(nic),
            (_, QpState::Err) => {
                self.fail(nic, None, None);
                // The consumer uses this transition in a fence. After it, the responder sends
                // nothing, not even the responses to requests that it has executed.
                if !Mutant::ErrorStateAnswers.is_on() {
                    self.silence_responder();
                }
            }
            (QpState::Init, QpState::Rtr) => self.start_receiving(attr, nic),
            (QpState::Rtr, QpState::Rts) => self.start_sending(attr),
            _ => {}
        }
        self.attrs.state = to;
        self.drain = match to {
            QpState::Sqd if from != to => SqDrain::Draining,
            QpState::Sqd => self.drain,
            _ => SqDrain::NotInSqd,
        };
        self.check_drained(nic);
        Ok(())
    }

    fn start_receiving(&mut self, attr: &QpAttr, nic: &SharedState) {
        let psn = attr.rq_psn.unwrap_or_default();
        match &mut self.service {
            Service::Rc { responder, .. } => **responder = Responder::new(psn),
            Service::Uc { receiver, .. } => *receiver = UcReceiver::new(psn),
            // UD has no path MTU. The MTU of the port limits a datagram.
            Service::Ud { .. } => self.attrs.mtu = nic.config.max_mtu.bytes(),
        }
    }

    fn start_sending(&mut self, attr: &QpAttr) {
        let psn = attr.sq_psn.unwrap_or_default();
        match &mut self.service {
            Service::Rc { requester, .. } => requester.start(&self.attrs, psn),
            Service::Uc { sender, .. } | Service::Ud { sender } => *sender = UnreliableSender::new(psn),
        }
    }

    /// Returns the queue pair to RESET. The queue pair drops its posted work requests and its
    /// unpolled completions, as hardware drivers do (`mlx5_modify_qp` in rdma-core's
    /// `providers/mlx5/verbs.c`).
    fn reset(&mut self, nic: &mut SharedState) {
        if let RecvSource::Own(queue) = &mut self.receives {
            queue.clear();
        }
        nic.keys.unbind_windows_of(self.attrs.qpn);
        let (in_ready, in_ack_pending, in_ack_held) = (self.in_ready, self.in_ack_pending, self.in_ack_held);
        let receives = match &self.receives {
            RecvSource::Xrc(_) => RecvSource::Xrc(None),
            receives => receives.clone(),
        };
        let QpAttributes { qpn, init, recv_pd, .. } = &self.attrs;
        nic.cqs.discard(init.send_cq, *qpn);
        nic.cqs.discard(init.recv_cq, *qpn);
        *self = Qp { in_ready, in_ack_pending, in_ack_held, ..Qp::new(*qpn, init, *recv_pd, receives) };
    }
}

/// Checks the attributes against the limits of the device, which `check_modify` does not check.
fn check_device_limits(attr: &QpAttr, nic: &SharedState) -> Result<(), ModifyError> {
    use QpAttribute as A;
    let limit = nic.config.limits.rd_atomic;
    let checks = [
        (
            attr.path_mtu.is_some_and(|mtu| mtu > nic.config.max_mtu),
            A::PathMtu,
            "at most the MTU of the port",
        ),
        (
            attr.max_rd_atomic.is_some_and(|n| n > limit),
            A::MaxRdAtomic,
            "at most the limit `rd_atomic` of the device",
        ),
        (
            attr.max_dest_rd_atomic.is_some_and(|n| n > limit),
            A::MaxDestRdAtomic,
            "at most the limit `rd_atomic` of the device",
        ),
    ];
    match checks.into_iter().find(|(violated, ..)| *violated) {
        Some((_, attribute, rule)) => Err(ModifyError::OutOfRange { attribute, rule }),
        None => Ok(()),
    }
}
