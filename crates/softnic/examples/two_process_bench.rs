//! Latency and bandwidth between the NICs of two processes, with a UDP ping-pong in the same run
//! for comparison.
//!
//! `cargo run --release -p mitra-softnic --example two_process_bench [ROUNDS] [ITERATIONS]
//! [offload=off] [passive] [KIND...]`
//!
//! Each round measures every kind once. The figures of a kind cover all rounds. `floor` is a
//! ping-pong of 40-byte datagrams with busy-polled `send_to` and `recv_from`. Each latency is also
//! printed as a multiple of the median of `floor`. `floor_again` repeats `floor`, and the ratio of
//! the two is the noise of the machine. `floor_connected` uses connected sockets, which save the
//! route lookup; a NIC with several peers cannot use them. With `passive`, the peer does not poll
//! while this process reads, writes or adds.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_softnic::{Config, Offload, SoftNic};
use mitra_verbs::{
    Access, Buffer, CqId, Data, Gid, Key, Mr, Mtu, PortAttr, Provider, QpBuilder, Qpn, RcConnection, RecvWr,
    RemoteAddr, SendFlags, SendOp, SendWr, Wc, WcStatus,
};

const LATENCY: [&str; 8] =
    ["floor", "write", "send", "write_cqe", "read", "faa", "floor_again", "floor_connected"];
const BANDWIDTH: [&str; 4] = ["bw_write_4k", "bw_write_64k", "bw_write_1m", "bw_read_64k"];
const RATE: [&str; 1] = ["rate_write_8"];
/// The offset of the word of the ping-pong in the registered memory.
const PING: u64 = 0;
/// The offset of the word that ends the peer's polling.
const STOP: u64 = 64;
/// The offset of the buffers of the bandwidth measurement.
const BULK: u64 = 4096;
const MEMORY: usize = 9 << 20;

struct Endpoint {
    nic: Arc<SoftNic>,
    cq: CqId,
    qp: Qpn,
    memory: Arc<Buffer>,
    mr: Mr,
    peer: RemoteAddr,
    udp: UdpSocket,
    udp_peer: SocketAddr,
    connected: UdpSocket,
    wcs: Vec<Wc>,
    polls: u64,
    since: Instant,
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let offload = if args.iter().any(|a| a == "offload=off") { Offload::Off } else { Offload::Auto };
    let passive = args.iter().any(|a| a == "passive");
    args.retain(|a| !a.contains('=') && a != "passive");
    if args.first().is_some_and(|a| a == "peer") {
        return peer(offload, passive);
    }
    let number = |i: usize, default| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (rounds, iterations) = (number(0, 10), number(1, 5000));
    let wanted: Vec<&str> = args.iter().filter(|a| a.parse::<u32>().is_err()).map(String::as_str).collect();
    let (mut child, mut to, mut from) = spawn(offload, passive);
    let mut endpoint = Endpoint::open(offload, &mut from, &mut to);
    let kinds: Vec<&str> = LATENCY.iter().chain(&BANDWIDTH).chain(&RATE).copied().collect();
    let chosen = |kind: &&&str| wanted.is_empty() || wanted.contains(*kind) || kind.starts_with("floor");
    let mut results: Vec<(&str, Vec<f64>)> = kinds.iter().filter(chosen).map(|&k| (k, Vec::new())).collect();
    for _ in 0..rounds {
        for (kind, samples) in &mut results {
            let bulk = !LATENCY.contains(kind);
            let n: u32 = if bulk { 0 } else { iterations };
            writeln!(to, "{kind} {n}").unwrap();
            samples.extend(endpoint.measure(kind, n));
            let mut line = String::new();
            from.read_line(&mut line).unwrap();
            assert_eq!(line.trim(), "done");
        }
    }
    drop(to);
    child.wait().unwrap();
    report(&mut results);
    let counters = endpoint.nic.counters();
    let nonzero = counters.iter().filter(|c| c.value > 0);
    println!("{}", nonzero.map(|c| format!("{}={}", c.name, c.value)).collect::<Vec<_>>().join(" "));
}

