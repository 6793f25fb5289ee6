//! Mitra's endpoint of a connection: a software NIC with one queue pair.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use mitra_softnic::fault::{Failure, Noise, Stage, Trigger};
use mitra_softnic::{Config, SoftNic};
use mitra_verbs::{
    AsyncEvent, Buffer, CompletionChannel, CqId, Data, Mr, Mtu, PdId, Provider as _, Psn, QpAttr, QpBuilder,
    QpState, QpStatus, QpType, Qpn, RecvWr, SendOp, SendWr, Wc, WcOpcode, WcStatus,
};

use super::{CAPTURE, KERNEL_IP, MITRA_IP, QKEY, Setup};
use crate::rxe_peer_protocol::pattern;

/// Noise settings: none, and the loss of all packets.
pub(super) const SILENCE: Noise =
    Noise { drop_ppm: 0, duplicate_ppm: 0, reorder_ppm: 0, corrupt_ppm: 0, max_delay: Duration::ZERO };
pub(super) const VOID: Noise = Noise { drop_ppm: 1_000_000, ..SILENCE };

/// The time after which a wait fails. It is far longer than any step takes.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct MitraEndpoint {
    pub(super) nic: Arc<SoftNic>,
    pub(super) pd: PdId,
    pub(super) channel: Arc<dyn CompletionChannel>,
    pub(super) cq: CqId,
    pub(super) memory: Arc<Buffer>,
    pub(super) mr: Mr,
    pub(super) qpn: Qpn,
}

impl MitraEndpoint {
    /// Opens the NIC and creates its objects. The queue pair stays in RESET.
    pub(super) fn open(setup: &Setup) -> Result<Self> {
        let ip: Ipv4Addr = MITRA_IP.parse()?;
        let nic = SoftNic::open(Config { capture: Some(CAPTURE.into()), ..Config::at(IpAddr::V4(ip)) })?;
        let pd = nic.alloc_pd()?;
        let channel = nic.create_completion_channel()?;
        let cq = nic.create_cq(1024, Some(&channel))?;
        let memory = Arc::new(Buffer::new(setup.size as usize));
        let mr = nic.reg_mr(pd, Arc::clone(&memory), setup.region)?;
        let qpn = QpBuilder::new(setup.service, pd, cq).build(&*nic)?;
        Ok(Self { nic, pd, channel, cq, memory, mr, qpn })
    }

    /// Returns an endpoint with another queue pair on the same NIC, region and completion queue.
    pub(super) fn sibling(&self) -> Result<Self> {
        let init = self.status()?.init;
        let qpn = self.nic.create_qp(&init)?;
        let (nic, memory) = (Arc::clone(&self.nic), Arc::clone(&self.memory));
        let channel = Arc::clone(&self.channel);
        Ok(Self { nic, pd: self.pd, channel, cq: self.cq, memory, mr: self.mr, qpn })
    }

    /// Takes the queue pair to RTS, connected to the kernel's queue pair `qpn`, whose first PSN is
    /// `rq_psn`.
    pub(super) fn connect(&self, setup: &Setup, qpn: u64, rq_psn: u64, sq_psn: u64) -> Result<()> {
        let kernel: IpAddr = KERNEL_IP.parse()?;
        let mut init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
        let mut rtr = QpAttr::to(QpState::Rtr);
        let mut rts = QpAttr { sq_psn: Some(Psn::new(sq_psn as u32)), ..QpAttr::to(QpState::Rts) };
        if setup.service == QpType::Ud {
            init.qkey = Some(QKEY);
        } else {
            init.access = Some(setup.rights);
            rtr.dest_gid = Some(kernel.into());
            rtr.dest_qpn = Some(Qpn::new(qpn as u32));
            rtr.path_mtu = Some(Mtu::from_bytes(setup.mtu as usize).context("no such MTU")?);
            rtr.rq_psn = Some(Psn::new(rq_psn as u32));
        }
        if setup.service == QpType::Rc {
            rtr.max_dest_rd_atomic = Some(setup.dest_rd);
            rtr.min_rnr_timer = Some(setup.min_rnr);
            rts.timeout = Some(setup.timeout);
            rts.retry_cnt = Some(setup.retry);
            rts.rnr_retry = Some(setup.rnr);
            rts.max_rd_atomic = Some(setup.rd);
        }
        for attr in [init, rtr, rts] {
            self.nic.modify_qp(self.qpn, &attr)?;
        }
        Ok(())
    }

    /// Fills memory as `rxe_peer`'s command `fill` does.
    pub(super) fn fill(&self, off: u64, len: u64, seed: u32) {
        let bytes: Vec<u8> = (off..off + len).map(|at| pattern(seed, at as u32)).collect();
        self.memory.write_at(off as usize, &bytes);
    }

