//! One rail at one end: the queue pair for operations, and the membership in the endpoint for
//! control messages.

use std::sync::Arc;

use mitra_verbs::{
    Access, CqId, Error, Gid, Mtu, PortAttr, Provider, Psn, QpAttr, QpState, Qpn, RcConnection, Result,
    SqDrain, Time, UdDestination, Wc,
};

use crate::ballot::Ballot;
use crate::config::Config;
use crate::connect_info::RailInfo;
use crate::data_qp::{self, DataCq, DataQp, Membership};
use crate::domain::ControlEndpoint;
use crate::evidence::Evidence;
use crate::local_nic::LocalNic;
use crate::secret::SecretWord;

#[derive(Debug)]
pub(crate) struct Rail {
    /// The port, as of the creation of the rail or the last change of its address. The copy is
    /// still known when the NIC is dead.
    port: PortAttr,
    data: DataQp,
    /// `None` for the first queue pair of the rail.
    replacement: Option<Replacement>,
    /// The replaced queue pair whose number is the vQP's number, with its completion queue. It
    /// stays in RESET, so that the NIC does not assign the number to another queue pair.
    number_holder: Option<(Qpn, DataCq)>,
    /// Whether another vQP has taken over the current queue pair and its number.
    qp_transferred: bool,
    /// Whether a connected data queue pair is moved on to RTS.
    sends: bool,
    control: Arc<ControlEndpoint>,
    cookie: SecretWord,
    /// The peer's endpoint for control messages. `None` until the rail is connected.
    control_destination: Option<UdDestination>,
    /// The time of the last control message, or of the last restart of the silence timer.
    last_heard: Time,
    /// The other end's parameters and the path MTU. `None` until the rail is connected.
    peer: Option<(RailInfo, Mtu)>,
}

#[derive(Clone, Copy, Debug)]
struct Replacement {
    left_by: Ballot,
    connected: bool,
}

impl Rail {
    /// Creates the data queue pair, unless the NIC is dead. `port` is the last known port of the
    /// NIC. The first PSN is derived from `secret`. The vQP of `cookie` is a member of `control`.
    /// The rail ends this membership when the rail is destroyed.
    ///
    /// # Errors
    /// Any error of the NIC but [`Error::DeviceFatal`]. The vQP has then left `control`.
    pub(crate) fn new(
        (nic, port): (&LocalNic, PortAttr),
        control: Arc<ControlEndpoint>,
        cookie: SecretWord,
        config: &Config,
        secret: SecretWord,
        group: Membership<'_>,
    ) -> Result<Rail> {
        let data = match DataQp::create_unless_dead(nic, config, first_psn(secret), group) {
            Ok(data) => data,
            Err(error) => {
                let _ = control.leave(cookie); // best effort: the caller gets the first error
                return Err(error);
            }
        };
        Ok(Rail {
            port,
            data,
            replacement: None,
            number_holder: None,
            qp_transferred: false,
            sends: false,
            control,
            cookie,
            control_destination: None,
            last_heard: Time::ZERO,
            peer: None,
        })
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        self.data.provider()
    }

    pub(crate) fn data(&self) -> &DataQp {
        &self.data
    }

    pub(crate) fn cq(&self) -> CqId {
        self.data.cq_id()
    }

    pub(crate) fn control_cq(&self) -> CqId {
        self.control.cq()
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.data.qpn()
    }

    pub(crate) fn first_psn(&self) -> Psn {
        self.data.first_psn()
    }

    /// The connection parameters for the other end, with the present address.
    pub(crate) fn info(&self) -> RailInfo {
        RailInfo {
            gid: self.provider().query_port().map_or(self.port.gid, |port| port.gid),
            mtu: self.port.max_mtu,
            qpn: self.qpn(),
            psn: self.first_psn(),
            control_qpn: self.control.qpn(),
            qkey: self.control.qkey(),
            acks_after_placement: self.provider().attr().capabilities.ack_after_placement,
        }
    }

    /// `None` before the rail is connected.
    pub(crate) fn peer_address(&self) -> Option<(Gid, Mtu)> {
        self.peer.map(|(peer, mtu)| (peer.gid, mtu))
    }

    /// The first PSN of the peer's queue pair. `None` before the rail is connected.
    pub(crate) fn peer_psn(&self) -> Option<Psn> {
        self.peer.map(|(peer, _)| peer.psn)
    }

    /// Adds the evidence of the fenced data queue pair. A queue pair that was never created has
    /// executed nothing.
    pub(crate) fn add_evidence(&self, nic_alive: bool, evidence: &mut Evidence) {
        if self.data.exists() {
            self.data.add_evidence(nic_alive, evidence);
        } else {
            evidence.psn = self.peer.map(|(peer, _)| peer.psn);
        }
    }

