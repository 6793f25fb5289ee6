//! A simulated NIC with completion channels. On a software NIC, packets arrive between any two
//! calls of a vQP. The world can therefore advance during the calls of a hooked NIC. On other
//! simulated NICs, the world stands still until the vQP returns. Without [`set_world`], a hooked
//! NIC only applies [`Binds`].
#![allow(dead_code)] // each test binary uses a part of this module

use core::time::Duration;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use mitra_sim::{NicId, SimNic, Testbed};
use mitra_verbs::{
    Access, AhId, AsyncEvent, Buffer, CompletionChannel, Counter, CqId, Data, DeviceAttr, Error, GRH_LEN,
    Gid, Limits, Mr, MrId, Mw, MwId, PdId, PortAttr, PostError, Provider, QpAttr, QpInitAttr, QpState,
    QpStatus, QpType, Qpn, RecvWr, Result, SavedResult, SendOp, SendWr, SrqId, Srqn, Time, Wc, WcOpcode,
    WcStatus, WindowType, XrcdId,
};

enum Interrupt {
    Never,
    /// Once, after this number of further calls.
    After(usize, Duration),
    Each(Duration),
}

/// A moment in the life of a datagram of a UD queue pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Moment {
    /// The NIC is about to take the datagram from the sender.
    BeforeSend,
    /// The NIC has taken the datagram.
    AfterSend,
    /// The receiver is about to take the completion of the datagram.
    Delivery,
}

/// Receives each datagram at each [`Moment`], with its NIC. Returns whether the datagram goes on.
/// Otherwise the datagram is lost. The result is ignored for [`Moment::AfterSend`]. While an
/// observer runs, it receives no other datagram.
pub type Observer = Box<dyn FnMut(NicId, Moment, &[u8]) -> bool>;

struct Scene {
    testbed: Testbed,
    interrupt: Interrupt,
    observer: Option<Observer>,
}

thread_local! {
    static SCENE: RefCell<Option<Scene>> = const { RefCell::new(None) };
}

fn with_scene<T>(f: impl FnOnce(&mut Scene) -> T) -> T {
    SCENE.with_borrow_mut(|scene| f(scene.as_mut().expect("the test has set a world")))
}

/// Makes `testbed` the world of the hooked NICs of this thread.
pub fn set_world(testbed: Testbed) {
    SCENE.set(Some(Scene { testbed, interrupt: Interrupt::Never, observer: None }));
}

pub fn with_world<T>(f: impl FnOnce(&mut Testbed) -> T) -> T {
    with_scene(|scene| f(&mut scene.testbed))
}

pub fn observe(observer: Observer) {
    with_scene(|scene| scene.observer = Some(observer));
}

pub fn stop_observing() {
    drop(with_scene(|scene| scene.observer.take()));
}

/// Returns whether the datagram goes on.
fn show(nic: &SimNic, moment: Moment, bytes: &[u8]) -> bool {
    // The observer may use the world and other NICs, so it runs outside the scene.
    let observer = SCENE.with_borrow_mut(|scene| scene.as_mut().and_then(|scene| scene.observer.take()));
    let Some(mut observer) = observer else { return true };
    let goes_on = observer(nic.id(), moment, bytes);
    observe(observer);
    goes_on
}

/// Advances the world by `time` before call number `calls` of a hooked NIC, counted from 0.
pub fn interrupt_after(calls: usize, time: Duration) {
    with_scene(|scene| scene.interrupt = Interrupt::After(calls, time));
}

/// Advances the world by `time` before each call of a hooked NIC.
pub fn interrupt_each(time: Duration) {
    with_scene(|scene| scene.interrupt = Interrupt::Each(time));
}

/// Cancels [`interrupt_after`]. Returns whether the interruption had not happened yet.
pub fn cancel_interrupt() -> bool {
    let interrupt = |scene: &mut Scene| core::mem::replace(&mut scene.interrupt, Interrupt::Never);
    matches!(with_scene(interrupt), Interrupt::After(..))
}

fn before_call() {
    SCENE.with_borrow_mut(|scene| {
        let Some(scene) = scene else { return };
        match &mut scene.interrupt {
            Interrupt::Never => {}
            Interrupt::After(0, time) => {
                scene.testbed.world.run_for(*time);
                scene.interrupt = Interrupt::Never;
            }
            Interrupt::After(calls, _) => *calls -= 1,
            Interrupt::Each(time) => scene.testbed.world.run_for(*time),
        }
    });
}

