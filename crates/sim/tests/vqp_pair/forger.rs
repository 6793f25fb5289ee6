use std::sync::Arc;

use mitra_verbs::{
    CqId, Data, Gid, Provider, Psn, QpAttr, QpCap, QpInitAttr, QpState, QpType, Qpn, SendFlags, SendOp,
    SendWr, UdDestination,
};

use super::VqpPair;

/// An attacker on the first host. It knows the second end's cookie, and the address of that end's
/// control queue pair on rail 0.
pub struct Forger {
    nic: Arc<dyn Provider>,
    qpn: Qpn,
    cq: CqId,
    destination: UdDestination,
    cookie: u64,
}

impl Forger {
    pub fn new(pair: &VqpPair) -> Forger {
        let nic = Arc::clone(&pair.testbed.nics[0][0]) as Arc<dyn Provider>;
        let pd = nic.alloc_pd().expect("a free protection domain");
        let cq = nic.create_cq(64, None).expect("a free completion queue");
        let cap = QpCap { send_wrs: 64, recv_wrs: 1, inline: 256, ..QpCap::default() };
        let qp_type = QpType::Ud;
        let init = QpInitAttr { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
        let qpn = nic.create_qp(&init).expect("a free queue pair");
        // The encoded `ConnectInfo` begins with the magic MVQ2 (4 bytes), the cookie (8 bytes) and
        // 4 other bytes. Then it contains for each rail the GID (16 bytes), the MTU (2 bytes) and
        // four 4-byte numbers: queue pair, PSN, control queue pair, Q_Key.
        let info = pair.vqps[1].local_info().encode();
        let word = |at: usize| u32::from_le_bytes(info[at..at + 4].try_into().unwrap());
        let gid = Gid(info[16..32].try_into().unwrap());
        let (control, qkey) = (Qpn::new(word(42)), word(46));
        let to_init =
            QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(qkey), ..QpAttr::to(QpState::Init) };
        let to_rts = QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) };
        for attr in [to_init, QpAttr::to(QpState::Rtr), to_rts] {
            nic.modify_qp(qpn, &attr).expect("the transition is valid");
        }
        let ah = nic.create_ah(pd, gid).expect("a free address handle");
        let cookie = u64::from_le_bytes(info[4..12].try_into().unwrap());
        Forger { nic, qpn, cq, destination: UdDestination { ah, qpn: control, qkey }, cookie }
    }

    pub fn send(&self, bytes: &[u8]) {
        let flags = SendFlags::SIGNALED;
        let wr = SendWr::new(0, SendOp::Send, Data::inline(bytes)).to(self.destination).with_flags(flags);
        self.nic.post_send(self.qpn, &[wr]).expect("the send queue has room");
        self.nic.poll_cq(self.cq, 64, &mut Vec::new()).expect("the NIC is alive");
    }

    /// Encodes a control message with the correct cookie. `kind` is the number of its type.
    pub fn encode(&self, kind: u8, epoch: u16, proposer: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![5, kind, 0, 0];
        out.extend_from_slice(&self.cookie.to_le_bytes());
        out.extend_from_slice(&epoch.to_le_bytes());
        out.push(proposer);
        out.extend_from_slice(body);
        out
    }
}
