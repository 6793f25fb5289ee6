//! The answer of a device with one rail to peers with several.
//!
//! A peer with several rails queries queue pair 1 for connection data. A device with one rail has
//! no such data, and answers with the number of its rails. The device also logs the mismatch,
//! because the program at this end may wait for its peer without an error. UD queue pairs need no
//! such data: the device answers that they can be reached on its rail.

use std::sync::{Arc, Mutex, OnceLock};

use mitra_failover::LocalNic;
use mitra_verbs::{AsyncEvent, Codec, Gid, Limits, Provider, Qpn, Result, SrqId};

use super::gsi_qp::{GsiQp, SLOTS};
use super::message::{ConnectionData, Message, Subject, decode, encode};
use super::reach_message::{DeviceAddress, QpNumbers, Reach, ReachKind};
use super::{encode_unknown_cm_connections, explain_refusal};
use crate::common::lock::lock;
use crate::rails::cm_receiver::{RailAddress, SharedReceiver};

/// Queue pair 1 of a device with one rail.
pub(in crate::rails) struct OneRail {
    gsi_qp: Mutex<GsiQp>,
    srq: SrqId,
    device: Mutex<DeviceAddress>,
    pub(in crate::rails) cm_receiver: SharedReceiver,
}

/// Returns the limits of a NIC on which the program can create as many objects as `limits` permits,
/// in addition to the objects of queue pair 1.
pub(in crate::rails) fn limits_of_nic(limits: Limits) -> Limits {
    let Limits { pds, mrs, cqs, qps, srqs, .. } = limits;
    Limits { pds: pds + 1, mrs: mrs + 1, cqs: cqs + 2, qps: qps + 1, srqs: srqs + 1, ..limits }
}

/// Returns the limits of the program on a NIC with the limits of [`limits_of_nic`].
pub(in crate::rails) fn limits_of_program(limits: Limits) -> Limits {
    let Limits { pds, mrs, cqs, qps, srqs, .. } = limits;
    Limits { pds: pds - 1, mrs: mrs - 1, cqs: cqs - 2, qps: qps - 1, srqs: srqs.saturating_sub(1), ..limits }
}

impl OneRail {
    /// Opens queue pair 1, and requests an event for the first datagram.
    ///
    /// # Errors
    /// The error of the NIC.
    pub(in crate::rails) fn new(provider: Arc<dyn Provider>) -> Result<OneRail> {
        let device = DeviceAddress::new(vec![provider.query_port()?.gid], 1);
        let nic = LocalNic { pd: provider.alloc_pd()?, provider, channel: None };
        let srq = nic.provider.create_srq(nic.pd, SLOTS as u32)?;
        let gsi_qp = GsiQp::new(&nic, Some(srq))?;
        gsi_qp.arm()?;
        Ok(OneRail {
            gsi_qp: Mutex::new(gsi_qp),
            srq,
            device: Mutex::new(device),
            cm_receiver: OnceLock::new(),
        })
    }

    pub(in crate::rails) fn send(&self, to: Gid, bytes: &[u8]) {
        lock(&self.gsi_qp).send(to, bytes);
    }

    /// Changes the address of the device. Former GIDs are not kept, because the device is not in
    /// the multicast group that is asked for them.
    pub(in crate::rails) fn set_gid(&self, gid: Gid) {
        *lock(&self.device) = DeviceAddress::new(vec![gid], 1);
    }

    /// If an event of the NIC concerns queue pair 1, answers the queries of peers and returns true.
    /// `is_open` tells whether the program has a queue pair with the given number.
    pub(in crate::rails) fn handle(&self, event: AsyncEvent, is_open: impl Fn(Qpn) -> bool) -> bool {
        if event != AsyncEvent::SrqLimitReached(self.srq) {
            return false;
        }
        let mut gsi_qp = lock(&self.gsi_qp);
        let own = lock(&self.device).clone();
        let mut replies = Vec::new();
        gsi_qp.poll(|from, bytes| {
            let reply = match decode(bytes) {
                Some((id, Message::Query(Subject::Connection { qpn, terms: peer }, _))) => {
                    let terms = peer.on_one_rail();
                    if is_open(qpn) {
                        explain_refusal(&terms, &peer);
                    }
                    let data = ConnectionData { terms, info: Vec::new() };
                    encode(id, &Message::Answer(Some(data.to_bytes())))
                }
                Some((id, Message::Reach(Reach { kind: ReachKind::Ask { device, qpn }, .. })))
                    if own.device.includes(device) =>
                {
                    let qp = is_open(qpn).then(|| QpNumbers { qpn, on_rails: vec![qpn] });
                    let kind = ReachKind::Answer { qpn };
                    encode(id, &Message::Reach(Reach { kind, device: own.clone(), qp }))
                }
                Some((_, Message::CmConnections(connections))) => match self.cm_receiver.get() {
                    Some(receiver) if receiver.has_connections() => {
                        return receiver.on_connections(RailAddress { rail: 0, gid: from }, connections);
                    }
                    _ => encode_unknown_cm_connections(connections),
                },
                Some((_, Message::UnknownCmConnections(connections))) => {
                    if let Some(receiver) = self.cm_receiver.get() {
                        receiver.on_unknown_connections(RailAddress { rail: 0, gid: from }, connections);
                    }
                    return;
                }
                None => {
                    if let Some(receiver) = self.cm_receiver.get() {
                        receiver.on_datagram(RailAddress { rail: 0, gid: from }, bytes);
                    }
                    return;
                }
                _ => return,
            };
            replies.push((from, reply));
        });
        replies.iter().for_each(|(to, reply)| gsi_qp.send(*to, reply));
        // Only a dead NIC refuses, and a dead NIC receives nothing.
        let _ = gsi_qp.arm();
        true
    }
}