/// How a hooked NIC handles binds of memory windows. Other simulated NICs execute all requests of
/// all queue pairs in the order of posting.
#[derive(Debug, Default)]
pub enum Binds {
    #[default]
    Execute,
    /// Holds binds, and the requests behind them, until [`HookedNic::execute_binds`].
    Hold(Vec<(Qpn, SendWr)>),
    /// Refuses the next bind.
    RefuseNext,
    /// Completes the next bind with an error.
    FailNext,
}

/// When a hooked NIC flushes a request that is posted to a queue pair in ERR.
#[derive(Debug, Default)]
pub enum ErrorPosts {
    #[default]
    Flush,
    /// At the next change to ERR.
    Hold(Vec<(Qpn, HeldPost)>),
    /// Receives do not flush. Each is taken by a message of no bytes.
    Take(Vec<(Qpn, u64)>),
    Never,
}

#[derive(Debug)]
pub enum HeldPost {
    Send(SendWr),
    Recv(RecvWr),
}

/// The completion channel of all completion queues of a hooked NIC.
#[derive(Debug)]
pub struct SimChannel {
    nic: Arc<SimNic>,
    events: Mutex<VecDeque<CqId>>,
    file: File,
}

impl SimChannel {
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

    /// The tests sleep on the descriptor.
    fn begin_wait(&self) -> Option<(&AtomicU32, u32)> {
        None
    }

    fn close(&self) {}
}

#[derive(Debug)]
pub struct HookedNic {
    nic: Arc<SimNic>,
    attr: DeviceAttr,
    pub channel: Arc<SimChannel>,
    datagrams: Mutex<Datagrams>,
    binds: Mutex<Binds>,
    error_posts: Mutex<ErrorPosts>,
    pub refuses_to_destroy: AtomicBool,
    /// The number of [`Provider::generation`], if the NIC counts its changes.
    pub generation: Mutex<Option<u64>>,
    /// The number of calls that ask for events or for the port.
    pub questions: AtomicU32,
}

/// The state that is needed to read arriving datagrams.
#[derive(Debug, Default)]
struct Datagrams {
    qps: Vec<Qpn>,
    /// The posted receives of the UD queue pairs.
    recvs: BTreeMap<(Qpn, u64), RecvWr>,
    regions: BTreeMap<u64, Arc<Buffer>>,
}

impl Datagrams {
    /// Returns the datagram that a receive holds, and the receive. `None` for a completion of
    /// another kind.
    fn received(&self, wc: &Wc) -> Option<(Vec<u8>, RecvWr)> {
        if wc.opcode != WcOpcode::Recv || wc.status != WcStatus::Success {
            return None;
        }
        let recv = self.recvs.get(&(wc.qpn, wc.wr_id))?;
        let addr = recv.sges.first()?.addr;
        let (start, memory) = self.regions.range(..=addr).next_back()?;
        let mut bytes = vec![0; (wc.byte_len as usize).saturating_sub(GRH_LEN)];
        memory.read_at((addr - start) as usize + GRH_LEN, &mut bytes);
        Some((bytes, recv.clone()))
    }
}

impl HookedNic {
    pub fn new(nic: &Arc<SimNic>) -> Arc<HookedNic> {
        HookedNic::with_limits(nic, |_| {})
    }

    /// A NIC whose limits are those of `nic` after `change`.
    pub fn with_limits(nic: &Arc<SimNic>, change: impl FnOnce(&mut Limits)) -> Arc<HookedNic> {
        let mut attr = nic.attr().clone();
        change(&mut attr.limits);
        let file = File::open("/dev/null").expect("every Unix has it");
        let channel = Arc::new(SimChannel { nic: Arc::clone(nic), events: Mutex::default(), file });
        Arc::new(HookedNic {
            nic: Arc::clone(nic),
            attr,
            channel,
            datagrams: Mutex::default(),
            binds: Mutex::default(),
            error_posts: Mutex::default(),
            refuses_to_destroy: AtomicBool::new(false),
            generation: Mutex::default(),
            questions: AtomicU32::new(0),
        })
    }

    pub fn set_error_posts(&self, error_posts: ErrorPosts) {
        *self.error_posts.lock().expect("no test panics with this lock") = error_posts;
    }

