//! Queue pairs.

mod without_link;

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{
    Access, Error, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn, Result, SqDrain, check_modify,
};
use mitra_verbs_abi::*;

use crate::context::{Context, shared_by_threads};
use crate::objects::{Cq, Pd, Srq};
use crate::qp_attributes::{attributes_to, state_to, type_to};
use crate::work_ids::{QueueKind, WorkQueue};
use without_link::WithoutLink;

/// A queue pair. Its state is kept here, because drivers report it wrong (siw: RESET in RTS).
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) raw: *mut ibv_qp,
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInitAttr,
    pub(crate) sends: WorkQueue,
    pub(crate) recvs: WorkQueue,
    /// The state, for posts and completions.
    state: AtomicU8,
    modified: Mutex<Modified>,
    /// No send has failed since the link went down.
    has_lost_link: AtomicBool,
    pub(crate) pd: Arc<Pd>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
}

#[derive(Debug, Default)]
struct Modified {
    attr: QpAttr,
    /// The program has destroyed the queue pair.
    is_destroyed: bool,
    without_link: WithoutLink,
}

shared_by_threads!(Qp);

const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

impl Qp {
    /// Creates a queue pair. `epoch` differs from that of the last queue pair with the same number.
    pub(crate) fn create(
        init: &QpInitAttr,
        pd: Arc<Pd>,
        (send_cq, recv_cq): (Arc<Cq>, Arc<Cq>),
        srq: Option<Arc<Srq>>,
        epoch: u32,
    ) -> Result<Qp> {
        let qp_type =
            type_to(init.qp_type).ok_or(Error::Unsupported("XRC and queue pair 1, which the kernel owns"))?;
        let context = &pd.context;
        let mut attr = ibv_qp_init_attr {
            send_cq: send_cq.raw,
            recv_cq: recv_cq.raw,
            srq: srq.as_ref().map_or(std::ptr::null_mut(), |srq| srq.raw),
            cap: ibv_qp_cap {
                max_send_wr: init.cap.send_wrs,
                max_recv_wr: if srq.is_some() { 0 } else { init.cap.recv_wrs },
                max_send_sge: init.cap.send_sges,
                max_recv_sge: if srq.is_some() { 0 } else { init.cap.recv_sges },
                max_inline_data: init.cap.inline,
            },
            qp_type,
            sq_sig_all: c_int::from(init.sq_sig_all),
            ..ibv_qp_init_attr::zeroed()
        };
        // SAFETY: the domain and the queues exist as long as the queue pair, which holds them.
        let raw = unsafe { (context.lib.create_qp)(pd.raw, &raw mut attr) };
        let raw = context.check_ptr("creating a queue pair", raw)?;
        // SAFETY: the call has returned a queue pair.
        let qpn = Qpn::new(unsafe { (*raw).qp_num });
        Ok(Qp {
            raw,
            qpn,
            init: *init,
            sends: WorkQueue::new(QueueKind::Send, init.cap.send_wrs, epoch),
            recvs: WorkQueue::new(QueueKind::Recv, init.cap.recv_wrs, epoch),
            state: AtomicU8::new(QpState::Reset as u8),
            modified: Mutex::default(),
            has_lost_link: AtomicBool::new(false),
            pd,
            send_cq,
            recv_cq,
            srq,
        })
    }

    fn context(&self) -> &Context {
        &self.pd.context
    }

    /// Returns the counters of users of the objects that the queue pair uses.
    pub(crate) fn users(&self) -> impl Iterator<Item = &AtomicU32> {
        let queues = [&self.pd.users, &self.send_cq.users, &self.recv_cq.users];
        queues.into_iter().chain(self.srq.as_ref().map(|srq| &srq.users))
    }

    fn lock(&self) -> MutexGuard<'_, Modified> {
        self.modified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> QpState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    fn no_such_object(&self) -> Error {
        Error::NoSuchObject { kind: "queue pair", id: self.qpn.value() }
    }

