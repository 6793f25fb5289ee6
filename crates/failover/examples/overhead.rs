//! Measures the time that a virtual queue pair adds to a post with its completion and to an empty
//! poll.
//!
//! The vQP runs over a NIC that only completes what is posted. The same calls are also timed on
//! this NIC without a vQP, so the difference is the vQP's own time. Run with `cargo run --release
//! -p mitra-failover --example overhead`.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use mitra_failover::{Completion, CompletionLogConfig, Config, DetectorConfig, Domain, VirtualQp};
use mitra_verbs::{
    Access, AhId, AsyncEvent, AtomicScope, Buffer, Capabilities, CompletionChannel, Counter, CqId, Data,
    DeviceAttr, Error, Gid, Key, Limits, Mr, MrId, Mtu, Mw, MwId, PdId, PortAttr, PortState, PostError,
    Provider, Psn, QpAttr, QpCap, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr, Result, SavedResult,
    SendFlags, SendOp, SendWr, SqDrain, SrqId, Time, Wc, WcOpcode, WcStatus, WindowType,
};

/// A NIC that completes every signalled send at once and does nothing else.
#[derive(Debug)]
struct Null {
    attr: DeviceAttr,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u32,
    done: VecDeque<u64>,
}

impl Null {
    fn open() -> Arc<dyn Provider> {
        let most = 1 << 20;
        let limits = Limits {
            pds: most,
            mrs: most,
            mws: most,
            cqs: most,
            cqe: most,
            qps: most,
            wrs: most,
            sges: 16,
            inline: 256,
            srqs: most,
            ahs: most,
            mcast_groups: 0,
            mcast_qps: 0,
            mcast_attached: 0,
            rd_atomic: 16,
            message_bytes: 1 << 30,
        };
        let capabilities = Capabilities {
            atomic_scope: AtomicScope::Nic,
            psn_query: true,
            saved_results: true,
            ack_after_placement: true,
            write_order: true,
            reset: true,
            windows: true,
        };
        let attr = DeviceAttr { name: "null".to_owned(), limits, capabilities };
        Arc::new(Null { attr, state: Mutex::default() })
    }

    fn number(&self) -> u32 {
        let mut state = self.state.lock().expect("no thread panics while it holds the lock");
        state.next += 1;
        state.next
    }
}

/// Objects are numbers. Completion queues for data have even numbers. The others stay empty.
impl Provider for Null {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }
    fn now(&self) -> Time {
        thread_local!(static START: Instant = Instant::now());
        Time::from_nanos(START.with(|start| start.elapsed().as_nanos() as u64))
    }
    fn random_u64(&self) -> Result<u64> {
        Ok(self.number().into())
    }
    fn query_port(&self) -> Result<PortAttr> {
        Ok(PortAttr { state: PortState::Active, max_mtu: Mtu::M4096, gid: Gid([0; 16]) })
    }
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
    fn poll_async_event(&self) -> Option<AsyncEvent> {
        None
    }
    fn alloc_pd(&self) -> Result<PdId> {
        Ok(PdId(self.number()))
    }
    fn dealloc_pd(&self, _: PdId) -> Result<()> {
        Ok(())
    }
    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, _: Access) -> Result<Mr> {
        let n = self.number();
        let (addr, len) = (memory.addr(), memory.len() as u64);
        Ok(Mr { id: MrId(n), pd, addr, len, lkey: Key(n), rkey: Key(n) })
    }
    fn dereg_mr(&self, _: MrId) -> Result<()> {
        Ok(())
    }
    fn rereg_mr(&self, id: MrId, pd: PdId, memory: Arc<Buffer>, _: Access) -> Result<Mr> {
        let (addr, len) = (memory.addr(), memory.len() as u64);
        Ok(Mr { id, pd, addr, len, lkey: Key(id.0), rkey: Key(id.0) })
    }
    fn alloc_mw(&self, _: PdId, _: WindowType) -> Result<Mw> {
        Err(Error::Unsupported("windows"))
    }
    fn dealloc_mw(&self, _: MwId) -> Result<()> {
        Ok(())
    }
    fn create_ah(&self, _: PdId, _: Gid) -> Result<AhId> {
        Ok(AhId(self.number()))
    }
    fn destroy_ah(&self, _: AhId) -> Result<()> {
        Ok(())
    }
    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        Err(Error::Unsupported("channels"))
    }
    fn create_cq(&self, depth: u32, _: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId> {
        // A vQP gives its control queue pair the smaller completion queue.
        Ok(CqId(self.number() * 2 + u32::from(depth <= 128)))
    }
    fn resize_cq(&self, _: CqId, _: u32) -> Result<()> {
        Ok(())
    }
    fn destroy_cq(&self, _: CqId) -> Result<()> {
        Ok(())
    }
    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let mut state = self.state.lock().expect("no thread panics while it holds the lock");
        if cq.0 % 2 == 1 {
            return Ok(0);
        }
        let n = state.done.len().min(max);
        let completion = |wr_id| Wc::new(wr_id, WcStatus::Success, WcOpcode::Write, Qpn::new(1));
        out.extend(state.done.drain(..n).map(completion));
        Ok(n)
    }
    fn req_notify_cq(&self, _: CqId, _: bool) -> Result<()> {
        Ok(())
    }
    fn create_srq(&self, _: PdId, _: u32) -> Result<SrqId> {
        Err(Error::Unsupported("shared receive queues"))
    }
    fn arm_srq(&self, _: SrqId, _: u32) -> Result<()> {
        Ok(())
    }
    fn resize_srq(&self, _: SrqId, _: u32) -> Result<()> {
        Ok(())
    }
    fn destroy_srq(&self, _: SrqId) -> Result<()> {
        Ok(())
    }
    fn post_srq_recv(&self, _: SrqId, _: &[RecvWr]) -> Result<(), PostError> {
        Ok(())
    }
    fn create_qp(&self, _: &QpInitAttr) -> Result<Qpn> {
        Ok(Qpn::new(self.number()))
    }
    fn modify_qp(&self, _: Qpn, _: &QpAttr) -> Result<()> {
        Ok(())
    }
    fn query_qp(&self, _: Qpn) -> Result<QpStatus> {
        Ok(QpStatus {
            state: QpState::Rts,
            init: QpInitAttr {
                qp_type: QpType::Rc,
                pd: PdId(0),
                send_cq: CqId(0),
                recv_cq: CqId(0),
                srq: None,
                cap: QpCap::default(),
                sq_sig_all: false,
            },
            attr: QpAttr::default(),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            sq_drain: SqDrain::NotInSqd,
        })
    }
    fn destroy_qp(&self, _: Qpn) -> Result<()> {
        Ok(())
    }
    fn attach_mcast(&self, _: Qpn, _: Gid, _: bool) -> Result<()> {
        Ok(())
    }
    fn detach_mcast(&self, _: Qpn, _: Gid) -> Result<()> {
        Ok(())
    }
    fn post_send(&self, _: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        let mut state = self.state.lock().expect("no thread panics while it holds the lock");
        for wr in wrs {
            // UD sends are heartbeats.
            if wr.ud.is_none() && wr.flags.contains(SendFlags::SIGNALED) {
                state.done.push_back(black_box(wr).wr_id);
            }
        }
        Ok(())
    }
    fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post_send(qp, wrs)
    }
    fn post_recv(&self, _: Qpn, _: &[RecvWr]) -> Result<(), PostError> {
        Ok(())
    }
    fn saved_results(&self, _: Qpn) -> Result<Vec<SavedResult>> {
        Ok(Vec::new())
    }
    fn reset(&self) -> Result<()> {
        Ok(())
    }
}

