//! Connects two software NICs and writes from one memory to the other, with direct calls of the
//! verbs.
//!
//! Run with `cargo run --example write`.

use std::sync::Arc;

use mitra::softnic::{Config, SoftNic};
use mitra::verbs::{
    Access, Buffer, CqId, Data, Gid, Mr, PdId, Provider, QpBuilder, Qpn, RcConnection, SendOp, SendWr,
    WcStatus,
};

/// One end of the connection.
struct End {
    nic: Arc<SoftNic>,
    cq: CqId,
    qpn: Qpn,
    memory: Arc<Buffer>,
    mr: Mr,
}

impl End {
    /// Opens a NIC at a free loopback address and registers 4 KiB of memory that the peer may
    /// write.
    fn open() -> Result<End, Box<dyn std::error::Error>> {
        let nic = SoftNic::open(Config::loopback())?;
        let pd: PdId = nic.alloc_pd()?;
        let memory = Arc::new(Buffer::new(4096));
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let cq = nic.create_cq(16, None)?;
        let qpn = QpBuilder::rc(pd, cq).build(&*nic)?;
        Ok(End { nic, cq, qpn, memory, mr })
    }

    /// Takes the queue pair from RESET through INIT and RTR to RTS. If the ends are on different
    /// machines, they exchange address, queue pair number and first PSN over a socket.
    fn connect(&self, peer_gid: Gid, peer_qpn: Qpn) -> mitra::verbs::Result<()> {
        let path_mtu = self.nic.query_port()?.max_mtu;
        let connection = RcConnection { path_mtu, ..RcConnection::to(peer_gid, peer_qpn) };
        connection.connect(&*self.nic, self.qpn)
    }
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (a, b) = (End::open()?, End::open()?);
    a.connect(b.nic.query_port()?.gid, b.qpn)?;
    b.connect(a.nic.query_port()?.gid, a.qpn)?;

    let text = b"RDMA that keeps its word";
    a.memory.write_at(0, text);
    let wr = SendWr::new(7, SendOp::Write(b.mr.remote(64)), Data::sge(a.mr.sge(0, text.len() as u32)));
    a.nic.post_send(a.qpn, &[wr])?;

    let mut completions = Vec::new();
    while a.nic.poll_cq(a.cq, 1, &mut completions)? == 0 {}
    assert_eq!((completions[0].wr_id, completions[0].status), (7, WcStatus::Success));

    let mut arrived = vec![0; text.len()];
    b.memory.read_at(64, &mut arrived);
    println!("{} wrote to {}: {}", a.nic.attr().name, b.nic.attr().name, String::from_utf8(arrived)?);
    Ok(())
}
