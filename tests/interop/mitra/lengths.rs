//! Every operation that moves bytes, in both directions, at every MTU, of every awkward length.

use anyhow::{Context as _, Result, ensure};
use mitra_verbs::{Access, Data, Key, Mw, Provider as _, RemoteAddr, SendOp, SendWr, WcOpcode, WindowBind};

use super::nic::{Mitra, expect};
use super::{Setup, Wire};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    ("mitra/mtu-256", || every_length(256)),
    ("mitra/mtu-512", || every_length(512)),
    ("mitra/mtu-1024", || every_length(1024)),
    ("mitra/mtu-2048", || every_length(2048)),
    ("mitra/mtu-4096", || every_length(4096)),
    ("mitra/psn-wraps", psn_wraps),
    ("mitra/a-megabyte", a_megabyte),
];

/// Around what arrives.
const GUARD: u32 = 99;

#[derive(Clone, Copy, Debug)]
enum Op {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
}

const OPS: [Op; 6] = [Op::Send, Op::SendImm, Op::SendInv, Op::Write, Op::WriteImm, Op::Read];

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Send => "send",
            Op::SendImm => "send_imm",
            Op::SendInv => "send_inv",
            Op::Write => "write",
            Op::WriteImm => "write_imm",
            Op::Read => "read",
        }
    }

    fn is_send(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::SendInv)
    }

    fn consumes_receive(self) -> bool {
        self.is_send() || matches!(self, Op::WriteImm)
    }

    fn imm(self, imm: u32) -> Option<u32> {
        matches!(self, Op::SendImm | Op::WriteImm).then_some(imm)
    }
}

/// One message: `len` bytes of the pattern `seed` from offset `from` of one end to offset `to` of the other.
#[derive(Clone, Copy, Debug)]
struct Message {
    op: Op,
    len: u64,
    seed: u32,
    from: u64,
    to: u64,
}

impl Message {
    /// Offsets that are not aligned, and change from message to message.
    fn new(op: Op, len: u64, seed: u32) -> Self {
        Self { op, len, seed, from: u64::from(seed % 13), to: (96 << 10) + 8 + 5 * u64::from(seed % 11) }
    }

    fn imm(&self) -> u32 {
        0x8000_0001u32.rotate_left(self.seed).wrapping_add(self.seed)
    }

    /// `rxe_peer`'s words: fill the destination and its surroundings; check both.
    fn guard(&self) -> String {
        format!("fill mr=0 off={} len={} seed={GUARD}", self.to - 8, self.len + 16)
    }

    fn checks(&self) -> [String; 3] {
        let Self { len, seed, from, to, .. } = self;
        [
            format!("check mr=0 off={to} len={len} from={from} seed={seed}"),
            format!("check mr=0 off={} len=8 seed={GUARD}", to - 8),
            format!("check mr=0 off={} len=8 seed={GUARD}", to + len),
        ]
    }

    fn guard_mitra(&self, mitra: &Mitra) {
        mitra.fill(self.to - 8, self.len + 16, GUARD);
    }

    fn check_mitra(&self, mitra: &Mitra) -> Result<()> {
        mitra.check(self.to, self.len, self.from, self.seed)?;
        mitra.check(self.to - 8, 8, self.to - 8, GUARD)?;
        mitra.check(self.to + self.len, 8, self.to + self.len, GUARD)
    }
}

/// A connection, and a window at either end for SENDs to invalidate.
struct Lab {
    wire: Wire,
    window: Mw,
    binds: u8,
}

impl Lab {
    fn new(setup: Setup) -> Result<Self> {
        let mut wire = Wire::new(setup)?;
        wire.kernel.peer.ask("mw")?;
        let window = wire.mitra.nic.alloc_mw(wire.mitra.pd)?;
        Ok(Self { wire, window, binds: 0 })
    }

    /// Binds Mitra's window and says its key.
    fn bind(&mut self) -> Result<Key> {
        let mitra = &self.wire.mitra;
        self.binds = self.binds.wrapping_add(1);
        let rkey = self.window.rkey.with_consumer_bits(self.binds);
        let bind = WindowBind {
            mw: self.window.id,
            rkey,
            mr: mitra.mr.id,
            addr: mitra.mr.addr,
            len: 64,
            access: Access::REMOTE_WRITE,
        };
        expect(&mitra.run(SendOp::BindWindow(bind), Data::empty())?, WcOpcode::BindWindow)?;
        Ok(rkey)
    }

