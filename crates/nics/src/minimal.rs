//! [`MinimalNic`]: a software NIC that can do less.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use mitra_softnic::SoftNics;
use mitra_verbs::fault::FaultSwitch;
use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, DeviceAttr, Error, Extras, Gid,
    Limits, Mr, MrId, Mw, MwId, Nic, NicOpenError, NicRequest, NicSource, OpenedNic, PdId, PortAttr,
    PostError, Provider, Psn, QpAttr, QpInitAttr, QpStatus, Qpn, RecvWr, Result, SavedResult, SendWr, SrqId,
    Srqn, Time, Wc, WindowType, XrcdId,
};

/// The source of [`MinimalNic`]s.
#[derive(Clone, Copy, Debug)]
pub struct MinimalNics;

impl NicSource for MinimalNics {
    fn limits(&self) -> Limits {
        Limits { inline: 0, ..SoftNics.limits() }
    }

    fn propose_address(&self) -> Option<IpAddr> {
        SoftNics.propose_address()
    }

    fn open(&self, request: &NicRequest) -> Result<OpenedNic, NicOpenError> {
        let limits = Limits { inline: 0, ..request.limits };
        let OpenedNic { nic, warning } = SoftNics.open(&NicRequest { limits, ..*request })?;
        Ok(OpenedNic { nic: Arc::new(MinimalNic::new(nic)), warning })
    }
}

/// A NIC over another one that has no inline data, no saved results of atomics, no PSN of a
/// responder that can be read, and no on-demand paging, as the kernel's interface to hardware has
/// none. The tests run everything over it that is to run over NICs of any kind.
#[derive(Debug)]
pub struct MinimalNic {
    nic: Arc<dyn Nic>,
    attr: DeviceAttr,
}

impl MinimalNic {
    fn new(nic: Arc<dyn Nic>) -> MinimalNic {
        let mut attr = nic.attr().clone();
        attr.name = format!("minimal-{}", nic.address());
        attr.capabilities.psn_query = false;
        attr.capabilities.saved_results = false;
        attr.capabilities.on_demand = false;
        MinimalNic { nic, attr }
    }
}

impl Nic for MinimalNic {
    fn address(&self) -> IpAddr {
        self.nic.address()
    }

    fn device_name(&self) -> Option<&str> {
        self.nic.device_name()
    }

    fn extras(&self) -> Extras {
        self.nic.extras()
    }

    fn fault_switch(&self) -> Option<&dyn FaultSwitch> {
        self.nic.fault_switch()
    }

    fn receive_traffic_classes(&self) -> Result<()> {
        self.nic.receive_traffic_classes()
    }

    fn settle(&self) {
        self.nic.settle();
    }
}

/// Refuses what a NIC of the kernel cannot lock. Whether the pages are mapped, the caller knows.
fn check_memory(memory: &Buffer) -> Result<()> {
    memory.process_addr().map(drop).ok_or(Error::Unsupported("memory without an address in this process"))
}

/// Defines methods that only call the same method of the NIC below.
macro_rules! delegate {
    ($(fn $name:ident(&self $(, $arg:ident: $arg_type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $arg_type)*) $(-> $result)? { self.nic.$name($($arg),*) })*
    };
}

impl Provider for MinimalNic {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        // Without `psn_query` the value has no meaning.
        Ok(QpStatus { rq_psn: Psn::new(0), ..self.nic.query_qp(qp)? })
    }

    fn saved_results(&self, _qp: Qpn) -> Result<Vec<SavedResult>> {
        Err(Error::Unsupported("saved results of atomics"))
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        check_memory(&memory)?;
        self.nic.reg_mr(pd, memory, access)
    }

    fn rereg_mr(&self, mr: MrId, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        check_memory(&memory)?;
        self.nic.rereg_mr(mr, pd, memory, access)
    }

    delegate! {
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
        fn dereg_mr(&self, mr: MrId) -> Result<()>;
        fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw>;
        fn dealloc_mw(&self, mw: MwId) -> Result<()>;
        fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId>;
        fn create_ah_with_traffic_class(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId>;
        fn destroy_ah(&self, ah: AhId) -> Result<()>;
        fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>>;
        fn create_cq(&self, depth: u32, channel: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId>;
        fn resize_cq(&self, cq: CqId, depth: u32) -> Result<()>;
        fn destroy_cq(&self, cq: CqId) -> Result<()>;
        fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize>;
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
        fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()>;
        fn attach_mcast(&self, qp: Qpn, group: Gid, loopback: bool) -> Result<()>;
        fn detach_mcast(&self, qp: Qpn, group: Gid) -> Result<()>;
        fn destroy_qp(&self, qp: Qpn) -> Result<()>;
        fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;
        fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;
        fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError>;
        fn reset(&self) -> Result<()>;
    }
}
