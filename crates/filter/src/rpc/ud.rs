//! Unreliable datagrams as a carrier.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mitra_verbs::{
    Access, AhId, CqId, Data, Error, GRH_LEN, Gid, Mr, Provider, Psn, QpAttr, QpBuildError, QpBuilder, QpCap,
    QpState, Qpn, RecvWr, Result, SendOp, SendWr, Time, UdDestination, Wc, WcOpcode, WcStatus,
};

use super::carrier::{Carrier, Event};
use super::slots::{RECVS, Slots};

/// The number of sends that may be outstanding. Further messages are lost.
const SENDS: u32 = 32;
/// The maximum number of cached address handles.
const MAX_AHS: usize = 256;

/// The identity of a node that sends datagrams, as the NIC reports it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UdNode {
    /// The address of the node's NIC.
    pub gid: Gid,
    /// The number of the node's queue pair.
    pub qpn: Qpn,
}

/// The address of a [`UdCarrier`], which its peers need.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdAddress {
    /// The node.
    pub node: UdNode,
    /// The Q_Key, which all nodes of one service share.
    pub qkey: u32,
}

/// A UD queue pair as a carrier. The carrier loses, repeats and reorders messages as the network
/// does. The carrier identifies a node by the address and the queue pair number in the datagram. A
/// sender that can forge both can send in the node's name.
#[derive(Debug)]
pub struct UdCarrier {
    provider: Arc<dyn Provider>,
    pd: mitra_verbs::PdId,
    cq: CqId,
    qpn: Qpn,
    mr: Mr,
    address: UdAddress,
    max_message: usize,
    /// Slots 0 to `RECVS` − 1 are for receives, the rest for sends.
    slots: Slots,
    free_sends: Vec<usize>,
    ahs: BTreeMap<Gid, AhId>,
    /// The addresses of `ahs`, the oldest first.
    ah_order: VecDeque<Gid>,
    wcs: Vec<Wc>,
}

impl UdCarrier {
    /// Creates a queue pair that is ready to send and to receive.
    ///
    /// # Errors
    /// The error of the first call to the NIC that failed.
    pub fn new(provider: Arc<dyn Provider>, qkey: u32) -> Result<UdCarrier> {
        let port = provider.query_port()?;
        let max_message = port.max_mtu.bytes();
        let pd = provider.alloc_pd()?;
        let cq = provider.create_cq(RECVS + SENDS, None)?;
        let cap = QpCap { send_wrs: SENDS, recv_wrs: RECVS, send_sges: 1, recv_sges: 1, inline: 0 };
        let built = QpBuilder::ud(pd, cq).cap(cap).signal_all().build(&*provider);
        let qpn = built.map_err(|error| match error {
            QpBuildError::Nic(error) => error,
            _ => Error::Invalid("the NIC's limits are too low for a queue pair of 32 sends and receives"),
        })?;
        let slots = Slots::new((RECVS + SENDS) as usize, GRH_LEN + max_message);
        let mr = provider.reg_mr(pd, Arc::clone(slots.memory()), Access::LOCAL_WRITE)?;
        let init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
        provider.modify_qp(qpn, &QpAttr { qkey: Some(qkey), ..init })?;
        provider.modify_qp(qpn, &QpAttr::to(QpState::Rtr))?;
        provider.modify_qp(qpn, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) })?;
        let carrier = UdCarrier {
            pd,
            cq,
            qpn,
            mr,
            address: UdAddress { node: UdNode { gid: port.gid, qpn }, qkey },
            max_message,
            slots,
            free_sends: (RECVS as usize..(RECVS + SENDS) as usize).collect(),
            ahs: BTreeMap::new(),
            ah_order: VecDeque::new(),
            wcs: Vec::new(),
            provider,
        };
        for slot in 0..RECVS as usize {
            carrier.post_recv(slot)?;
        }
        Ok(carrier)
    }

    /// Returns the address by which other nodes reach this node.
    pub fn address(&self) -> UdAddress {
        self.address
    }

    fn post_recv(&self, slot: usize) -> Result<()> {
        let sge = self.mr.sge(self.slots.offset(slot), self.slots.len());
        self.provider.post_recv(self.qpn, &[RecvWr::new(slot as u64, sge)]).map_err(|e| e.error)
    }

    /// Returns the cached address handle, or creates it. If the cache is full, the oldest handle is
    /// destroyed.
    fn ah(&mut self, gid: Gid) -> Result<AhId> {
        if let Some(&ah) = self.ahs.get(&gid) {
            return Ok(ah);
        }
        if self.ahs.len() >= MAX_AHS
            && let Some(oldest) = self.ah_order.pop_front()
            && let Some(ah) = self.ahs.remove(&oldest)
        {
            self.provider.destroy_ah(ah)?;
        }
        let ah = self.provider.create_ah(self.pd, gid)?;
        self.ahs.insert(gid, ah);
        self.ah_order.push_back(gid);
        Ok(ah)
    }

    fn try_send(&mut self, to: UdNode, message: &[u8], slot: usize) -> Result<()> {
        let destination = UdDestination { ah: self.ah(to.gid)?, qpn: to.qpn, qkey: self.address.qkey };
        self.slots.write(slot, message);
        let sge = self.mr.sge(self.slots.offset(slot), message.len() as u32);
        let wr = SendWr::new(slot as u64, SendOp::Send, Data::sge(sge)).to(destination);
        self.provider.post_send(self.qpn, &[wr]).map_err(|e| e.error)
    }
}

impl Carrier for UdCarrier {
    type Node = UdNode;

    fn now(&self) -> Time {
        self.provider.now()
    }

    fn max_message(&self) -> usize {
        self.max_message
    }

    fn send(&mut self, to: UdNode, message: &[u8]) {
        if message.len() > self.max_message {
            return;
        }
        let Some(slot) = self.free_sends.pop() else { return };
        if self.try_send(to, message, slot).is_err() {
            self.free_sends.push(slot);
        }
    }

    fn poll(&mut self, handle: &mut dyn FnMut(UdNode, Event<'_>)) -> Result<()> {
        let mut wcs = core::mem::take(&mut self.wcs);
        wcs.clear();
        self.provider.poll_cq(self.cq, (RECVS + SENDS) as usize, &mut wcs)?;
        for wc in &wcs {
            let slot = wc.wr_id as usize;
            if slot >= RECVS as usize {
                self.free_sends.push(slot);
                continue;
            }
            if wc.opcode == WcOpcode::Recv && wc.status == WcStatus::Success {
                let bytes = self.slots.read(slot, wc.byte_len as usize);
                if let Some((grh, message)) = bytes.split_first_chunk() {
                    handle(UdNode { gid: Gid::from_grh(grh), qpn: wc.src_qp }, Event::Message(message));
                }
            }
            self.post_recv(slot)?;
        }
        self.wcs = wcs;
        Ok(())
    }
}

impl Drop for UdCarrier {
    fn drop(&mut self) {
        // A NIC that fails here has failed as a whole, and has lost its objects.
        let p = &self.provider;
        let _ = p.destroy_qp(self.qpn);
        let _ = p.destroy_cq(self.cq);
        for &ah in self.ahs.values() {
            let _ = p.destroy_ah(ah);
        }
        let _ = p.dereg_mr(self.mr.id);
        let _ = p.dealloc_pd(self.pd);
    }
}