    /// Mitra requests.
    fn mitra_asks(&mut self, m: Message) -> Result<()> {
        let Wire { mitra, kernel } = &mut self.wire;
        let Message { op, len, seed, from, to } = m;
        let at = |off| RemoteAddr { addr: kernel.addr + off, rkey: Key(kernel.rkey as u32) };
        if let Op::Read = op {
            kernel.peer.ask(&format!("fill mr=0 off={from} len={len} seed={seed}"))?;
            m.guard_mitra(mitra);
            let wc = mitra.run(SendOp::Read(at(from)), mitra.data(to, len))?;
            expect(&wc, WcOpcode::Read)?;
            ensure!(u64::from(wc.byte_len) == len, "{wc:?}");
            return m.check_mitra(mitra);
        }
        mitra.fill(from, len, seed);
        let mut before = vec![m.guard()];
        if op.is_send() {
            before.push(format!("recv qp=0 wr={seed} sge=0:{to}:{}", len + 8));
        } else if op.consumes_receive() {
            before.push(format!("recv qp=0 wr={seed}"));
        }
        if let Op::SendInv = op {
            before.push("post qp=0 op=bind mw=0 mr=0 len=64 access=w flags=s".to_owned());
            before.push("poll".to_owned());
        }
        let answers = kernel.peer.ask_each(&before)?;
        let mut key = None;
        let what = match op {
            Op::Send => SendOp::Send,
            Op::SendImm => SendOp::SendWithImm(m.imm()),
            Op::SendInv => {
                answers[3].completions()?.first().context("no bind")?.expect("bind")?;
                let rkey = answers[2].number("rkey")?;
                key = Some(rkey);
                SendOp::SendWithInvalidate(Key(rkey as u32))
            }
            Op::Write => SendOp::Write(at(to)),
            Op::WriteImm => SendOp::WriteWithImm(at(to), m.imm()),
            Op::Read => unreachable!("above"),
        };
        mitra.post(&[SendWr::new(seed.into(), what, mitra.data(from, len))])?;
        let wc = mitra.completion()?;
        expect(&wc, if op.is_send() { WcOpcode::Send } else { WcOpcode::Write })?;
        ensure!(wc.wr_id == u64::from(seed) && wc.qpn == mitra.qpn, "{wc:?}");
        let mut after: Vec<String> = m.checks().into();
        if op.consumes_receive() {
            after.insert(0, "poll".to_owned());
        }
        let answers = kernel.peer.ask_each(&after)?;
        if op.consumes_receive() {
            let received = answers[0].completions()?.pop().context("no receive")?;
            received.expect(if op.is_send() { "recv" } else { "recv_write_imm" })?;
            ensure!(received.wr == u64::from(seed) && received.len == len, "{received:?}");
            ensure!(received.imm == op.imm(m.imm()).map(u64::from) && received.inv == key, "{received:?}");
        }
        Ok(())
    }

    /// The kernel requests.
    fn kernel_asks(&mut self, m: Message) -> Result<()> {
        let Message { op, len, seed, from, to } = m;
        let key = if let Op::SendInv = op { Some(self.bind()?) } else { None };
        let Wire { mitra, kernel } = &mut self.wire;
        let (addr, rkey) = (mitra.mr.addr, mitra.mr.rkey.0);
        let (local, remote) = if let Op::Read = op { (to, from) } else { (from, to) };
        let mut post = format!("post qp=0 wr={seed} op={} flags=s sge=0:{local}:{len}", op.name());
        if op.is_send() {
            mitra.receive(seed.into(), to, len + 8)?;
        } else {
            post += &format!(" raddr={} rkey={rkey}", addr + remote);
            if op.consumes_receive() {
                mitra.receive(seed.into(), 0, 0)?;
            }
        }
        if let Some(imm) = op.imm(m.imm()) {
            post += &format!(" imm={imm}");
        }
        if let Some(key) = key {
            post += &format!(" inv={}", key.0);
        }
        let before = if let Op::Read = op {
            mitra.fill(from, len, seed);
            m.guard()
        } else {
            m.guard_mitra(mitra);
            format!("fill mr=0 off={from} len={len} seed={seed}")
        };
        let mut requests = vec![before, post, "poll".to_owned()];
        if let Op::Read = op {
            requests.extend(m.checks());
        }
        let answers = kernel.peer.ask_each(&requests)?;
        let done = answers[2].completions()?.pop().context("no completion")?;
        done.expect(if op.is_send() { "send" } else { op.name().trim_end_matches("_imm") })?;
        ensure!(done.wr == u64::from(seed), "{done:?}");
        if let Op::Read = op {
            return Ok(());
        }
        if op.consumes_receive() {
            let wc = mitra.completion()?;
            expect(&wc, if op.is_send() { WcOpcode::Recv } else { WcOpcode::RecvWithImm })?;
            ensure!(wc.wr_id == u64::from(seed) && u64::from(wc.byte_len) == len, "{wc:?}");
            ensure!(wc.imm == op.imm(m.imm()) && wc.invalidated == key && wc.qpn == mitra.qpn, "{wc:?}");
        }
        m.check_mitra(mitra)
    }