    /// Checks memory as `rxe_peer`'s command `check` does.
    pub(super) fn check(&self, off: u64, len: u64, from: u64, seed: u32) -> Result<()> {
        let mut bytes = vec![0; len as usize];
        self.memory.read_at(off as usize, &mut bytes);
        for (at, got) in (0..).zip(bytes) {
            let want = pattern(seed, (from + at) as u32);
            ensure!(got == want, "Mitra's byte at {} is {got:#04x}, not {want:#04x}", off + at);
        }
        Ok(())
    }

    pub(super) fn data(&self, off: u64, len: u64) -> Data {
        Data::sge(self.mr.sge(off, len as u32))
    }

    pub(super) fn post(&self, requests: &[SendWr]) -> Result<()> {
        Ok(self.nic.post_send(self.qpn, requests)?)
    }

    pub(super) fn receive(&self, wr: u64, off: u64, len: u64) -> Result<()> {
        Ok(self.nic.post_recv(self.qpn, &[RecvWr::new(wr, self.mr.sge(off, len as u32))])?)
    }

    /// Posts a signalled request and returns its completion.
    pub(super) fn run(&self, op: SendOp, data: Data) -> Result<Wc> {
        self.post(&[SendWr::new(0, op, data)])?;
        self.completion()
    }

    pub(super) fn completions(&self, n: usize) -> Result<Vec<Wc>> {
        let mut all = Vec::new();
        self.wait(|| {
            self.nic.poll_cq(self.cq, n - all.len(), &mut all)?;
            Ok(all.len() == n)
        })
        .with_context(|| format!("waiting for {n} completions of Mitra's"))?;
        Ok(all)
    }

    pub(super) fn completion(&self) -> Result<Wc> {
        Ok(self.completions(1)?[0])
    }

    pub(super) fn expect_none(&self) -> Result<()> {
        let mut found = Vec::new();
        self.nic.poll_cq(self.cq, 16, &mut found)?;
        ensure!(found.is_empty(), "unexpected completions: {found:?}");
        Ok(())
    }

    pub(super) fn status(&self) -> Result<QpStatus> {
        Ok(self.nic.query_qp(self.qpn)?)
    }

    pub(super) fn expect_state(&self, state: QpState) -> Result<()> {
        let is = self.status()?.state;
        ensure!(is == state, "Mitra's queue pair is in {is:?}, not {state:?}");
        Ok(())
    }

    pub(super) fn counter(&self, name: &str) -> Result<u64> {
        let counters = self.nic.counters();
        let found = counters.iter().find(|it| it.name == name);
        Ok(found.with_context(|| format!("Mitra has no counter {name}"))?.value)
    }

    /// Checks that the NIC counted no malformed or unexpected packet.
    pub(super) fn check_counters(&self) -> Result<()> {
        for name in ["rx_icrc_bad", "rx_malformed", "rx_errors", "tx_errors", "drop_wrong_transport"] {
            let count = self.counter(name)?;
            ensure!(count == 0, "Mitra counts {name} = {count}");
        }
        Ok(())
    }

    /// Drives the NIC until a counter has reached a value.
    pub(super) fn wait_for_count(&self, name: &str, value: u64) -> Result<()> {
        self.wait(|| Ok(self.counter(name)? >= value)).with_context(|| format!("waiting for {value} {name}"))
    }

    /// Waits for an asynchronous event; earlier events are dropped.
    pub(super) fn wait_for_event(&self, event: AsyncEvent) -> Result<()> {
        self.wait(|| Ok(self.nic.poll_async_event() == Some(event)))
            .with_context(|| format!("waiting for {event:?}"))
    }

    /// Waits for the completion channel's event.
    pub(super) fn wait_for_notice(&self) -> Result<()> {
        self.wait(|| Ok(self.channel.next_event()? == Some(self.cq)))
            .context("waiting for a completion event")
    }

    /// Drops the `nth` packet that reaches `stage` after the call, and all later packets until the
    /// test has observed the drop.
    pub(super) fn lose<T>(&self, stage: Stage, nth: u32, start: impl FnOnce() -> Result<T>) -> Result<T> {
        self.nic.faults().arm(Trigger { stage, nth, failure: Failure::LinkDown });
        let started = start()?;
        self.wait_for_event(AsyncEvent::PortError).with_context(|| format!("losing {nth} at {stage:?}"))?;
        self.nic.faults().heal();
        Ok(started)
    }

    pub(super) fn noise(&self, leaving: Noise, arriving: Noise) {
        self.nic.faults().set_noise(leaving, arriving);
    }

    pub(super) fn wait(&self, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        while !done()? {
            ensure!(start.elapsed() < TIMEOUT, "nothing came");
            sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

/// Checks that the completion is a success of `opcode`.
pub(super) fn expect(wc: &Wc, opcode: WcOpcode) -> Result<()> {
    ensure!(
        wc.status == WcStatus::Success && wc.opcode == opcode,
        "wanted a successful {opcode:?}, got {wc:?}"
    );
    Ok(())
}

pub(super) fn expect_status(wc: &Wc, status: WcStatus) -> Result<()> {
    ensure!(wc.status == status, "wanted {status:?}, got {wc:?}");
    Ok(())
}
