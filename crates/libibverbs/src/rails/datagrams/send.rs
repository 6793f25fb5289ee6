//! Posting sends on a UD queue pair over several rails. Each send is posted once, on the rail that
//! the directory chooses. A send whose way is not yet known waits, and so do later sends to the
//! same destination. Sends complete in posting order.

use mitra_verbs::{
    Data, Error, PostError, QpState, Result, SendFlags, SendOp, SendWr, Srqn, UdDestination, WcStatus,
};

use super::directory::{Route, is_multicast};
use super::queue_pair::{LockedState, MultiRailUd};
use super::send_queue::{Posted, Stage};

impl MultiRailUd {
    /// Checks the sends of one call.
    ///
    /// # Errors
    /// The index and the error of the first send that is refused.
    pub(super) fn check_all(&self, locked: &mut LockedState, wrs: &[SendWr]) -> Result<(), PostError> {
        let depth = self.params.init.cap.send_wrs;
        if locked.sends.sends.len() + wrs.len() > depth as usize {
            // Completions are collected first, because a send that a NIC has executed no longer
            // counts.
            self.collect(locked);
        }
        for (index, wr) in wrs.iter().enumerate() {
            self.check(locked, wr, index).map_err(|error| PostError { index, error })?;
        }
        Ok(())
    }

