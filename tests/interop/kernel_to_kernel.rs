//! The kernel as both ends: rxe1 and rxe1b, two devices on one link, both driven through
//! `rxe_peer`.
//!
//! These scenarios validate `rxe_peer`, the virtual machine and the expectations without Mitra.

use anyhow::{Context as _, Result, ensure};

use super::Scenario;
use super::kernel_endpoint::KernelEndpoint;

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("kernel/mtu-256", || every_length(256)),
    ("kernel/mtu-512", || every_length(512)),
    ("kernel/mtu-1024", || every_length(1024)),
    ("kernel/mtu-2048", || every_length(2048)),
    ("kernel/mtu-4096", || every_length(4096)),
    ("kernel/immediate", immediate),
    ("kernel/atomics", atomics),
    ("kernel/window", window),
    ("kernel/inline-and-gather", inline_and_gather),
    ("kernel/batch", batch),
    ("kernel/fence", fence),
    ("kernel/solicited", solicited),
    ("kernel/receiver-not-ready", receiver_not_ready),
    ("kernel/receiver-never-ready", receiver_never_ready),
    ("kernel/bad-key", bad_key),
    ("kernel/beyond-the-region", beyond_the_region),
    ("kernel/rights", rights),
    ("kernel/deregistered", deregistered),
    ("kernel/receive-too-short", receive_too_short),
    ("kernel/peer-gone", peer_gone),
    ("kernel/flush", flush),
    ("kernel/unreliable-connection", unreliable_connection),
    ("kernel/datagram", datagram),
];

const LEN: u64 = 1 << 16;

fn ends(qp_type: &str, access: &str, attributes: &str) -> Result<(KernelEndpoint, KernelEndpoint)> {
    let qp = format!("type={qp_type}");
    let mut a = KernelEndpoint::new("rxe1", &qp, &format!("len={LEN} access=lwrab"))?;
    let mut b = KernelEndpoint::new("rxe1b", &qp, &format!("len={LEN} access={access}"))?;
    b.connect("10.77.1.1", a.qpn, a.psn, attributes)?;
    a.connect("10.77.1.2", b.qpn, b.psn, attributes)?;
    Ok((a, b))
}

fn pair(attributes: &str) -> Result<(KernelEndpoint, KernelEndpoint)> {
    ends("rc", "lwrab", attributes)
}

/// SEND, WRITE and READ of lengths around one packet and several packets, at unaligned offsets.
fn every_length(mtu: u64) -> Result<()> {
    let (mut a, mut b) = pair(&format!("mtu={mtu}"))?;
    let (addr, rkey) = (b.addr, b.rkey);
    for (seed, len) in [0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 5 * mtu + 2].into_iter().enumerate() {
        let off = seed * 3;
        a.peer.ask(&format!("fill mr=0 seed={seed}"))?;
        b.peer.ask("fill mr=0 seed=99")?;
        b.peer.ask(&format!("recv qp=0 wr=7 sge=0:{off}:{}", len + 8))?;
        a.run(&format!("op=send sge=0:{off}:{len}"))?.expect("send")?;
        let received = b.peer.completion()?;
        received.expect("recv")?;
        ensure!(received.wr == 7 && received.len == len, "{received:?} for {len} bytes");
        b.peer.ask(&format!("check mr=0 off={off} len={len} seed={seed}"))?;
        b.peer.ask(&format!("check mr=0 off={} seed=99", off as u64 + len))?;

        a.run(&format!("op=write sge=0:{off}:{len} raddr={} rkey={rkey}", addr + 32768))?.expect("write")?;
        b.peer.ask(&format!("check mr=0 off=32768 len={len} from={off} seed={seed}"))?;

        b.peer.ask(&format!("fill mr=0 seed={}", seed + 50))?;
        a.run(&format!("op=read sge=0:{off}:{len} raddr={} rkey={rkey}", addr + 32768))?.expect("read")?;
        a.peer.ask(&format!("check mr=0 off={off} len={len} from=32768 seed={}", seed + 50))?;
        a.peer.ask(&format!("check mr=0 off={} seed={seed}", off as u64 + len))?;
    }
    Ok(())
}

