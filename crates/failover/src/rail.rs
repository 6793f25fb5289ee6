//! One rail at one end: its RC queue pair for operations and its UD queue pair for control messages.

use std::sync::Arc;

use mitra_verbs::{
    Access, AhId, Buffer, CqId, Data, Error, Mr, Mtu, PostError, Provider, Psn, QpAttr, QpCap, QpInitAttr,
    QpState, QpType, Qpn, RcConnection, RecvWr, Result, SendOp, SendWr, Time, UdDestination, Wc, WcOpcode,
    WcStatus,
};

use crate::ballot::Ballot;
use crate::config::Config;
use crate::connect::RailInfo;
use crate::domain::LocalNic;
use crate::message::MAX_LEN;

/// What a request may be made of. Depths are the configuration's.
pub(crate) const WIDTH: QpCap = QpCap { send_wrs: 0, recv_wrs: 0, send_sges: 16, recv_sges: 16, inline: 256 };

/// Slots of a send queue for each quarter that completes late, so that the ledger's depth is the limit.
pub(crate) const SPARE: u32 = 8;
/// Control messages that may wait to be read.
const CONTROL_RECVS: u32 = 32;
/// Bytes in front of a UD payload (the GRH: `ibv_post_recv(3)`).
const GRH: usize = 40;
const SLOT: usize = GRH + MAX_LEN + 8 - (GRH + MAX_LEN) % 8;

#[derive(Debug)]
pub(crate) struct Rail {
    nic: LocalNic,
    pub(crate) cq: CqId,
    pub(crate) qpn: Qpn,
    /// PSN of the first packet that this end sends.
    pub(crate) first_psn: Psn,
    /// What it was made for, if it is not the first queue pair of this rail.
    pub(crate) renewal: Option<Renewal>,
    /// The first queue pair, once it is replaced: kept in RESET if others know the virtual queue pair by its number, so that the
    /// NIC gives the number to no other.
    first: Option<(Qpn, CqId)>,
    /// The queue pair is its heir's, who took its number over.
    is_bequeathed: bool,
    /// Whether its queue pair sends, beside receiving.
    sends: bool,
    control: Control,
    /// When a control message came last.
    pub(crate) heard: Time,
    /// Its other end, once connected.
    peer: Option<(RailInfo, Mtu)>,
}

/// A queue pair that replaces one that was fenced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    /// The ballot by which the rail was left.
    pub(crate) left: Ballot,
    /// Whether it is connected to the peer's.
    pub(crate) connected: bool,
}

#[derive(Debug)]
struct Control {
    cq: CqId,
    qpn: Qpn,
    qkey: u32,
    peer: Option<UdDestination>,
    memory: Arc<Buffer>,
    mr: Mr,
    ah: Option<AhId>,
}

/// Takes back one thing that was made on a NIC.
type Undo = Box<dyn Fn(&dyn Provider) -> Result<()>>;

impl Rail {
    /// Makes the queue pairs. `secret` seeds what must not be guessed: the first PSN and the Q_Key.
    pub(crate) fn new(nic: &LocalNic, config: &Config, secret: u64) -> Result<Rail> {
        let mut undo = Vec::new();
        let made = Rail::make(nic, config, secret, &mut undo);
        if made.is_err() {
            for step in undo.iter().rev() {
                let _ = step(&*nic.provider); // best effort: the first error is the one to tell
            }
        }
        made
    }

    fn make(nic: &LocalNic, config: &Config, secret: u64, undo: &mut Vec<Undo>) -> Result<Rail> {
        let p = &nic.provider;
        let (cq, qpn) = queue_pair(nic, config)?;
        undo.push(Box::new(move |p| p.destroy_cq(cq)));
        undo.push(Box::new(move |p| p.destroy_qp(qpn)));
        let control_cq = p.create_cq(CONTROL_RECVS * 4, None)?;
        undo.push(Box::new(move |p| p.destroy_cq(control_cq)));
        let control_qpn = p.create_qp(&QpInitAttr {
            qp_type: QpType::Ud,
            pd: nic.pd,
            send_cq: control_cq,
            recv_cq: control_cq,
            srq: None,
            cap: QpCap {
                send_wrs: CONTROL_RECVS,
                recv_wrs: CONTROL_RECVS,
                send_sges: 1,
                recv_sges: 1,
                inline: MAX_LEN as u32,
            },
            sq_sig_all: true,
        })?;
        undo.push(Box::new(move |p| p.destroy_qp(control_qpn)));
        let memory = Arc::new(Buffer::new(SLOT * CONTROL_RECVS as usize));
        let mr = p.reg_mr(nic.pd, Arc::clone(&memory), Access::LOCAL_WRITE)?;
        let qkey = (secret >> 33) as u32;
        let control = Control { cq: control_cq, qpn: control_qpn, qkey, peer: None, memory, mr, ah: None };
        let first_psn = Psn::new(secret as u32);
        let (nic, heard) = (nic.clone(), Time::ZERO);
        let (renewal, first, peer) = (None, None, None);
        let (sends, is_bequeathed) = (false, false);
        Ok(Rail { nic, cq, qpn, first_psn, renewal, first, is_bequeathed, sends, control, heard, peer })
    }

