//! Loss of chosen packets in both directions, a link that stays down, and a link that is down while
//! the connection is idle.

use anyhow::{Context as _, Result, ensure};
use mitra_softnic::fault::{Failure, Stage};
use mitra_verbs::{AsyncEvent, Key, QpState, RemoteAddr, SendOp, SendWr, WcOpcode, WcStatus};

use super::mitra_endpoint::{SILENCE, VOID, expect, expect_status};
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/every-packet-lost-once-of-mitra", each_of_mitra),
    ("mitra/every-packet-lost-once-of-the-kernel", each_of_the_kernel),
    ("mitra/answers-lost-of-mitra", answers_of_mitra),
    ("mitra/answers-lost-of-the-kernel", answers_of_the_kernel),
    ("mitra/write-repeated-before-a-fetch", write_before_a_fetch),
    ("mitra/long-read-of-mitra", long_read_of_mitra),
    ("mitra/long-read-of-the-kernel", long_read_of_the_kernel),
    ("mitra/kernel-gone", kernel_gone),
    ("mitra/mitra-gone", mitra_gone),
    ("mitra/idle-outage", idle_outage),
];

/// The local ACK timeout is 67 ms, so seven retries outlast the pauses of a busy machine.
const LOSSY: Setup = Setup { mtu: 256, timeout: 14, psn: 0xff_fff0, ..Setup::DEFAULT };
/// Message length in bytes: six packets.
const LEN: u64 = 5 * 256 + 1;
const TO: u64 = 8192;
const COUNTER: u64 = 32768;

#[derive(Clone, Copy, Debug)]
enum What {
    Send,
    Write,
    Read,
    Add,
}

use What::{Add, Read, Send, Write};

/// Every packet of a message and of its response. `true` stands for a packet of the request.
fn losses() -> impl Iterator<Item = (What, bool, u32)> {
    let request = |what, n| (1..=n).map(move |nth| (what, true, nth));
    let answer = |what, n| (1..=n).map(move |nth| (what, false, nth));
    request(Send, 6)
        .chain(answer(Send, 1))
        .chain(request(Write, 6))
        .chain(answer(Write, 1))
        .chain(request(Read, 1))
        .chain(answer(Read, 6))
        .chain(request(Add, 1))
        .chain(answer(Add, 1))
}

fn each_of_mitra() -> Result<()> {
    let mut wire = Wire::new(LOSSY)?;
    let mut added = 0;
    for (seed, (what, request, nth)) in (1..).zip(losses()) {
        let Wire { mitra, kernel } = &mut wire;
        let remote = |off| RemoteAddr { addr: kernel.addr + off, rkey: Key(kernel.rkey as u32) };
        let (op, data) = match what {
            Send => (SendOp::Send, mitra.data(0, LEN)),
            Write => (SendOp::Write(remote(TO)), mitra.data(0, LEN)),
            Read => (SendOp::Read(remote(0)), mitra.data(TO, LEN)),
            Add => (SendOp::FetchAdd { remote: remote(COUNTER), add: 1 }, mitra.data(COUNTER, 8)),
        };
        mitra.fill(0, LEN, seed);
        kernel.peer.ask_all(&[
            format!("fill mr=0 len={LEN} seed={seed}"),
            match what {
                Send => format!("recv qp=0 wr={seed} sge=0:{TO}:{LEN}"),
                _ => "query qp=0".to_owned(),
            },
        ])?;
        let stage = if request { Stage::RequestOnWire } else { Stage::Acknowledged };
        let wc = mitra
            .lose(stage, nth, || mitra.post(&[SendWr::new(seed.into(), op, data)]))
            .and_then(|()| mitra.completion())
            .with_context(|| format!("{what:?}, {nth} lost of the {}", part(request)))?;
        ensure!(wc.status == WcStatus::Success && wc.wr_id == u64::from(seed), "{wc:?}");
        let check = format!("check mr=0 off={TO} len={LEN} from=0 seed={seed}");
        match what {
            Send => {
                let received = kernel.peer.completion()?;
                received.expect("recv")?;
                ensure!(received.wr == u64::from(seed) && received.len == LEN, "{received:?}");
                kernel.peer.ask(&check)?;
            }
            Write => drop(kernel.peer.ask(&check)?),
            Read => mitra.check(TO, LEN, 0, seed)?,
            Add => {
                let (fetched, now) = (mitra.memory.load(COUNTER as usize), kernel.value(COUNTER)?);
                ensure!((fetched, now) == (added, added + 1), "fetched {fetched}, left {now}");
                added += 1;
            }
        }
    }
    wire.check_psns()?;
    wire.mitra.expect_none()?;
    wire.kernel.peer.expect_none()
}

