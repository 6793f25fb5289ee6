//! READs that the responder cannot answer completely: it lost the READ's access rights before a retransmission, or it
//! refused the request after the READ.

use anyhow::{Context as _, Result, ensure};
use mitra_softnic::fault::{Failure, Stage, Trigger};
use mitra_verbs::{AsyncEvent, Data, Key, Provider as _, QpState, RemoteAddr, SendOp, SendWr, WcStatus};

use super::mitra_endpoint::{SILENCE, VOID, expect_status};
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/read-again-without-rights-of-mitra", again_of_mitra),
    ("mitra/read-again-without-rights-of-the-kernel", again_of_the_kernel),
    ("mitra/refused-behind-a-read-of-mitra", behind_a_read_of_mitra),
    ("mitra/refused-behind-a-read-of-the-kernel", behind_a_read_of_the_kernel),
];

const LOSSY: Setup = Setup { mtu: 256, timeout: 14, ..Setup::DEFAULT };
/// Six packets, of which none or two arrive.
const LEN: u64 = 5 * 256 + 1;
const TO: u64 = 96 << 10;

fn again_of_mitra() -> Result<()> {
    for arriving in [0, 2] {
        // It asks again after half a second: not before the region is gone.
        let mut wire = Wire::new(Setup { timeout: 17, ..LOSSY })?;
        let Wire { mitra, kernel } = &mut wire;
        let remote = RemoteAddr { addr: kernel.addr, rkey: Key(kernel.rkey as u32) };
        let read = SendWr::new(1, SendOp::Read(remote), mitra.data(TO, LEN));
        let write = SendWr::new(2, SendOp::Write(remote), Data::empty());
        if arriving == 0 {
            mitra.noise(SILENCE, VOID);
            mitra.post(&[read, write])?;
            mitra.wait_for_count("fault_dropped", LEN.div_ceil(LOSSY.mtu))?;
        } else {
            let failure = Failure::LinkDown;
            mitra.nic.faults().arm(Trigger { stage: Stage::Acknowledged, nth: arriving + 1, failure });
            mitra.post(&[read, write])?;
            mitra.wait_for_event(AsyncEvent::PortError)?;
        }
        let executed = LOSSY.psn + LEN.div_ceil(LOSSY.mtu);
        mitra.wait(|| Ok(kernel.peer.ask("query qp=0")?.number("rq_psn")? >= executed))?;
        kernel.peer.ask("dereg mr=0")?;
        mitra.noise(SILENCE, SILENCE);
        mitra.nic.faults().heal();
        let done = mitra.completions(2).with_context(|| format!("{arriving} arrived"))?;
        expect_status(&done[0], WcStatus::RemoteAccess).with_context(|| format!("{arriving} arrived"))?;
        expect_status(&done[1], WcStatus::Flushed)?;
        let state = kernel.state()?;
        ensure!(state == "err", "the kernel is in {state}");
    }
    Ok(())
}

fn again_of_the_kernel() -> Result<()> {
    for arriving in [0, 2] {
        let mut wire = Wire::new(LOSSY)?;
        let Wire { mitra, kernel } = &mut wire;
        let (raddr, rkey) = (mitra.mr.addr, mitra.mr.rkey.0);
        let read = format!("post qp=0 wr=1 flags=s op=read sge=0:{TO}:{LEN} raddr={raddr} rkey={rkey}");
        if arriving == 0 {
            mitra.noise(VOID, SILENCE);
            kernel.peer.ask(&read)?;
            mitra.wait_for_count("fault_dropped", LEN.div_ceil(LOSSY.mtu))?;
        } else {
            let failure = Failure::LinkDown;
            mitra.nic.faults().arm(Trigger { stage: Stage::AckOnWire, nth: arriving + 1, failure });
            kernel.peer.ask(&read)?;
            mitra.wait_for_event(AsyncEvent::PortError)?;
        }
        mitra.nic.dereg_mr(mitra.mr.id)?;
        mitra.noise(SILENCE, SILENCE);
        mitra.nic.faults().heal();
        let done = kernel.peer.completion().with_context(|| format!("{arriving} arrived"))?;
        // A NAK in the middle of an answer ends the kernel's READ as a success, and then its queue pair.
        done.expect_status(if arriving == 0 { "rem_access_err" } else { "success" })
            .with_context(|| format!("{arriving} arrived"))?;
        let (naks, state) = (mitra.counter("fatal_naks_sent")?, kernel.state()?);
        ensure!((naks, &state[..]) == (1, "err"), "{naks} NAKs; the kernel is in {state}");
        // Whether the kernel lacked the answer is not known to Mitra.
        mitra.expect_state(QpState::Rts)?;
    }
    Ok(())
}

/// More packets than Mitra sends in one turn, and fewer than the kernel has outstanding.
const LONG: u64 = 100 * 256;

/// The READ is answered to its end, and what follows it refused.
fn behind_a_read_of_mitra() -> Result<()> {
    let mut wire = Wire::new(LOSSY)?;
    let Wire { mitra, kernel } = &mut wire;
    let remote = RemoteAddr { addr: kernel.addr, rkey: Key(kernel.rkey as u32) };
    let nowhere = RemoteAddr { rkey: Key(0x1234_5678), ..remote };
    kernel.peer.ask("fill mr=0 seed=3")?;
    mitra.post(&[
        SendWr::new(1, SendOp::Read(remote), mitra.data(TO, LONG)),
        SendWr::new(2, SendOp::Write(nowhere), mitra.data(0, 8)),
        SendWr::new(3, SendOp::Write(remote), mitra.data(0, 8)),
    ])?;
    let done = mitra.completions(3)?;
    let statuses: Vec<_> = done.iter().map(|wc| wc.status).collect();
    let expected = [WcStatus::Success, WcStatus::RemoteAccess, WcStatus::Flushed];
    ensure!(statuses == expected, "{done:?}");
    let state = kernel.state()?;
    ensure!(state == "err", "the kernel is in {state}");
    mitra.check(TO, LONG, 0, 3)
}

fn behind_a_read_of_the_kernel() -> Result<()> {
    let mut wire = Wire::new(LOSSY)?;
    let Wire { mitra, kernel } = &mut wire;
    let (raddr, rkey) = (mitra.mr.addr, mitra.mr.rkey.0);
    mitra.fill(0, LONG, 3);
    let write = "flags=s op=write sge=0:0:8";
    let done = kernel
        .peer
        .ask_all(&[
            format!("post qp=0 wr=1 flags=s op=read sge=0:{TO}:{LONG} raddr={raddr} rkey={rkey} more=1"),
            format!("post qp=0 wr=2 {write} raddr={raddr} rkey=0x12345678 more=1"),
            format!("post qp=0 wr=3 {write} raddr={raddr} rkey={rkey}"),
            "poll n=3".to_owned(),
        ])?
        .completions()?;
    let statuses: Vec<_> = done.iter().map(|it| &it.status[..]).collect();
    ensure!(statuses == ["success", "rem_access_err", "wr_flush_err"], "{done:?}");
    kernel.peer.ask(&format!("check mr=0 off={TO} len={LONG} from=0 seed=3"))?;
    mitra.wait_for_event(AsyncEvent::QpAccessError(mitra.qpn))?;
    mitra.expect_state(QpState::Err)?;
    mitra.check(0, LONG, 0, 3)
}