    fn both(&mut self, op: Op, len: u64, seed: u32) -> Result<()> {
        let m = Message::new(op, len, seed);
        self.mitra_asks(m).with_context(|| format!("Mitra's {m:?}"))?;
        let m = Message::new(op, len, seed + 1);
        self.kernel_asks(m).with_context(|| format!("the kernel's {m:?}"))
    }
}

fn every_length(mtu: u64) -> Result<()> {
    let mut lab = Lab::new(Setup { mtu, ..Setup::DEFAULT })?;
    let mut seed = 0;
    for len in [0, 1, mtu - 1, mtu, mtu + 1, 5 * mtu + 3, (64 << 10) + 5] {
        for op in OPS {
            lab.both(op, len, seed)?;
            seed += 2;
        }
    }
    lab.wire.check_psns()?;
    lab.wire.mitra.expect_none()?;
    lab.wire.kernel.peer.expect_none()
}

/// Messages of seven packets whose third is the last of the PSNs, and messages that begin with it.
fn psn_wraps() -> Result<()> {
    for op in OPS {
        let mut lab = Lab::new(Setup { mtu: 256, psn: 0xff_fffd, ..Setup::DEFAULT })?;
        lab.both(op, 6 * 256 + 1, 1)?;
        lab.both(op, 6 * 256 + 1, 3)?;
        lab.wire.check_psns()?;
        ensure!(lab.wire.mitra.status()?.sq_psn.value() == 11, "the PSN has not wrapped");
    }
    let mut lab = Lab::new(Setup { mtu: 256, psn: 0xff_ffff, ..Setup::DEFAULT })?;
    for (op, seed) in OPS.into_iter().zip([1, 3, 5, 7, 9, 11]) {
        lab.both(op, 1, seed)?;
    }
    lab.wire.check_psns()
}

/// More packets than either side lets be outstanding.
fn a_megabyte() -> Result<()> {
    const LEN: u64 = 1 << 20;
    let mut wire = Wire::new(Setup { mtu: 4096, timeout: 13, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    let far = kernel.peer.ask(&format!("mr len={LEN}"))?;
    let remote = RemoteAddr { addr: far.number("addr")?, rkey: Key(far.number("rkey")? as u32) };
    let memory = std::sync::Arc::new(mitra_verbs::Buffer::new(LEN as usize));
    mitra.mr = mitra.nic.reg_mr(mitra.pd, std::sync::Arc::clone(&memory), Access::all())?;
    mitra.memory = memory;

    mitra.fill(0, LEN, 1);
    expect(&mitra.run(SendOp::Write(remote), mitra.data(0, LEN))?, WcOpcode::Write)?;
    kernel.peer.ask_all(&["check mr=1 seed=1", "fill mr=1 seed=2"])?;
    expect(&mitra.run(SendOp::Read(remote), mitra.data(0, LEN))?, WcOpcode::Read)?;
    mitra.check(0, LEN, 0, 2)?;

    let raddr = format!("raddr={} rkey={}", mitra.mr.addr, mitra.mr.rkey.0);
    kernel.peer.ask("fill mr=1 seed=3")?;
    kernel.run(&format!("op=write sge=1:0:{LEN} {raddr}"))?.expect("write")?;
    mitra.check(0, LEN, 0, 3)?;
    mitra.fill(0, LEN, 4);
    kernel.run(&format!("op=read sge=1:0:{LEN} {raddr}"))?.expect("read")?;
    kernel.peer.ask("check mr=1 seed=4")?;
    wire.check_psns()
}
