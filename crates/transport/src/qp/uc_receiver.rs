//! The receiver of an unreliable connection. It silently drops a message of which a packet is
//! missing (IBTA volume 1, 9.8).

use mitra_verbs::{Psn, RecvWr, WcStatus};
use mitra_wire::Packet;

use crate::Memory;
use crate::nic::recv_queue::RecvSource;
use crate::nic::shared_state::SharedState;
use crate::packet_of_message;
use crate::qp::attributes::QpAttributes;
use crate::qp::reassembly::{Reassembly, Refusal};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct UcReceiver {
    expected_psn: Psn,
    reassembly: Reassembly,
}

impl UcReceiver {
    pub(crate) fn new(psn: Psn) -> UcReceiver {
        UcReceiver { expected_psn: psn, reassembly: Reassembly::Idle }
    }

    pub(crate) fn expected_psn(&self) -> Psn {
        self.expected_psn
    }

    pub(crate) fn take_recv(&mut self) -> Option<RecvWr> {
        self.reassembly.take_recv()
    }

    /// Handles a packet. An invalid packet is dropped together with its message.
    ///
    /// # Errors
    /// The status of a receive whose memory may not be written. The queue pair enters ERR.
    pub(crate) fn handle_packet(
        &mut self,
        attrs: &QpAttributes,
        receives: &mut RecvSource,
        nic: &mut SharedState,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), WcStatus> {
        let is_expected = packet.psn == self.expected_psn;
        let first = packet_of_message::position(&packet.message).first;
        self.expected_psn = packet.psn.next();
        if (!is_expected || first) && self.reassembly != Reassembly::Idle {
            nic.counters.drop_unreliable += 1;
            self.drop_message(receives, nic);
        }
        let result = self
            .reassembly
            .check_packet(attrs, packet)
            .and_then(|()| self.reassembly.execute(attrs, receives, nic, packet, memory));
        match result {
            Ok(()) => {
                nic.counters.bytes_received += packet.payload.len() as u64;
                Ok(())
            }
            Err(Refusal::Receive(status)) if status != WcStatus::LocalLength => Err(status),
            Err(refusal) => {
                match refusal {
                    Refusal::NotReady => nic.counters.drop_no_receive += 1,
                    _ => nic.counters.drop_unreliable += 1,
                }
                self.drop_message(receives, nic);
                Ok(())
            }
        }
    }

    /// Drops the unfinished message and returns its receive to the queue for the next message.
    fn drop_message(&mut self, receives: &mut RecvSource, nic: &mut SharedState) {
        if let Some(receive) = self.reassembly.take_recv() {
            nic.return_recv(receives, receive);
        }
    }
}
