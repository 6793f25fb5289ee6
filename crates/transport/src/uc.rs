//! The receiver of an unreliable connection: a message of which a packet is missing is dropped, silently
//! (IBTA volume 1, 9.8).

use mitra_verbs::{Psn, RecvWr, WcStatus};
use mitra_wire::Packet;

use crate::Memory;
use crate::host::Host;
use crate::inbound::{Inbound, Refusal, ends};
use crate::qp::Common;
use crate::recv_queue::Receives;

/// The receiver.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Receiver {
    /// The PSN expected next.
    psn: Psn,
    inbound: Inbound,
}

impl Receiver {
    pub(crate) fn new(psn: Psn) -> Receiver {
        Receiver { psn, inbound: Inbound::None }
    }

    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    /// The receive of an unfinished message.
    pub(crate) fn take_receive(&mut self) -> Option<RecvWr> {
        self.inbound.take_receive()
    }

    /// A packet. An error is one of the receive's own, and takes the queue pair to ERR.
    pub(crate) fn handle(
        &mut self,
        c: &Common,
        receives: &mut Receives,
        host: &mut Host,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), WcStatus> {
        let expected = packet.psn == self.psn;
        let (first, _) = ends(&packet.message);
        self.psn = packet.psn.next();
        if (!expected || first) && self.inbound != Inbound::None {
            host.counters.drop_unreliable += 1;
            self.abandon(receives, host);
        }
        let done = self
            .inbound
            .check(c, packet)
            .and_then(|()| self.inbound.execute(c, receives, host, packet, memory));
        match done {
            Ok(()) => {
                host.counters.bytes_received += packet.payload.len() as u64;
                Ok(())
            }
            Err(Refusal::Receive(status)) if status != WcStatus::LocalLength => Err(status),
            Err(refusal) => {
                match refusal {
                    Refusal::NotReady => host.counters.drop_no_receive += 1,
                    _ => host.counters.drop_unreliable += 1,
                }
                self.abandon(receives, host);
                Ok(())
            }
        }
    }

    /// Drops the message; the next one gets its receive.
    fn abandon(&mut self, receives: &mut Receives, host: &mut Host) {
        if let Some(receive) = self.inbound.take_receive() {
            host.give_back(receives, receive);
        }
    }
}
