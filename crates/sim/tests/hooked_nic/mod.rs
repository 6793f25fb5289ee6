//! A simulated NIC with completion channels, during whose calls the world can go on. On a software NIC, packets arrive between any two calls
//! of a vQP; in the simulator, the world otherwise stands still until the vQP returns.
#![allow(dead_code)] // each test binary uses a part of this module

use core::time::Duration;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use mitra_sim::{SimNic, Testbed};
use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, DeviceAttr, Gid, Mr, MrId, Mw, MwId,
    PdId, PortAttr, PostError, Provider, QpAttr, QpInitAttr, QpStatus, Qpn, RecvWr, Result, SavedResult,
    SendWr, SrqId, Srqn, Time, Wc, WindowType, XrcdId,
};

/// When the world goes on.
enum Interrupt {
    Never,
    /// Once, before this number of further calls.
    After(usize, Duration),
    /// Before each call.
    Each(Duration),
}

struct Scene {
    testbed: Testbed,
    interrupt: Interrupt,
}

thread_local! {
    static SCENE: RefCell<Option<Scene>> = const { RefCell::new(None) };
}

fn with_scene<T>(f: impl FnOnce(&mut Scene) -> T) -> T {
    SCENE.with_borrow_mut(|scene| f(scene.as_mut().expect("the test has set a world")))
}

/// Makes `testbed` the world of the hooked NICs of this thread.
pub fn set_world(testbed: Testbed) {
    SCENE.set(Some(Scene { testbed, interrupt: Interrupt::Never }));
}

/// Gives access to the world.
pub fn with_world<T>(f: impl FnOnce(&mut Testbed) -> T) -> T {
    with_scene(|scene| f(&mut scene.testbed))
}

/// Lets the world go on for `time` before the call number `calls` of a hooked NIC, counted from 0.
pub fn interrupt_after(calls: usize, time: Duration) {
    with_scene(|scene| scene.interrupt = Interrupt::After(calls, time));
}

/// Lets the world go on for `time` before each call of a hooked NIC.
pub fn interrupt_each(time: Duration) {
    with_scene(|scene| scene.interrupt = Interrupt::Each(time));
}

/// Cancels [`interrupt_after`]. Returns whether it was still to come.
pub fn cancel_interrupt() -> bool {
    let interrupt = |scene: &mut Scene| core::mem::replace(&mut scene.interrupt, Interrupt::Never);
    matches!(with_scene(interrupt), Interrupt::After(..))
}

fn before_call() {
    with_scene(|scene| match &mut scene.interrupt {
        Interrupt::Never => {}
        Interrupt::After(0, time) => {
            scene.testbed.world.run_for(*time);
            scene.interrupt = Interrupt::Never;
        }
        Interrupt::After(calls, _) => *calls -= 1,
        Interrupt::Each(time) => scene.testbed.world.run_for(*time),
    });
}

/// The completion channel of all completion queues of a hooked NIC.
#[derive(Debug)]
pub struct SimChannel {
    nic: Arc<SimNic>,
    events: Mutex<VecDeque<CqId>>,
    file: File,
}

impl SimChannel {
    /// Returns whether the descriptor of a NIC's channel would be readable.
    pub fn is_readable(&self) -> bool {
        let mut events = self.events.lock().expect("no test panics with this lock");
        events.extend(std::iter::from_fn(|| self.nic.poll_cq_event()));
        !events.is_empty()
    }
}

impl AsFd for SimChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl CompletionChannel for SimChannel {
    fn next_event(&self) -> Result<Option<CqId>> {
        before_call();
        Ok(self
            .is_readable()
            .then(|| self.events.lock().expect("no test panics with this lock").pop_front())
            .flatten())
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct HookedNic {
    nic: Arc<SimNic>,
    pub channel: Arc<SimChannel>,
}

impl HookedNic {
    pub fn new(nic: &Arc<SimNic>) -> Arc<HookedNic> {
        let file = File::open("/dev/null").expect("every Unix has it");
        let channel = Arc::new(SimChannel { nic: Arc::clone(nic), events: Mutex::default(), file });
        Arc::new(HookedNic { nic: Arc::clone(nic), channel })
    }
}

macro_rules! forward {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $type)*) $(-> $result)? {
            before_call();
            self.nic.$name($($arg),*)
        })*
    };
}

impl Provider for HookedNic {
    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        Ok(Arc::clone(&self.channel) as Arc<dyn CompletionChannel>)
    }

    fn create_cq(&self, depth: u32, _: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId> {
        before_call();
        self.nic.create_cq(depth, None)
    }

    forward! {
        fn attr(&self) -> &DeviceAttr;
        fn now(&self) -> Time;
        fn random_u64(&self) -> Result<u64>;
        fn query_port(&self) -> Result<PortAttr>;
        fn counters(&self) -> Vec<Counter>;
        fn poll_async_event(&self) -> Option<AsyncEvent>;
        fn alloc_pd(&self) -> Result<PdId>;
        fn dealloc_pd(&self, pd: PdId) -> Result<()>;
        fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;
        fn dereg_mr(&self, mr: MrId) -> Result<()>;
        fn rereg_mr(&self, mr: MrId, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;
        fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw>;
        fn dealloc_mw(&self, mw: MwId) -> Result<()>;
        fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId>;
        fn create_ah_with_traffic_class(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId>;
        fn destroy_ah(&self, ah: AhId) -> Result<()>;
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
        fn query_qp(&self, qp: Qpn) -> Result<QpStatus>;
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