fn immediate() -> Result<()> {
    let (mut a, mut b) = pair("mtu=1024")?;
    let (addr, rkey) = (b.addr, b.rkey);
    for len in [0, 5, 2500] {
        b.peer.ask_all(&["recv qp=0 wr=1 sge=0:0:4096", "recv qp=0 wr=2"])?;
        a.run(&format!("op=send_imm sge=0:0:{len} imm=0x12345678"))?.expect("send")?;
        a.run(&format!("op=write_imm sge=0:0:{len} imm=0x9abcdef0 raddr={addr} rkey={rkey}"))?
            .expect("write")?;
        let received = b.peer.poll(2)?;
        let [send, write] = &received[..] else { anyhow::bail!("two receives, not {received:?}") };
        send.expect("recv")?;
        ensure!(send.imm == Some(0x1234_5678) && send.len == len, "{send:?}");
        write.expect("recv_write_imm")?;
        ensure!(write.imm == Some(0x9abc_def0) && write.wr == 2 && write.len == len, "{write:?}");
    }
    Ok(())
}

fn atomics() -> Result<()> {
    let (mut a, mut b) = pair("")?;
    let remote = format!("sge=0:0:8 raddr={} rkey={}", b.addr + 64, b.rkey);
    b.set(64, 41)?;
    a.run(&format!("op=faa add=1 {remote}"))?.expect("faa")?;
    ensure!((a.value(0)?, b.value(64)?) == (41, 42));
    a.run(&format!("op=cas cmp=41 swap=7 {remote}"))?.expect("cas")?;
    ensure!((a.value(0)?, b.value(64)?) == (42, 42));
    a.run(&format!("op=cas cmp=42 swap=0x1122334455667788 {remote}"))?.expect("cas")?;
    ensure!((a.value(0)?, b.value(64)?) == (42, 0x1122_3344_5566_7788));
    a.run(&format!("op=faa add=0xffffffffffffffff {remote}"))?.expect("faa")?;
    ensure!(b.value(64)? == 0x1122_3344_5566_7787);
    Ok(())
}

/// A type 2 window is bound, written through, checked for bounds and rights, and invalidated by a
/// SEND.
fn window() -> Result<()> {
    let (mut a, mut b) = pair("")?;
    b.peer.ask("mw")?;
    let key = b.peer.ask("post qp=0 op=bind mw=0 mr=0 off=4096 len=4096 access=w flags=s")?.number("rkey")?;
    b.peer.completion()?.expect("bind")?;
    a.peer.ask("fill mr=0 seed=5")?;
    a.run(&format!("op=write sge=0:0:4096 raddr={} rkey={key}", b.addr + 4096))?.expect("write")?;
    b.peer.ask("check mr=0 off=4096 len=4096 seed=5 from=0")?;
    b.peer.ask("recv qp=0 sge=0:0:64")?;
    a.run(&format!("op=send_inv sge=0:0:8 inv={key}"))?.expect("send")?;
    let received = b.peer.completion()?;
    ensure!(received.inv == Some(key), "{received:?}");
    let refused = a.run(&format!("op=write sge=0:0:8 raddr={} rkey={key}", b.addr + 4096))?;
    refused.expect_status("rem_access_err")
}

fn inline_and_gather() -> Result<()> {
    let (mut a, mut b) = pair("mtu=256")?;
    let (addr, rkey) = (b.addr, b.rkey);
    a.peer.ask("fill mr=0 seed=3")?;
    a.peer.ask(&format!("post qp=0 op=write flags=si sge=0:100:48 raddr={addr} rkey={rkey}"))?;
    a.peer.completion()?.expect("write")?;
    b.peer.ask("check mr=0 off=0 len=48 seed=3 from=100")?;
    a.run(&format!("op=write sge=0:0:100,0:1000:300,0:2000:1 raddr={addr} rkey={rkey}"))?.expect("write")?;
    b.peer.ask("check mr=0 off=0 len=100 seed=3")?;
    b.peer.ask("check mr=0 off=100 len=300 seed=3 from=1000")?;
    b.peer.ask("check mr=0 off=400 len=1 seed=3 from=2000")?;
    b.peer.ask("recv qp=0 sge=0:0:10,0:5000:1000")?;
    a.run("op=send sge=0:0:400")?.expect("send")?;
    b.peer.completion()?.expect("recv")?;
    b.peer.ask("check mr=0 off=5000 len=390 seed=3 from=10")?;
    Ok(())
}

