//! Fences, limits on outstanding READs and atomics, solicited events, in both directions.

use anyhow::{Result, ensure};
use mitra_softnic::fault::Stage;
use mitra_verbs::{Data, Key, Provider as _, RemoteAddr, SendFlags, SendOp, SendWr, WcOpcode};

use super::mitra_endpoint::expect;
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/fence-of-mitra", fence_of_mitra),
    ("mitra/fence-of-the-kernel", fence_of_the_kernel),
    ("mitra/one-fetch-at-a-time", || fetches(1)),
    ("mitra/sixteen-fetches-at-a-time", || fetches(16)),
    ("mitra/solicited", solicited),
];

const LEN: u64 = 4096;

/// Posts a READ of a remote range and a fenced WRITE to the same range. The response to the READ is
/// lost, so the READ must be repeated before the WRITE is executed.
fn fence_of_mitra() -> Result<()> {
    let mut wire = Wire::new(Setup { timeout: 14, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    kernel.peer.ask("fill mr=0 seed=1")?;
    mitra.fill(2 * LEN, LEN, 2);
    let remote = RemoteAddr { addr: kernel.addr, rkey: Key(kernel.rkey as u32) };
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    mitra.lose(Stage::Acknowledged, 1, || {
        mitra.post(&[
            SendWr::new(1, SendOp::Read(remote), mitra.data(0, LEN)),
            SendWr::new(2, SendOp::Write(remote), mitra.data(2 * LEN, LEN)).with_flags(fenced),
        ])
    })?;
    let done = mitra.completions(2)?;
    expect(&done[0], WcOpcode::Read)?;
    expect(&done[1], WcOpcode::Write)?;
    mitra.check(0, LEN, 0, 1)?;
    kernel.peer.ask(&format!("check mr=0 len={LEN} from={} seed=2", 2 * LEN))?;
    wire.check_psns()
}

fn fence_of_the_kernel() -> Result<()> {
    let mut wire = Wire::new(Setup { timeout: 14, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.fill(0, LEN, 1);
    kernel.peer.ask(&format!("fill mr=0 off={} len={LEN} seed=2", 2 * LEN))?;
    let remote = format!("raddr={} rkey={}", mitra.mr.addr, mitra.mr.rkey.0);
    mitra.lose(Stage::AckOnWire, 1, || {
        kernel.peer.ask_all(&[
            format!("post qp=0 op=read wr=1 flags=s sge=0:0:{LEN} {remote} more=1"),
            format!("post qp=0 op=write wr=2 flags=sf sge=0:{}:{LEN} {remote}", 2 * LEN),
        ])
    })?;
    let done = kernel.peer.poll(2)?;
    let [read, write] = &done[..] else { anyhow::bail!("two completions, not {done:?}") };
    read.expect("read")?;
    write.expect("write")?;
    kernel.peer.ask(&format!("check mr=0 len={LEN} seed=1"))?;
    mitra.check(0, LEN, 2 * LEN, 2)?;
    wire.check_psns()
}

/// Posts forty READs and atomics in one list, more than the responder allows to be outstanding.
fn fetches(most: u8) -> Result<()> {
    const EACH: u64 = 3000;
    let mut wire = Wire::new(Setup { rd: most, dest_rd: most, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    let target = 160 << 10;
    kernel.peer.ask(&format!("fill mr=0 len={} seed=1", 20 * EACH))?;
    let remote = |off| RemoteAddr { addr: kernel.addr + off, rkey: Key(kernel.rkey as u32) };
    let mut list = Vec::new();
    for i in 0..20 {
        let read = SendWr::new(i, SendOp::Read(remote(i * EACH)), mitra.data(i * EACH, EACH));
        list.push(read.with_flags(SendFlags::empty()));
        let add = SendOp::FetchAdd { remote: remote(target), add: 1 };
        let flags = if i == 19 { SendFlags::SIGNALED } else { SendFlags::empty() };
        list.push(SendWr::new(i, add, mitra.data((100 << 10) + i * 8, 8)).with_flags(flags));
    }
    mitra.post(&list)?;
    let wc = mitra.completion()?;
    expect(&wc, WcOpcode::FetchAdd)?;
    ensure!(wc.wr_id == 19, "{wc:?}");
    mitra.check(0, 20 * EACH, 0, 1)?;
    for i in 0..20 {
        let fetched = mitra.memory.load((100 << 10) + i as usize * 8);
        ensure!(fetched == i, "the {i}th addition fetched {fetched}");
    }
    ensure!(kernel.value(target)? == 20);

    mitra.fill(0, 20 * EACH, 2);
    mitra.memory.store(target as usize, 0);
    let remote = |off: u64| format!("raddr={} rkey={}", mitra.mr.addr + off, mitra.mr.rkey.0);
    let mut list = Vec::new();
    for i in 0..20 {
        let off = i * EACH;
        list.push(format!("post qp=0 op=read sge=0:{off}:{EACH} {} more=1", remote(off)));
        let last = if i == 19 { "wr=19 flags=s" } else { "more=1" };
        let to = (100 << 10) + i * 8;
        list.push(format!("post qp=0 op=faa add=1 sge=0:{to}:8 {} {last}", remote(target)));
    }
    kernel.peer.ask_all(&list)?;
    let done = kernel.peer.completion()?;
    done.expect("faa")?;
    ensure!(done.wr == 19, "{done:?}");
    kernel.peer.ask(&format!("check mr=0 len={} seed=2", 20 * EACH))?;
    let last = kernel.value((100 << 10) + 19 * 8)?;
    let counter = mitra.memory.load(target as usize);
    ensure!((last, counter) == (19, 20), "the last addition fetched {last} and left {counter}");
    wire.check_psns()
}

fn solicited() -> Result<()> {
    let mut wire = Wire::new(Setup::DEFAULT)?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.receive(1, 0, 8)?;
    mitra.receive(2, 0, 8)?;
    mitra.nic.req_notify_cq(mitra.cq, true)?;
    kernel.run("op=send")?.expect("send")?;
    expect(&mitra.completion()?, WcOpcode::Recv)?;
    ensure!(mitra.channel.next_event()?.is_none(), "an unsolicited SEND raised Mitra's event");
    kernel.peer.ask("post qp=0 op=send flags=se")?;
    mitra.wait_for_notice()?;

    kernel.peer.ask_all(&["poll", "recv qp=0", "recv qp=0", "arm solicited=1"])?;
    let send = |flags| mitra.post(&[SendWr::new(0, SendOp::Send, Data::empty()).with_flags(flags)]);
    send(SendFlags::SIGNALED)?;
    ensure!(kernel.peer.ask("notified ms=50")?.number("n")? == 0, "an unsolicited SEND raised the kernel's");
    send(SendFlags::SIGNALED | SendFlags::SOLICITED)?;
    ensure!(kernel.peer.ask("notified")?.number("n")? == 1, "a solicited SEND raised no event");
    Ok(())
}
