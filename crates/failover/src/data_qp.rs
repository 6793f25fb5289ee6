//! The RC or UC queue pair that carries operations, with one completion queue for both directions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mitra_mutants::Mutant;
use mitra_verbs::{
    CqId, Error, Gid, Mtu, PostError, Provider, Psn, QpAttr, QpBuilder, QpCap, QpState, Qpn, RcConnection,
    RecvWr, Result, SendWr, Wc,
};

use crate::config::{Config, Service};
use crate::evidence::Evidence;
use crate::group_member::Member;
use crate::local_nic::LocalNic;
use crate::lock::lock;
use crate::shared_cqs::{Inbox, SharedCqs};

/// The length in bytes of an entry of a completion log. Entries are posted inline.
pub(crate) const LOG_ENTRY_LEN: u32 = 8;

/// The queue slots beyond the configured depths, for requests of the vQP itself such as the fence's
/// marker.
pub(crate) const SPARE_SLOTS: u32 = 8;

/// The numbers that stand for objects on a dead NIC.
pub(crate) const NO_QP: Qpn = Qpn::new(0);
pub(crate) const NO_CQ: CqId = CqId(u32::MAX);

/// The completion queue of a data queue pair.
#[derive(Clone, Debug)]
pub(crate) enum DataCq {
    Own(CqId),
    /// Shared by the members of the poll group.
    Shared(Arc<SharedCqs>, Arc<Inbox>),
}

impl DataCq {
    fn id(&self) -> CqId {
        match self {
            DataCq::Own(cq) => *cq,
            DataCq::Shared(_, inbox) => inbox.cq(),
        }
    }
}

/// A member of the poll group, and the completion queues that the members share on a NIC.
pub(crate) type Membership<'a> = Option<(&'a Arc<SharedCqs>, &'a Arc<Member>)>;

#[derive(Debug)]
pub struct DataQp {
    handle: QpHandle,
    /// The PSN of the first packet that the queue pair sends.
    first_psn: Psn,
    service: Service,
}

/// A data queue pair, for everybody who may destroy it: its vQP, and the vQP that moves the home
/// rail.
#[derive(Clone, Debug)]
pub(crate) struct QpHandle {
    nic: LocalNic,
    cq: DataCq,
    qpn: Qpn,
    end: Arc<QpEnd>,
}

#[derive(Default, Debug)]
struct QpEnd {
    /// Whether the queue pair was destroyed, perhaps before its completion queue.
    is_ended: AtomicBool,
    /// Locked while the queue pair is being destroyed, or changes its state without attributes.
    destruction: Mutex<()>,
}

impl QpHandle {
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        &*self.nic.provider
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.end.is_ended.load(Ordering::Acquire)
    }

    /// Moves the queue pair to a state that needs no other attributes. In RESET, the queue pair has
    /// no completions.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`] if the queue pair was destroyed: the NIC may then give its number to
    /// another one. Otherwise any error of the NIC.
    pub(crate) fn modify_to(&self, state: QpState) -> Result<()> {
        let _destruction = lock(&self.end.destruction);
        if self.is_ended() {
            return Err(Error::NoSuchObject { kind: "queue pair", id: self.qpn.value() });
        }
        match &self.cq {
            DataCq::Shared(shared, inbox) if state == QpState::Reset => shared.reset(self.qpn, inbox),
            _ => self.provider().modify_qp(self.qpn, &QpAttr::to(state)),
        }
    }

    /// Destroys the queue pair, and keeps its completion queue, which holds what the NIC has
    /// written. When the call returns, the queue pair executes nothing more.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub(crate) fn end(&self) -> Result<()> {
        let _destruction = lock(&self.end.destruction);
        if self.is_ended() {
            return Ok(());
        }
        match &self.cq {
            DataCq::Own(_) => self.provider().destroy_qp(self.qpn)?,
            DataCq::Shared(shared, inbox) => shared.destroy_qp(self.qpn, inbox)?,
        }
        self.end.is_ended.store(true, Ordering::Release);
        Ok(())
    }

    fn destroy(&self) -> Result<()> {
        let _destruction = lock(&self.end.destruction);
        if !self.is_ended() {
            let steps = destroy_both(self.provider(), (self.qpn, &self.cq));
            self.end.is_ended.store(steps[0].is_ok(), Ordering::Release);
            return first_error(steps);
        }
        let released = match &self.cq {
            DataCq::Own(cq) => self.provider().destroy_cq(*cq),
            DataCq::Shared(shared, inbox) => shared.release(inbox.cq(), inbox.entries()),
        };
        if released == Err(Error::DeviceFatal) { Ok(()) } else { released }
    }
}