fn part(request: bool) -> &'static str {
    if request { "request" } else { "answer" }
}

fn each_of_the_kernel() -> Result<()> {
    let mut wire = Wire::new(LOSSY)?;
    let mut added = 0;
    for (seed, (what, request, nth)) in (1..).zip(losses()) {
        let Wire { mitra, kernel } = &mut wire;
        let remote = |off| format!("raddr={} rkey={}", mitra.mr.addr + off, mitra.mr.rkey.0);
        let (op, name) = match what {
            Send => (format!("op=send sge=0:0:{LEN}"), "send"),
            Write => (format!("op=write sge=0:0:{LEN} {}", remote(TO)), "write"),
            Read => (format!("op=read sge=0:{TO}:{LEN} {}", remote(0)), "read"),
            Add => (format!("op=faa add=1 sge=0:{COUNTER}:8 {}", remote(COUNTER)), "faa"),
        };
        mitra.fill(0, LEN, seed);
        if let Send = what {
            mitra.receive(seed.into(), TO, LEN)?;
        }
        let stage = if request { Stage::Arrived } else { Stage::AckOnWire };
        mitra
            .lose(stage, nth, || {
                let fill = format!("fill mr=0 len={LEN} seed={seed}");
                kernel.peer.ask_all(&[fill, format!("post qp=0 wr={seed} flags=s {op}")])
            })
            .and_then(|_| kernel.peer.completion())
            .and_then(|done| {
                ensure!(done.wr == u64::from(seed), "{done:?}");
                done.expect(name)
            })
            .with_context(|| format!("{what:?}, {nth} lost of the {}", part(request)))?;
        match what {
            Send => {
                let wc = mitra.completion()?;
                expect(&wc, WcOpcode::Recv)?;
                ensure!(wc.wr_id == u64::from(seed) && u64::from(wc.byte_len) == LEN, "{wc:?}");
                mitra.check(TO, LEN, 0, seed)?;
            }
            Write => mitra.check(TO, LEN, 0, seed)?,
            Read => {
                kernel.peer.ask(&format!("check mr=0 off={TO} len={LEN} from=0 seed={seed}"))?;
            }
            Add => {
                let (fetched, now) = (kernel.value(COUNTER)?, mitra.memory.load(COUNTER as usize));
                ensure!((fetched, now) == (added, added + 1), "fetched {fetched}, left {now}");
                added += 1;
            }
        }
    }
    wire.check_psns()?;
    wire.mitra.expect_none()?;
    wire.kernel.peer.expect_none()
}

/// Message length in bytes: sixteen packets.
const MIX: u64 = 4000;

/// A SEND, a READ, an atomic, a WRITE and a READ are executed, and all responses are lost.
fn answers_of_mitra() -> Result<()> {
    let mut wire = Wire::new(Setup { timeout: 16, ..LOSSY })?;
    for round in 0..3u32 {
        let Wire { mitra, kernel } = &mut wire;
        let remote = |off| RemoteAddr { addr: kernel.addr + off, rkey: Key(kernel.rkey as u32) };
        mitra.fill(0, MIX, round);
        mitra.fill(TO, 2 * MIX, 99);
        kernel.peer.ask_all(&[
            format!("fill mr=0 len={MIX} seed={}", round + 50),
            format!("recv qp=0 sge=0:{TO}:{MIX}"),
        ])?;
        let add = SendOp::FetchAdd { remote: remote(COUNTER), add: 1 };
        mitra.noise(SILENCE, VOID);
        mitra.post(&[
            SendWr::new(1, SendOp::Send, mitra.data(0, MIX)),
            SendWr::new(2, SendOp::Read(remote(0)), mitra.data(TO, MIX)),
            SendWr::new(3, add, mitra.data(COUNTER, 8)),
            SendWr::new(4, SendOp::Write(remote(TO + MIX)), mitra.data(0, MIX)),
            SendWr::new(5, SendOp::Read(remote(0)), mitra.data(TO + MIX, MIX)),
        ])?;
        let sent = u64::from(mitra.status()?.sq_psn.value());
        mitra.wait(|| Ok(kernel.peer.ask("query qp=0")?.number("rq_psn")? == sent))?;
        mitra.noise(SILENCE, SILENCE);
        let done = mitra.completions(5)?;
        ensure!(done.iter().map(|wc| wc.wr_id).eq(1..=5), "{done:?}");
        ensure!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
        kernel.peer.completion()?.expect("recv")?;
        mitra.check(TO, MIX, 0, round + 50)?;
        mitra.check(TO + MIX, MIX, 0, round + 50)?;
        ensure!(mitra.memory.load(COUNTER as usize) == u64::from(round));
        ensure!(kernel.value(COUNTER)? == u64::from(round) + 1);
        kernel.peer.ask_all(&[
            format!("check mr=0 off={TO} len={MIX} from=0 seed={round}"),
            format!("check mr=0 off={} len={MIX} from=0 seed={round}", TO + MIX),
        ])?;
    }
    wire.check_psns()
}

