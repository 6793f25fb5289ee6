//! Every operation that moves data, in both directions, at every MTU, for lengths around packet
//! boundaries.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use mitra_verbs::{
    Access, Buffer, Data, Key, Mw, Provider as _, RemoteAddr, SendOp, SendWr, WcOpcode, WindowBind,
    WindowType,
};

use super::mitra_endpoint::{MitraEndpoint, expect};
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

    /// The opcode of the requester's completion.
    fn done(self) -> (WcOpcode, &'static str) {
        match self {
            Op::Send | Op::SendImm | Op::SendInv => (WcOpcode::Send, "send"),
            Op::Write | Op::WriteImm => (WcOpcode::Write, "write"),
            Op::Read => (WcOpcode::Read, "read"),
        }
    }

    /// The opcode of the responder's completion, if there is one.
    fn received(self) -> Option<(WcOpcode, &'static str)> {
        match self {
            Op::Send | Op::SendImm | Op::SendInv => Some((WcOpcode::Recv, "recv")),
            Op::WriteImm => Some((WcOpcode::RecvWithImm, "recv_write_imm")),
            Op::Write | Op::Read => None,
        }
    }

    fn is_send(self) -> bool {
        self.done().0 == WcOpcode::Send
    }
}

/// The region at either end: the source of all messages, then a destination slot for each.
const REGION: u64 = 0x80000;
const SLOTS: u64 = 0x12000;
const SLOT: u64 = 0x11000;
/// Seeds of the source data and of the bytes around each destination.
const MITRA: u32 = 1;
const KERNEL: u32 = 2;
const GUARD: u32 = 3;

/// One message of a list: `len` bytes from offset `from` of one end to offset `to` of the other.
/// Neither offset is aligned.
#[derive(Clone, Copy, Debug)]
struct Message {
    op: Op,
    len: u64,
    wr: u64,
    from: u64,
    to: u64,
}

impl Message {
    fn list(ops: &[Op], len: u64) -> Vec<Self> {
        let message =
            |(wr, &op)| Self { op, len, wr, from: 3 + 5 * wr, to: SLOTS + wr * SLOT + 8 + (wr + len) % 7 };
        (0..).zip(ops).map(message).collect()
    }

    fn imm(&self) -> Option<u32> {
        let imm = 0x8123_4567u32.rotate_left(self.wr as u32).wrapping_add(self.len as u32);
        matches!(self.op, Op::SendImm | Op::WriteImm).then_some(imm)
    }

    /// The argument of `rxe_peer` for the receive that this message needs.
    fn receive(&self) -> Option<String> {
        let sge =
            if self.op.is_send() { format!("sge=0:{}:{}", self.to, self.len + 8) } else { String::new() };
        self.op.received().map(|_| format!("recv qp=0 wr={} {sge}", self.wr))
    }

    /// Commands of `rxe_peer` that fill the destination and the bytes around it, and that check
    /// both.
    fn guard(&self) -> String {
        format!("fill mr=0 off={} len={} seed={GUARD}", self.to - 8, self.len + 16)
    }

    fn checks(&self, seed: u32) -> [String; 3] {
        let Self { len, from, to, .. } = self;
        [
            format!("check mr=0 off={to} len={len} from={from} seed={seed}"),
            format!("check mr=0 off={} len=8 seed={GUARD}", to - 8),
            format!("check mr=0 off={} len=8 seed={GUARD}", to + len),
        ]
    }

    fn guard_mitra(&self, mitra: &MitraEndpoint) {
        mitra.fill(self.to - 8, self.len + 16, GUARD);
    }

    fn check_mitra(&self, mitra: &MitraEndpoint, seed: u32) -> Result<()> {
        let Self { len, from, to, .. } = *self;
        mitra
            .check(to, len, from, seed)
            .and_then(|()| mitra.check(to - 8, 8, to - 8, GUARD))
            .and_then(|()| mitra.check(to + len, 8, to + len, GUARD))
            .with_context(|| format!("{self:?}"))
    }
}

/// A connection, with a window at either end for SENDs with invalidate.
struct Lab {
    wire: Wire,
    window: Mw,
    binds: u8,
}