fn report(results: &mut [(&str, Vec<f64>)]) {
    let mut floor = 0.0;
    for (kind, samples) in results {
        samples.sort_by(f64::total_cmp);
        let quantile = |q: f64| samples[((samples.len() - 1) as f64 * q) as usize];
        if LATENCY.contains(kind) {
            if *kind == "floor" {
                floor = quantile(0.5);
            }
            println!(
                "{kind:14} one way, µs: min {:6.2}  p10 {:6.2}  median {:6.2}  p99 {:6.2}  p99.9 {:7.2}   {:.3} × floor",
                quantile(0.0) / 2.0,
                quantile(0.1) / 2.0,
                quantile(0.5) / 2.0,
                quantile(0.99) / 2.0,
                quantile(0.999) / 2.0,
                quantile(0.5) / floor
            );
        } else {
            let unit = if RATE.contains(kind) { "M/s" } else { "GB/s" };
            println!(
                "{kind:14} {unit}: min {:.3}  median {:.3}  max {:.3}",
                quantile(0.0),
                quantile(0.5),
                quantile(1.0)
            );
        }
    }
}

fn spawn(offload: Offload, passive: bool) -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("peer").stdin(Stdio::piped()).stdout(Stdio::piped());
    if offload == Offload::Off {
        command.arg("offload=off");
    }
    if passive {
        command.arg("passive");
    }
    let mut child = command.spawn().unwrap();
    let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    (child, to, from)
}

fn peer(offload: Offload, passive: bool) {
    let mut stdin = std::io::stdin().lock();
    let mut endpoint = Endpoint::open(offload, &mut stdin, &mut std::io::stdout());
    for line in stdin.lines() {
        let line = line.unwrap();
        let (kind, n) = line.split_once(' ').unwrap();
        endpoint.serve(kind, n.parse().unwrap(), passive);
        println!("done");
    }
}