/// The same sequence with the kernel as the requester.
fn answers_of_the_kernel() -> Result<()> {
    let mut wire = Wire::new(LOSSY)?;
    for round in 0..3u32 {
        let Wire { mitra, kernel } = &mut wire;
        let remote = |off| format!("raddr={} rkey={}", mitra.mr.addr + off, mitra.mr.rkey.0);
        mitra.fill(0, MIX, round + 50);
        mitra.receive(1, TO, MIX)?;
        let executed = mitra.counter("messages_executed")?;
        mitra.noise(VOID, SILENCE);
        kernel.peer.ask_all(&[
            format!("fill mr=0 len={MIX} seed={round}"),
            format!("fill mr=0 off={TO} len={} seed=99", 2 * MIX),
            format!("post qp=0 wr=1 flags=s op=send sge=0:0:{MIX} more=1"),
            format!("post qp=0 wr=2 flags=s op=read sge=0:{TO}:{MIX} {} more=1", remote(0)),
            format!("post qp=0 wr=3 flags=s op=faa add=1 sge=0:{COUNTER}:8 {} more=1", remote(COUNTER)),
            format!("post qp=0 wr=4 flags=s op=write sge=0:0:{MIX} {} more=1", remote(TO + MIX)),
            format!("post qp=0 wr=5 flags=s op=read sge=0:{}:{MIX} {}", TO + MIX, remote(0)),
        ])?;
        mitra.wait_for_count("messages_executed", executed + 5)?;
        mitra.noise(SILENCE, SILENCE);
        let done = kernel.peer.poll(5)?;
        ensure!(done.iter().map(|it| it.wr).eq(1..=5), "{done:?}");
        ensure!(done.iter().all(|it| it.status == "success"), "{done:?}");
        expect(&mitra.completion()?, WcOpcode::Recv)?;
        kernel
            .peer
            .ask_all(&[
                format!("check mr=0 off={TO} len={MIX} from=0 seed={}", round + 50),
                format!("check mr=0 off={} len={MIX} from=0 seed={}", TO + MIX, round + 50),
            ])
            .context("a READ completed without its data")?;
        ensure!(kernel.value(COUNTER)? == u64::from(round));
        ensure!(mitra.memory.load(COUNTER as usize) == u64::from(round) + 1);
        mitra.check(TO, MIX, 0, round)?;
        mitra.check(TO + MIX, MIX, 0, round)?;
    }
    wire.check_psns()
}

/// The kernel completes a READ or atomic when it receives a plain acknowledgement with its PSN,
/// even without data. The responder must therefore not acknowledge a repeated WRITE up to such a
/// PSN.
fn write_before_a_fetch() -> Result<()> {
    let mut wire = Wire::new(LOSSY)?;
    for (seed, fetch) in (1..).zip(["read", "faa"]) {
        let Wire { mitra, kernel } = &mut wire;
        let remote = |off| format!("raddr={} rkey={}", mitra.mr.addr + off, mitra.mr.rkey.0);
        mitra.fill(COUNTER, 8, seed);
        let executed = mitra.counter("messages_executed")?;
        mitra.noise(VOID, SILENCE);
        kernel.peer.ask_all(&[
            format!("fill mr=0 len={TO} seed={seed}"),
            format!("post qp=0 wr=1 op=write sge=0:0:{TO} {} more=1", remote(TO)),
            format!("post qp=0 wr=2 flags=s op={fetch} add=1 sge=0:{COUNTER}:8 {}", remote(COUNTER)),
        ])?;
        mitra.wait_for_count("messages_executed", executed + 2)?;
        mitra.noise(SILENCE, SILENCE);
        kernel.peer.completion()?.expect(fetch)?;
        mitra.check(TO, TO, 0, seed)?;
        kernel
            .peer
            .ask(&format!("check mr=0 off={COUNTER} len=8 seed={seed}"))
            .with_context(|| format!("the {fetch} completed without its data"))?;
    }
    wire.check_psns()
}

/// Message length in bytes: more packets than the requester asks for at once.
const LONG: u64 = (64 << 10) + 5;
const LONG_TO: u64 = 96 << 10;

