//! All operations in both directions at once, while the rail loses, duplicates, reorders and
//! corrupts packets.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mitra_softnic::fault::Noise;
use mitra_verbs::{Key, RemoteAddr, SendFlags, SendOp, SendWr, Wc, WcOpcode, WcStatus};

use super::mitra_endpoint::SILENCE;
use super::{Setup, Wire};
use crate::Scenario;
use crate::rxe_peer_protocol::Completion;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/traffic", || traffic(SILENCE)),
    ("mitra/traffic-with-loss", || traffic(LOSS)),
    ("mitra/traffic-doubled", || traffic(DOUBLED)),
    ("mitra/traffic-reordered", || traffic(REORDERED)),
    ("mitra/traffic-damaged", || traffic(Noise { corrupt_ppm: 20_000, ..SILENCE })),
    ("mitra/traffic-with-all-of-it", || {
        let Noise { max_delay, .. } = REORDERED;
        traffic(Noise {
            drop_ppm: 10_000,
            duplicate_ppm: 100_000,
            reorder_ppm: 20_000,
            corrupt_ppm: 10_000,
            max_delay,
        })
    }),
];

const LOSS: Noise = Noise { drop_ppm: 30_000, ..SILENCE };
const DOUBLED: Noise = Noise { duplicate_ppm: 400_000, ..SILENCE };
const REORDERED: Noise = Noise { reorder_ppm: 50_000, max_delay: Duration::from_millis(3), ..SILENCE };

/// The number of repetitions per round and direction. Each repetition is a WRITE, an atomic, a SEND
/// and a READ of the written data.
const GROUPS: u64 = 4;
const ROUNDS: u32 = 6;
/// The length of each message in bytes.
const WRITE: u64 = 2048;
const SEND: u64 = 700;

/// The layout of the region at either end.
const SOURCE: u64 = 0;
const WRITTEN: u64 = 32 << 10;
const READ_BACK: u64 = 64 << 10;
const RECEIVED: u64 = 96 << 10;
const FETCHED: u64 = 128 << 10;
const COUNTER: u64 = 160 << 10;

fn traffic(noise: Noise) -> Result<()> {
    // The first round wraps the PSN.
    let mut wire = Wire::new(Setup { mtu: 512, timeout: 16, psn: 0xff_ffc0, ..Setup::DEFAULT })?;
    wire.mitra.noise(noise, noise);
    for round in 0..ROUNDS {
        one_round(&mut wire, round).with_context(|| format!("round {round}"))?;
    }
    wire.mitra.noise(SILENCE, SILENCE);
    wire.mitra.expect_none()?;
    wire.kernel.peer.expect_none()?;
    wire.check_psns()
}

