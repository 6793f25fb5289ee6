//! Type 2 memory windows: the access that they grant, and how it is revoked.

use anyhow::{Context as _, Result, ensure};
use mitra_verbs::{
    Access, AsyncEvent, Data, Key, Mw, Provider as _, QpState, RemoteAddr, SendOp, WcOpcode, WcStatus,
    WindowBind, WindowType,
};

use super::mitra_endpoint::{MitraEndpoint, expect, expect_status};
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/window-of-mitra", window_of_mitra),
    ("mitra/beyond-the-window-of-mitra", beyond_the_window_of_mitra),
    ("mitra/dead-window-of-mitra", dead_window_of_mitra),
    ("mitra/window-of-the-kernel", window_of_the_kernel),
    ("mitra/dead-window-of-the-kernel", dead_window_of_the_kernel),
    ("mitra/invalidating-what-is-not-there", invalidating_what_is_not_there),
];

/// Offset and length of the window in the region.
const OFF: u64 = 4096;
const LEN: u64 = 8192;

fn bind(mitra: &MitraEndpoint, window: &Mw, consumer: u8, access: Access) -> Result<Key> {
    let rkey = window.rkey.with_consumer_bits(consumer);
    let bind = WindowBind {
        mw: window.id,
        rkey,
        mr: mitra.mr.id,
        addr: mitra.mr.addr + OFF,
        len: LEN,
        access,
        zero_based: false,
    };
    expect(&mitra.run(SendOp::BindWindow(bind), Data::empty())?, WcOpcode::BindWindow)?;
    Ok(rkey)
}

/// Connects two queue pairs and binds a window to Mitra's.
fn with_window(access: Access) -> Result<(Wire, Mw, Key)> {
    let wire = Wire::new(Setup::DEFAULT)?;
    let window = wire.mitra.nic.alloc_mw(wire.mitra.pd, WindowType::Type2)?;
    let key = bind(&wire.mitra, &window, 1, access)?;
    wire.mitra.fill(0, 2 * (OFF + LEN), 9);
    Ok((wire, window, key))
}

/// The kernel's request at an offset of Mitra's region must be refused without changing the region.
fn refused(wire: &mut Wire, request: &str, off: u64, key: Key) -> Result<()> {
    let raddr = wire.mitra.mr.addr + off;
    let done = wire.kernel.run(&format!("{request} raddr={raddr} rkey={}", key.0))?;
    done.expect_status("rem_access_err").with_context(|| format!("{request} at {off} by {key}"))?;
    wire.mitra.wait_for_event(AsyncEvent::QpAccessError(wire.mitra.qpn))?;
    wire.mitra.expect_state(QpState::Err)?;
    wire.mitra.check(0, 2 * (OFF + LEN), 0, 9).context("refused, yet executed")
}

/// The whole window can be accessed, and again through another key after an invalidation.
fn window_of_mitra() -> Result<()> {
    let (mut wire, window, mut key) = with_window(Access::REMOTE)?;
    for round in 1..=3 {
        let Wire { mitra, kernel } = &mut wire;
        let raddr = mitra.mr.addr + OFF;
        kernel.peer.ask(&format!("fill mr=0 seed={round}"))?;
        kernel.run(&format!("op=write sge=0:0:{LEN} raddr={raddr} rkey={}", key.0))?.expect("write")?;
        mitra.check(OFF, LEN, 0, round)?;
        kernel.run(&format!("op=read sge=0:{LEN}:{LEN} raddr={raddr} rkey={}", key.0))?.expect("read")?;
        kernel.peer.ask(&format!("check mr=0 off={LEN} len={LEN} from=0 seed={round}"))?;
        mitra.memory.store(OFF as usize, 4);
        let faa = format!("op=faa add=1 sge=0:0:8 raddr={raddr} rkey={}", key.0);
        kernel.run(&faa)?.expect("faa")?;
        ensure!(mitra.memory.load(OFF as usize) == 5);

        mitra.receive(1, 0, 0)?;
        kernel.run(&format!("op=send_inv inv={}", key.0))?.expect("send")?;
        let wc = mitra.completion()?;
        expect(&wc, WcOpcode::Recv)?;
        ensure!(wc.invalidated == Some(key), "{wc:?}");
        key = bind(mitra, &window, round as u8 + 1, Access::REMOTE)?;
    }
    wire.check_psns()
}

fn beyond_the_window_of_mitra() -> Result<()> {
    for (request, off) in [
        ("op=write sge=0:0:8", OFF - 1),
        ("op=write sge=0:0:8", OFF + LEN - 7),
        ("op=write sge=0:0:9000", OFF),
        ("op=read sge=0:0:8", OFF - 8),
        ("op=faa add=1 sge=0:0:8", OFF + LEN),
    ] {
        let (mut wire, _, key) = with_window(Access::REMOTE)?;
        refused(&mut wire, request, off, key)?;
    }
    for (request, access) in [
        ("op=write sge=0:0:8", Access::REMOTE_READ | Access::REMOTE_ATOMIC),
        ("op=read sge=0:0:8", Access::REMOTE_WRITE | Access::REMOTE_ATOMIC),
        ("op=cas cmp=0 swap=1 sge=0:0:8", Access::REMOTE_WRITE | Access::REMOTE_READ),
    ] {
        let (mut wire, _, key) = with_window(access)?;
        refused(&mut wire, request, OFF, key)?;
    }
    Ok(())
}

/// Revokes a window's key and returns the revoked key.
type KernelEndpoint = fn(&mut Wire, Mw, Key) -> Result<Key>;