/// Posts sixty requests of all kinds in one list, of which only the last is signalled.
fn batch() -> Result<()> {
    let (mut a, mut b) = pair("mtu=512")?;
    let (addr, rkey) = (b.addr, b.rkey);
    a.peer.ask("fill mr=0 seed=1")?;
    b.set(65528, 0)?;
    let mut receives = Vec::new();
    let mut requests = Vec::new();
    for i in 0..15 {
        let (off, wr) = (i * 2048, i * 4);
        receives.push(format!("recv qp=0 wr={i} sge=0:{}:1024", 32768 + off / 2));
        requests.push(format!("post qp=0 op=write sge=0:{off}:2048 raddr={} rkey={rkey} more=1", addr + off));
        requests
            .push(format!("post qp=0 op=faa add=1 sge=0:65528:8 raddr={} rkey={rkey} more=1", addr + 65528));
        requests.push(format!("post qp=0 op=send wr={wr} sge=0:{off}:1024 more=1"));
        let last = if i == 14 { "flags=s" } else { "more=1" };
        requests.push(format!(
            "post qp=0 op=read wr={i} sge=0:{}:2048 raddr={} rkey={rkey} {last}",
            32768 + off,
            addr + off
        ));
    }
    b.peer.ask_all(&receives)?;
    a.peer.ask_all(&requests)?;
    let done = a.peer.completion()?;
    done.expect("read")?;
    ensure!(done.wr == 14, "{done:?}");
    a.peer.expect_none()?;
    ensure!(b.peer.poll(15)?.iter().map(|it| it.wr).eq(0..15), "receives out of order");
    ensure!((a.value(65528)?, b.value(65528)?) == (14, 15));
    b.peer.ask("check mr=0 len=30720 seed=1")?;
    a.peer.ask("check mr=0 off=32768 len=30720 seed=1 from=0")?;
    Ok(())
}

/// A fenced SEND carries the data of the READ before it.
fn fence() -> Result<()> {
    let (mut a, mut b) = pair("mtu=4096")?;
    let (addr, rkey) = (b.addr, b.rkey);
    b.peer.ask_all(&["fill mr=0 seed=8", "recv qp=0 sge=0:32768:32768"])?;
    a.peer.ask_all(&[
        format!("post qp=0 op=read sge=0:0:32768 raddr={addr} rkey={rkey} more=1"),
        "post qp=0 op=send sge=0:0:32768 flags=sf".into(),
    ])?;
    a.peer.completion()?.expect("send")?;
    b.peer.completion()?.expect("recv")?;
    b.peer.ask("check mr=0 off=32768 len=32768 from=0 seed=8")?;
    Ok(())
}

fn solicited() -> Result<()> {
    let (mut a, mut b) = pair("")?;
    b.peer.ask_all(&["recv qp=0", "recv qp=0", "arm solicited=1"])?;
    a.run("op=send")?.expect("send")?;
    ensure!(b.peer.ask("notified ms=50")?.number("n")? == 0, "an unsolicited SEND raised the event");
    a.peer.ask("post qp=0 op=send flags=se")?;
    ensure!(b.peer.ask("notified")?.number("n")? == 1, "a solicited SEND raised no event");
    Ok(())
}

fn receiver_not_ready() -> Result<()> {
    let (mut a, mut b) = pair("min_rnr=20 rnr=7")?; // 10.24 ms
    a.peer.ask("fill mr=0 seed=4")?;
    a.peer.ask("post qp=0 op=send flags=s sge=0:0:3000")?;
    a.peer.expect_none()?;
    b.peer.ask("recv qp=0 sge=0:0:4096")?;
    a.peer.completion()?.expect("send")?;
    b.peer.completion()?.expect("recv")?;
    b.peer.ask("check mr=0 len=3000 seed=4")?;
    Ok(())
}

fn receiver_never_ready() -> Result<()> {
    let (mut a, mut b) = pair("min_rnr=1 rnr=2")?;
    let before = b.peer.ask("counters")?.number("send_rnr_err")?;
    a.run("op=send sge=0:0:8")?.expect_status("rnr_retry_exc_err")?;
    let sent = b.peer.ask("counters")?.number("send_rnr_err")? - before;
    ensure!(sent == 3, "one attempt and two retries, but {sent} RNR NAKs");
    ensure!(a.state()? == "err" && b.state()? == "rts", "states {} {}", a.state()?, b.state()?);
    Ok(())
}

/// Each of `requests`, on a connection of its own, must complete with `status`. The requests after
/// it are flushed.
fn refused(access: &str, requests: &[&str], status: &str) -> Result<()> {
    for request in requests {
        let (mut a, mut b) = ends("rc", access, "")?;
        let (addr, rkey) = (b.addr, b.rkey);
        b.peer.ask("fill mr=0 seed=6")?;
        let request = request.replace("ADDR", &addr.to_string()).replace("RKEY", &rkey.to_string());
        let request = request.replace("END", &(addr + LEN).to_string());
        a.run(&request)?.expect_status(status).with_context(|| request.clone())?;
        a.peer.ask("post qp=0 op=send flags=s")?;
        a.peer.completion()?.expect_status("wr_flush_err")?;
        ensure!(a.state()? == "err", "the requester is in {}", a.state()?);
        b.peer.ask("check mr=0 seed=6").context("refused, yet executed")?;
    }
    Ok(())
}