    pub(crate) fn info(&self) -> Result<RailInfo> {
        let port = self.nic.provider.query_port()?;
        Ok(RailInfo {
            gid: port.gid,
            mtu: port.max_mtu,
            qpn: self.qpn,
            psn: self.first_psn,
            control_qpn: self.control.qpn,
            qkey: self.control.qkey,
            placed_acks: self.nic.provider.attr().capabilities.ack_after_placement,
        })
    }

    pub(crate) fn connect(&mut self, peer: &RailInfo, mtu: Mtu, config: &Config) -> Result<()> {
        let p = &self.nic.provider;
        let init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
        p.modify_qp(self.control.qpn, &QpAttr { qkey: Some(self.control.qkey), ..init })?;
        p.modify_qp(self.control.qpn, &QpAttr::to(QpState::Rtr))?;
        p.modify_qp(self.control.qpn, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) })?;
        for slot in 0..CONTROL_RECVS {
            self.post_control_recv(u64::from(slot))?;
        }
        let ah = p.create_ah(self.nic.pd, peer.gid)?;
        self.control.ah = Some(ah);
        self.control.peer = Some(UdDestination { ah, qpn: peer.control_qpn, qkey: peer.qkey });
        self.peer = Some((*peer, mtu));
        self.arm(config)
    }

    /// Replaces the queue pair, which was fenced and left by this ballot: what comes late for it finds nobody. The new one has
    /// another number and other PSNs. `keep` the number of the old one.
    pub(crate) fn renew(&mut self, config: &Config, left: Ballot, secret: u64, keep: bool) -> Result<()> {
        let (cq, qpn) = queue_pair(&self.nic, config)?;
        let (old, p) = ((self.qpn, self.cq), &self.nic.provider);
        let retired = if keep {
            p.modify_qp(old.0, &QpAttr::to(QpState::Reset))
        } else {
            p.destroy_qp(old.0).and_then(|()| p.destroy_cq(old.1))
        };
        if let Err(error) = retired {
            let _ = p.destroy_qp(qpn).and_then(|()| p.destroy_cq(cq)); // best effort: the first error is the one to tell
            return Err(error);
        }
        if keep {
            self.first = Some(old);
        }
        (self.cq, self.qpn, self.first_psn) = (cq, qpn, Psn::new(secret as u32));
        self.renewal = Some(Renewal { left, connected: false });
        Ok(())
    }

    /// Gives the number of its first queue pair to the heir of the virtual queue pair, which has been shut down.
    pub(crate) fn bequeath(&mut self, heir: &mut Rail) -> Result<()> {
        if self.first.is_none() {
            self.nic.provider.modify_qp(self.qpn, &QpAttr::to(QpState::Reset))?;
            self.is_bequeathed = true;
        }
        heir.first = Some(self.first.take().unwrap_or((self.qpn, self.cq)));
        Ok(())
    }

    /// Connects the new queue pair to the peer's.
    pub(crate) fn reconnect(&mut self, qpn: Qpn, psn: Psn, config: &Config) -> Result<()> {
        if let Some((peer, _)) = &mut self.peer {
            (peer.qpn, peer.psn) = (qpn, psn);
        }
        self.arm(config)?;
        if let Some(renewal) = &mut self.renewal {
            renewal.connected = true;
        }
        Ok(())
    }

    /// Takes back every receive that was posted, without a word. Only for a queue pair that nothing was ever sent over: a
    /// ballot named its rail, and was refused.
    pub(crate) fn rearm(&self, config: &Config) -> Result<()> {
        self.nic.provider.modify_qp(self.qpn, &QpAttr::to(QpState::Reset))?;
        self.arm(config)
    }

    fn arm(&self, config: &Config) -> Result<()> {
        let Some((peer, mtu)) = self.peer else { return Ok(()) };
        let connection = self.connection(peer, mtu, config);
        self.nic.provider.modify_qp(self.qpn, &connection.init())?;
        self.nic.provider.modify_qp(self.qpn, &connection.rtr())?;
        if self.sends { self.to_rts(config) } else { Ok(()) }
    }

    /// From here on its queue pair sends too. (One that was fenced does not; the next will.)
    pub(crate) fn start(&mut self, config: &Config) -> Result<()> {
        self.sends = true;
        match self.nic.provider.query_qp(self.qpn) {
            Ok(status) if status.state == QpState::Rtr => self.to_rts(config),
            Ok(_) | Err(Error::DeviceFatal) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn to_rts(&self, config: &Config) -> Result<()> {
        let Some((peer, mtu)) = self.peer else { return Ok(()) };
        self.nic.provider.modify_qp(self.qpn, &self.connection(peer, mtu, config).rts())
    }

    /// The attributes of the connection to the peer's queue pair.
    fn connection(&self, peer: RailInfo, path_mtu: Mtu, config: &Config) -> RcConnection {
        RcConnection {
            path_mtu,
            sq_psn: self.first_psn,
            rq_psn: peer.psn,
            rd_atomic: config.rd_atomic,
            min_rnr_timer: config.min_rnr_timer,
            local_ack_timeout: config.detector.local_ack_timeout,
            retry_cnt: config.detector.retry_cnt,
            rnr_retry: config.rnr_retry,
            ..RcConnection::to(peer.gid, peer.qpn)
        }
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        &*self.nic.provider
    }

    /// Posts to the RC queue pair.
    pub(crate) fn post(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        self.nic.provider.post_send(self.qpn, wrs)
    }

    /// Sends a control message; a full queue or a failed NIC loses it, as the wire may.
    pub(crate) fn send_control(&self, bytes: &[u8]) {
        let Some(peer) = self.control.peer else { return };
        let wr = SendWr::new(u64::MAX, SendOp::Send, Data::inline(bytes)).to(peer);
        let _ = self.nic.provider.post_send(self.control.qpn, &[wr]); // a lost control message is sent again
    }

    /// Takes the control messages that arrived.
    pub(crate) fn poll_control(&self, wcs: &mut Vec<Wc>, mut message: impl FnMut(&[u8])) -> Result<bool> {
        wcs.clear();
        self.nic.provider.poll_cq(self.control.cq, CONTROL_RECVS as usize, wcs)?;
        let mut any = false;
        for wc in wcs.iter() {
            if wc.opcode != WcOpcode::Recv || wc.status != WcStatus::Success {
                continue;
            }
            any = true;
            let len = (wc.byte_len as usize).saturating_sub(GRH).min(MAX_LEN);
            let mut bytes = [0; MAX_LEN];
            self.control.memory.read_at(wc.wr_id as usize * SLOT + GRH, &mut bytes[..len]);
            message(&bytes[..len]);
            self.post_control_recv(wc.wr_id)?;
        }
        Ok(any)
    }

    fn post_control_recv(&self, slot: u64) -> Result<()> {
        let sge = self.control.mr.sge(slot * SLOT as u64, (GRH + MAX_LEN) as u32);
        self.nic.provider.post_recv(self.control.qpn, &[RecvWr::new(slot, sge)]).map_err(|e| e.error)
    }

    /// Removes everything from the NIC; a NIC that is dead has nothing left to remove.
    pub(crate) fn destroy(&self) -> Result<()> {
        let p = &self.nic.provider;
        let steps: [&dyn Fn() -> Result<()>; 8] = [
            &|| if self.is_bequeathed { Ok(()) } else { p.destroy_qp(self.qpn) },
            &|| if self.is_bequeathed { Ok(()) } else { p.destroy_cq(self.cq) },
            &|| self.first.map_or(Ok(()), |(qpn, _)| p.destroy_qp(qpn)),
            &|| self.first.map_or(Ok(()), |(_, cq)| p.destroy_cq(cq)),
            &|| p.destroy_qp(self.control.qpn),
            &|| p.destroy_cq(self.control.cq),
            &|| self.control.ah.map_or(Ok(()), |ah| p.destroy_ah(ah)),
            &|| p.dereg_mr(self.control.mr.id),
        ];
        let mut first = Ok(());
        for step in steps {
            match step() {
                Ok(()) | Err(Error::DeviceFatal) => {}
                Err(e) if first.is_ok() => first = Err(e),
                Err(_) => {}
            }
        }
        first
    }
}

/// A queue pair for operations, and the queue that it completes in.
fn queue_pair(nic: &LocalNic, config: &Config) -> Result<(CqId, Qpn)> {
    let p = &nic.provider;
    let per_op = if config.completion_log { 2 } else { 1 };
    let send_wrs = config.send_wrs * per_op + SPARE;
    let cq = p.create_cq(send_wrs + config.recv_wrs + SPARE, nic.channel.as_ref())?;
    let qpn = p.create_qp(&QpInitAttr {
        qp_type: QpType::Rc,
        pd: nic.pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: QpCap { send_wrs, recv_wrs: config.recv_wrs + 1, ..WIDTH },
        sq_sig_all: false,
    });
    match qpn {
        Ok(qpn) => Ok((cq, qpn)),
        Err(error) => {
            let _ = p.destroy_cq(cq); // best effort: the first error is the one to tell
            Err(error)
        }
    }
}