impl Lab {
    fn new(setup: Setup) -> Result<Self> {
        let mut wire = Wire::new(Setup { size: REGION, ..setup })?;
        wire.kernel.peer.ask_all(&["mw", &format!("fill mr=0 len={SLOTS} seed={KERNEL}")])?;
        wire.mitra.fill(0, SLOTS, MITRA);
        let window = wire.mitra.nic.alloc_mw(wire.mitra.pd, WindowType::Type2)?;
        Ok(Self { wire, window, binds: 0 })
    }

    /// Binds Mitra's window and returns its key.
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
            zero_based: false,
        };
        expect(&mitra.run(SendOp::BindWindow(bind), Data::empty())?, WcOpcode::BindWindow)?;
        Ok(rkey)
    }

    /// Posts all messages at once, with Mitra as the requester.
    fn mitra_asks(&mut self, list: &[Message]) -> Result<()> {
        let Wire { mitra, kernel } = &mut self.wire;
        let mut before =
            vec!["post qp=0 op=bind mw=0 mr=0 len=64 access=w flags=s".to_owned(), "poll".to_owned()];
        if !list.iter().any(|m| m.op == Op::SendInv) {
            before.clear();
        }
        for m in list {
            match m.op {
                Op::Read => m.guard_mitra(mitra),
                _ => before.push(m.guard()),
            }
            before.extend(m.receive());
        }
        before.push("query qp=0".to_owned());
        let answers = kernel.peer.ask_each(&before)?;
        let mut key = None;
        if list.iter().any(|m| m.op == Op::SendInv) {
            answers[1].completions()?.first().context("no bind")?.expect("bind")?;
            key = Some(answers[0].number("rkey")?);
        }
        let at = |off| RemoteAddr { addr: kernel.addr + off, rkey: Key(kernel.rkey as u32) };
        let request = |m: &Message| {
            let imm = m.imm().unwrap_or_default();
            let (op, off) = match m.op {
                Op::Send => (SendOp::Send, m.from),
                Op::SendImm => (SendOp::SendWithImm(imm), m.from),
                Op::SendInv => (SendOp::SendWithInvalidate(Key(key.unwrap_or_default() as u32)), m.from),
                Op::Write => (SendOp::Write(at(m.to)), m.from),
                Op::WriteImm => (SendOp::WriteWithImm(at(m.to), imm), m.from),
                Op::Read => (SendOp::Read(at(m.from)), m.to),
            };
            SendWr::new(m.wr, op, mitra.data(off, m.len))
        };
        mitra.post(&list.iter().map(request).collect::<Vec<_>>())?;
        for (m, wc) in list.iter().zip(mitra.completions(list.len())?) {
            expect(&wc, m.op.done().0)?;
            ensure!(wc.wr_id == m.wr && wc.qpn == mitra.qpn, "{wc:?} for {m:?}");
            if m.op == Op::Read {
                ensure!(u64::from(wc.byte_len) == m.len, "{wc:?} for {m:?}");
                m.check_mitra(mitra, KERNEL)?;
            }
        }
        let receives: Vec<&Message> = list.iter().filter(|m| m.op.received().is_some()).collect();
        let mut after = vec![format!("poll n={}", receives.len())];
        after.extend(list.iter().filter(|m| m.op != Op::Read).flat_map(|m| m.checks(MITRA)));
        let received = kernel.peer.ask_each(&after)?[0].completions()?;
        ensure!(received.len() == receives.len(), "{} receives came: {received:?}", received.len());
        for (m, it) in receives.into_iter().zip(received) {
            it.expect(m.op.received().map_or("", |(_, name)| name))?;
            let inv = key.filter(|_| m.op == Op::SendInv);
            let right = (m.wr, m.len, m.imm().map(u64::from), inv);
            ensure!((it.wr, it.len, it.imm, it.inv) == right, "{it:?} for {m:?}");
        }
        Ok(())
    }

    /// Posts all messages at once, with the kernel as the requester.
    fn kernel_asks(&mut self, list: &[Message]) -> Result<()> {
        let key = if list.iter().any(|m| m.op == Op::SendInv) { Some(self.bind()?) } else { None };
        let Wire { mitra, kernel } = &mut self.wire;
        let mut requests = Vec::new();
        for m in list {
            let Message { op, len, wr, from, to } = *m;
            let (local, remote) = if op == Op::Read { (to, from) } else { (from, to) };
            if op == Op::Read {
                requests.insert(0, m.guard());
            } else {
                m.guard_mitra(mitra);
            }
            if op.received().is_some() {
                mitra.receive(wr, to, if op.is_send() { len + 8 } else { 0 })?;
            }
            let mut post = format!("post qp=0 wr={wr} op={} flags=s sge=0:{local}:{len}", op.name());
            if !op.is_send() {
                post += &format!(" raddr={} rkey={}", mitra.mr.addr + remote, mitra.mr.rkey.0);
            }
            match op {
                Op::SendInv => post += &format!(" inv={}", key.unwrap_or_default().0),
                _ => post += &format!(" imm={}", m.imm().unwrap_or_default()),
            }
            if wr + 1 < list.len() as u64 {
                post += " more=1";
            }
            requests.push(post);
        }
        let poll = requests.len();
        requests.push(format!("poll n={}", list.len()));
        requests.extend(list.iter().filter(|m| m.op == Op::Read).flat_map(|m| m.checks(MITRA)));
        let done = kernel.peer.ask_each(&requests)?[poll].completions()?;
        ensure!(done.len() == list.len(), "{} requests are done: {done:?}", done.len());
        for (m, it) in list.iter().zip(done) {
            it.expect(m.op.done().1)?;
            ensure!(it.wr == m.wr, "{it:?} for {m:?}");
        }
        let receives: Vec<&Message> = list.iter().filter(|m| m.op.received().is_some()).collect();
        for (m, wc) in receives.iter().zip(mitra.completions(receives.len())?) {
            expect(&wc, m.op.received().map_or(WcOpcode::Recv, |(opcode, _)| opcode))?;
            let inv = key.filter(|_| m.op == Op::SendInv);
            let right = (m.wr, m.len, m.imm(), inv, mitra.qpn);
            ensure!(
                (wc.wr_id, wc.byte_len.into(), wc.imm, wc.invalidated, wc.qpn) == right,
                "{wc:?} for {m:?}"
            );
        }
        list.iter().filter(|m| m.op != Op::Read).try_for_each(|m| m.check_mitra(mitra, KERNEL))
    }

    fn both(&mut self, ops: &[Op], len: u64) -> Result<()> {
        let list = Message::list(ops, len);
        self.mitra_asks(&list).with_context(|| format!("Mitra's {ops:?} of {len} bytes"))?;
        self.kernel_asks(&list).with_context(|| format!("the kernel's {ops:?} of {len} bytes"))
    }
}

