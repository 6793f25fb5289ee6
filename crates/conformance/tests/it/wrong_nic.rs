//! [`WrongNic`]: a NIC over another one that does one thing wrong.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, Data, DeviceAttr, Error, Gid,
    InlineData, Mr, MrId, Mw, MwId, PdId, PortAttr, PostError, Provider, QpAttr, QpCap, QpInitAttr, QpState,
    QpStatus, Qpn, RecvWr, RemoteAddr, Result, SavedResult, SendFlags, SendOp, SendWr, SrqId, Time, Wc,
    WcStatus, WindowBind, WindowType,
};

/// How many times faster the clock is, so that a case that waits in vain ends soon.
const SPEED: u32 = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    DataShifted,
    NumbersMixedUp,
    ImmediateLost,
    InvalidationLost,
    FenceIgnored,
    AllSignalled,
    SignalAllIgnored,
    AddsOneMore,
    RefusalsIgnored,
    RefusalIndexWrong,
    PostsSome,
    AccessErrorsHidden,
    ErrorsHidden,
    MemoryHasAllRights,
    QueuePairHasAllRights,
    WindowsHaveAllRights,
    NothingIsDestroyed,
    AtomicsAligned,
    NoAsyncEvents,
    ReceivesLost,
    ErrorStateIgnored,
    ResetIgnored,
    DrainIgnored,
    StateIsReset,
    ChangesAllowed,
    PsnFrozen,
    SavedResultsReversed,
    NumbersReused,
    UsedObjectsDestroyed,
    PollsTooMuch,
    ResizeLoses,
    LimitsRounded,
    SharedQueueNotResized,
    NotificationsLost,
    SolicitedIgnored,
    ForeignChannelsIgnored,
    QKeyIgnored,
    NoTrafficClass,
    NoLoopback,
    OneGroup,
    AnyGroup,
}

#[derive(Debug)]
pub(crate) struct WrongNic {
    nic: Arc<dyn Provider>,
    opened: Time,
    fault: Fault,
    /// Whether the next completion is lost.
    loses_next: AtomicBool,
}

impl WrongNic {
    pub(crate) fn new(nic: Arc<dyn Provider>, fault: Fault) -> WrongNic {
        WrongNic { opened: nic.now(), nic, fault, loses_next: AtomicBool::new(false) }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn send(&self, wr: &SendWr) -> SendWr {
        let mut wr = wr.clone();
        match self.fault {
            Fault::DataShifted => shift(&mut wr.data),
            Fault::ImmediateLost => {
                if let SendOp::SendWithImm(_) = wr.op {
                    wr.op = SendOp::Send;
                }
            }
            Fault::InvalidationLost => {
                if let SendOp::SendWithInvalidate(_) = wr.op {
                    wr.op = SendOp::Send;
                }
            }
            Fault::FenceIgnored => wr.flags -= SendFlags::FENCE,
            Fault::AllSignalled => wr.flags |= SendFlags::SIGNALED,
            Fault::AddsOneMore => {
                if let SendOp::FetchAdd { add, .. } = &mut wr.op {
                    *add += 1;
                }
            }
            Fault::RefusalsIgnored => {
                if let Data::Inline(bytes) = &mut wr.data {
                    *bytes = InlineData::from_slice(&bytes[..bytes.len().min(8)]);
                }
            }
            Fault::WindowsHaveAllRights => {
                if let SendOp::BindWindow(bind) = wr.op {
                    wr.op = SendOp::BindWindow(WindowBind { access: Access::REMOTE, ..bind });
                }
            }
            Fault::AtomicsAligned => {
                if let SendOp::FetchAdd { remote, add } = wr.op {
                    let remote = RemoteAddr { addr: remote.addr & !7, ..remote };
                    wr.op = SendOp::FetchAdd { remote, add };
                }
            }
            Fault::QKeyIgnored => {
                if let Some(to) = &mut wr.ud {
                    to.qkey = 0x11;
                }
            }
            _ => {}
        }
        wr
    }

    fn posted(&self, posted: Result<(), PostError>) -> Result<(), PostError> {
        match posted {
            Err(_) if self.has(Fault::RefusalsIgnored) => Ok(()),
            Err(PostError { index, error }) if self.has(Fault::RefusalIndexWrong) && index > 1 => {
                Err(PostError { index: index - 1, error })
            }
            posted => posted,
        }
    }

    fn destroyed(&self, call: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.has(Fault::NothingIsDestroyed) {
            return Ok(());
        }
        match call() {
            Err(Error::Busy { .. }) if self.has(Fault::UsedObjectsDestroyed) => Ok(()),
            result => result,
        }
    }

    fn group(&self, gid: Gid) -> Gid {
        match IpAddr::from(gid) {
            IpAddr::V4(group) if group.is_multicast() && self.has(Fault::OneGroup) => {
                let [_, high, low, _] = group.octets();
                IpAddr::from([238, high, low, 250]).into()
            }
            _ => gid,
        }
    }
}

/// Shifts the data by a byte.
fn shift(data: &mut Data) {
    match data {
        Data::Sges(sges) => sges.iter_mut().for_each(|sge| sge.addr += 1),
        Data::Inline(bytes) => bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1)),
    }
}