fn bad_key() -> Result<()> {
    let requests = [
        "op=write sge=0:0:8 raddr=ADDR rkey=0x12345678",
        "op=write sge=0:0:9000 raddr=ADDR rkey=0x12345678",
        "op=read sge=0:0:8 raddr=ADDR rkey=0x12345678",
        "op=faa add=1 sge=0:0:8 raddr=ADDR rkey=0x12345678",
    ];
    refused("lwra", &requests, "rem_access_err")
}

fn beyond_the_region() -> Result<()> {
    let requests = [
        "op=write sge=0:0:8 raddr=END rkey=RKEY",
        "op=read sge=0:0:8 raddr=END rkey=RKEY",
        "op=cas cmp=1 swap=2 sge=0:0:8 raddr=END rkey=RKEY",
    ];
    refused("lwra", &requests, "rem_access_err")
}

fn rights() -> Result<()> {
    refused("lra", &["op=write sge=0:0:8 raddr=ADDR rkey=RKEY"], "rem_access_err")?;
    refused("lwa", &["op=read sge=0:0:8 raddr=ADDR rkey=RKEY"], "rem_access_err")?;
    refused("lwr", &["op=faa add=1 sge=0:0:8 raddr=ADDR rkey=RKEY"], "rem_access_err")
}

fn deregistered() -> Result<()> {
    let (mut a, mut b) = pair("")?;
    b.peer.ask("dereg mr=0")?;
    let (addr, rkey) = (b.addr, b.rkey);
    a.run(&format!("op=write sge=0:0:8 raddr={addr} rkey={rkey}"))?.expect_status("rem_access_err")
}

/// The specification requires an invalid-request NAK and a length error. rxe sends an
/// operational-error NAK and reports it.
fn receive_too_short() -> Result<()> {
    let (mut a, mut b) = pair("")?;
    b.peer.ask("recv qp=0 sge=0:0:16")?;
    a.run("op=send sge=0:0:17")?.expect_status("rem_op_err")?;
    b.peer.completion()?.expect_status("loc_qp_op_err")?;
    Ok(())
}

fn peer_gone() -> Result<()> {
    let (mut a, mut b) = pair("timeout=10 retry=2")?;
    b.peer.ask("destroy qp=0")?;
    a.run("op=send sge=0:0:8")?.expect_status("retry_exc_err")
}

fn flush() -> Result<()> {
    let (_a, mut b) = pair("")?;
    b.peer.ask_all(&["recv qp=0 wr=1", "recv qp=0 wr=2", "modify qp=0 state=err"])?;
    let received = b.peer.poll(2)?;
    ensure!(received.len() == 2, "two receives, not {received:?}");
    received.iter().try_for_each(|it| it.expect_status("wr_flush_err"))
}

fn unreliable_connection() -> Result<()> {
    let (mut a, mut b) = ends("uc", "lwra", "mtu=1024")?;
    a.peer.ask("fill mr=0 seed=2")?;
    b.peer.ask("recv qp=0 sge=0:0:4096")?;
    a.run("op=send sge=0:0:3000")?.expect("send")?;
    let received = b.peer.completion()?;
    ensure!(received.len == 3000, "{received:?}");
    b.peer.ask("check mr=0 len=3000 seed=2")?;
    let (addr, rkey) = (b.addr, b.rkey);
    b.peer.ask("recv qp=0")?;
    a.run(&format!("op=write_imm imm=5 sge=0:0:3000 raddr={} rkey={rkey}", addr + 8192))?.expect("write")?;
    b.peer.completion()?.expect("recv_write_imm")?;
    b.peer.ask("check mr=0 off=8192 len=3000 seed=2 from=0")?;
    Ok(())
}

/// The receive of a datagram holds a 40-byte global routing header before the data.
fn datagram() -> Result<()> {
    let (mut a, mut b) = ends("ud", "lwra", "")?;
    a.peer.ask("fill mr=0 seed=2")?;
    b.peer.ask("recv qp=0 sge=0:0:4096")?;
    a.run("op=send_imm imm=77 sge=0:0:1000")?.expect("send")?;
    let received = b.peer.completion()?;
    ensure!(received.len == 1040 && received.imm == Some(77), "{received:?}");
    b.peer.ask("check mr=0 off=40 len=1000 seed=2 from=0")?;
    Ok(())
}