fn long_read_of_mitra() -> Result<()> {
    let mut wire = Wire::new(LOSSY)?;
    for (seed, nth) in (1..).zip([3, 50, 128, 255]) {
        let Wire { mitra, kernel } = &mut wire;
        let remote = RemoteAddr { addr: kernel.addr, rkey: Key(kernel.rkey as u32) };
        kernel.peer.ask(&format!("fill mr=0 len={LONG} seed={seed}"))?;
        mitra
            .lose(Stage::Acknowledged, nth, || {
                mitra.post(&[SendWr::new(0, SendOp::Read(remote), mitra.data(LONG_TO, LONG))])
            })
            .and_then(|()| expect(&mitra.completion()?, WcOpcode::Read))
            .with_context(|| format!("response {nth} lost"))?;
        mitra.check(LONG_TO, LONG, 0, seed)?;
    }
    wire.check_psns()
}

fn long_read_of_the_kernel() -> Result<()> {
    let mut wire = Wire::new(LOSSY)?;
    for (seed, nth) in (1..).zip([3, 50, 128, 255]) {
        let Wire { mitra, kernel } = &mut wire;
        let (raddr, rkey) = (mitra.mr.addr, mitra.mr.rkey.0);
        mitra.fill(0, LONG, seed);
        let read = format!("post qp=0 flags=s op=read sge=0:{LONG_TO}:{LONG} raddr={raddr} rkey={rkey}");
        mitra
            .lose(Stage::AckOnWire, nth, || kernel.peer.ask(&read))
            .and_then(|_| kernel.peer.completion()?.expect("read"))
            .with_context(|| format!("response {nth} lost"))?;
        kernel.peer.ask(&format!("check mr=0 off={LONG_TO} len={LONG} from=0 seed={seed}"))?;
    }
    wire.check_psns()
}

/// The kernel becomes unreachable and reachable again. The connection that broke meanwhile stays in
/// ERR.
fn kernel_gone() -> Result<()> {
    let mut wire = Wire::new(Setup { timeout: 10, retry: 2, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.nic.faults().fail(Failure::LinkDown);
    mitra.wait_for_event(AsyncEvent::PortError)?;
    let remote = RemoteAddr { addr: kernel.addr, rkey: Key(kernel.rkey as u32) };
    mitra.post(&[
        SendWr::new(1, SendOp::Write(remote), mitra.data(0, LEN)),
        SendWr::new(2, SendOp::Send, mitra.data(0, LEN)),
    ])?;
    let done = mitra.completions(2)?;
    expect_status(&done[0], WcStatus::RetryExceeded)?;
    expect_status(&done[1], WcStatus::Flushed)?;
    mitra.expect_state(QpState::Err)?;
    mitra.nic.faults().heal();
    mitra.wait_for_event(AsyncEvent::PortActive)?;
    expect_status(&mitra.run(SendOp::Send, mitra.data(0, LEN))?, WcStatus::Flushed)?;
    let state = kernel.state()?;
    ensure!(state == "rts", "the kernel is in {state}");
    Ok(())
}

fn mitra_gone() -> Result<()> {
    let mut wire = Wire::new(Setup { timeout: 10, retry: 2, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.nic.faults().fail(Failure::LinkDown);
    let remote = format!("raddr={} rkey={}", mitra.mr.addr, mitra.mr.rkey.0);
    kernel.run(&format!("op=write sge=0:0:{LEN} {remote}"))?.expect_status("retry_exc_err")?;
    let state = kernel.state()?;
    ensure!(state == "err", "the kernel is in {state}");
    mitra.nic.faults().heal();
    mitra.expect_state(QpState::Rts)
}

fn idle_outage() -> Result<()> {
    let mut wire = Wire::new(LOSSY)?;
    let Wire { mitra, kernel } = &mut wire;
    let remote = RemoteAddr { addr: kernel.addr, rkey: Key(kernel.rkey as u32) };
    for seed in 1..4 {
        mitra.fill(0, LEN, seed);
        expect(&mitra.run(SendOp::Write(remote), mitra.data(0, LEN))?, WcOpcode::Write)?;
        kernel.peer.ask(&format!("check mr=0 len={LEN} seed={seed}"))?;
        let read = format!("op=read sge=0:{TO}:{LEN} raddr={} rkey={}", mitra.mr.addr, mitra.mr.rkey.0);
        kernel.run(&read)?.expect("read")?;
        kernel.peer.ask(&format!("check mr=0 off={TO} len={LEN} from=0 seed={seed}"))?;
        mitra.nic.faults().fail(Failure::LinkDown);
        mitra.wait_for_event(AsyncEvent::PortError)?;
        mitra.nic.faults().heal();
        mitra.wait_for_event(AsyncEvent::PortActive)?;
    }
    wire.check_psns()
}