    /// Returns whether the NIC keeps the posts, because the queue pair is in ERR.
    fn keeps(&self, qp: Qpn, posts: impl Iterator<Item = HeldPost>) -> bool {
        let mut error_posts = self.error_posts.lock().expect("no test panics with this lock");
        if self.nic.query_qp(qp).is_ok_and(|status| status.state != QpState::Err) {
            return false;
        }
        match &mut *error_posts {
            ErrorPosts::Flush => return false,
            ErrorPosts::Hold(held) => held.extend(posts.map(|post| (qp, post))),
            ErrorPosts::Take(taken) => {
                taken.extend(posts.filter_map(|post| match post {
                    HeldPost::Recv(wr) => Some((qp, wr.wr_id)),
                    HeldPost::Send(_) => None,
                }));
                return false;
            }
            ErrorPosts::Never => {}
        }
        true
    }

    /// Posts what the NIC has held of a queue pair that is moved to ERR again.
    fn release(&self, qp: Qpn) {
        let mut error_posts = self.error_posts.lock().expect("no test panics with this lock");
        let ErrorPosts::Hold(held) = &mut *error_posts else { return };
        let (released, kept) = held.drain(..).partition(|(of, _)| *of == qp);
        *held = kept;
        let released: Vec<(Qpn, HeldPost)> = released;
        for (_, post) in released {
            match post {
                HeldPost::Send(wr) => self.nic.post_send(qp, &[wr]).expect("the queue is empty"),
                HeldPost::Recv(wr) => self.nic.post_recv(qp, &[wr]).expect("the queue is empty"),
            }
        }
    }

    pub fn set_binds(&self, binds: Binds) {
        *self.binds.lock().expect("no test panics with this lock") = binds;
    }

    /// Executes the held binds, and from now on each new bind. Returns the number of held requests.
    pub fn execute_binds(&self) -> usize {
        let before = core::mem::take(&mut *self.binds.lock().expect("no test panics with this lock"));
        let Binds::Hold(held) = before else { return 0 };
        for (qp, wr) in &held {
            let _ = self.nic.post_send(*qp, core::slice::from_ref(wr)); // the queue pair may be gone
        }
        held.len()
    }

    /// Returns the requests that the NIC takes.
    fn apply_binds(&self, qp: Qpn, wrs: &[SendWr]) -> Result<Vec<SendWr>, PostError> {
        let mut binds = self.binds.lock().expect("no test panics with this lock");
        let mut wrs = wrs.to_vec();
        let first = wrs.iter().position(|wr| matches!(wr.op, SendOp::BindWindow(_)));
        match (&mut *binds, first) {
            (Binds::Hold(held), first) if first.is_some() || held.iter().any(|(other, _)| *other == qp) => {
                held.extend(wrs.drain(..).map(|wr| (qp, wr)));
            }
            (Binds::RefuseNext, Some(index)) => {
                *binds = Binds::Execute;
                return Err(PostError { index, error: Error::Invalid("the test refuses a bind") });
            }
            (Binds::FailNext, Some(index)) => {
                *binds = Binds::Execute;
                if let SendOp::BindWindow(bind) = &mut wrs[index].op {
                    bind.len = u64::MAX; // more than the region
                }
            }
            _ => {}
        }
        Ok(wrs)
    }