    fn modify_raw(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<()> {
        // SAFETY: the queue pair exists, and the attributes named in the mask are set.
        let result = unsafe { (self.context().lib.modify_qp)(self.raw, &raw mut attr, mask as c_int) };
        self.context().check("changing a queue pair", result)
    }

    /// Changes the state or the attributes.
    pub(crate) fn modify(&self, attr: &QpAttr, sgid_index: impl FnOnce() -> Result<u8>) -> Result<()> {
        let mut modified = self.lock();
        if modified.is_destroyed {
            return Err(self.no_such_object());
        }
        let from = self.state();
        let to = check_modify(self.init.qp_type, from, attr)?;
        // The NIC of Intel's E810 refuses a change from RESET to RESET.
        if !(from == QpState::Reset && to == QpState::Reset) {
            if from == QpState::Reset && to == QpState::Err {
                // The kernel has no change from RESET to ERR (`ib_modify_qp_is_ok`).
                let init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
                let init = match self.init.qp_type.is_datagram() {
                    true => QpAttr { qkey: Some(0), ..init },
                    false => QpAttr { access: Some(Access::empty()), ..init },
                };
                let (attributes, mask) = attributes_to(&init, || Ok(0))?;
                self.modify_raw(attributes, mask)?;
            }
            let change = QpAttr { state: Some(to), ..*attr };
            if let Some(change) = self.change_for_device(&mut modified, from, &change)? {
                let changed = attributes_to(&change, sgid_index)
                    .and_then(|(attributes, mask)| self.modify_raw(attributes, mask));
                match changed {
                    Err(error) if to == QpState::Rtr && self.context().tolerates(&error) => {
                        self.connect_unreached(&mut modified, &change)?;
                    }
                    changed => changed?,
                }
            }
        }
        if to == QpState::Reset {
            self.sends.reset();
            self.recvs.reset();
            self.has_lost_link.store(false, Ordering::Relaxed);
            (modified.attr, modified.without_link) = Default::default();
        } else {
            modified.attr.update(&QpAttr { state: None, rq_psn: None, sq_psn: None, ..*attr });
        }
        self.set_state(to);
        Ok(())
    }

    /// Ends all accesses to memory by the queue pair, and makes later changes fail. A change to
    /// RESET waits for the packet that is being executed; it keeps the number of the queue pair
    /// reserved. Where the device refuses it, the caller has to wait for the destruction.
    ///
    /// Returns whether the accesses have ended.
    pub(crate) fn end(&self) -> bool {
        let mut modified = self.lock();
        modified.is_destroyed = true;
        if self.state() == QpState::Reset {
            return true;
        }
        let attr = ibv_qp_attr { qp_state: state_to(QpState::Reset), ..ibv_qp_attr::zeroed() };
        self.modify_raw(attr, IBV_QP_STATE).is_ok()
    }

    /// Follows the state of the queue pair after a request has failed.
    pub(crate) fn follow_failure(&self) {
        match self.init.qp_type {
            QpType::Rc => self.set_state(QpState::Err),
            // The send queue of another service goes to SQE, or the queue pair to ERR.
            _ => {
                if let Ok(attr) = self.query_raw() {
                    self.set_failed_state(attr.qp_state);
                }
            }
        }
    }

    fn set_failed_state(&self, reported: ibv_qp_state) {
        match reported {
            IBV_QPS_ERR => self.set_state(QpState::Err),
            IBV_QPS_SQE => self.set_state(QpState::Sqe),
            _ => {}
        }
    }

    fn query_raw(&self) -> Result<ibv_qp_attr> {
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        let mask = IBV_QP_STATE | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN;
        // SAFETY: the queue pair exists, and both results are valid for writing.
        let result =
            unsafe { (self.context().lib.query_qp)(self.raw, &raw mut attr, mask as c_int, &raw mut init) };
        self.context().check("querying a queue pair", result)?;
        Ok(attr)
    }

    pub(crate) fn query(&self) -> Result<QpStatus> {
        let modified = self.lock();
        if modified.is_destroyed {
            return Err(self.no_such_object());
        }
        let attr = self.query_raw()?;
        if !modified.without_link.is_cut() {
            self.set_failed_state(attr.qp_state);
        }
        let state = self.state();
        Ok(QpStatus {
            state,
            init: self.init,
            attr: modified.attr,
            rq_psn: modified.without_link.rq_psn(attr.rq_psn),
            sq_psn: modified.without_link.sq_psn(attr.sq_psn),
            sq_drain: match (state, attr.sq_draining) {
                (QpState::Sqd, 0) => SqDrain::Drained,
                (QpState::Sqd, _) => SqDrain::Draining,
                _ => SqDrain::NotInSqd,
            },
        })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the queue pair exists, and this is its last user.
        unsafe { (self.context().lib.destroy_qp)(self.raw) };
    }
}
