use mitra_verbs::QpState;
use mitra_wire::Packet;

use super::WorldState;
use super::packet_delivery::covered;
use crate::NicId;
use crate::rc_flow::QpAddress;

impl WorldState {
    /// Passes to the analysers a datagram that a NIC sends. The datagram ends with space for the
    /// ICRC.
    pub(crate) fn analyse_sent(&mut self, nic: usize, datagram: &[u8]) {
        if self.rc_flows.is_empty() {
            return;
        }
        let Ok(packet) = Packet::parse(covered(datagram)) else { return };
        let mut flows = core::mem::take(&mut self.rc_flows);
        for flow in &mut flows {
            if !self.is_ready_to_receive(flow.responder) {
                flow.on_responder_not_ready();
            }
            flow.on_sent(self.now, NicId(nic), &packet);
        }
        self.rc_flows = flows;
    }

    pub(crate) fn analyse_received(&mut self, nic: usize, packet: &Packet<'_>) {
        if self.rc_flows.is_empty() || !self.is_ready_to_receive((NicId(nic), packet.dest_qp)) {
            return;
        }
        self.rc_flows.iter_mut().for_each(|flow| flow.on_received(self.now, NicId(nic), packet));
    }

    fn is_ready_to_receive(&self, (nic, qpn): QpAddress) -> bool {
        let status = self.nics[nic.0].nic.query_qp(qpn);
        status.is_ok_and(|status| matches!(status.state, QpState::Rtr | QpState::Rts))
    }
}