fn one_round(wire: &mut Wire, round: u32) -> Result<()> {
    let Wire { mitra, kernel } = wire;
    // Mitra sends the pattern `mine`, the kernel `yours`.
    let (mine, yours) = (2 * round + 1, 2 * round + 2);
    mitra.fill(SOURCE, GROUPS * WRITE, mine);
    for i in 0..GROUPS {
        mitra.receive(i, RECEIVED + i * SEND, SEND)?;
    }
    let mut before = vec![format!("fill mr=0 off={SOURCE} len={} seed={yours}", GROUPS * WRITE)];
    for i in 0..GROUPS {
        before.push(format!("recv qp=0 wr={i} sge=0:{}:{SEND}", RECEIVED + i * SEND));
    }
    kernel.peer.ask_all(&before)?;

    let remote = |off| format!("raddr={} rkey={}", mitra.mr.addr + off, mitra.mr.rkey.0);
    let mut theirs = Vec::new();
    for i in 0..GROUPS {
        let at = i * WRITE;
        theirs.push(format!("op=write sge=0:{}:{WRITE} {}", SOURCE + at, remote(WRITTEN + at)));
        theirs.push(format!("op=faa add=1 sge=0:{}:8 {}", FETCHED + i * 8, remote(COUNTER)));
        theirs.push(format!("op=send sge=0:{}:{SEND}", SOURCE + at));
        theirs.push(format!("op=read sge=0:{}:{WRITE} {}", READ_BACK + at, remote(WRITTEN + at)));
    }
    let theirs: Vec<String> =
        (0..).zip(theirs).map(|(wr, it)| format!("post qp=0 wr={wr} flags=s {it}")).collect();
    kernel.peer.ask_all(&theirs)?;
    let remote = |off| RemoteAddr { addr: kernel.addr + off, rkey: Key(kernel.rkey as u32) };
    let mut ours = Vec::new();
    for i in 0..GROUPS {
        let at = i * WRITE;
        ours.push((SendOp::Write(remote(WRITTEN + at)), mitra.data(SOURCE + at, WRITE)));
        ours.push((SendOp::FetchAdd { remote: remote(COUNTER), add: 1 }, mitra.data(FETCHED + i * 8, 8)));
        ours.push((SendOp::Send, mitra.data(SOURCE + at, SEND)));
        ours.push((SendOp::Read(remote(WRITTEN + at)), mitra.data(READ_BACK + at, WRITE)));
    }
    let posted = ours.len();
    let ours: Vec<SendWr> = (0..)
        .zip(ours)
        .map(|(wr, (op, data))| SendWr::new(wr, op, data).with_flags(SendFlags::SIGNALED))
        .collect();
    mitra.post(&ours)?;

    // Each side's requests and receives complete in order.
    let done = mitra.completions(posted + GROUPS as usize)?;
    if let Some(bad) = done.iter().find(|wc| wc.status != WcStatus::Success) {
        anyhow::bail!("Mitra's {bad:?}");
    }
    let (received, sent): (Vec<&Wc>, Vec<&Wc>) = done.iter().partition(|wc| wc.opcode == WcOpcode::Recv);
    ensure!(sent.iter().map(|wc| wc.wr_id).eq(0..posted as u64), "Mitra's requests out of order");
    ensure!(received.iter().map(|wc| wc.wr_id).eq(0..GROUPS), "Mitra's receives out of order");
    let done = kernel.peer.ask(&format!("poll n={} ms=20000", posted + GROUPS as usize))?.completions()?;
    if let Some(bad) = done.iter().find(|it| it.status != "success") {
        anyhow::bail!("the kernel's {bad:?}");
    }
    let (received, sent): (Vec<&Completion>, Vec<&Completion>) = done.iter().partition(|it| it.op == "recv");
    ensure!(
        sent.iter().map(|it| it.wr).eq(0..posted as u64),
        "the kernel's requests: {} are done",
        sent.len()
    );
    ensure!(received.iter().map(|it| it.wr).eq(0..GROUPS), "the kernel's receives out of order");

    // All data arrived, and each atomic was executed once.
    mitra.check(WRITTEN, GROUPS * WRITE, SOURCE, yours)?;
    mitra.check(READ_BACK, GROUPS * WRITE, SOURCE, mine)?;
    let mut after = vec![
        format!("check mr=0 off={WRITTEN} len={} from={SOURCE} seed={mine}", GROUPS * WRITE),
        format!("check mr=0 off={READ_BACK} len={} from={SOURCE} seed={yours}", GROUPS * WRITE),
    ];
    let base = u64::from(round) * GROUPS;
    for i in 0..GROUPS {
        let (at, from) = (RECEIVED + i * SEND, SOURCE + i * WRITE);
        mitra.check(at, SEND, from, yours)?;
        after.push(format!("check mr=0 off={at} len={SEND} from={from} seed={mine}"));
        let fetched = mitra.memory.load((FETCHED + i * 8) as usize);
        ensure!(fetched == base + i, "Mitra's {i}th addition fetched {fetched}, not {}", base + i);
        let fetched = kernel.value(FETCHED + i * 8)?;
        ensure!(fetched == base + i, "the kernel's {i}th addition fetched {fetched}, not {}", base + i);
    }
    kernel.peer.ask_all(&after)?;
    let counters = (mitra.memory.load(COUNTER as usize), kernel.value(COUNTER)?);
    ensure!(counters == (base + GROUPS, base + GROUPS), "the counters are {counters:?}");
    Ok(())
}