impl Endpoint {
    /// Opens a NIC and connects it to the NIC of the other process.
    fn open(offload: Offload, from: &mut impl BufRead, to: &mut impl Write) -> Endpoint {
        let nic = SoftNic::open(Config { offload, ..Config::loopback() }).unwrap();
        let PortAttr { gid, .. } = nic.query_port().unwrap();
        let memory = Arc::new(Buffer::new(MEMORY));
        let pd = nic.alloc_pd().unwrap();
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let cq = nic.create_cq(1024, None).unwrap();
        let qp = QpBuilder::rc(pd, cq).send_wrs(256).build(&*nic).unwrap();
        let [udp, connected] = [0, 1].map(|_| {
            let socket = UdpSocket::bind((std::net::IpAddr::from(gid), 0)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        });
        let remote = mr.remote(0);
        writeln!(
            to,
            "{} {} {} {} {} {}",
            std::net::IpAddr::from(gid),
            qp.value(),
            remote.addr,
            remote.rkey.0,
            udp.local_addr().unwrap(),
            connected.local_addr().unwrap()
        )
        .unwrap();
        to.flush().unwrap();
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        let fields: Vec<&str> = line.split_whitespace().collect();
        let peer_ip: std::net::IpAddr = fields[0].parse().unwrap();
        let connection = RcConnection {
            path_mtu: Mtu::M4096,
            rd_atomic: 16,
            ..RcConnection::to(Gid::from(peer_ip), Qpn::new(fields[1].parse().unwrap()))
        };
        connection.connect(&*nic, qp).unwrap();
        let peer = RemoteAddr { addr: fields[2].parse().unwrap(), rkey: Key(fields[3].parse().unwrap()) };
        let udp_peer = fields[4].parse().unwrap();
        connected.connect(fields[5].parse::<SocketAddr>().unwrap()).unwrap();
        Endpoint {
            nic,
            cq,
            qp,
            memory,
            mr,
            peer,
            udp,
            udp_peer,
            connected,
            wcs: Vec::with_capacity(64),
            polls: 0,
            since: Instant::now(),
        }
    }

    fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.peer.addr + offset, rkey: self.peer.rkey }
    }

    fn post(&self, wr: SendWr) {
        self.nic.post_send(self.qp, &[wr]).unwrap();
    }

    fn write_word(&self, offset: u64, value: u64, flags: SendFlags) {
        let data = Data::inline(&value.to_ne_bytes());
        self.post(SendWr::new(value, SendOp::Write(self.remote(offset)), data).with_flags(flags));
    }

    /// Polls once and returns the number of completions. Panics after 20 s of polls without a
    /// completion.
    fn poll(&mut self) -> usize {
        self.polls += 1;
        if self.polls == 1 {
            self.since = Instant::now();
        }
        check_timeout(self.polls, self.since);
        self.wcs.clear();
        let count = self.nic.poll_cq(self.cq, 64, &mut self.wcs).unwrap();
        if count > 0 {
            self.polls = 0;
        }
        for wc in &self.wcs {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        }
        count
    }

    fn wait_completion(&mut self) {
        while self.poll() == 0 {
            std::hint::spin_loop();
        }
    }

    fn wait_word(&mut self, offset: u64, value: u64) {
        while self.memory.load(offset as usize) != value {
            self.poll();
        }
    }

    /// Returns one sample per round trip in µs, or one rate.
    fn measure(&mut self, kind: &str, n: u32) -> Vec<f64> {
        if let Some(operation) = kind.strip_prefix("bw_").or(kind.strip_prefix("rate_")) {
            let rate = self.stream(operation);
            self.stop();
            return vec![rate];
        }
        let mut samples = Vec::with_capacity(n as usize);
        let warm_up = 200;
        for i in 0..n + warm_up {
            let started = Instant::now();
            self.ping(kind, i);
            if i >= warm_up {
                samples.push(started.elapsed().as_nanos() as f64 / 1000.0);
            }
        }
        if matches!(kind, "read" | "faa" | "write_cqe") {
            self.stop();
        }
        samples
    }

    fn ping(&mut self, kind: &str, i: u32) {
        let word = u64::from(i) + 1;
        match kind {
            "floor_connected" => {
                self.connected.send(&[0; 40]).unwrap();
                wait_datagram(|buffer| self.connected.recv(buffer).is_ok());
            }
            "floor" | "floor_again" => {
                self.udp.send_to(&[0; 40], self.udp_peer).unwrap();
                wait_datagram(|buffer| self.udp.recv_from(buffer).is_ok());
            }
            "write" => {
                self.write_word(PING, word, every_64th(i));
                self.wait_word(PING, word);
            }
            "send" => {
                self.nic.post_recv(self.qp, &[RecvWr::new(0, self.mr.sge(PING, 8))]).unwrap();
                self.post(SendWr::new(1, SendOp::Send, Data::inline(&[1; 8])).with_flags(every_64th(i)));
                self.wait_receive();
            }
            "write_cqe" => {
                self.write_word(PING, word, SendFlags::SIGNALED);
                self.wait_completion();
            }
            "read" => {
                let local = Data::sge(self.mr.sge(PING, 8));
                self.post(SendWr::new(1, SendOp::Read(self.remote(PING)), local));
                self.wait_completion();
            }
            "faa" => {
                let local = Data::sge(self.mr.sge(PING, 8));
                self.post(SendWr::new(1, SendOp::FetchAdd { remote: self.remote(PING), add: 1 }, local));
                self.wait_completion();
            }
            _ => panic!("unknown kind {kind}"),
        }
    }

    fn serve(&mut self, kind: &str, n: u32, passive: bool) {
        self.polls = 0;
        match kind {
            "floor_connected" => {
                for _ in 0..n + 200 {
                    wait_datagram(|buffer| self.connected.recv(buffer).is_ok());
                    self.connected.send(&[0; 40]).unwrap();
                }
            }
            "floor" | "floor_again" => {
                for _ in 0..n + 200 {
                    wait_datagram(|buffer| self.udp.recv_from(buffer).is_ok());
                    self.udp.send_to(&[0; 40], self.udp_peer).unwrap();
                }
            }
            "write" => {
                for i in 0..n + 200 {
                    let word = u64::from(i) + 1;
                    self.wait_word(PING, word);
                    self.write_word(PING, word, every_64th(i));
                }
                self.memory.store(PING as usize, 0);
            }
            "send" => {
                self.nic.post_recv(self.qp, &[RecvWr::new(0, self.mr.sge(PING, 8))]).unwrap();
                for i in 0..n + 200 {
                    self.wait_receive();
                    self.nic.post_recv(self.qp, &[RecvWr::new(0, self.mr.sge(PING, 8))]).unwrap();
                    self.post(SendWr::new(1, SendOp::Send, Data::inline(&[1; 8])).with_flags(every_64th(i)));
                }
            }
            _ if passive => {
                while self.memory.load(STOP as usize) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.memory.store(STOP as usize, 0);
            }
            _ => {
                while self.memory.load(STOP as usize) == 0 {
                    self.poll();
                }
                self.memory.store(STOP as usize, 0);
            }
        }
    }

    fn wait_receive(&mut self) {
        loop {
            if self.poll() > 0 && self.wcs.iter().any(|wc| wc.opcode == mitra_verbs::WcOpcode::Recv) {
                return;
            }
        }
    }

    fn stop(&mut self) {
        self.write_word(STOP, 1, SendFlags::SIGNALED);
        self.wait_completion();
    }

    /// Keeps requests in flight for 300 ms. Returns the rate in GB/s, or for 8-byte requests in
    /// millions of requests per second.
    fn stream(&mut self, operation: &str) -> f64 {
        let (op, len) = operation.rsplit_once('_').unwrap();
        let (len, depth): (u32, u32) = match len {
            "8" => (8, 200),
            "4k" => (4096, 128),
            "64k" => (65536, 16),
            "1m" => (1 << 20, 4),
            _ => panic!("unknown size {len}"),
        };
        let started = Instant::now();
        let (mut posted, mut done, mut last) = (0_u64, 0_u64, started);
        let batch = if len == 8 { 20 } else { 1 };
        let mut wrs = Vec::new();
        while last - started < Duration::from_millis(300) {
            while posted - done + batch <= u64::from(depth) {
                wrs.clear();
                for _ in 0..batch {
                    let offset = BULK + posted % u64::from(depth) * u64::from(len);
                    let local = Data::sge(self.mr.sge(offset, len));
                    let op = match op {
                        "write" => SendOp::Write(self.remote(offset)),
                        _ => SendOp::Read(self.remote(offset)),
                    };
                    posted += 1;
                    wrs.push(SendWr::new(posted, op, local));
                }
                self.nic.post_send(self.qp, &wrs).unwrap();
            }
            done += self.poll() as u64;
            last = Instant::now();
        }
        let seconds = started.elapsed().as_secs_f64();
        let rate = if len == 8 {
            done as f64 / seconds / 1e6
        } else {
            (done * u64::from(len)) as f64 / seconds / 1e9
        };
        while done < posted {
            done += self.poll() as u64;
        }
        rate
    }
}

fn wait_datagram(mut receive: impl FnMut(&mut [u8]) -> bool) {
    let mut buffer = [0; 64];
    let mut polls: u64 = 0;
    let since = Instant::now();
    while !receive(&mut buffer) {
        polls += 1;
        check_timeout(polls, since);
    }
}

/// Panics if the peer has not responded for 20 s. Reads the clock every 65,536 polls, because the
/// measured loops call this.
fn check_timeout(polls: u64, since: Instant) {
    if polls.is_multiple_of(1 << 16) {
        assert!(since.elapsed() < Duration::from_secs(20), "the peer does not respond");
    }
}

fn every_64th(i: u32) -> SendFlags {
    if i.is_multiple_of(64) { SendFlags::SIGNALED } else { SendFlags::empty() }
}
