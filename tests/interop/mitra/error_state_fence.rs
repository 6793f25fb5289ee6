//! The change of a queue pair to ERR is a fence: afterwards the responder executes nothing, and its
//! expected PSN shows exactly which packets it executed before, whether acknowledged or not.

use anyhow::{Result, ensure};
use mitra_verbs::{Key, Provider as _, QpAttr, QpState, RemoteAddr, SendOp, SendWr, WcStatus};

use super::mitra_endpoint::{SILENCE, VOID};
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/fenced-by-mitra", || by_mitra(false)),
    ("mitra/fenced-by-mitra-unheard", || by_mitra(true)),
    ("mitra/fenced-by-the-kernel", || by_the_kernel(false)),
    ("mitra/fenced-by-the-kernel-unheard", || by_the_kernel(true)),
];

const SETUP: Setup = Setup { timeout: 15, retry: 1, psn: 0xff_ffe0, ..Setup::DEFAULT };
/// WRITEs of four packets that together fill the region.
const WRITES: u64 = 48;
const LEN: u64 = 4 * SETUP.mtu;
/// Seeds of the written data and of the previous content.
const NEW: u32 = 1;
const OLD: u32 = 2;

/// Returns the number of bytes that the packets before the PSN `end` wrote.
fn written(end: u64) -> u64 {
    (end.wrapping_sub(SETUP.psn) & 0xff_ffff) * SETUP.mtu
}

/// Checks that the requester's completions are successes, then one exceeded retry count, then
/// flushes. Returns the number of bytes that the successes acknowledge.
fn known(done: impl Iterator<Item = (bool, bool)>) -> Result<u64> {
    let (mut known, mut failed) = (0, false);
    for (success, exceeded) in done {
        ensure!(!(failed && (success || exceeded)), "no flush behind a failure");
        ensure!(success || exceeded || failed, "not a success, and not for want of an answer");
        failed |= exceeded;
        known += u64::from(success) * LEN;
    }
    Ok(known)
}

fn by_mitra(unheard: bool) -> Result<()> {
    let mut wire = Wire::new(SETUP)?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.fill(0, SETUP.size, OLD);
    kernel.peer.ask(&format!("fill mr=0 seed={NEW}"))?;
    if unheard {
        mitra.noise(VOID, SILENCE);
    }
    let post = |i: u64| {
        let (at, rkey) = (mitra.mr.addr + i * LEN, mitra.mr.rkey.0);
        let more = u8::from(i + 1 < WRITES);
        format!(
            "post qp=0 wr={i} op=write flags=s sge=0:{}:{LEN} raddr={at} rkey={rkey} more={more}",
            i * LEN
        )
    };
    kernel.peer.ask_all(&(0..WRITES).map(post).collect::<Vec<_>>())?;
    mitra.wait_for_count("messages_executed", 4)?;
    mitra.nic.modify_qp(mitra.qpn, &QpAttr::to(QpState::Err))?;
    let end = written(mitra.status()?.rq_psn.value().into());
    mitra.noise(SILENCE, SILENCE);
    let check = || {
        mitra.check(0, end, 0, NEW)?;
        mitra.check(end, SETUP.size - end, end, OLD)
    };
    check()?;
    let done = kernel.peer.ask(&format!("poll n={WRITES} ms=20000"))?.completions()?;
    ensure!(done.len() as u64 == WRITES, "{} requests are done", done.len());
    let known = known(done.iter().map(|it| (it.status == "success", it.status == "retry_exc_err")))?;
    ensure!(known <= end, "the kernel knows of {known} bytes, but {end} are written");
    ensure!(!unheard || (known == 0 && end < SETUP.size), "{known} bytes were acknowledged unheard");
    check()
}

fn by_the_kernel(unheard: bool) -> Result<()> {
    let mut wire = Wire::new(SETUP)?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.fill(0, SETUP.size, NEW);
    kernel.peer.ask(&format!("fill mr=0 seed={OLD}"))?;
    if unheard {
        mitra.noise(SILENCE, VOID);
    }
    let post = |i: u64| {
        let remote = RemoteAddr { addr: kernel.addr + i * LEN, rkey: Key(kernel.rkey as u32) };
        SendWr::new(i, SendOp::Write(remote), mitra.data(i * LEN, LEN))
    };
    mitra.post(&(0..WRITES).map(post).collect::<Vec<_>>())?;
    kernel.peer.ask("modify qp=0 state=err")?;
    let done = mitra.completions(WRITES as usize)?;
    // The kernel's change to ERR does not wait for a packet in execution, so the test waits here.
    let end = written(kernel.peer.ask("query qp=0")?.number("rq_psn")?);
    kernel.peer.ask_all(&[
        format!("check mr=0 len={end} seed={NEW}"),
        format!("check mr=0 off={end} len={} seed={OLD}", SETUP.size - end),
    ])?;
    let known =
        known(done.iter().map(|wc| (wc.status == WcStatus::Success, wc.status == WcStatus::RetryExceeded)))?;
    ensure!(known <= end, "Mitra knows of {known} bytes, but {end} are written");
    ensure!(!unheard || known == 0, "{known} bytes were acknowledged unheard");
    Ok(())
}