/// The ways to revoke: invalidate and bind again, invalidation by the peer, deallocation, binding
/// to another queue pair.
fn dead_window_of_mitra() -> Result<()> {
    let ends: [KernelEndpoint; 4] = [
        |wire, window, key| {
            let wc = wire.mitra.run(SendOp::LocalInvalidate(key), Data::empty())?;
            expect(&wc, WcOpcode::LocalInvalidate)?;
            bind(&wire.mitra, &window, 2, Access::REMOTE)?;
            Ok(key)
        },
        |wire, _, key| {
            wire.mitra.receive(1, 0, 0)?;
            wire.kernel.run(&format!("op=send_inv inv={}", key.0))?.expect("send")?;
            expect(&wire.mitra.completion()?, WcOpcode::Recv)?;
            Ok(key)
        },
        |wire, window, key| {
            wire.mitra.nic.dealloc_mw(window.id)?;
            Ok(key)
        },
        |wire, window, key| {
            wire.mitra.run(SendOp::LocalInvalidate(key), Data::empty())?;
            let other = wire.mitra.sibling()?;
            other.connect(&Setup::DEFAULT, wire.kernel.qpn + 1, 0, 0)?;
            bind(&other, &window, 3, Access::REMOTE)
        },
    ];
    for (nth, end) in ends.into_iter().enumerate() {
        let (mut wire, window, key) = with_window(Access::REMOTE)?;
        let key = end(&mut wire, window, key)?;
        refused(&mut wire, "op=write sge=0:0:8", OFF, key).with_context(|| format!("end {nth}"))?;
    }
    Ok(())
}

/// Binds a window of the kernel's to its queue pair `qp` and returns its remote address and key.
fn kernel_window(wire: &mut Wire, qp: u32, access: &str) -> Result<RemoteAddr> {
    let bind = format!("post qp={qp} op=bind mw=0 mr=0 off={OFF} len={LEN} access={access} flags=s");
    let answers = wire.kernel.peer.ask_each(&["mw", &bind, "poll"])?;
    answers[2].completions()?.first().context("no bind")?.expect("bind")?;
    Ok(RemoteAddr { addr: wire.kernel.addr + OFF, rkey: Key(answers[1].number("rkey")? as u32) })
}

fn window_of_the_kernel() -> Result<()> {
    let mut wire = Wire::new(Setup::DEFAULT)?;
    let remote = kernel_window(&mut wire, 0, "wr")?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.fill(0, LEN, 1);
    expect(&mitra.run(SendOp::Write(remote), mitra.data(0, LEN))?, WcOpcode::Write)?;
    kernel.peer.ask(&format!("check mr=0 off={OFF} len={LEN} from=0 seed=1"))?;
    expect(&mitra.run(SendOp::Read(remote), mitra.data(LEN, LEN))?, WcOpcode::Read)?;
    mitra.check(LEN, LEN, 0, 1)?;
    // The window does not grant atomics.
    let wc = mitra.run(SendOp::FetchAdd { remote, add: 1 }, mitra.data(0, 8))?;
    expect_status(&wc, WcStatus::RemoteAccess)
}

fn dead_window_of_the_kernel() -> Result<()> {
    let ends: [fn(&mut Wire) -> Result<RemoteAddr>; 3] = [
        |wire| {
            let remote = kernel_window(wire, 0, "wr")?;
            wire.kernel.peer.ask("recv qp=0")?;
            expect(&wire.mitra.run(SendOp::SendWithInvalidate(remote.rkey), Data::empty())?, WcOpcode::Send)?;
            let received = wire.kernel.peer.completion()?;
            ensure!(received.inv == Some(remote.rkey.0.into()), "{received:?}");
            Ok(remote)
        },
        |wire| {
            let remote = kernel_window(wire, 0, "wr")?;
            wire.kernel.run(&format!("op=local_inv inv={}", remote.rkey.0))?.expect("local_inv")?;
            Ok(remote)
        },
        |wire| {
            let connect = format!("connect qp=1 ip={} qpn=1 rq_psn=0 sq_psn=0", super::MITRA_IP);
            wire.kernel.peer.ask_all(&["qp", &connect])?;
            kernel_window(wire, 1, "wr")
        },
    ];
    for (nth, end) in ends.into_iter().enumerate() {
        let mut wire = Wire::new(Setup::DEFAULT)?;
        let remote = end(&mut wire)?;
        let wc = wire.mitra.run(SendOp::Write(remote), wire.mitra.data(0, 8))?;
        expect_status(&wc, WcStatus::RemoteAccess).with_context(|| format!("end {nth}"))?;
    }
    Ok(())
}

/// SENDs with invalidate that name a window which was never bound, and a memory region.
fn invalidating_what_is_not_there() -> Result<()> {
    for region in [false, true] {
        let mut wire = Wire::new(Setup::DEFAULT)?;
        let window = wire.mitra.nic.alloc_mw(wire.mitra.pd, WindowType::Type2)?;
        let key = if region { wire.mitra.mr.rkey } else { window.rkey };
        wire.mitra.receive(1, 0, 8)?;
        let done = wire.kernel.run(&format!("op=send_inv sge=0:0:8 inv={}", key.0))?;
        done.expect_status("rem_access_err")?;
        let wc = wire.mitra.completion()?;
        ensure!(wc.status != WcStatus::Success, "{wc:?}");
        wire.mitra.expect_state(QpState::Err)?;
    }
    Ok(())
}
