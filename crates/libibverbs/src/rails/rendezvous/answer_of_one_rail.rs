//! The answer of a device with one rail to peers with several.
//!
//! A peer with several rails queries the control port for connection data. A device with one rail
//! has no such data, and answers with the number of its rails. The device also logs the mismatch,
//! because the program at this end may wait for its peer without an error. UD queue pairs need no
//! such data: the device answers that they can be reached on its rail.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex, OnceLock};

use mitra_failover::LocalNic;
use mitra_verbs::{AsyncEvent, Codec, Gid, Limits, Provider, Qpn, Result, SrqId};

use super::control_port::ControlPort;
use super::gsi_qp::SLOTS;
use super::message::{ConnectionData, Message, Subject, decode, encode};
use super::reach_message::{DeviceAddress, QpNumbers, Reach, ReachKind};
use super::{encode_unknown_cm_connections, explain_refusal};
use crate::common::lock::lock;
use crate::rails::cm_receiver::SharedReceiver;
use crate::rails::rail_address::{Endpoint, Endpoints, RailAddress};

/// The control port of a device with one rail.
pub(in crate::rails) struct OneRail {
    port: Mutex<ControlPort>,
    srq: Option<SrqId>,
    device: Mutex<DeviceAddress>,
    pub(in crate::rails) cm_receiver: SharedReceiver,
}

/// Returns the limits of a NIC on which the program can create as many objects as `limits` permits,
/// in addition to the objects of queue pair 1.
pub(in crate::rails) fn limits_of_nic(limits: Limits) -> Limits {
    let Limits { pds, mrs, cqs, qps, srqs, .. } = limits;
    Limits { pds: pds + 1, mrs: mrs + 1, cqs: cqs + 2, qps: qps + 1, srqs: srqs + 1, ..limits }
}

/// Returns the limits of the program on a NIC with these limits, such as those of
/// [`limits_of_nic`]. Without queue pair 1, the control port has a protection domain only.
pub(in crate::rails) fn limits_of_program(limits: Limits, has_queue_pair_1: bool) -> Limits {
    let limits = Limits { pds: limits.pds.saturating_sub(1), ..limits };
    if !has_queue_pair_1 {
        return limits;
    }
    let Limits { mrs, cqs, qps, srqs, .. } = limits;
    let [mrs, qps, srqs] = [mrs, qps, srqs].map(|limit| limit.saturating_sub(1));
    Limits { mrs, cqs: cqs.saturating_sub(2), qps, srqs, ..limits }
}

impl OneRail {
    /// Opens the control port, and requests an event for the first datagram.
    ///
    /// # Errors
    /// The error of the NIC if it has no queue pair 1 and there is no socket.
    pub(in crate::rails) fn new(provider: Arc<dyn Provider>) -> Result<OneRail> {
        let device = DeviceAddress::new(vec![provider.query_port()?.gid], 1);
        let nic = LocalNic { pd: provider.alloc_pd()?, provider, channel: None };
        // A NIC of the kernel may have no shared receive queues, and has no queue pair 1.
        let srq = nic.provider.create_srq(nic.pd, SLOTS as u32).ok();
        let socket = ControlPort::open_sockets(std::iter::once(&nic)).pop().flatten();
        let port = ControlPort::new(&nic, srq, socket)?;
        let srq = srq.filter(|&srq| {
            let is_used = port.endpoints().has_queue_pair_1;
            // A queue that cannot be destroyed only counts towards the limit.
            let _ = (!is_used).then(|| nic.provider.destroy_srq(srq));
            is_used
        });
        port.arm()?;
        Ok(OneRail { port: Mutex::new(port), srq, device: Mutex::new(device), cm_receiver: OnceLock::new() })
    }

    pub(in crate::rails) fn send(&self, to: RailAddress, bytes: &[u8]) {
        lock(&self.port).send(to.gid, to.endpoint, bytes);
    }

    /// As [`ControlPort::refusals`].
    pub(in crate::rails) fn refusals(&self, at: RailAddress) -> Option<u64> {
        lock(&self.port).refusals(at)
    }

    pub(in crate::rails) fn endpoints(&self) -> Endpoints {
        lock(&self.port).endpoints()
    }

    /// Returns the sockets, for a thread that waits until one is readable.
    pub(in crate::rails) fn sockets(&self) -> Vec<Arc<UdpSocket>> {
        lock(&self.port).sockets().collect()
    }

