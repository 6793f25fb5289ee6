//! READs that the responder cannot answer completely: it lost the READ's access rights before a
//! retransmission, or it refused the request after the READ.

use anyhow::{Context as _, Result, ensure};
use mitra_softnic::fault::{Failure, Stage, Trigger};
use mitra_verbs::{AsyncEvent, Data, Key, Provider as _, QpState, RemoteAddr, SendOp, SendWr, WcStatus};

use super::mitra_endpoint::{SILENCE, VOID, expect_status};
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/read-again-without-rights-of-mitra", read_again_by_mitra),
    ("mitra/read-again-without-rights-of-the-kernel", read_again_by_the_kernel),
    ("mitra/refused-behind-a-read-of-mitra", refused_after_a_read_by_mitra),
    ("mitra/refused-behind-a-read-of-the-kernel", refused_after_a_read_by_the_kernel),
];

const LOSSY: Setup = Setup { mtu: 256, timeout: 14, ..Setup::DEFAULT };
/// The length of the READ in bytes: six packets, of which none or two arrive.
const LEN: u64 = 5 * 256 + 1;
const TO: u64 = 96 << 10;

fn read_again_by_mitra() -> Result<()> {
    for arriving in [0, 2] {
        // The local ACK timeout is half a second, so Mitra requests the data again only after the
        // region is deregistered.
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

fn read_again_by_the_kernel() -> Result<()> {
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
        // After a NAK in the middle of the response, the kernel completes the READ with success and
        // takes its queue pair to ERR.
        done.expect_status(if arriving == 0 { "rem_access_err" } else { "success" })
            .with_context(|| format!("{arriving} arrived"))?;
        let (naks, state) = (mitra.counter("fatal_naks_sent")?, kernel.state()?);
        ensure!((naks, &state[..]) == (1, "err"), "{naks} NAKs; the kernel is in {state}");
        // Mitra does not know that the kernel did not receive the whole response, so its queue pair
        // stays in RTS.
        mitra.expect_state(QpState::Rts)?;
    }
    Ok(())
}

/// The length of a long READ in bytes: more packets than Mitra sends in one turn, and fewer than
/// the kernel keeps outstanding.
const LONG: u64 = 100 * 256;

/// The READ is answered completely, and the WRITE after it is refused.
fn refused_after_a_read_by_mitra() -> Result<()> {
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

fn refused_after_a_read_by_the_kernel() -> Result<()> {
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
