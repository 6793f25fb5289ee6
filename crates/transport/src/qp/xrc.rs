//! Packets of an extended reliable connection (IBTA volume 1, annex A14).
//!
//! XRC uses the requester and the responder of RC. The sending end has only a requester, and the
//! receiving end only a responder. Each request names a shared receive queue. The protection domain
//! and the completion queue of that shared receive queue take the place of the queue pair's.

use mitra_verbs::{CqId, QpType, Srqn, Time, XrcdId};
use mitra_wire::{Message, NakCode, Packet, Transport};

use super::{Qp, Service};
use crate::Memory;
use crate::nic::recv_queue::RecvSource;
use crate::nic::shared_state::SharedState;
use crate::nic::xrc::used_cqs;
use crate::qp::attributes::QpAttributes;

impl Qp {
    pub(super) fn handle_xrc_packet(
        &mut self,
        nic: &mut SharedState,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        match (self.attrs.init.qp_type, packet.transport) {
            (QpType::XrcSend, Transport::Xrc(_)) if packet.message.is_response() => {
                self.handle_response(nic, now, packet, memory);
            }
            (QpType::XrcRecv(domain), Transport::Xrc(number)) if packet.message.is_request() => {
                self.handle_xrc_request(nic, now, (domain, number), packet, memory);
                self.check_established(nic);
            }
            _ => nic.counters.drop_wrong_transport += 1,
        }
    }

    fn handle_xrc_request(
        &mut self,
        nic: &mut SharedState,
        now: Time,
        (domain, number): (XrcdId, Srqn),
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        let Service::Rc { responder, .. } = &mut self.service else { return };
        let is_next = packet.psn == responder.expected_psn();
        let result = match nic.xrc_target(domain, number) {
            // A message goes to one shared receive queue.
            Some(target)
                if is_next
                    && responder.is_in_message()
                    && self.receives != RecvSource::Xrc(Some(target.srq)) =>
            {
                responder.refuse(nic, NakCode::InvalidRequest)
            }
            Some(target) => {
                let mut attrs = QpAttributes { recv_pd: target.pd, ..self.attrs.clone() };
                (attrs.init.pd, attrs.init.recv_cq) = (target.pd, target.cq);
                // A duplicate takes no receive, and may name another queue than the current
                // message.
                let mut receives = RecvSource::Xrc(Some(target.srq));
                let result = responder.handle_request(&attrs, &mut receives, nic, now, packet, memory);
                if is_next {
                    self.receives = receives;
                }
                result
            }
            // The queue does not exist, or is in another XRC domain. soft-RoCE's XRC patches send
            // the same NAK (`RESPST_ERR_INVALID_XRCETH`). The drivers ocrdma and qedr raise the
            // same event (invalid XRCETH, XRC domain violation).
            None if is_next => responder.refuse(nic, NakCode::RemoteAccess),
            // Without the queue, there is no protection domain to check the READ against.
            None if matches!(packet.message, Message::ReadRequest(_)) => {
                nic.counters.drop_duplicate += 1;
                Ok(())
            }
            // The responder acknowledges a duplicate or reports a gap, and accesses no memory.
            None => {
                responder.handle_request(&self.attrs, &mut RecvSource::Xrc(None), nic, now, packet, memory)
            }
        };
        if let Err(error) = result {
            self.handle_responder_failure(nic, error);
        }
    }

    pub(crate) fn completes_in(&self, nic: &SharedState, cq: CqId) -> bool {
        used_cqs(&self.attrs.init).any(|used| used == cq)
            || matches!(self.receives, RecvSource::Xrc(Some(srq)) if nic.xrc_cq(srq) == Some(cq))
    }
}
