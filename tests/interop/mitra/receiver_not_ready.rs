//! Receivers that are not ready, in both directions.

use anyhow::{Result, ensure};
use mitra_verbs::{Key, QpState, RemoteAddr, SendOp, SendWr, WcOpcode, WcStatus};

use super::mitra_endpoint::{expect, expect_status};
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/kernel-not-ready", kernel_not_ready),
    ("mitra/mitra-not-ready", mitra_not_ready),
    ("mitra/kernel-never-ready", kernel_never_ready),
    ("mitra/mitra-never-ready", mitra_never_ready),
];

/// Two RNR retries, and no local ACK timeout, so that every retransmission follows an RNR NAK.
const NEVER: Setup = Setup { rnr: 2, timeout: 0, ..Setup::DEFAULT };
/// The RNR timer code of 1.28 ms.
const MIN_RNR: u8 = 14;
/// Three messages of one packet each: a SEND, a WRITE with immediate, a SEND.
const LEN: u64 = 3000;

/// The receives are posted late, so the later messages wait for the first.
fn kernel_not_ready() -> Result<()> {
    let mut wire = Wire::new(Setup { min_rnr: MIN_RNR, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    let remote = RemoteAddr { addr: kernel.addr + 8192, rkey: Key(kernel.rkey as u32) };
    mitra.fill(0, 3 * LEN, 4);
    mitra.post(&[
        SendWr::new(1, SendOp::Send, mitra.data(0, LEN)),
        SendWr::new(2, SendOp::WriteWithImm(remote, 77), mitra.data(LEN, LEN)),
        SendWr::new(3, SendOp::Send, mitra.data(2 * LEN, LEN)),
    ])?;
    let mut naks = 0;
    for (wr, receive) in [(1, "sge=0:0:4096"), (2, ""), (3, "sge=0:16384:4096")] {
        mitra.wait_for_count("rnr_naks_received", naks + 1)?;
        mitra.expect_none()?;
        kernel.peer.ask(&format!("recv qp=0 wr={wr} {receive}"))?;
        let wc = mitra.completion()?;
        expect(&wc, if wr == 2 { WcOpcode::Write } else { WcOpcode::Send })?;
        ensure!(wc.wr_id == wr, "{wc:?}");
        let received = kernel.peer.completion()?;
        received.expect(if wr == 2 { "recv_write_imm" } else { "recv" })?;
        ensure!(received.wr == wr && received.len == LEN, "{received:?}");
        naks = mitra.counter("rnr_naks_received")?;
    }
    kernel.peer.ask_all(&[
        format!("check mr=0 len={LEN} seed=4"),
        format!("check mr=0 off=8192 len={LEN} from={LEN} seed=4"),
        format!("check mr=0 off=16384 len={LEN} from={} seed=4", 2 * LEN),
    ])?;
    wire.check_psns()
}

fn mitra_not_ready() -> Result<()> {
    let mut wire = Wire::new(Setup { min_rnr: MIN_RNR, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    let remote = format!("raddr={} rkey={}", mitra.mr.addr + 8192, mitra.mr.rkey.0);
    kernel.peer.ask_all(&[
        format!("fill mr=0 len={} seed=4", 3 * LEN),
        format!("post qp=0 op=send wr=1 flags=s sge=0:0:{LEN} more=1"),
        format!("post qp=0 op=write_imm imm=77 wr=2 flags=s sge=0:{LEN}:{LEN} {remote} more=1"),
        format!("post qp=0 op=send wr=3 flags=s sge=0:{}:{LEN}", 2 * LEN),
    ])?;
    let mut naks = 0;
    for (wr, off, len) in [(1, 0, 4096), (2, 0, 0), (3, 16384, 4096)] {
        mitra.wait_for_count("rnr_naks_sent", naks + 1)?;
        mitra.expect_none()?;
        mitra.receive(wr, off, len)?;
        let wc = mitra.completion()?;
        expect(&wc, if wr == 2 { WcOpcode::RecvWithImm } else { WcOpcode::Recv })?;
        ensure!(wc.wr_id == wr && u64::from(wc.byte_len) == LEN, "{wc:?}");
        let done = kernel.peer.completion()?;
        done.expect(if wr == 2 { "write" } else { "send" })?;
        ensure!(done.wr == wr, "{done:?}");
        naks = mitra.counter("rnr_naks_sent")?;
    }
    mitra.check(0, LEN, 0, 4)?;
    mitra.check(8192, LEN, LEN, 4)?;
    mitra.check(16384, LEN, 2 * LEN, 4)?;
    wire.check_psns()
}

fn kernel_never_ready() -> Result<()> {
    let mut wire = Wire::new(NEVER)?;
    let Wire { mitra, kernel } = &mut wire;
    expect_status(&mitra.run(SendOp::Send, mitra.data(0, 8))?, WcStatus::RnrRetryExceeded)?;
    let naks = mitra.counter("rnr_naks_received")?;
    ensure!(naks == 3, "one attempt and two retries, but {naks} RNR NAKs");
    mitra.expect_state(QpState::Err)?;
    let state = kernel.state()?;
    ensure!(state == "rts", "the kernel is in {state}");
    Ok(())
}

fn mitra_never_ready() -> Result<()> {
    let mut wire = Wire::new(NEVER)?;
    let Wire { mitra, kernel } = &mut wire;
    kernel.run("op=send sge=0:0:8")?.expect_status("rnr_retry_exc_err")?;
    let naks = mitra.counter("rnr_naks_sent")?;
    ensure!(naks == 3, "one attempt and two retries, but {naks} RNR NAKs");
    mitra.expect_state(QpState::Rts)?;
    let state = kernel.state()?;
    ensure!(state == "err", "the kernel is in {state}");
    Ok(())
}