    /// Changes the address of the device. Former GIDs are not kept, because the device is not in
    /// the multicast group that is asked for them.
    pub(in crate::rails) fn set_gid(&self, gid: Gid) {
        *lock(&self.device) = DeviceAddress::new(vec![gid], 1);
    }

    /// Returns whether an event of the NIC concerns the control port.
    pub(in crate::rails) fn is_concerned(&self, event: AsyncEvent) -> bool {
        self.srq.is_some_and(|srq| event == AsyncEvent::SrqLimitReached(srq))
    }

    /// Answers the queries of peers that have arrived. `is_open` tells whether the program has a
    /// queue pair with the given number.
    pub(in crate::rails) fn answer(&self, is_open: impl Fn(Qpn) -> bool) {
        let mut port = lock(&self.port);
        let own = lock(&self.device).clone();
        let mut replies = Vec::new();
        port.poll(|gid, endpoint, bytes| {
            let from = RailAddress { rail: 0, gid, endpoint };
            // Another process at the address may have the queue pair.
            let may_be_of_another = |qpn| matches!(endpoint, Endpoint::Socket(_)) && !is_open(qpn);
            let reply = match decode(bytes) {
                Some((id, Message::Query(Subject::Connection { qpn, .. }, _))) if may_be_of_another(qpn) => {
                    encode(id, &Message::Answer(None))
                }
                Some((id, Message::Query(Subject::Connection { qpn, terms: peer }, _))) => {
                    let terms = peer.on_one_rail();
                    if is_open(qpn) {
                        explain_refusal(&terms, &peer);
                    }
                    let data = ConnectionData { terms, info: Vec::new() };
                    encode(id, &Message::Answer(Some(data.to_bytes())))
                }
                Some((id, Message::Reach(Reach { kind: ReachKind::Ask { device, qpn }, .. })))
                    if own.device.includes(device) && !may_be_of_another(qpn) =>
                {
                    let qp = is_open(qpn).then(|| QpNumbers { qpn, on_rails: vec![qpn] });
                    let kind = ReachKind::Answer { qpn };
                    encode(id, &Message::Reach(Reach { kind, device: own.clone(), qp }))
                }
                Some((_, Message::CmConnections(connections))) => match self.cm_receiver.get() {
                    Some(receiver) if receiver.has_connections() => {
                        return receiver.on_connections(from, connections);
                    }
                    _ => encode_unknown_cm_connections(connections),
                },
                Some((_, Message::UnknownCmConnections(connections))) => {
                    if let Some(receiver) = self.cm_receiver.get() {
                        receiver.on_unknown_connections(from, connections);
                    }
                    return;
                }
                None => {
                    if let Some(receiver) = self.cm_receiver.get() {
                        receiver.on_datagram(from, bytes);
                    }
                    return;
                }
                _ => return,
            };
            replies.push((from, reply));
        });
        replies.iter().for_each(|(to, reply)| port.send(to.gid, to.endpoint, reply));
        // Only a dead NIC refuses, and a dead NIC receives nothing.
        let _ = port.arm();
    }
}

#[cfg(test)]
mod tests {
    use mitra_nics::NicKind;
    use mitra_verbs::{NicAddress, NicRequest};

    use super::*;

    #[test]
    fn program_gets_what_queue_pair_1_leaves() {
        let limits = NicKind::Soft.source().limits();
        assert_eq!(limits_of_program(limits_of_nic(limits), true), limits);
        let without = limits_of_program(limits, false);
        assert_eq!(without, Limits { pds: limits.pds - 1, ..limits });
        // A device of the kernel may have no shared receive queues.
        assert_eq!(limits_of_program(Limits { srqs: 0, ..limits }, true).srqs, 0);
    }

    /// Another device of the process has queue pair 1, and there are no sockets at a loopback
    /// address.
    #[test]
    fn refused_queue_pair_1_leaves_the_queues_to_the_program() {
        let source = NicKind::Soft.source();
        let limits = Limits { cqs: 4, ..source.limits() };
        let request = NicRequest { limits, ..NicRequest::new(source, NicAddress::Free) };
        let nic = source.open(&request).expect("an address is free").nic;
        let open = || OneRail::new(Arc::clone(&nic) as Arc<dyn Provider>);
        let _first = open().expect("queue pair 1 is free");
        assert!(open().is_err(), "queue pair 1 is in use");
        for _ in 0..2 {
            nic.create_cq(1, None).expect("the second queue pair 1 has left no completion queue");
        }
    }
}
