//! Compare-and-swap and fetch-and-add, in both directions.

use anyhow::{Result, ensure};
use mitra_verbs::{Key, RemoteAddr, SendOp, WcOpcode};

use super::mitra_endpoint::expect;
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/atomics-of-mitra", || of_mitra(Setup::DEFAULT)),
    ("mitra/atomics-of-the-kernel", || of_the_kernel(Setup::DEFAULT)),
    ("mitra/atomics-where-the-psn-wraps", || {
        let setup = Setup { psn: 0xff_fffe, ..Setup::DEFAULT };
        of_mitra(setup)?;
        of_the_kernel(setup)
    }),
    ("mitra/misaligned-atomic", misaligned),
];

const BIG: u64 = 0x1122_3344_5566_7788;

/// An atomic, the word's value before it and the value after it.
const STEPS: [(Step, u64, u64); 6] = [
    (Step::Add(1), 41, 42),
    (Step::Swap(41, 7), 42, 42),
    (Step::Swap(42, BIG), 42, BIG),
    (Step::Add(u64::MAX), BIG, BIG - 1),
    (Step::Swap(BIG - 1, u64::MAX), BIG - 1, u64::MAX),
    (Step::Add(3), u64::MAX, 2),
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u64),
    Swap(u64, u64),
}

fn of_mitra(setup: Setup) -> Result<()> {
    let mut wire = Wire::new(setup)?;
    let Wire { mitra, kernel } = &mut wire;
    kernel.set(64, 41)?;
    let remote = RemoteAddr { addr: kernel.addr + 64, rkey: Key(kernel.rkey as u32) };
    for (step, before, after) in STEPS {
        let (op, done) = match step {
            Step::Add(add) => (SendOp::FetchAdd { remote, add }, WcOpcode::FetchAdd),
            Step::Swap(compare, swap) => {
                (SendOp::CompareSwap { remote, compare, swap }, WcOpcode::CompareSwap)
            }
        };
        expect(&mitra.run(op, mitra.data(8, 8))?, done)?;
        let (fetched, now) = (mitra.memory.load(8), kernel.value(64)?);
        ensure!((fetched, now) == (before, after), "{step:?} fetched {fetched:#x} and left {now:#x}");
    }
    wire.check_psns()
}

fn of_the_kernel(setup: Setup) -> Result<()> {
    let mut wire = Wire::new(setup)?;
    let Wire { mitra, kernel } = &mut wire;
    mitra.memory.store(64, 41);
    let remote = format!("sge=0:8:8 raddr={} rkey={}", mitra.mr.addr + 64, mitra.mr.rkey.0);
    for (step, before, after) in STEPS {
        match step {
            Step::Add(add) => kernel.run(&format!("op=faa add={add} {remote}"))?.expect("faa")?,
            Step::Swap(cmp, swap) => {
                kernel.run(&format!("op=cas cmp={cmp} swap={swap} {remote}"))?.expect("cas")?;
            }
        }
        let (fetched, now) = (kernel.value(8)?, mitra.memory.load(64));
        ensure!((fetched, now) == (before, after), "{step:?} fetched {fetched:#x} and left {now:#x}");
    }
    wire.check_psns()
}

/// The kernel refuses misaligned atomics that Mitra sends. The kernel's own provider refuses them
/// before the wire.
fn misaligned() -> Result<()> {
    let mut wire = Wire::new(Setup::DEFAULT)?;
    let Wire { mitra, kernel } = &mut wire;
    let remote = RemoteAddr { addr: kernel.addr + 4, rkey: Key(kernel.rkey as u32) };
    let wc = mitra.run(SendOp::FetchAdd { remote, add: 1 }, mitra.data(8, 8))?;
    super::mitra_endpoint::expect_status(&wc, mitra_verbs::WcStatus::RemoteInvalidRequest)?;
    ensure!(kernel.value(0)? == 0 && kernel.value(8)? == 0, "refused, yet executed");
    Ok(())
}