/// Defines methods that only call the same method of the NIC below.
macro_rules! delegate {
    ($(fn $name:ident(&self $(, $arg:ident: $arg_type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $arg_type)*) $(-> $result)? { self.nic.$name($($arg),*) })*
    };
}

impl Provider for WrongNic {
    fn now(&self) -> Time {
        let now = self.nic.now();
        now + now.saturating_since(self.opened).saturating_mul(SPEED)
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.nic.poll_async_event().filter(|_| !self.has(Fault::NoAsyncEvents))
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        let access = if self.has(Fault::MemoryHasAllRights) { Access::all() } else { access };
        self.nic.reg_mr(pd, memory, access)
    }

    fn dereg_mr(&self, mr: MrId) -> Result<()> {
        self.destroyed(|| self.nic.dereg_mr(mr))
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<()> {
        self.destroyed(|| self.nic.dealloc_mw(mw))
    }

    fn destroy_cq(&self, cq: CqId) -> Result<()> {
        self.destroyed(|| self.nic.destroy_cq(cq))
    }

    fn destroy_srq(&self, srq: SrqId) -> Result<()> {
        self.destroyed(|| self.nic.destroy_srq(srq))
    }

    fn destroy_qp(&self, qp: Qpn) -> Result<()> {
        if self.has(Fault::NumbersReused) {
            return Ok(());
        }
        self.destroyed(|| self.nic.destroy_qp(qp))
    }

    fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId> {
        self.nic.create_ah(pd, self.group(destination))
    }

    fn create_ah_with_traffic_class(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId> {
        let class = if self.has(Fault::NoTrafficClass) { 0 } else { traffic_class };
        self.nic.create_ah_with_traffic_class(pd, destination, class)
    }

    fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId> {
        let depth = if self.has(Fault::LimitsRounded) { depth.min(4096) } else { depth };
        match channel {
            Some(_) if self.has(Fault::ForeignChannelsIgnored) => self.nic.create_cq(depth, None),
            channel => self.nic.create_cq(depth, channel),
        }
    }

    fn resize_cq(&self, cq: CqId, depth: u32) -> Result<()> {
        self.loses_next.store(self.has(Fault::ResizeLoses), Ordering::Relaxed);
        self.nic.resize_cq(cq, depth)
    }

    fn resize_srq(&self, srq: SrqId, depth: u32) -> Result<()> {
        if self.has(Fault::SharedQueueNotResized) { Ok(()) } else { self.nic.resize_srq(srq, depth) }
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let max = if self.has(Fault::PollsTooMuch) { max + 1 } else { max };
        let first = out.len();
        let mut count = self.nic.poll_cq(cq, max, out)?;
        if count > 0 && self.loses_next.swap(false, Ordering::Relaxed) {
            out.pop();
            count -= 1;
        }
        for wc in &mut out[first..] {
            match (self.fault, wc.status) {
                (Fault::NumbersMixedUp, _) => wc.wr_id ^= 1,
                (Fault::AccessErrorsHidden, WcStatus::RemoteAccess) => wc.status = WcStatus::Success,
                (Fault::ErrorsHidden, status) if status != WcStatus::RemoteAccess => {
                    wc.status = WcStatus::Success;
                }
                _ => {}
            }
        }
        Ok(count)
    }

    fn req_notify_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        match self.fault {
            Fault::NotificationsLost => Ok(()),
            Fault::SolicitedIgnored => self.nic.req_notify_cq(cq, false),
            _ => self.nic.req_notify_cq(cq, solicited_only),
        }
    }

    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn> {
        let mut init = *init;
        if self.has(Fault::SignalAllIgnored) {
            init.sq_sig_all = false;
        }
        if self.has(Fault::LimitsRounded) {
            let limits = self.nic.attr().limits;
            init.cap = QpCap {
                send_wrs: init.cap.send_wrs.min(limits.wrs),
                recv_wrs: init.cap.recv_wrs.min(limits.wrs),
                send_sges: init.cap.send_sges.min(limits.sges),
                recv_sges: init.cap.recv_sges.min(limits.sges),
                inline: init.cap.inline.min(limits.inline),
            };
        }
        let qp = self.nic.create_qp(&init)?;
        Ok(if self.has(Fault::NumbersReused) { Qpn::new(5) } else { qp })
    }

    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()> {
        let is_ignored = match attr.state {
            Some(QpState::Err) => self.has(Fault::ErrorStateIgnored),
            Some(QpState::Reset) => self.has(Fault::ResetIgnored),
            Some(QpState::Sqd) => self.has(Fault::DrainIgnored),
            _ => false,
        };
        if is_ignored {
            return Ok(());
        }
        let all = Access::LOCAL_WRITE | Access::REMOTE;
        let access =
            attr.access.map(|access| if self.has(Fault::QueuePairHasAllRights) { all } else { access });
        match self.nic.modify_qp(qp, &QpAttr { access, ..*attr }) {
            Err(Error::Modify(_)) if self.has(Fault::ChangesAllowed) => Ok(()),
            result => result,
        }
    }

    fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        let mut status = self.nic.query_qp(qp)?;
        match self.fault {
            Fault::StateIsReset => status.state = QpState::Reset,
            Fault::PsnFrozen => status.rq_psn = mitra_verbs::Psn::new(0xff_fff0),
            _ => {}
        }
        Ok(status)
    }

