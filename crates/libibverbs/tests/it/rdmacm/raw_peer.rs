//! A NIC without a connection manager, whose queue pair 1 sends what the test wants.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mitra_softnic::{Config, SoftNic};
use mitra_verbs::{
    Access, Buffer, CqId, Data, GRH_LEN, GSI_QKEY, Gid, Mr, PdId, Provider, Psn, QpAttr, QpCap, QpInitAttr,
    QpState, QpType, Qpn, RecvWr, SendOp, SendWr, UdDestination,
};

use crate::cm_wrapper::*;

/// The length of a management datagram.
pub const DATAGRAM: usize = 256;
/// The number of receives that are posted, and of sends in flight.
const SLOTS: usize = 64;
const SLOT: usize = 1024;

/// Returns the answer of a listening port whose device has queue pair 1, and no socket: it has a
/// loopback address.
pub fn answer_of(device: Gid) -> Vec<u8> {
    [&b"MiCM\x03"[..], &device.0, &[1, 0, 0]].concat()
}

pub struct RawPeer {
    nic: Arc<SoftNic>,
    pd: PdId,
    cqs: [CqId; 2],
    memory: Arc<Buffer>,
    mr: Mr,
}

impl RawPeer {
    pub fn new() -> Self {
        Self::with(Config::loopback())
    }

    /// A NIC that writes its packets to a pcap file.
    pub fn captured(file: PathBuf) -> Self {
        Self::with(Config { capture: Some(file), ..Config::loopback() })
    }

    fn with(config: Config) -> Self {
        let nic = SoftNic::open(config).expect("loopback NICs can be opened");
        let pd = nic.alloc_pd().expect("within the limits");
        let cqs = [(); 2].map(|()| nic.create_cq(SLOTS as u32, None).expect("within the limits"));
        let [send_cq, recv_cq] = cqs;
        let wrs = SLOTS as u32;
        let cap = QpCap { send_wrs: wrs, recv_wrs: wrs, send_sges: 1, recv_sges: 1, inline: 0 };
        let init =
            QpInitAttr { qp_type: QpType::Gsi, pd, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
        let qpn = nic.create_qp(&init).expect("queue pair 1 is free");
        let to_init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
        for attr in [
            QpAttr { qkey: Some(GSI_QKEY), ..to_init },
            QpAttr::to(QpState::Rtr),
            QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) },
        ] {
            nic.modify_qp(qpn, &attr).expect("the transition is allowed");
        }
        let memory = Arc::new(Buffer::new(2 * SLOTS * SLOT));
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE).expect("the memory exists");
        let peer = Self { nic, pd, cqs, memory, mr };
        (0..SLOTS).for_each(|slot| peer.post_receive(slot));
        peer
    }

    fn post_receive(&self, slot: usize) {
        let receive = RecvWr::new(slot as u64, self.mr.sge((slot * SLOT) as u64, SLOT as u32));
        self.nic.post_recv(Qpn::new(1), &[receive]).map_err(|e| e.error).expect("the queue has room");
    }

    pub fn gid(&self) -> Gid {
        self.nic.query_port().expect("the NIC is alive").gid
    }

    /// Sends a datagram to queue pair 1, and waits until the NIC has sent it.
    pub fn send(&self, to: Gid, bytes: &[u8]) {
        let ah = self.nic.create_ah(self.pd, to).expect("within the limits");
        let at = SLOTS * SLOT;
        self.memory.write_at(at, bytes);
        let data = Data::sge(self.mr.sge(at as u64, bytes.len() as u32));
        let destination = UdDestination { ah, qpn: Qpn::new(1), qkey: GSI_QKEY };
        let send = SendWr::new(0, SendOp::Send, data).to(destination);
        self.nic.post_send(Qpn::new(1), &[send]).map_err(|e| e.error).expect("the queue has room");
        self.complete(self.cqs[0]);
        self.nic.destroy_ah(ah).expect("the handle exists");
    }

    /// Returns the next datagram.
    pub fn receive(&self) -> Vec<u8> {
        let slot = self.complete(self.cqs[1]) as usize;
        let mut bytes = vec![0; GRH_LEN + DATAGRAM];
        self.memory.read_at(slot * SLOT, &mut bytes);
        self.post_receive(slot);
        bytes.split_off(GRH_LEN)
    }

    /// Returns the next datagram with this attribute, for example 0x10 for a REQ. Drops others.
    pub fn receive_kind(&self, attribute: u8) -> Vec<u8> {
        loop {
            let datagram = self.receive();
            if datagram[17] == attribute {
                return datagram;
            }
        }
    }

    fn complete(&self, cq: CqId) -> u64 {
        let (started, mut completions) = (Instant::now(), Vec::new());
        while completions.is_empty() {
            assert!(started.elapsed() < Duration::from_secs(20), "nothing completes");
            self.nic.poll_cq(cq, 1, &mut completions).expect("the NIC is alive");
            thread::sleep(Duration::from_micros(100));
        }
        completions[0].wr_id
    }

    /// Listens at a free port in the place of a program with this device. Answers each question
    /// with `answer`. Returns the RDMA port number.
    pub fn listen(answer: Vec<u8>) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("the socket is bound").port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = stream.and_then(|mut stream| stream.write_all(&answer));
            }
        });
        socket_port(port)
    }

    pub fn listen_as_itself(&self) -> u16 {
        Self::listen(answer_of(self.gid()))
    }
}

/// The GID of the device of this process.
pub fn own_gid(id: Id) -> Gid {
    // SAFETY: the identifier is live, and its address is resolved.
    Gid(unsafe { (*id.0).route.addr.addr.ibaddr.sgid.raw })
}

/// A REQ for a port of this process, with the communication id `sender`.
pub fn request(sender: u32, port: u16, peer: Gid) -> Vec<u8> {
    let mut datagram = vec![0; DATAGRAM];
    datagram[..4].copy_from_slice(&[1, 7, 2, 3]);
    datagram[17] = 0x10;
    let body = &mut datagram[24..];
    body[..4].copy_from_slice(&sender.to_be_bytes());
    body[8..16].copy_from_slice(&(0x106_0000 | u64::from(port)).to_be_bytes());
    body[35] = 1;
    body[39] = 1;
    body[50] = 3 << 4 | 7; // path MTU, RNR retry count
    body[56..72].copy_from_slice(&peer.0);
    body[141] = 0x40; // IPv4
    body[156..160].copy_from_slice(&[127, 0, 0, 1]);
    body[172..176].copy_from_slice(&[127, 0, 0, 1]);
    datagram
}

/// A message about a connection: its attribute and the communication ids of sender and receiver.
pub fn message(attribute: u8, sender: [u8; 4], receiver: [u8; 4]) -> Vec<u8> {
    let mut datagram = vec![0; DATAGRAM];
    datagram[..4].copy_from_slice(&[1, 7, 2, 3]);
    datagram[17] = attribute;
    datagram[24..28].copy_from_slice(&sender);
    datagram[28..32].copy_from_slice(&receiver);
    datagram
}

pub fn sender_of(datagram: &[u8]) -> [u8; 4] {
    *datagram[24..].first_chunk().expect("a datagram has 256 bytes")
}
