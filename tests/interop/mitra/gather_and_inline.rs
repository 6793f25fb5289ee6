//! Gather lists of several elements, and inline data.

use anyhow::Result;
use mitra_verbs::{Data, Key, Provider as _, RecvWr, RemoteAddr, SendOp, Sge, WcOpcode};

use super::mitra_endpoint::expect;
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] =
    &[("mitra/pieces-of-mitra", of_mitra), ("mitra/pieces-of-the-kernel", of_the_kernel)];

/// The gather list: 401 bytes in elements that packets of 256 bytes cut.
const PIECES: [(u64, u32); 3] = [(100, 100), (1000, 300), (2000, 1)];
/// The offset of the destination at the other end.
const ROOM: [(u64, u32); 2] = [(8192, 10), (12000, 1000)];

/// The list as an argument of `rxe_peer`.
fn words(pieces: &[(u64, u32)]) -> String {
    let words: Vec<String> = pieces.iter().map(|(off, len)| format!("0:{off}:{len}")).collect();
    format!("sge={}", words.join(","))
}

/// For each element: offset in the destination, length, offset in the source.
const PARTS: [(u64, u64, u64); 4] = [(8192, 10, 100), (12000, 90, 110), (12090, 300, 1000), (12390, 1, 2000)];

fn of_mitra() -> Result<()> {
    let mut wire = Wire::new(Setup { mtu: 256, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    let gather =
        |pieces: &[(u64, u32)]| Data::Sges(pieces.iter().map(|&(off, len)| mitra.mr.sge(off, len)).collect());
    let remote = |off| RemoteAddr { addr: kernel.addr + off, rkey: Key(kernel.rkey as u32) };
    let check =
        |(to, len, from): (u64, u64, u64)| format!("check mr=0 off={to} len={len} from={from} seed=1");
    mitra.fill(0, 4096, 1);
    kernel.peer.ask(&format!("recv qp=0 {}", words(&ROOM)))?;
    expect(&mitra.run(SendOp::Send, gather(&PIECES))?, WcOpcode::Send)?;
    kernel.peer.completion()?.expect("recv")?;
    kernel.peer.ask_all(&PARTS.map(check))?;

    expect(&mitra.run(SendOp::Write(remote(0)), gather(&PIECES))?, WcOpcode::Write)?;
    kernel.peer.ask_all(&[(0, 100, 100), (100, 300, 1000), (400, 1, 2000)].map(check))?;

    let mut bytes = [0; 48];
    mitra.memory.read_at(0, &mut bytes);
    expect(&mitra.run(SendOp::Write(remote(16384)), Data::inline(&bytes))?, WcOpcode::Write)?;
    kernel.peer.ask(&check((16384, 48, 0)))?;

    kernel.peer.ask("fill mr=0 seed=2")?;
    expect(&mitra.run(SendOp::Read(remote(0)), gather(&PIECES))?, WcOpcode::Read)?;
    for (to, len, from) in [(100, 100, 0), (1000, 300, 100), (2000, 1, 400)] {
        mitra.check(to, len, from, 2)?;
    }
    mitra.check(1300, 700, 1300, 1)
}

fn of_the_kernel() -> Result<()> {
    let mut wire = Wire::new(Setup { mtu: 256, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    let remote = format!("raddr={} rkey={}", mitra.mr.addr, mitra.mr.rkey.0);
    let room: Vec<Sge> = ROOM.iter().map(|&(off, len)| mitra.mr.sge(off, len)).collect();
    mitra.nic.post_recv(mitra.qpn, &[RecvWr { wr_id: 1, sges: room.into() }])?;
    kernel.peer.ask("fill mr=0 seed=1")?;
    kernel.run(&format!("op=send {}", words(&PIECES)))?.expect("send")?;
    expect(&mitra.completion()?, WcOpcode::Recv)?;
    for (to, len, from) in PARTS {
        mitra.check(to, len, from, 1)?;
    }

    kernel.run(&format!("op=write {} {remote}", words(&PIECES)))?.expect("write")?;
    for (to, len, from) in [(0, 100, 100), (100, 300, 1000), (400, 1, 2000)] {
        mitra.check(to, len, from, 1)?;
    }

    kernel.peer.ask(&format!("post qp=0 op=write flags=si sge=0:700:48 {remote}"))?;
    kernel.peer.completion()?.expect("write")?;
    mitra.check(0, 48, 700, 1)?;

    mitra.fill(0, 4096, 2);
    kernel.run(&format!("op=read {} {remote}", words(&PIECES)))?.expect("read")?;
    let check = |(to, len, from, seed)| format!("check mr=0 off={to} len={len} from={from} seed={seed}");
    kernel.peer.ask_all(
        &[(100, 100, 0, 2), (1000, 300, 100, 2), (2000, 1, 400, 2), (1300, 700, 1300, 1)].map(check),
    )?;
    Ok(())
}