    /// Checks a send that is posted after `preceding` other sends of the same call, as a NIC does.
    fn check(&self, locked: &LockedState, wr: &SendWr, preceding: usize) -> Result<()> {
        let (state, qpn) = (locked.state, self.qpn);
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(Error::WrongState { call: "post_send", qpn, needs: "RTS, SQD, SQE or ERR", state });
        }
        if !self.params.network.is_any_alive() {
            return Err(Error::DeviceFatal);
        }
        if wr.op.is_local() {
            return Err(Error::Invalid(
                "memory windows belong to RC and UC queue pairs (IBTA table 38); use one of these",
            ));
        }
        if wr.ud.is_none() && matches!(wr.op, SendOp::Send | SendOp::SendWithImm(_)) {
            return Err(Error::Invalid("a UD send needs a destination; set `SendWr::ud`"));
        }
        if wr.remote_srq != Srqn::new(0) {
            return Err(Error::Invalid(
                "only XRC sends name a shared receive queue; leave `SendWr::remote_srq` 0",
            ));
        }
        let cap = &self.params.init.cap;
        let check_limit = |attribute, requested: u64, limit: u32| match requested > limit.into() {
            true => Err(Error::Limit { attribute, requested, limit: limit.into() }),
            false => Ok(()),
        };
        match &wr.data {
            Data::Inline(_) if wr.op.is_read_or_atomic() => {
                return Err(Error::Invalid("READ and atomics cannot use inline data; use registered memory"));
            }
            Data::Inline(bytes) => check_limit("bytes of inline data", bytes.len() as u64, cap.inline)?,
            Data::Sges(list) => check_limit("gather entries of a send", list.len() as u64, cap.send_sges)?,
        }
        let limits = self.params.pd.failover.limits();
        check_limit("bytes of a message", wr.data.len(), limits.message_bytes)?;
        if locked.sends.sends.len() + preceding >= cap.send_wrs as usize {
            return Err(Error::QueueFull { queue: "send queue", qpn, depth: cap.send_wrs });
        }
        wr.ud.map_or(Ok(()), |to| self.params.network.address_handles.get(to.ah).map(drop))
    }

    /// Accepts sends, which never blocks.
    pub(super) fn append(&self, locked: &mut LockedState, wrs: &[SendWr]) {
        for wr in wrs {
            let handle = wr.ud.and_then(|to| self.params.network.address_handles.get(to.ah).ok());
            let is_flushed = matches!(locked.state, QpState::Sqe | QpState::Err);
            let stage = match is_flushed {
                true => Stage::Done(WcStatus::Flushed),
                false => Stage::Waiting(wr.clone(), handle),
            };
            locked.sends.waiting += usize::from(!is_flushed);
            locked.sends.sends.push_back(Posted {
                wr_id: wr.wr_id,
                opcode: wr.op.wc_opcode(),
                byte_len: wr.data.len() as u32,
                signaled: self.params.init.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED),
                stage,
            });
        }
        self.post_waiting(locked);
        self.report_sends(locked);
    }

    /// Posts the sends whose way is known, in order.
    pub(super) fn post_waiting(&self, locked: &mut LockedState) {
        if locked.sends.waiting == 0 || locked.state != QpState::Rts {
            return;
        }
        for index in 0..locked.sends.sends.len() {
            let Some(stage) = self.try_post(locked, index) else { continue };
            let is_sent = matches!(stage, Stage::OnRail(_));
            locked.sends.datagrams = locked.sends.datagrams.wrapping_add(is_sent.into());
            locked.sends.sends[index].stage = stage;
            locked.sends.waiting -= 1;
        }
        if locked.sends.waiting > 0 {
            self.params.network.exchange();
        }
    }

    /// Posts a waiting send on the rail that the directory chooses. If the NIC of that rail has
    /// died, chooses again. Returns `None` if the send does not wait, or if its way is not yet
    /// known.
    fn try_post(&self, locked: &LockedState, index: usize) -> Option<Stage> {
        for _ in 0..=locked.rails.len() {
            match self.try_post_once(locked, index) {
                Ok(stage) => return stage,
                Err(Error::DeviceFatal) => self.params.network.observe_ports(),
                // The send was checked, so the only error left is that the NIC has no room for an
                // address handle.
                Err(_) => return Some(Stage::Done(WcStatus::LocalQpOperation)),
            }
        }
        Some(Stage::Done(WcStatus::Success))
    }

    fn try_post_once(&self, locked: &LockedState, index: usize) -> Result<Option<Stage>> {
        let Stage::Waiting(wr, handle) = &locked.sends.sends[index].stage else { return Ok(None) };
        let wr_id = locked.sends.first + index as u64;
        let network = &self.params.network;
        let (mut rail, mut ud) = (0, None);
        if let (Some(to), Some(handle)) = (wr.ud, handle) {
            let (gid, qpn) = if is_multicast(handle.gid) {
                rail = network.multicast_rail(self.qpn);
                (handle.gid, to.qpn)
            } else {
                match network.route(self.qpn, handle.gid, to.qpn) {
                    Route::Wait => return Ok(None),
                    Route::To { rail: chosen, gid, qpn } => {
                        rail = chosen;
                        (gid, qpn)
                    }
                }
            };
            ud = Some(UdDestination { ah: handle.on_rail(&network.nics, rail, gid)?, qpn, qkey: to.qkey });
        }
        let Some(on_rail) = &locked.rails[rail] else { return Err(Error::DeviceFatal) };
        let mut wr = SendWr { wr_id, ud, flags: wr.flags | SendFlags::SIGNALED, ..wr.clone() };
        if let Data::Sges(list) = &mut wr.data {
            let domain = &self.params.pd.failover;
            list.iter_mut().filter(|_| rail > 0).for_each(|sge| *sge = domain.translate(*sge, rail));
        }
        let posted = network.nics[rail].provider.post_send(on_rail.qpn, &[wr]);
        posted.map(|()| Some(Stage::OnRail(rail))).map_err(|refused| refused.error)
    }

    /// Pushes the completions of the oldest sends that are done.
    pub(super) fn report_sends(&self, locked: &mut LockedState) {
        while let Some(Posted { stage: Stage::Done(status), .. }) = locked.sends.sends.front() {
            let status = *status;
            let Some(send) = locked.sends.sends.pop_front() else { break };
            locked.sends.first += 1;
            if send.signaled || status != WcStatus::Success {
                let mut wc = self.wc(send.wr_id, status, send.opcode);
                wc.byte_len = send.byte_len;
                self.params.send_cq.push(wc);
            }
        }
    }
}
