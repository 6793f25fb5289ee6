//! Requests that must be refused, in both directions: the completions of both ends, and the check
//! that no memory changed.

use anyhow::{Context as _, Result, ensure};
use mitra_verbs::{
    Access, AsyncEvent, Data, Key, Provider as _, QpState, RemoteAddr, SendOp, SendWr, WcOpcode, WcStatus,
};

use super::mitra_endpoint::{expect, expect_status};
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/bad-key", bad_key),
    ("mitra/beyond-the-region", beyond_the_region),
    ("mitra/missing-right-of-the-region", missing_right_of_the_region),
    ("mitra/missing-right-of-the-queue-pair", missing_right_of_the_queue_pair),
    ("mitra/deregistered", deregistered),
    ("mitra/no-bytes-need-no-key", no_bytes_need_no_key),
    ("mitra/receive-too-short", receive_too_short),
];

#[derive(Clone, Copy, Debug)]
enum What {
    Write(u64),
    Read(u64),
    Swap,
    Add,
}

const REGION: u64 = 32 << 10;
const SETUP: Setup = Setup { size: REGION, ..Setup::DEFAULT };

use What::{Add, Read, Swap, Write};

/// Message lengths: one packet, and ten.
const ALL: [What; 6] = [Write(8), Write(9100), Read(8), Read(9100), Swap, Add];
/// Seeds of the contents of the requester's and the responder's region.
const MINE: u32 = 6;
const YOURS: u32 = 7;

impl What {
    fn len(self) -> u64 {
        match self {
            Write(len) | Read(len) => len,
            Swap | Add => 8,
        }
    }

    fn op(self, remote: RemoteAddr) -> SendOp {
        match self {
            Write(_) => SendOp::Write(remote),
            Read(_) => SendOp::Read(remote),
            Swap => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
            Add => SendOp::FetchAdd { remote, add: 1 },
        }
    }

    fn words(self) -> &'static str {
        match self {
            Write(_) => "op=write",
            Read(_) => "op=read",
            Swap => "op=cas cmp=0 swap=1",
            Add => "op=faa add=1",
        }
    }
}

/// A remote address or key that must be refused.
#[derive(Clone, Copy)]
struct Wrong {
    setup: Setup,
    what: What,
    /// The offset in the region.
    off: u64,
    /// The address of the request, unless it is the region's address plus `off`.
    address: Option<u64>,
    /// The key of the request, unless it is the region's.
    key: Option<u32>,
    status: WcStatus,
}

impl Wrong {
    fn new(setup: Setup, what: What) -> Self {
        Self { setup, what, off: 4096, address: None, key: None, status: WcStatus::RemoteAccess }
    }

    fn both_ways(self) -> Result<()> {
        let Self { what, off, .. } = self;
        self.of_mitra().with_context(|| format!("Mitra's {what:?} at {off:#x}"))?;
        self.of_the_kernel().with_context(|| format!("the kernel's {what:?} at {off:#x}"))
    }

    fn of_mitra(self) -> Result<()> {
        let mut wire = Wire::new(self.setup)?;
        let Wire { mitra, kernel } = &mut wire;
        kernel.peer.ask_all(&[format!("fill mr=0 seed={YOURS}"), "recv qp=0 wr=5".to_owned()])?;
        mitra.fill(0, REGION, MINE);
        let rkey = Key(self.key.unwrap_or(kernel.rkey as u32));
        let remote = RemoteAddr { addr: self.address.unwrap_or(kernel.addr.wrapping_add(self.off)), rkey };
        mitra.post(&[
            SendWr::new(1, self.what.op(remote), mitra.data(0, self.what.len())),
            SendWr::new(2, SendOp::Send, Data::empty()),
        ])?;
        let done = mitra.completions(2)?;
        ensure!((done[0].wr_id, done[1].wr_id) == (1, 2), "{done:?}");
        expect_status(&done[0], self.status)?;
        expect_status(&done[1], WcStatus::Flushed)?;
        mitra.expect_state(QpState::Err)?;
        let flushed = kernel.peer.completion()?;
        flushed.expect_status("wr_flush_err")?;
        ensure!(flushed.wr == 5, "{flushed:?}");
        let state = kernel.state()?;
        ensure!(state == "err", "the kernel is in {state}");
        kernel.peer.ask(&format!("check mr=0 seed={YOURS}")).context("refused, yet executed")?;
        mitra.check(0, REGION, 0, MINE)
    }

    fn of_the_kernel(self) -> Result<()> {
        let mut wire = Wire::new(self.setup)?;
        let Wire { mitra, kernel } = &mut wire;
        mitra.fill(0, REGION, YOURS);
        mitra.receive(5, 0, 8)?;
        let raddr = self.address.unwrap_or(mitra.mr.addr.wrapping_add(self.off));
        let rkey = self.key.unwrap_or(mitra.mr.rkey.0);
        let (op, len) = (self.what.words(), self.what.len());
        let done = kernel
            .peer
            .ask_all(&[
                format!("fill mr=0 seed={MINE}"),
                format!("post qp=0 wr=1 flags=s {op} sge=0:0:{len} raddr={raddr} rkey={rkey} more=1"),
                "post qp=0 wr=2 flags=s op=send".to_owned(),
                "poll n=2".to_owned(),
            ])?
            .completions()?;
        let [refused, flushed] = &done[..] else { anyhow::bail!("two completions, not {done:?}") };
        let (status, event) = match self.status {
            WcStatus::RemoteAccess => ("rem_access_err", AsyncEvent::QpAccessError(mitra.qpn)),
            _ => ("rem_inv_req_err", AsyncEvent::QpRequestError(mitra.qpn)),
        };
        refused.expect_status(status)?;
        flushed.expect_status("wr_flush_err")?;
        ensure!((refused.wr, flushed.wr) == (1, 2), "{done:?}");
        let state = kernel.state()?;
        ensure!(state == "err", "the kernel is in {state}");
        mitra.wait_for_event(event)?;
        mitra.expect_state(QpState::Err)?;
        let wc = mitra.completion()?;
        expect_status(&wc, WcStatus::Flushed)?;
        ensure!(wc.wr_id == 5, "{wc:?}");
        mitra.check(0, REGION, 0, YOURS).context("refused, yet executed")?;
        kernel.peer.ask(&format!("check mr=0 seed={MINE}"))?;
        Ok(())
    }
}

