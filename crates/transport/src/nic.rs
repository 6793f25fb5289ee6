//! The NIC as one state machine: its tables, and the verbs on them.

use mitra_verbs::{
    Access, AhId, AsyncEvent, Counter, CqId, DeviceAttr, Gid, Mr, MrId, Mw, MwId, PdId, PortAttr, PostError,
    QpAttr, QpInitAttr, QpStatus, Qpn, RecvWr, RegionId, Result, SavedResult, SendWr, SrqId, Time, Wc,
};

use crate::{Memory, NicConfig, TxBatch};

/// A NIC without I/O: one address, one port, one QP-number space, one key space.
///
/// Verbs calls are those of [`mitra_verbs::Provider`], with the same rules and errors.
pub struct Nic {}

#[allow(unused_variables, clippy::todo, missing_docs)] // interface first; bodies follow
impl Nic {
    pub fn new(config: NicConfig) -> Nic {
        todo!()
    }
    pub fn attr(&self) -> &DeviceAttr {
        todo!()
    }
    pub fn query_port(&self) -> PortAttr {
        todo!()
    }
    pub fn counters(&self) -> Vec<Counter> {
        todo!()
    }
    pub fn alloc_pd(&mut self) -> Result<PdId> {
        todo!()
    }
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<()> {
        todo!()
    }
    /// Registers `len` bytes that work requests name from `addr` on; `region` is the driver's name for them.
    pub fn reg_mr(
        &mut self,
        now: Time,
        pd: PdId,
        region: RegionId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr> {
        todo!()
    }
    /// Revokes the region: on return its key is dead and `Memory` is not called for it any more.
    pub fn dereg_mr(&mut self, now: Time, mr: MrId) -> Result<RegionId> {
        todo!()
    }
    pub fn alloc_mw(&mut self, now: Time, pd: PdId) -> Result<Mw> {
        todo!()
    }
    pub fn dealloc_mw(&mut self, now: Time, mw: MwId) -> Result<()> {
        todo!()
    }
    pub fn create_ah(&mut self, pd: PdId, destination: Gid) -> Result<AhId> {
        todo!()
    }
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<()> {
        todo!()
    }
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId> {
        todo!()
    }
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<()> {
        todo!()
    }
    pub fn poll_cq(&mut self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        todo!()
    }
    /// How many completions wait to be polled.
    pub fn cq_len(&self, cq: CqId) -> Result<usize> {
        todo!()
    }
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<()> {
        todo!()
    }
    pub fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId> {
        todo!()
    }
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<()> {
        todo!()
    }
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        todo!()
    }
    pub fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        todo!()
    }
    pub fn create_qp(&mut self, now: Time, init: &QpInitAttr) -> Result<Qpn> {
        todo!()
    }
    pub fn modify_qp(&mut self, now: Time, qp: Qpn, attr: &QpAttr) -> Result<()> {
        todo!()
    }
    pub fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        todo!()
    }
    pub fn destroy_qp(&mut self, now: Time, qp: Qpn) -> Result<()> {
        todo!()
    }
    /// Queues the requests; `poll_transmit` sends them.
    pub fn post_send(&mut self, now: Time, qp: Qpn, wrs: &[SendWr]) -> Result<(), PostError> {
        todo!()
    }
    pub fn post_recv(&mut self, qp: Qpn, wrs: &[RecvWr]) -> Result<(), PostError> {
        todo!()
    }
    pub fn saved_results(&self, qp: Qpn) -> Result<Vec<SavedResult>> {
        todo!()
    }

    /// Executes an arrived packet whose ICRC was good. Hostile until proven otherwise: what does not fit is counted
    /// and dropped, or answered with the NAK that the specification names.
    pub fn handle_packet(
        &mut self,
        now: Time,
        source: Gid,
        packet: &mitra_wire::Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        todo!()
    }
    /// Timers: retransmission, RNR, deferred acknowledgements, quarantines.
    pub fn handle_timeout(&mut self, now: Time) {
        todo!()
    }
    /// Nothing arrived and nothing is to be sent: owed acknowledgements may leave now.
    pub fn handle_idle(&mut self, now: Time) {
        todo!()
    }
    /// The link went up or down.
    pub fn handle_link(&mut self, up: bool) {
        todo!()
    }
    /// Fills `out` (cleared first) with datagrams for one destination; false if there is nothing to send now.
    pub fn poll_transmit(&mut self, now: Time, memory: &mut dyn Memory, out: &mut TxBatch) -> bool {
        todo!()
    }
    /// When `handle_timeout` is due next.
    pub fn poll_timeout(&self) -> Option<Time> {
        todo!()
    }
    /// An armed completion queue that has something new; disarmed by this call.
    pub fn poll_cq_event(&mut self) -> Option<CqId> {
        todo!()
    }
    /// The next asynchronous event.
    pub fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        todo!()
    }
}
