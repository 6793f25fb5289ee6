//! The time that a memory takes to move the write permission from one process to another, by queue
//! pair flags, by memory windows and by memory keys.

use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use mitra_softnic::{Config, SoftNic};
use mitra_verbs::{
    Access, Buffer, CqId, Data, Mr, Provider, QpAttr, QpState, Qpn, SendOp, SendWr, Wc, WcStatus, WindowBind,
    WindowType,
};

use crate::bench_qp::RcBenchQp;
use crate::endpoint::random;
use crate::report::{Blocks, Row, quantile};

/// The length of the region in bytes.
const REGION: usize = 1 << 20;
/// The number of switches per block.
const ROUNDS: usize = 200;

pub(super) fn rows(blocks: u32) -> anyhow::Result<Vec<Row>> {
    let nic: Arc<dyn Provider> = SoftNic::open(Config::loopback())?;
    let mut ends = Vec::new();
    for _ in 0..2 {
        let (mut here, mut there) =
            (RcBenchQp::new(&nic, 64, random()? as u32)?, RcBenchQp::new(&nic, 64, random()? as u32)?);
        let (local, remote) = (here.info()?, there.info()?);
        here.connect(&remote)?;
        there.connect(&local)?;
        ends.push((here, there));
    }
    let qps = [ends[0].0.ids(), ends[1].0.ids()];
    let pd = nic.alloc_pd()?;
    let memory = Arc::new(Buffer::new(REGION));
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;

    let flags = |round: usize| -> anyhow::Result<()> {
        let set =
            |qp: Qpn, access| nic.modify_qp(qp, &QpAttr { access: Some(access), ..QpAttr::to(QpState::Rts) });
        set(qps[round % 2].0, Access::REMOTE_READ)?;
        Ok(set(qps[(round + 1) % 2].0, Access::REMOTE_READ | Access::REMOTE_WRITE)?)
    };
    let mut key = nic.reg_mr(pd, Arc::clone(&memory), rights)?;
    let mut keys = |_| -> anyhow::Result<()> {
        nic.dereg_mr(key.id)?;
        key = nic.reg_mr(pd, Arc::clone(&memory), rights)?;
        Ok(())
    };
    let timed = |change: &mut dyn FnMut(usize) -> anyhow::Result<()>| -> anyhow::Result<Blocks> {
        let mut all = Blocks::default();
        for _ in 0..blocks {
            let mut laps = Vec::new();
            for round in 0..ROUNDS {
                let begin = Instant::now();
                change(round)?;
                laps.push(begin.elapsed().as_secs_f64() * 1e6);
            }
            all.push(quantile(&laps, 0.5), quantile(&laps, 0.99));
        }
        Ok(all)
    };
    let by_flags = timed(&mut |round| flags(round))?;
    let by_keys = timed(&mut keys)?;
    let by_windows = windows(&nic, &ends, &memory, &timed)?;
    Ok(vec![
        by_flags.row("permission/qp_flags".into(), "us"),
        by_windows.row("permission/window".into(), "us"),
        by_keys.row("permission/key".into(), "us"),
    ])
}

type Timed<'a> = dyn Fn(&mut dyn FnMut(usize) -> anyhow::Result<()>) -> anyhow::Result<Blocks> + 'a;

/// Measures with one memory window per process, bound to its queue pair: each switch invalidates
/// the old window and binds the new one.
fn windows(
    nic: &Arc<dyn Provider>,
    ends: &[(RcBenchQp, RcBenchQp)],
    memory: &Arc<Buffer>,
    timed: &Timed<'_>,
) -> anyhow::Result<Blocks> {
    let mut windows = Vec::new();
    for (bare, _) in ends {
        let (qpn, cq, pd) = bare.ids();
        let mr = nic.reg_mr(pd, Arc::clone(memory), Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
        windows.push(Window { qpn, cq, mr, mw: nic.alloc_mw(pd, WindowType::Type2)? });
    }
    let mut generation = 0_u32;
    let mut bound = None;
    timed(&mut |round| {
        if let Some((at, key)) = bound.take() {
            run(nic, &windows[at as usize % 2], SendOp::LocalInvalidate(key))?;
        }
        generation += 1;
        let window: &Window = &windows[round % 2];
        let key = mitra_verbs::Key((window.mw.rkey.0 & !0xFF) | ((generation / 2) & 0xFF));
        let bind = WindowBind {
            mw: window.mw.id,
            rkey: key,
            mr: window.mr.id,
            addr: memory.addr(),
            len: REGION as u64,
            access: Access::REMOTE_WRITE,
            zero_based: false,
        };
        run(nic, window, SendOp::BindWindow(bind))?;
        bound = Some((round as u32, key));
        Ok(())
    })
}

struct Window {
    qpn: Qpn,
    cq: CqId,
    mr: Mr,
    mw: mitra_verbs::Mw,
}

/// Posts a request that the NIC executes locally, and waits for its completion.
fn run(nic: &Arc<dyn Provider>, window: &Window, op: SendOp) -> anyhow::Result<()> {
    nic.post_send(window.qpn, &[SendWr::new(1, op, Data::empty())])?;
    let mut wcs: Vec<Wc> = Vec::new();
    while wcs.is_empty() {
        nic.poll_cq(window.cq, 4, &mut wcs)?;
    }
    ensure!(wcs[0].status == WcStatus::Success, "a bind or invalidation failed: {}", wcs[0].status);
    Ok(())
}