fn bad_key() -> Result<()> {
    for what in ALL {
        Wrong { key: Some(0x1234_5678), ..Wrong::new(SETUP, what) }.both_ways()?;
    }
    Ok(())
}

/// Ranges outside the region: by one byte, entirely, before it, and around the end of the address
/// space.
fn beyond_the_region() -> Result<()> {
    for (what, off) in [
        (Write(9100), REGION - 9099),
        (Read(8), REGION - 7),
        (Write(1), u64::MAX),
        (Swap, REGION),
        (Add, 0u64.wrapping_sub(8)),
    ] {
        Wrong { off, ..Wrong::new(SETUP, what) }.both_ways()?;
    }
    Wrong { address: Some(u64::MAX - 3), ..Wrong::new(SETUP, Write(8)) }.both_ways()
}

fn missing_right_of_the_region() -> Result<()> {
    let local = Access::LOCAL_WRITE;
    for (what, region, kernel_region) in [
        (Write(8), local | Access::REMOTE_READ | Access::REMOTE_ATOMIC, "lra"),
        (Read(8), local | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC, "lwa"),
        (Add, local | Access::REMOTE_WRITE | Access::REMOTE_READ, "lwr"),
    ] {
        Wrong::new(Setup { region, kernel_region, ..SETUP }, what).both_ways()?;
    }
    Ok(())
}

/// An operation that the queue pair does not allow at all is an invalid request, not an access
/// error.
fn missing_right_of_the_queue_pair() -> Result<()> {
    let local = Access::LOCAL_WRITE;
    for (what, rights, kernel_rights) in [
        (Write(8), local | Access::REMOTE_READ | Access::REMOTE_ATOMIC, "lra"),
        (Read(8), local | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC, "lwa"),
        (Swap, local | Access::REMOTE_WRITE | Access::REMOTE_READ, "lwr"),
    ] {
        let setup = Setup { rights, kernel_rights, ..SETUP };
        Wrong { status: WcStatus::RemoteInvalidRequest, ..Wrong::new(setup, what) }.both_ways()?;
    }
    let setup = Setup { dest_rd: 0, ..SETUP };
    Wrong { status: WcStatus::RemoteInvalidRequest, ..Wrong::new(setup, Read(8)) }.both_ways()
}

fn deregistered() -> Result<()> {
    deregistered_at_the_kernel()?;
    let mut wire = Wire::new(SETUP)?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.nic.dereg_mr(mitra.mr.id)?;
    kernel
        .run(&format!("op=write sge=0:0:8 raddr={} rkey={}", mitra.mr.addr, mitra.mr.rkey.0))?
        .expect_status("rem_access_err")
}

fn deregistered_at_the_kernel() -> Result<()> {
    let mut wire = Wire::new(SETUP)?;
    let Wire { mitra, kernel } = &mut wire;
    kernel.peer.ask("dereg mr=0")?;
    let remote = RemoteAddr { addr: kernel.addr, rkey: Key(kernel.rkey as u32) };
    expect_status(&mitra.run(SendOp::Write(remote), mitra.data(0, 8))?, WcStatus::RemoteAccess)
}

fn no_bytes_need_no_key() -> Result<()> {
    let mut wire = Wire::new(SETUP)?;
    let Wire { mitra, kernel } = &mut wire;
    let nowhere = RemoteAddr { addr: 1, rkey: Key(0x1234_5678) };
    expect(&mitra.run(SendOp::Write(nowhere), Data::empty())?, WcOpcode::Write)?;
    expect(&mitra.run(SendOp::Read(nowhere), Data::empty())?, WcOpcode::Read)?;
    kernel.run("op=write raddr=1 rkey=0x12345678")?.expect("write")?;
    kernel.run("op=read raddr=1 rkey=0x12345678")?.expect("read")?;
    wire.check_psns()
}

/// Mitra refuses as the specification requires; rxe reports an operational error.
fn receive_too_short() -> Result<()> {
    for len in [17, 3000] {
        too_short_at_the_kernel(len)?;
        too_short_at_mitra(len)?;
    }
    Ok(())
}

fn too_short_at_the_kernel(len: u64) -> Result<()> {
    let mut wire = Wire::new(SETUP)?;
    let Wire { mitra, kernel } = &mut wire;
    kernel.peer.ask(&format!("recv qp=0 sge=0:0:{}", len - 1))?;
    expect_status(&mitra.run(SendOp::Send, mitra.data(0, len))?, WcStatus::RemoteOperation)?;
    kernel.peer.completion()?.expect_status("loc_qp_op_err")
}

fn too_short_at_mitra(len: u64) -> Result<()> {
    let mut wire = Wire::new(SETUP)?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.fill(0, REGION, YOURS);
    mitra.receive(1, 0, len - 1)?;
    kernel.run(&format!("op=send sge=0:0:{len}"))?.expect_status("rem_inv_req_err")?;
    expect_status(&mitra.completion()?, WcStatus::LocalLength)?;
    mitra.expect_state(QpState::Err)?;
    mitra.check(len - 1, REGION - len + 1, len - 1, YOURS)
}