impl DataQp {
    /// `group` is present for a member of the poll group.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub(crate) fn create(
        nic: &LocalNic,
        config: &Config,
        first_psn: Psn,
        group: Membership<'_>,
    ) -> Result<DataQp> {
        let p = &nic.provider;
        let room = p.attr().limits.wrs.saturating_sub(SPARE_SLOTS);
        let send_wrs = config.posted_depth(room) * config.wrs_per_op() + SPARE_SLOTS;
        let entries = send_wrs + config.recv_wrs + SPARE_SLOTS;
        let cq = match group {
            None => p.create_cq(entries, nic.channel.as_ref())?,
            Some((shared, _)) => shared.reserve(entries)?,
        };
        let cap = QpCap {
            send_wrs,
            recv_wrs: config.recv_wrs + 1, // one for the fence's marker
            send_sges: config.send_sges,
            recv_sges: config.recv_sges,
            inline: config.inline.max(config.completion_log.map_or(0, |_| LOG_ENTRY_LEN)),
        };
        match QpBuilder::new(config.service.qp_type(), nic.pd, cq).cap(cap).build(&**p) {
            Ok(qpn) => {
                let cq = match group {
                    None => DataCq::Own(cq),
                    Some((shared, member)) => {
                        DataCq::Shared(Arc::clone(shared), shared.join(qpn, cq, entries, member))
                    }
                };
                let handle = QpHandle { nic: nic.clone(), cq, qpn, end: Arc::default() };
                Ok(DataQp { handle, first_psn, service: config.service })
            }
            Err(error) => {
                // Best effort: the caller gets the first error.
                let _ = match group {
                    None => p.destroy_cq(cq),
                    Some((shared, _)) => shared.release(cq, entries),
                };
                Err(error.into())
            }
        }
    }

    /// Creates the queue pair. If the NIC is dead, the result has numbers that no NIC assigns, so
    /// every call on it fails as on a queue pair that died with its NIC.
    ///
    /// # Errors
    /// Any error of the NIC but [`Error::DeviceFatal`].
    pub(crate) fn create_unless_dead(
        nic: &LocalNic,
        config: &Config,
        first_psn: Psn,
        group: Membership<'_>,
    ) -> Result<DataQp> {
        match DataQp::create(nic, config, first_psn, group) {
            Err(Error::DeviceFatal) => {
                let (nic, cq, qpn) = (nic.clone(), DataCq::Own(NO_CQ), NO_QP);
                let handle = QpHandle { nic, cq, qpn, end: Arc::default() };
                Ok(DataQp { handle, first_psn, service: config.service })
            }
            created => created,
        }
    }

    pub(crate) fn exists(&self) -> bool {
        self.handle.qpn != NO_QP
    }

    pub(crate) fn handle(&self) -> &QpHandle {
        &self.handle
    }

    pub(crate) fn nic(&self) -> &LocalNic {
        &self.handle.nic
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        self.handle.provider()
    }

    pub(crate) fn cq_id(&self) -> CqId {
        self.handle.cq.id()
    }

    pub(crate) fn cq(&self) -> &DataCq {
        &self.handle.cq
    }

    /// After [`QpHandle::end`], a number that no NIC assigns, because the NIC may give the former
    /// number to another queue pair later.
    pub(crate) fn qpn(&self) -> Qpn {
        if self.is_ended() { NO_QP } else { self.handle.qpn }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.handle.is_ended()
    }

    /// See [`QpHandle::end`].
    pub(crate) fn end(&self) -> Result<()> {
        self.handle.end()
    }

    pub(crate) fn first_psn(&self) -> Psn {
        self.first_psn
    }

    /// `peer` is the address, the number and the first PSN of the peer's queue pair.
    pub(crate) fn connection(&self, config: &Config, path_mtu: Mtu, peer: (Gid, Qpn, Psn)) -> RcConnection {
        let (gid, qpn, rq_psn) = peer;
        RcConnection {
            path_mtu,
            sq_psn: self.first_psn,
            rq_psn,
            access: config.access,
            rd_atomic: config.rd_atomic,
            min_rnr_timer: config.min_rnr_timer,
            local_ack_timeout: config.detector.local_ack_timeout,
            retry_cnt: config.detector.retry_cnt,
            rnr_retry: config.rnr_retry,
            ..RcConnection::to(gid, qpn)
        }
    }

    pub(crate) fn modify_to_rtr(&self, connection: &RcConnection) -> Result<()> {
        self.provider().modify_qp(self.qpn(), &connection.init())?;
        self.provider().modify_qp(self.qpn(), &self.of_service(connection.rtr()))
    }

    pub(crate) fn modify_to_rts(&self, connection: &RcConnection) -> Result<()> {
        let access = Some(connection.access);
        self.provider().modify_qp(self.qpn(), &QpAttr { access, ..self.of_service(connection.rts()) })
    }

    /// Removes the attributes that UC does not have: they concern acknowledgements, READs and
    /// atomics (`ibv_modify_qp(3)`).
    fn of_service(&self, attr: QpAttr) -> QpAttr {
        match self.service {
            Service::Reliable | Service::XrcSend | Service::XrcReceive => attr,
            Service::Unreliable => QpAttr {
                max_rd_atomic: None,
                max_dest_rd_atomic: None,
                min_rnr_timer: None,
                timeout: None,
                retry_cnt: None,
                rnr_retry: None,
                ..attr
            },
        }
    }

    /// See [`QpHandle::modify_to`].
    pub(crate) fn modify_to(&self, state: QpState) -> Result<()> {
        self.handle.modify_to(state)
    }

    pub(crate) fn post_send(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        self.provider().post_send(self.qpn(), wrs)
    }

    pub(crate) fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.provider().post_recv(self.qpn(), wrs)
    }

    #[inline]
    pub(crate) fn poll_cq(&self, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        match self.cq() {
            DataCq::Own(cq) => self.provider().poll_cq(*cq, max, out),
            DataCq::Shared(_, inbox) if self.is_ended() => Ok(inbox.take(max, out)),
            DataCq::Shared(shared, inbox) => shared.poll(self.handle.qpn, inbox, max, out),
        }
    }

    /// A dead NIC raises no event, which is no error.
    pub(crate) fn arm(&self) -> Result<()> {
        match self.provider().req_notify_cq(self.cq_id(), false) {
            Ok(()) | Err(Error::DeviceFatal) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Adds what the NIC knows of the fenced queue pair: the responder PSN and the saved results. A
    /// NIC that is not alive adds nothing.
    pub(crate) fn add_evidence(&self, nic_alive: bool, evidence: &mut Evidence) {
        let capabilities = self.provider().attr().capabilities;
        if nic_alive && capabilities.psn_query && !Mutant::PsnLeftOut.is_on() {
            evidence.psn = self.provider().query_qp(self.qpn()).ok().map(|status| status.rq_psn);
        }
        if nic_alive && capabilities.saved_results && !Mutant::SavedResultsLeftOut.is_on() {
            let saved = self.provider().saved_results(self.qpn()).unwrap_or_default();
            evidence.saved = saved.into_iter().collect();
        }
    }

    /// Destroys the queue pair and its completion queue.
    ///
    /// # Errors
    /// The first error of the NIC. Objects on a dead NIC count as destroyed.
    pub(crate) fn destroy(&self) -> Result<()> {
        self.handle.destroy()
    }
}

/// Returns the first error. Objects on a dead NIC count as destroyed.
pub(crate) fn destroy(p: &dyn Provider, qp: (Qpn, &DataCq)) -> Result<()> {
    first_error(destroy_both(p, qp))
}

/// Returns the results for the queue pair and for its completion queue.
fn destroy_both(p: &dyn Provider, (qpn, cq): (Qpn, &DataCq)) -> [Result<()>; 2] {
    match cq {
        DataCq::Own(cq) => [p.destroy_qp(qpn), p.destroy_cq(*cq)],
        DataCq::Shared(shared, inbox) => shared.destroy(qpn, inbox),
    }
}

fn first_error(steps: [Result<()>; 2]) -> Result<()> {
    let errors = steps.into_iter().filter(|step| !matches!(step, Err(Error::DeviceFatal)));
    errors.fold(Ok(()), Result::and)
}