/// Returns the time of one call in nanoseconds: the minimum of seven runs.
fn min_nanos(times: u32, mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let begin = Instant::now();
        for _ in 0..times {
            run();
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(times));
    }
    best
}

fn main() -> Result<()> {
    const TIMES: u32 = 20_000;
    let nics = [Null::open(), Null::open()];
    let domain = Domain::new(nics.to_vec())?;
    println!("ns, minimum of 7 runs of {TIMES}       NIC   vQP  vQP - NIC");
    for completion_log in [None, Some(CompletionLogConfig::default())] {
        // No peer answers heartbeats here.
        let detector = DetectorConfig { max_missed_heartbeats: 1 << 20, ..DetectorConfig::default() };
        let config = Config { completion_log, detector, ..Config::default() };
        let mut a = VirtualQp::builder(&domain).config(config).build()?;
        let mut b = VirtualQp::builder(&domain).config(config).build()?;
        let memory = Arc::new(Buffer::new(1 << 16));
        let mr = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE)?;
        let (info_a, info_b) = (a.local_info(), b.local_info());
        a.connect(&info_b)?;
        b.connect(&info_a)?;
        let region = mr.remote();
        a.import(&region)?;
        let (mut wcs, mut completions) = (Vec::<Wc>::new(), Vec::<Completion>::new());
        let (cq, qpn) = (CqId(0), Qpn::new(1));
        let small = Data::inline(&[7; 8]);
        let large = Data::sge(mr.sge(0, 4096));
        let name = |call: &str| format!("{call}{}", if completion_log.is_some() { " with log" } else { "" });
        for (call, data) in [("post and complete 8 B", &small), ("post and complete 4 KiB", &large)] {
            let wr = SendWr::new(0, SendOp::Write(region.at(0)), data.clone());
            let bare = min_nanos(TIMES, || {
                nics[0].post_send(qpn, &[black_box(&wr).clone()]).expect("the NIC accepts everything");
                wcs.clear();
                nics[0].poll_cq(cq, 32, &mut wcs).expect("the NIC accepts everything");
            });
            let virt = min_nanos(TIMES, || {
                a.post_send(black_box(&wr).clone()).expect("the queue has room");
                completions.clear();
                a.poll(&mut completions);
            });
            println!("{:<32} {bare:>6.1} {virt:>6.1} {:>6.1}", name(call), virt - bare);
        }
        let bare = min_nanos(TIMES, || {
            wcs.clear();
            nics[0].poll_cq(cq, 32, &mut wcs).expect("the NIC accepts everything");
        });
        let virt = min_nanos(TIMES, || {
            completions.clear();
            a.poll(&mut completions);
        });
        println!("{:<32} {bare:>6.1} {virt:>6.1} {:>6.1}", name("empty poll"), virt - bare);
    }
    Ok(())
}
