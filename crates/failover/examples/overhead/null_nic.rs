//! A NIC that completes at once what is posted.

use std::cell::Cell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use mitra_verbs::{
    Access, AhId, AsyncEvent, AtomicScope, Buffer, Capabilities, CompletionChannel, Counter, CqId,
    DeviceAttr, Error, Gid, Key, Limits, Mr, MrId, Mtu, Mw, MwId, PdId, PortAttr, PortState, PostError,
    Provider, Psn, QpAttr, QpCap, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr, Result, SavedResult,
    SendFlags, SendWr, SqDrain, SrqId, Time, Wc, WcOpcode, WcStatus, WindowType,
};

thread_local! {
    static START: Instant = Instant::now();
    /// How long the clock has stood still, in nanoseconds.
    static PAUSED: Cell<u64> = const { Cell::new(0) };
    /// The time in nanoseconds, if the clock only runs by [`advance`].
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Lets the NIC's clock stand still during a call, so that no timer of the vQP is due behind it.
pub fn pause(call: impl FnOnce()) {
    let begin = Instant::now();
    call();
    PAUSED.set(PAUSED.get() + begin.elapsed().as_nanos() as u64);
}

/// Stops the NIC's clock for good, and advances it.
pub fn advance(nanos: u64) {
    COUNTED.set(Some(COUNTED.get().unwrap_or(1) + nanos));
}

/// A NIC that completes every signalled send at once and does nothing else.
#[derive(Debug)]
pub struct Null {
    attr: DeviceAttr,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u32,
    done: VecDeque<u64>,
}

impl Null {
    pub fn open() -> Arc<dyn Provider> {
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
            on_demand: true,
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
        let running = || START.with(|start| start.elapsed().as_nanos() as u64) - PAUSED.get();
        Time::from_nanos(COUNTED.get().unwrap_or_else(running))
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
