//! Unreliable connections and datagrams, in both directions.

use anyhow::{Result, ensure};
use mitra_verbs::{Key, Provider as _, QpType, Qpn, RemoteAddr, SendOp, SendWr, UdDestination, WcOpcode};

use super::mitra_endpoint::{SILENCE, VOID, expect};
use super::{KERNEL_IP, QKEY, Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/unreliable-connection-of-mitra", connection_of_mitra),
    ("mitra/unreliable-connection-of-the-kernel", connection_of_the_kernel),
    ("mitra/datagrams-of-mitra", datagrams_of_mitra),
    ("mitra/datagrams-of-the-kernel", datagrams_of_the_kernel),
];

const UC: Setup = Setup { service: QpType::Uc, psn: 0xff_fffe, ..Setup::DEFAULT };
const UD: Setup = Setup { service: QpType::Ud, ..Setup::DEFAULT };
const LENGTHS: [u64; 5] = [0, 1, 1024, 1025, 5 * 1024 + 3];
const TO: u64 = 32 << 10;

fn connection_of_mitra() -> Result<()> {
    let mut wire = Wire::new(UC)?;
    let Wire { mitra, kernel } = &mut wire;
    let remote = RemoteAddr { addr: kernel.addr + TO, rkey: Key(kernel.rkey as u32) };
    for (seed, len) in (1..).zip(LENGTHS) {
        mitra.fill(0, len, seed);
        let check = format!("check mr=0 off={TO} len={len} from=0 seed={seed}");
        kernel.peer.ask(&format!("recv qp=0 wr={seed} sge=0:{TO}:{len}"))?;
        expect(&mitra.run(SendOp::SendWithImm(seed), mitra.data(0, len))?, WcOpcode::Send)?;
        let received = kernel.peer.completion()?;
        received.expect("recv")?;
        ensure!((received.len, received.imm) == (len, Some(seed.into())), "{received:?}");
        kernel.peer.ask_all(&[check.clone(), format!("fill mr=0 off={TO} len={len} seed=99")])?;

        // The first message is lost, the next one is not.
        mitra.noise(VOID, SILENCE);
        expect(&mitra.run(SendOp::Write(remote), mitra.data(0, len))?, WcOpcode::Write)?;
        mitra.noise(SILENCE, SILENCE);
        kernel.peer.ask(&format!("recv qp=0 wr={seed}"))?;
        expect(&mitra.run(SendOp::WriteWithImm(remote, 7), mitra.data(0, len))?, WcOpcode::Write)?;
        let received = kernel.peer.completion()?;
        received.expect("recv_write_imm")?;
        ensure!((received.len, received.imm) == (len, Some(7)), "{received:?}");
        kernel.peer.ask(&check)?;
    }
    kernel.peer.expect_none()
}

fn connection_of_the_kernel() -> Result<()> {
    let mut wire = Wire::new(UC)?;
    let Wire { mitra, kernel } = &mut wire;
    let remote = format!("raddr={} rkey={}", mitra.mr.addr + TO, mitra.mr.rkey.0);
    for (seed, len) in (1..).zip(LENGTHS) {
        kernel.peer.ask(&format!("fill mr=0 len={len} seed={seed}"))?;
        mitra.receive(seed.into(), TO, len)?;
        kernel.run(&format!("op=send_imm imm={seed} sge=0:0:{len}"))?.expect("send")?;
        let wc = mitra.completion()?;
        expect(&wc, WcOpcode::Recv)?;
        ensure!((u64::from(wc.byte_len), wc.imm) == (len, Some(seed)), "{wc:?}");
        mitra.check(TO, len, 0, seed)?;

        mitra.fill(TO, len, 99);
        let dropped = mitra.counter("fault_dropped")?;
        mitra.noise(SILENCE, VOID);
        kernel.run(&format!("op=write sge=0:0:{len} {remote}"))?.expect("write")?;
        mitra.wait_for_count("fault_dropped", dropped + len.div_ceil(UC.mtu).max(1))?;
        mitra.noise(SILENCE, SILENCE);
        mitra.receive(seed.into(), 0, 0)?;
        kernel.run(&format!("op=write_imm imm=7 sge=0:0:{len} {remote}"))?.expect("write")?;
        let wc = mitra.completion()?;
        expect(&wc, WcOpcode::RecvWithImm)?;
        ensure!((u64::from(wc.byte_len), wc.imm) == (len, Some(7)), "{wc:?}");
        mitra.check(TO, len, 0, seed)?;
    }
    mitra.expect_none()
}

/// Length in bytes of the global routing header, which a datagram's receive holds before the data.
const GRH: u64 = 40;

fn datagrams_of_mitra() -> Result<()> {
    let mut wire = Wire::new(UD)?;
    let Wire { mitra, kernel } = &mut wire;
    let address: std::net::IpAddr = KERNEL_IP.parse()?;
    let ah = mitra.nic.create_ah(mitra.pd, address.into())?;
    let destination = UdDestination { ah, qpn: Qpn::new(kernel.qpn as u32), qkey: QKEY };
    for (seed, len) in (1..).zip([0, 1, 1024, 4096]) {
        mitra.fill(0, len, seed);
        kernel.peer.ask(&format!("recv qp=0 wr={seed} sge=0:{TO}:{}", len + GRH))?;
        let wr = SendWr::new(1, SendOp::SendWithImm(seed), mitra.data(0, len));
        mitra.post(&[wr.to(destination)])?;
        expect(&mitra.completion()?, WcOpcode::Send)?;
        let answers = kernel.peer.ask_each(&[
            "poll".to_owned(),
            format!("check mr=0 off={} len={len} from=0 seed={seed}", TO + GRH),
        ])?;
        let received = &answers[0].completions()?[..];
        let [received] = received else { anyhow::bail!("no receive") };
        received.expect("recv")?;
        ensure!((received.len, received.imm) == (len + GRH, Some(seed.into())), "{received:?}");
        let from = answers[0].number("from")?;
        ensure!(from == u64::from(mitra.qpn.value()), "from {from:#x}");
    }
    Ok(())
}

fn datagrams_of_the_kernel() -> Result<()> {
    let mut wire = Wire::new(UD)?;
    let Wire { mitra, kernel } = &mut wire;
    for (seed, len) in (1..).zip([0, 1, 1024, 4096]) {
        kernel.peer.ask(&format!("fill mr=0 len={len} seed={seed}"))?;
        mitra.receive(seed.into(), TO, len + GRH)?;
        kernel.run(&format!("op=send_imm imm={seed} sge=0:0:{len}"))?.expect("send")?;
        let wc = mitra.completion()?;
        expect(&wc, WcOpcode::Recv)?;
        ensure!((u64::from(wc.byte_len), wc.imm) == (len + GRH, Some(seed)), "{wc:?}");
        ensure!(u64::from(wc.src_qp.value()) == kernel.qpn, "{wc:?}");
        mitra.check(TO + GRH, len, 0, seed)?;
    }
    Ok(())
}
