//! The CPU time of operations between two NICs that one thread drives: no second CPU and no
//! waiting. `floor` measures datagrams of similar size over bare UDP sockets. The program is meant
//! for instruction counts (`valgrind --tool=callgrind`) and for busy machines.
//!
//! `cargo run --release -p mitra-softnic --example single_thread_bench [ITERATIONS] [KIND...]`

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Instant;

use mitra_softnic::{Config, SoftNic};
use mitra_verbs::*;

struct Endpoint {
    nic: Arc<SoftNic>,
    cq: CqId,
    qp: Qpn,
    memory: Arc<Buffer>,
    mr: Mr,
}

impl Endpoint {
    fn new() -> Endpoint {
        let nic = SoftNic::open(Config::loopback()).unwrap();
        let memory = Arc::new(Buffer::new(4 << 20));
        let pd = nic.alloc_pd().unwrap();
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let cq = nic.create_cq(1024, None).unwrap();
        let qp = QpBuilder::rc(pd, cq).build(&*nic).unwrap();
        Endpoint { nic, cq, qp, memory, mr }
    }

    fn connect_to(&self, peer: &Endpoint) {
        let connection = RcConnection {
            path_mtu: Mtu::M4096,
            rd_atomic: 16,
            local_ack_timeout: LocalAckTimeout::from_code(16),
            ..RcConnection::to(peer.nic.query_port().unwrap().gid, peer.qp)
        };
        connection.connect(&*self.nic, self.qp).unwrap();
    }

    fn poll(&self, wcs: &mut Vec<Wc>) -> usize {
        wcs.clear();
        let count = self.nic.poll_cq(self.cq, 16, wcs).unwrap();
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success));
        count
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let iterations: usize = args.first().and_then(|a| a.parse().ok()).unwrap_or(20_000);
    let (a, b) = (Endpoint::new(), Endpoint::new());
    a.connect_to(&b);
    b.connect_to(&a);
    let sockets = [0, 1].map(|_| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    });
    sockets[0].connect(sockets[1].local_addr().unwrap()).unwrap();
    sockets[1].connect(sockets[0].local_addr().unwrap()).unwrap();
    let kinds = ["floor", "empty_poll", "write", "send", "write_cqe", "read", "faa", "write_64k", "read_64k"];
    let mut wcs = Vec::with_capacity(16);
    for kind in kinds {
        if args.len() > 1 && !args[1..].iter().any(|k| k == kind) {
            continue;
        }
        let n = if kind.ends_with("64k") { iterations / 20 } else { iterations };
        let mut nanos: Vec<u64> = Vec::with_capacity(n);
        for i in 0..n as u64 {
            let started = Instant::now();
            run_once(kind, i + 1, &a, &b, &sockets, &mut wcs);
            nanos.push(started.elapsed().as_nanos() as u64);
        }
        nanos.sort_unstable();
        let at = |q: f64| nanos[((n - 1) as f64 * q) as usize];
        println!("{kind:10} ns: min {:6}  p10 {:6}  median {:6}", at(0.0), at(0.1), at(0.5));
    }
}

/// Runs one operation and waits for it. `floor`, `write` and `send` run once in each direction.
fn run_once(kind: &str, i: u64, a: &Endpoint, b: &Endpoint, sockets: &[UdpSocket; 2], wcs: &mut Vec<Wc>) {
    let signaled = if i.is_multiple_of(64) { SendFlags::SIGNALED } else { SendFlags::empty() };
    let post = |from: &Endpoint, op, data| {
        from.nic.post_send(from.qp, &[SendWr::new(i, op, data).with_flags(signaled)]).unwrap();
    };
    match kind {
        "floor" => {
            let mut buffer = [0; 64];
            for (from, to) in [(0, 1), (1, 0)] {
                sockets[from].send(&[0; 44]).unwrap();
                while sockets[to].recv(&mut buffer).is_err() {}
            }
        }
        "empty_poll" => {
            a.poll(wcs);
        }
        "write" => {
            for (from, to) in [(a, b), (b, a)] {
                post(from, SendOp::Write(to.mr.remote(0)), Data::inline(&i.to_ne_bytes()));
                while to.memory.load(0) != i {
                    to.poll(wcs);
                }
            }
        }
        "send" => {
            for (from, to) in [(a, b), (b, a)] {
                to.nic.post_recv(to.qp, &[RecvWr::new(7, to.mr.sge(0, 8))]).unwrap();
                post(from, SendOp::Send, Data::inline(&i.to_ne_bytes()));
                while !(to.poll(wcs) > 0 && wcs.iter().any(|wc| wc.wr_id == 7)) {}
            }
        }
        _ => {
            let len = if kind.ends_with("64k") { 65536 } else { 8 };
            let remote = b.mr.remote(65536);
            let op = match kind {
                "faa" => SendOp::FetchAdd { remote, add: 1 },
                "read" | "read_64k" => SendOp::Read(remote),
                _ => SendOp::Write(remote),
            };
            a.nic.post_send(a.qp, &[SendWr::new(i, op, Data::sge(a.mr.sge(131072, len)))]).unwrap();
            let mut other = Vec::new();
            while a.poll(wcs) == 0 {
                b.poll(&mut other);
            }
        }
    }
}
