//! Measures the speed of the state machine without sockets and ICRC:
//! `cargo run --release -p mitra-transport --example state_machine_speed`.
//!
//! Two NICs run in one thread. For each operation, the program prints the time in nanoseconds from
//! post to completion, with one and with many requests outstanding. For large WRITEs and READs, the
//! program also prints the throughput. Both figures include the work of both ends.

use std::time::Instant;

use mitra_transport::{Nic, NicConfig, TxBatch, VecMemory};
use mitra_verbs::{
    Access, CqId, Data, Gid, Mr, Mtu, QpCap, QpInitAttr, QpType, Qpn, RcConnection, RegionId, SendOp, SendWr,
    Time, Wc,
};
use mitra_wire::{ICRC_LEN, Packet};

struct Endpoint {
    nic: Nic,
    memory: VecMemory,
    gid: Gid,
    cq: CqId,
    qp: Qpn,
    mr: Mr,
}

const SIZE: usize = 1 << 20;

fn endpoint(i: u8) -> mitra_verbs::Result<Endpoint> {
    let gid = Gid::from(std::net::IpAddr::from([127, 0, 0, i]));
    let mut nic = Nic::new(NicConfig::new("speed", gid, [i; 32]));
    let pd = nic.alloc_pd()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let mr = nic.reg_mr(Time::ZERO, pd, RegionId(0), 0, SIZE as u64, access)?;
    let cq = nic.create_cq(4096)?;
    let cap = QpCap { send_wrs: 1024, ..QpCap::default() };
    let init =
        QpInitAttr { qp_type: QpType::Rc, pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
    let qp = nic.create_qp(Time::ZERO, &init)?;
    Ok(Endpoint { nic, memory: VecMemory(vec![vec![0; SIZE]]), gid, cq, qp, mr })
}

fn connect(a: &mut Endpoint, b: &Endpoint) -> mitra_verbs::Result<()> {
    let connection = RcConnection { path_mtu: Mtu::M4096, rd_atomic: 16, ..RcConnection::to(b.gid, b.qp) };
    [connection.init(), connection.rtr(), connection.rts()]
        .iter()
        .try_for_each(|attr| a.nic.modify_qp(Time::ZERO, a.qp, attr))
}

/// Returns the number of delivered packets.
fn deliver(from: &mut Endpoint, to: &mut Endpoint, now: Time, batch: &mut TxBatch) -> usize {
    let mut n = 0;
    while from.nic.poll_transmit(now, &mut from.memory, batch) {
        for datagram in batch.datagrams() {
            n += 1;
            if let Ok(packet) = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]) {
                to.nic.handle_packet(now, from.gid, &packet, &mut to.memory);
            }
        }
    }
    n
}

fn measure(name: &str, op: impl Fn(&Mr) -> SendOp, data: &Data, at_once: usize, total: usize) {
    let (mut a, mut b) = (
        endpoint(1).expect("the objects are within the limits"),
        endpoint(2).expect("the objects are within the limits"),
    );
    connect(&mut a, &b).and_then(|()| connect(&mut b, &a)).expect("the attributes are valid");
    let wrs: Vec<SendWr> = (0..at_once).map(|i| SendWr::new(i as u64, op(&b.mr), data.clone())).collect();
    let (mut batch, mut done) = (TxBatch::new(), Vec::<Wc>::new());
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        let (mut completed, mut rounds) = (0, 0);
        while completed < total {
            rounds += 1;
            let now = Time::from_nanos(rounds * 10_000);
            a.nic.post_send(now, a.qp, &wrs).expect("the send queue has room");
            let mut left = at_once;
            while left > 0 {
                while deliver(&mut a, &mut b, now, &mut batch) + deliver(&mut b, &mut a, now, &mut batch) > 0
                {
                }
                b.nic.handle_idle(now);
                deliver(&mut b, &mut a, now, &mut batch);
                left -= a.nic.poll_cq(a.cq, usize::MAX, &mut done).expect("the completion queue exists");
                done.clear();
            }
            if a.nic.poll_timeout().is_some_and(|t| t <= now) {
                a.nic.handle_timeout(now);
            }
            if b.nic.poll_timeout().is_some_and(|t| t <= now) {
                b.nic.handle_timeout(now);
            }
            completed += at_once;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / completed as f64);
    }
    let rate = data.len() as f64 / best;
    println!("{name:<28} {at_once:>4} at once  {best:>9.1} ns each  {rate:>6.2} GB/s");
}

fn main() {
    let key = endpoint(1).expect("the objects are within the limits").mr.lkey;
    let bytes = |len| Data::sge(mitra_verbs::Sge { addr: 0, len, key });
    let write = |mr: &Mr| SendOp::Write(mr.remote(4096));
    for at_once in [1, 16, 256] {
        measure("WRITE 8 B inline", write, &Data::inline(&[7; 8]), at_once, 1 << 18);
        measure("READ 8 B", |mr| SendOp::Read(mr.remote(0)), &bytes(8), at_once, 1 << 18);
        let faa = |mr: &Mr| SendOp::FetchAdd { remote: mr.remote(0), add: 1 };
        measure("FETCH AND ADD", faa, &bytes(8), at_once, 1 << 18);
    }
    for len in [4096, 65536, 1 << 19] {
        measure(&format!("WRITE {len} B"), write, &bytes(len), 16, (1 << 31) / len as usize);
        measure(
            &format!("READ {len} B"),
            |mr| SendOp::Read(mr.remote(0)),
            &bytes(len),
            16,
            (1 << 31) / len as usize,
        );
    }
}