    /// Whether the peer's NIC acknowledges data only after the data is in memory. True before the
    /// rail is connected.
    pub(crate) fn peer_acks_after_placement(&self) -> bool {
        self.peer.is_none_or(|(peer, _)| peer.acks_after_placement)
    }

    /// Connects both queue pairs to the peer. Afterwards, the data queue pair is in RTR.
    pub(crate) fn connect(&mut self, peer: &RailInfo, mtu: Mtu, config: &Config) -> Result<()> {
        self.peer = Some((*peer, mtu));
        self.control_destination = Some(self.control.destination(peer.gid, peer.control_qpn, peer.qkey)?);
        self.connect_data_qp(config)
    }

    /// Moves a data queue pair in RTR to RTS. A fenced queue pair stays in ERR or destroyed, and
    /// its replacement is moved to RTS later.
    pub(crate) fn start_sending(&mut self, config: &Config) -> Result<()> {
        self.sends = true;
        if self.data.is_ended() {
            return Ok(());
        }
        match self.provider().query_qp(self.qpn()) {
            Ok(status) if status.state == QpState::Rtr => self.modify_to_rts(config),
            Ok(_) | Err(Error::DeviceFatal) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Changes the rights of the peer on the data queue pair. In another state than RTS, the change
    /// takes effect with the connection or the move to RTS.
    pub(crate) fn set_access(&self, access: Access) -> Result<()> {
        if self.data.is_ended() {
            return Ok(());
        }
        let (p, qpn) = (self.provider(), self.qpn());
        let changed = match p.modify_qp(qpn, &QpAttr { access: Some(access), ..QpAttr::default() }) {
            // The state is read after the refusal, because the NIC may move the queue pair to ERR
            // at any time.
            Err(Error::Modify(refused)) => p.query_qp(qpn).and_then(|status| match status.state {
                QpState::Rts => Err(refused.into()),
                _ => Ok(()),
            }),
            other => other,
        };
        match changed {
            // The NIC may be hung instead of dead, and still grant the old rights.
            Err(Error::DeviceFatal) => p.reset(),
            other => other,
        }
    }

    /// Replaces the fenced data queue pair, which the vQP left by the ballot `left_by`. The new
    /// queue pair has another number and first PSN, so late packets of the old one are dropped. If
    /// `keep_number` is set, the old queue pair stays in RESET to reserve its number.
    pub(crate) fn replace_qp(
        &mut self,
        config: &Config,
        left_by: Ballot,
        first_psn: Psn,
        keep_number: bool,
        group: Membership<'_>,
    ) -> Result<()> {
        let new = DataQp::create(self.data.nic(), config, first_psn, group)?;
        let retired = match keep_number {
            true => self.data.modify_to(QpState::Reset),
            false => self.data.destroy(),
        };
        if let Err(error) = retired {
            let _ = new.destroy(); // best effort: the caller gets the first error
            return Err(error);
        }
        let old = core::mem::replace(&mut self.data, new);
        if keep_number {
            self.number_holder = Some((old.qpn(), old.cq().clone()));
        }
        self.replacement = Some(Replacement { left_by, connected: false });
        Ok(())
    }

    /// Whether the current queue pair was created after the vQP left the rail by this ballot.
    pub(crate) fn is_replacement_for(&self, left_by: Ballot) -> bool {
        self.replacement.is_some_and(|replacement| replacement.left_by == left_by)
    }

    pub(crate) fn is_replacement_connected(&self) -> bool {
        self.replacement.is_some_and(|replacement| replacement.connected)
    }

    pub(crate) fn connect_replacement(&mut self, qpn: Qpn, psn: Psn, config: &Config) -> Result<()> {
        if let Some((peer, _)) = &mut self.peer {
            (peer.qpn, peer.psn) = (qpn, psn);
        }
        self.connect_data_qp(config)?;
        if let Some(replacement) = &mut self.replacement {
            replacement.connected = true;
        }
        Ok(())
    }

    /// Whether the rail's queue pair or number holder has this number.
    pub(crate) fn holds_number(&self, qpn: Qpn) -> bool {
        self.number_holder.as_ref().map_or(self.qpn(), |(held, _)| *held) == qpn
    }

    /// Transfers the queue pair that reserves the vQP's number to the same rail of another vQP. The
    /// vQP of this rail must have closed. A dead NIC assigns the number to no other queue pair.
    pub(crate) fn transfer_qpn(&mut self, to: &mut Rail) -> Result<()> {
        if self.number_holder.is_none() {
            match self.data.modify_to(QpState::Reset) {
                Ok(()) | Err(Error::DeviceFatal) => self.qp_transferred = true,
                Err(error) => return Err(error),
            }
        }
        let current = || (self.data.qpn(), self.data.cq().clone());
        to.number_holder = Some(self.number_holder.take().unwrap_or_else(current));
        Ok(())
    }

    /// Reads and returns the changed address of this end's NIC. `None` if the NIC is dead.
    pub(crate) fn refresh_gid(&mut self) -> Option<Gid> {
        self.port.gid = self.provider().query_port().ok()?.gid;
        Some(self.port.gid)
    }

    /// Sets the address of the peer's NIC, which the data queue pair uses from its next connection
    /// on. Returns whether the address has changed.
    ///
    /// # Errors
    /// Any error of the NIC; the address is then unchanged.
    pub(crate) fn set_peer_gid(&mut self, gid: Gid) -> Result<bool> {
        let Some((peer, _)) = &mut self.peer else { return Ok(false) };
        if peer.gid == gid {
            return Ok(false);
        }
        self.control_destination = Some(self.control.destination(gid, peer.control_qpn, peer.qkey)?);
        self.control.release_destination(core::mem::replace(&mut peer.gid, gid));
        Ok(true)
    }

    /// Resets the data queue pair and connects it again, which discards its posted receives. The
    /// queue pair must not have carried data: its rail was never active, or was proposed in a move
    /// and then refused.
    pub(crate) fn reconnect_unused(&self, config: &Config) -> Result<()> {
        self.data.modify_to(QpState::Reset)?;
        self.connect_data_qp(config)
    }

    fn connect_data_qp(&self, config: &Config) -> Result<()> {
        let Some(connection) = self.connection(config) else { return Ok(()) };
        self.data.modify_to_rtr(&connection)?;
        if self.sends { self.modify_to_rts(config) } else { Ok(()) }
    }

    fn modify_to_rts(&self, config: &Config) -> Result<()> {
        let Some(connection) = self.connection(config) else { return Ok(()) };
        self.data.modify_to_rts(&connection)
    }

    fn connection(&self, config: &Config) -> Option<RcConnection> {
        let (peer, path_mtu) = self.peer?;
        Some(self.data.connection(config, path_mtu, (peer.gid, peer.qpn, peer.psn)))
    }

    #[inline]
    pub(crate) fn poll_cq(&self, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        self.data.poll_cq(max, out)
    }

    /// In ERR, the data queue pair begins to execute nothing more, and flushes its queues.
    pub(crate) fn modify_to_error(&self) -> Result<()> {
        self.data.modify_to(QpState::Err)
    }

    /// Moves the data queue pair from RTS to SQD, where it begins no request, or back.
    pub(crate) fn modify_sqd(&self, drains: bool) -> Result<()> {
        let state = if drains { QpState::Sqd } else { QpState::Rts };
        self.data.modify_to(state)
    }

    /// Whether the send queue has drained. `None` if the queue pair is not in SQD.
    pub(crate) fn is_sqd_drained(&self) -> Option<bool> {
        let status = self.provider().query_qp(self.qpn()).ok()?;
        (status.state == QpState::Sqd).then_some(status.sq_drain == SqDrain::Drained)
    }

    /// Moves a data queue pair in SQE back to RTS. UC enters SQE at a request that it cannot
    /// execute.
    pub(crate) fn leave_sqe(&self) -> Result<()> {
        match self.provider().query_qp(self.qpn())?.state {
            QpState::Sqe => self.data.modify_to(QpState::Rts),
            _ => Ok(()),
        }
    }

    /// In RESET, the windows of the data queue pair are unbound.
    pub(crate) fn modify_to_reset(&self) -> Result<()> {
        self.data.modify_to(QpState::Reset)
    }

    pub(crate) fn send_control(&self, bytes: &[u8], wakes: bool) {
        if let Some(destination) = self.control_destination {
            self.control.send(destination, bytes, wakes);
        }
    }

    /// Returns the datagrams for the vQP, and the datagrams that name no vQP.
    pub(crate) fn receive_control(&self) -> Result<Vec<Box<[u8]>>> {
        self.control.receive(self.cookie)
    }

    /// A number that changes when the peer's host refuses packets ([`Provider::port_refusals`]). 0
    /// before the rail is connected.
    pub(crate) fn peer_refusals(&self) -> u64 {
        self.peer.map_or(0, |(peer, _)| self.provider().port_refusals(peer.gid))
    }

    pub(crate) fn last_heard(&self) -> Time {
        self.last_heard
    }

    /// Restarts the silence timer.
    pub(crate) fn note_heard(&mut self, now: Time) {
        self.last_heard = now;
    }

    /// Destroys the rail's objects on the NIC, except a queue pair that another vQP has taken over.
    /// Returns the first error. Objects on a dead NIC count as destroyed.
    pub(crate) fn destroy(&self) -> Result<()> {
        let mut first = if self.qp_transferred { Ok(()) } else { self.data.destroy() };
        if let Some((qpn, cq)) = &self.number_holder {
            first = first.and(data_qp::destroy(self.provider(), (*qpn, cq)));
        }
        first.and(self.control.leave(self.cookie))
    }
}

/// A first PSN must not be guessable.
pub(crate) fn first_psn(secret: SecretWord) -> Psn {
    Psn::new(secret.expose() as u32)
}
