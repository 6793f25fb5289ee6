//! The UD queue pair of a rail that carries control messages.

use std::sync::Arc;

use mitra_verbs::{
    Access, AhId, Buffer, CqId, Data, Gid, Mr, Provider, Psn, QpAttr, QpBuilder, QpCap, QpState, Qpn, RecvWr,
    Result, SendFlags, SendOp, SendWr, UdDestination, Wc, WcOpcode, WcStatus,
};

use super::Undo;
use crate::control_message::MAX_LEN;
use crate::domain::LocalNic;

/// The number of receives posted for control messages.
const RECVS: u32 = 32;
/// The length of the GRH that precedes the payload in a receive buffer of a UD queue pair, in bytes (`ibv_post_recv(3)`).
const GRH_LEN: usize = 40;
/// The length of a receive buffer, in bytes, rounded up to a multiple of 8.
const SLOT_LEN: usize = (GRH_LEN + MAX_LEN).next_multiple_of(8);

#[derive(Debug)]
pub(super) struct ControlQp {
    cq: CqId,
    qpn: Qpn,
    qkey: u32,
    /// The peer's control queue pair. `None` until this one is connected.
    destination: Option<UdDestination>,
    /// The receive buffers.
    memory: Arc<Buffer>,
    mr: Mr,
    ah: Option<AhId>,
}

impl ControlQp {
    /// Creates the queue pair and its receive buffers. `has_channel` says whether it reports events to the NIC's completion channel. Pushes onto `undo` the calls that destroy them.
    pub(super) fn new(
        nic: &LocalNic,
        has_channel: bool,
        qkey: u32,
        undo: &mut Vec<Undo>,
    ) -> Result<ControlQp> {
        let p = &nic.provider;
        let channel = nic.channel.as_ref().filter(|_| has_channel);
        let cq = p.create_cq(RECVS * 4, channel)?;
        undo.push(Box::new(move |p| p.destroy_cq(cq)));
        let inline = MAX_LEN as u32;
        let cap = QpCap { send_wrs: RECVS, recv_wrs: RECVS, send_sges: 1, recv_sges: 1, inline };
        let qpn = QpBuilder::ud(nic.pd, cq).cap(cap).signal_all().build(&**p)?;
        undo.push(Box::new(move |p| p.destroy_qp(qpn)));
        let memory = Arc::new(Buffer::new(SLOT_LEN * RECVS as usize));
        let mr = p.reg_mr(nic.pd, Arc::clone(&memory), Access::LOCAL_WRITE)?;
        Ok(ControlQp { cq, qpn, qkey, destination: None, memory, mr, ah: None })
    }

    pub(super) fn cq(&self) -> CqId {
        self.cq
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(super) fn qkey(&self) -> u32 {
        self.qkey
    }

    /// Moves the queue pair to RTS, posts its receives, and sets the peer's control queue pair as the destination.
    pub(super) fn connect(&mut self, nic: &LocalNic, gid: Gid, qpn: Qpn, qkey: u32) -> Result<()> {
        let p = &nic.provider;
        let init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
        p.modify_qp(self.qpn, &QpAttr { qkey: Some(self.qkey), ..init })?;
        p.modify_qp(self.qpn, &QpAttr::to(QpState::Rtr))?;
        p.modify_qp(self.qpn, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) })?;
        for slot in 0..RECVS {
            self.post_recv(&**p, u64::from(slot))?;
        }
        let ah = p.create_ah(nic.pd, gid)?;
        self.ah = Some(ah);
        self.destination = Some(UdDestination { ah, qpn, qkey });
        Ok(())
    }

    /// Sends a control message, as a solicited event if `wakes` is set. The message is lost if the queue is full or the NIC has failed, as it may be lost in the network. The
    /// negotiation repeats the messages that need an answer.
    pub(super) fn send(&self, p: &dyn Provider, bytes: &[u8], wakes: bool) {
        let Some(destination) = self.destination else { return };
        let mut wr = SendWr::new(u64::MAX, SendOp::Send, Data::inline(bytes)).to(destination);
        wr.flags.set(SendFlags::SOLICITED, wakes);
        let _ = p.post_send(self.qpn, &[wr]);
    }

    /// Passes each received datagram to `handle` and posts its buffer again. `wcs` is a buffer for completions; its contents are replaced.
    pub(super) fn poll(
        &self,
        p: &dyn Provider,
        wcs: &mut Vec<Wc>,
        mut handle: impl FnMut(&[u8]),
    ) -> Result<()> {
        wcs.clear();
        // The queue holds at most a completion of each receive and of each send.
        p.poll_cq(self.cq, 2 * RECVS as usize, wcs)?;
        for wc in wcs.iter() {
            if wc.opcode != WcOpcode::Recv || wc.status != WcStatus::Success {
                continue;
            }
            let len = (wc.byte_len as usize).saturating_sub(GRH_LEN).min(MAX_LEN);
            let mut bytes = [0; MAX_LEN];
            self.memory.read_at(wc.wr_id as usize * SLOT_LEN + GRH_LEN, &mut bytes[..len]);
            handle(&bytes[..len]);
            self.post_recv(p, wc.wr_id)?;
        }
        Ok(())
    }

    fn post_recv(&self, p: &dyn Provider, slot: u64) -> Result<()> {
        let sge = self.mr.sge(slot * SLOT_LEN as u64, (GRH_LEN + MAX_LEN) as u32);
        p.post_recv(self.qpn, &[RecvWr::new(slot, sge)]).map_err(|e| e.error)
    }

    /// Returns the calls that destroy the queue pair and its other objects on the NIC, in order.
    pub(super) fn destroy_steps(&self) -> [Undo; 4] {
        let (qpn, cq, ah, mr) = (self.qpn, self.cq, self.ah, self.mr.id);
        [
            Box::new(move |p| p.destroy_qp(qpn)),
            Box::new(move |p| p.destroy_cq(cq)),
            Box::new(move |p| ah.map_or(Ok(()), |ah| p.destroy_ah(ah))),
            Box::new(move |p| p.dereg_mr(mr)),
        ]
    }
}