    fn datagrams(&self) -> MutexGuard<'_, Datagrams> {
        self.datagrams.lock().expect("no test panics with this lock")
    }

    /// Passes to the observer a request that sends a datagram. Returns whether the request goes on.
    fn show_send(&self, moment: Moment, wrs: &[SendWr]) -> bool {
        match wrs {
            [SendWr { ud: Some(_), data: Data::Inline(bytes), .. }] => show(&self.nic, moment, bytes),
            _ => true,
        }
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
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        Ok(Arc::clone(&self.channel) as Arc<dyn CompletionChannel>)
    }

    fn create_cq(&self, depth: u32, _: Option<&Arc<dyn CompletionChannel>>) -> Result<CqId> {
        before_call();
        self.nic.create_cq(depth, None)
    }

    fn create_qp(&self, init: &QpInitAttr) -> Result<Qpn> {
        before_call();
        let qpn = self.nic.create_qp(init)?;
        if init.qp_type == QpType::Ud {
            self.datagrams().qps.push(qpn);
        }
        Ok(qpn)
    }

    fn reg_mr(&self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        before_call();
        let mr = self.nic.reg_mr(pd, Arc::clone(&memory), access)?;
        self.datagrams().regions.insert(mr.addr, memory);
        Ok(mr)
    }

    fn post_recv(&self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        before_call();
        let mut datagrams = self.datagrams();
        if datagrams.qps.contains(&qp) {
            datagrams.recvs.extend(wrs.iter().map(|wr| ((qp, wr.wr_id), wr.clone())));
        }
        if self.keeps(qp, wrs.iter().cloned().map(HeldPost::Recv)) {
            return Ok(());
        }
        self.nic.post_recv(qp, wrs)
    }

    fn modify_qp(&self, qp: Qpn, attr: &QpAttr) -> Result<()> {
        before_call();
        self.nic.modify_qp(qp, attr)?;
        if attr.state == Some(QpState::Err) {
            self.release(qp);
        }
        Ok(())
    }

    fn destroy_qp(&self, qp: Qpn) -> Result<()> {
        before_call();
        if self.refuses_to_destroy.load(Ordering::Relaxed) {
            return Err(Error::Invalid("the test refuses to destroy queue pairs"));
        }
        self.nic.destroy_qp(qp)
    }

    fn post_send(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        before_call();
        if !self.show_send(Moment::BeforeSend, wrs) {
            return Ok(());
        }
        if self.keeps(qp, wrs.iter().cloned().map(HeldPost::Send)) {
            return Ok(());
        }
        let posted = self.nic.post_send(qp, &self.apply_binds(qp, wrs)?);
        self.show_send(Moment::AfterSend, wrs);
        posted
    }

    fn poll_cq(&self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        before_call();
        let first = out.len();
        self.nic.poll_cq(cq, max, out)?;
        if let ErrorPosts::Take(taken) = &*self.error_posts.lock().expect("no test panics with this lock") {
            let is_taken = |wc: &&mut Wc| taken.contains(&(wc.qpn, wc.wr_id));
            out[first..].iter_mut().filter(is_taken).for_each(|wc| wc.status = WcStatus::Success);
        }
        let received = |wc: &Wc| self.datagrams().received(wc);
        let mut at = first;
        while let Some(wc) = out.get(at).copied() {
            match received(&wc) {
                Some((bytes, recv)) if !show(&self.nic, Moment::Delivery, &bytes) => {
                    out.remove(at);
                    self.nic.post_recv(wc.qpn, &[recv]).map_err(|e| e.error)?;
                }
                _ => at += 1,
            }
        }
        Ok(out.len() - first)
    }

    fn query_port(&self) -> Result<PortAttr> {
        before_call();
        self.questions.fetch_add(1, Ordering::Relaxed);
        self.nic.query_port()
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        before_call();
        self.questions.fetch_add(1, Ordering::Relaxed);
        self.nic.poll_async_event()
    }

    fn generation(&self) -> Option<u64> {
        *self.generation.lock().expect("no test panics with this lock")
    }

    forward! {
        fn now(&self) -> Time;
        fn random_u64(&self) -> Result<u64>;
        fn counters(&self) -> Vec<Counter>;
        fn alloc_pd(&self) -> Result<PdId>;
        fn dealloc_pd(&self, pd: PdId) -> Result<()>;
        fn dereg_mr(&self, mr: MrId) -> Result<()>;
        fn rereg_mr(&self, mr: MrId, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr>;
        fn alloc_mw(&self, pd: PdId, window_type: WindowType) -> Result<Mw>;
        fn dealloc_mw(&self, mw: MwId) -> Result<()>;
        fn create_ah(&self, pd: PdId, destination: Gid) -> Result<AhId>;
        fn create_ah_with_traffic_class(&self, pd: PdId, destination: Gid, traffic_class: u8) -> Result<AhId>;
        fn destroy_ah(&self, ah: AhId) -> Result<()>;
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
        fn query_qp(&self, qp: Qpn) -> Result<QpStatus>;
        fn attach_mcast(&self, qp: Qpn, group: Gid, loopback: bool) -> Result<()>;
        fn detach_mcast(&self, qp: Qpn, group: Gid) -> Result<()>;
        fn post_send_all(&self, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError>;
        fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>>;
        fn reset(&self) -> Result<()>;
    }
}