fn every_length(mtu: u64) -> Result<()> {
    let mut lab = Lab::new(Setup { mtu, ..Setup::DEFAULT })?;
    for len in [0, 1, mtu - 1, mtu, mtu + 1, 5 * mtu + 3, (64 << 10) + 5] {
        lab.both(&OPS, len)?;
    }
    lab.wire.check_psns()?;
    lab.wire.mitra.check_counters()?;
    lab.wire.mitra.expect_none()?;
    lab.wire.kernel.peer.expect_none()
}

/// Messages of seven packets: the PSN wraps after the third packet, or after the first.
fn psn_wraps() -> Result<()> {
    for op in OPS {
        let mut lab = Lab::new(Setup { mtu: 256, psn: 0xff_fffd, ..Setup::DEFAULT })?;
        lab.both(&[op], 6 * 256 + 1)?;
        lab.wire.check_psns()?;
        ensure!(lab.wire.mitra.status()?.sq_psn.value() == 4, "the PSN has not wrapped");
    }
    let mut lab = Lab::new(Setup { mtu: 256, psn: 0xff_ffff, ..Setup::DEFAULT })?;
    lab.both(&OPS, 1)?;
    lab.wire.check_psns()
}

/// A message of more packets than either side keeps outstanding.
fn a_megabyte() -> Result<()> {
    const LEN: u64 = 1 << 20;
    // The kernel's burst may exceed the socket's receive buffer.
    let mut wire = Wire::new(Setup { mtu: 4096, timeout: 14, ..Setup::DEFAULT })?;
    let Wire { mitra, kernel } = &mut wire;
    let far = kernel.peer.ask(&format!("mr len={LEN}"))?;
    let remote = RemoteAddr { addr: far.number("addr")?, rkey: Key(far.number("rkey")? as u32) };
    mitra.memory = Arc::new(Buffer::new(LEN as usize));
    mitra.mr = mitra.nic.reg_mr(mitra.pd, Arc::clone(&mitra.memory), Access::all())?;

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