    fn attach_mcast(&self, qp: Qpn, group: Gid, loopback: bool) -> Result<()> {
        match self.nic.attach_mcast(qp, self.group(group), loopback && !self.has(Fault::NoLoopback)) {
            Err(Error::Invalid(_)) if self.has(Fault::AnyGroup) => Ok(()),
            result => result,
        }
    }

    fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        let wrs: Vec<_> = wrs.iter().map(|wr| self.send(wr)).collect();
        self.posted(self.nic.post_send(qp, &wrs))
    }

    fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        match self.has(Fault::PostsSome) {
            true => self.nic.post_send(qp, wrs),
            false => self.nic.post_send_all(qp, wrs),
        }
    }

    fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        let posted = || self.posted(self.nic.post_recv(qp, wrs));
        if self.has(Fault::ReceivesLost) { Ok(()) } else { posted() }
    }

    fn post_srq_recv(&self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        let posted = || self.posted(self.nic.post_srq_recv(srq, wrs));
        if self.has(Fault::ReceivesLost) { Ok(()) } else { posted() }
    }

    fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>> {
        let mut results = self.nic.saved_results(qp)?;
        if self.has(Fault::SavedResultsReversed) {
            results.reverse();
        }
        Ok(results)
    }

    delegate! {
        fn attr(&self) -> &DeviceAttr;
        fn random_u64(&self) -> Result<u64>;
        fn query_port(&self) -> Result<PortAttr>;
        fn counters(&self) -> Vec<Counter>;
        fn alloc_pd(&self) -> Result<PdId>;
        fn dealloc_pd(&self, pd: PdId) -> Result<()>;
        fn rereg_mr(&self, mr: MrId, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;
        fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw>;
        fn destroy_ah(&self, ah: AhId) -> Result<()>;
        fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>>;
        fn create_srq(&self, pd: PdId, depth: u32) -> Result<SrqId>;
        fn arm_srq(&self, srq: SrqId, limit: u32) -> Result<()>;
        fn detach_mcast(&self, qp: Qpn, group: Gid) -> Result<()>;
        fn reset(&self) -> Result<()>;
    }
}
