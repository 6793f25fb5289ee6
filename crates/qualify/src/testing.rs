//! NICs whose evidence is wrong, as that of some hardware is. They are for tests of this crate and
//! of others.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, DeviceAttr, Gid, Mr, MrId, Mw, MwId,
    PdId, PortAttr, PostError, Provider, Psn, QpAttr, QpInitAttr, QpState, QpStatus, Qpn, RecvWr, Result,
    SavedResult, SendWr, SrqId, Srqn, Time, Wc, WcStatus, WindowType, XrcdId,
};

/// What is wrong with a [`FaultyNic`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NicFault {
    /// `rq_psn` is the value of the last change of the queue pair, as on irdma.
    FrozenPsn,
    /// `rq_psn` counts packets at their receipt: up to this number of packets ahead of memory,
    /// while packets of the requester are under way. The requester must be a queue pair of the same
    /// NIC.
    PsnAhead(u32),
    /// The state in RTS is reported as RESET, as by siw.
    FalseState,
    /// The NIC changes memory after the change to ERR has returned, before the flushed completion.
    LateBeforeMarker,
    /// The NIC changes memory after the flushed completion was polled.
    LateAfterMarker,
    /// The NIC reports no flushed request.
    NoMarker,
}

/// A NIC over another one, with one fault.
#[derive(Debug)]
pub struct FaultyNic {
    nic: Arc<dyn Provider>,
    fault: NicFault,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The PSN of the last change, and the peer.
    connected: HashMap<Qpn, (Psn, Qpn)>,
    /// The memory to which peers may write.
    writable: Vec<(MrId, Arc<Buffer>)>,
    /// The number of polls after which a late change of memory is due.
    polls_until_late: Option<u32>,
}

impl FaultyNic {
    /// Gives a NIC a fault.
    pub fn new(nic: Arc<dyn Provider>, fault: NicFault) -> FaultyNic {
        FaultyNic { nic, fault, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_memory_if_due(state: &mut State) {
        match state.polls_until_late.take() {
            Some(0) => state.writable.iter().for_each(|(_, memory)| memory.store(0, u64::MAX)),
            later => state.polls_until_late = later.map(|polls| polls - 1),
        }
    }
}

/// Defines methods that only call the same method of the NIC below.
macro_rules! delegate {
    ($(fn $name:ident(&self $(, $arg:ident: $arg_type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $arg_type)*) $(-> $result)? { self.nic.$name($($arg),*) })*
    };
}

impl Provider for FaultyNic {
    fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        let mut status = self.nic.query_qp(qp)?;
        let connected = self.state().connected.get(&qp).copied();
        match (self.fault, connected) {
            (NicFault::FrozenPsn, Some((psn, _))) => status.rq_psn = psn,
            (NicFault::PsnAhead(most), Some((_, peer))) => {
                let under_way = self.nic.query_qp(peer)?.sq_psn.distance(status.rq_psn);
                // After a retransmission began, the requester's number is the earlier one.
                if under_way < 1 << 23 {
                    status.rq_psn = status.rq_psn.add(under_way.min(most));
                }
            }
            (NicFault::FalseState, _) if status.state == QpState::Rts => status.state = QpState::Reset,
            _ => {}
        }
        Ok(status)
    }

    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()> {
        self.nic.modify_qp(qp, attr)?;
        let mut state = self.state();
        if let (Some(psn), Some(peer)) = (attr.rq_psn, attr.dest_qpn) {
            state.connected.insert(qp, (psn, peer));
        }
        if attr.state == Some(QpState::Err) && self.fault == NicFault::LateBeforeMarker {
            state.polls_until_late = Some(0);
        }
        Ok(())
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        FaultyNic::change_memory_if_due(&mut self.state());
        let before = out.len();
        self.nic.poll_cq(cq, max, out)?;
        let has_flushed = out[before..].iter().any(|wc| wc.status == WcStatus::Flushed);
        if has_flushed && self.fault == NicFault::LateAfterMarker {
            // The caller looks at the memory before it polls both ends again.
            self.state().polls_until_late = Some(4);
        }
        if has_flushed && self.fault == NicFault::NoMarker {
            let others: Vec<Wc> = out.drain(before..).filter(|wc| wc.status != WcStatus::Flushed).collect();
            out.extend(others);
        }
        Ok(out.len() - before)
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        let mr = self.nic.reg_mr(pd, memory.clone(), access)?;
        if access.contains(Access::REMOTE_WRITE) {
            self.state().writable.push((mr.id, memory));
        }
        Ok(mr)
    }

    fn dereg_mr(&self, mr: MrId) -> Result<()> {
        self.nic.dereg_mr(mr)?;
        self.state().writable.retain(|(id, _)| *id != mr);
        Ok(())
    }

    delegate! {
        fn attr(&self) -> &DeviceAttr;
        fn now(&self) -> Time;
        fn random_u64(&self) -> Result<u64>;
        fn query_port(&self) -> Result<PortAttr>;
        fn counters(&self) -> Vec<Counter>;
        fn port_refusals(&self, destination: Gid) -> u64;
        fn poll_async_event(&self) -> Option<AsyncEvent>;
        fn generation(&self) -> Option<u64>;
        fn connect_unreached_peers(&self);
        fn async_event_fd(&self) -> Option<BorrowedFd<'_>>;
        fn alloc_pd(&self) -> Result<PdId>;
        fn dealloc_pd(&self, pd: PdId) -> Result<()>;
        fn rereg_mr(&self, mr: MrId, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;
        fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw>;
        fn dealloc_mw(&self, mw: MwId) -> Result<()>;
        fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId>;
        fn create_ah_with_traffic_class(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId>;
        fn destroy_ah(&self, ah: AhId) -> Result<()>;
        fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>>;
        fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId>;
        fn resize_cq(&self, cq: CqId, depth: u32) -> Result<()>;
        fn destroy_cq(&self, cq: CqId) -> Result<()>;
        fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()>;
        fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId>;
        fn alloc_xrcd(&self) -> Result<XrcdId>;
        fn dealloc_xrcd(&self, xrcd: XrcdId) -> Result<()>;
        fn create_xrc_srq(&self, pd: PdId, xrcd: XrcdId, cq: CqId, depth: u32) -> Result<SrqId>;
        fn srq_number(&self, srq: SrqId) -> Result<Srqn>;
        fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()>;
        fn resize_srq(&self, srq: SrqId, depth: u32) -> Result<()>;
        fn destroy_srq(&self, srq: SrqId) -> Result<()>;
        fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError>;
        fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn>;
        fn attach_mcast(&self, qp: Qpn, group: Gid, loopback: bool) -> Result<()>;
        fn detach_mcast(&self, qp: Qpn, group: Gid) -> Result<()>;
        fn destroy_qp(&self, qp: Qpn) -> Result<()>;
        fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;
        fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;
        fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError>;
        fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>>;
        fn reset(&self) -> Result<()>;
    }
}
