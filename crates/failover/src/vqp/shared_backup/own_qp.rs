use mitra_verbs::{Access, AsyncEvent, Error, QpAttr, QpState, Qpn, RcConnection};

use super::message::{MemberId, OfferedQp};
use crate::config::Config;
use crate::data_qp::DataQp;
use crate::domain::Domain;
use crate::evidence::Evidence;
use crate::rail::first_psn;
use crate::secret::SecretWord;
use crate::vqp::datapath::DataQps;
use crate::vqp::rail_set::derive_secret;

/// The data queue pair of a member. A member has at most one.
#[derive(Debug)]
pub struct MemberQp {
    pub(super) own: Option<OwnQp>,
    pub(super) config: Config,
    pub(super) id: MemberId,
}

impl DataQps for MemberQp {
    fn data_qp(&self, rail: usize) -> Option<&DataQp> {
        self.own.as_ref().filter(|own| own.rail == rail).map(OwnQp::qp)
    }

    fn config(&self) -> &Config {
        &self.config
    }

    /// The number of the queue pair. While the member has no queue pair, the number of its slot.
    fn qpn(&self) -> Qpn {
        self.own.as_ref().map_or(Qpn::new(self.id.slot), |own| own.qp.qpn())
    }

    fn add_evidence(&self, rail: usize, nic_alive: bool, evidence: &mut Evidence) {
        if let Some(qp) = self.data_qp(rail) {
            qp.add_evidence(nic_alive, evidence);
        }
    }
}

#[derive(Debug)]
pub(super) struct OwnQp {
    qp: DataQp,
    pub(super) rail: usize,
    /// The epoch of the backup in which the queue pair was made.
    pub(super) epoch: u16,
    pub(super) is_connected: bool,
    /// Present while the queue pair is in RTR.
    in_rtr: Option<Box<RcConnection>>,
}

impl OwnQp {
    /// Makes a queue pair, whose first PSN is derived from `secret`.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub(super) fn create(
        domain: &Domain,
        rail: usize,
        epoch: u16,
        config: &Config,
        secret: SecretWord,
    ) -> mitra_verbs::Result<OwnQp> {
        let psn = first_psn(derive_secret(secret, epoch.into()));
        let qp = DataQp::create(&domain.nics()[rail], config, psn, None)?;
        let _ = domain.take_qp_error(rail, qp.qpn()); // discards the events of an earlier queue pair
        Ok(OwnQp { qp, rail, epoch, is_connected: false, in_rtr: None })
    }

    pub(super) fn qp(&self) -> &DataQp {
        &self.qp
    }

    pub(super) fn offer(&self) -> OfferedQp {
        OfferedQp { rail: self.rail as u8, qpn: self.qp.qpn(), psn: self.qp.first_psn() }
    }

    /// # Errors
    /// Any error of the NIC.
    pub(super) fn connect(
        &mut self,
        config: &Config,
        peer: OfferedQp,
        (gid, mtu): (mitra_verbs::Gid, mitra_verbs::Mtu),
    ) -> mitra_verbs::Result<()> {
        let connection = self.qp.connection(config, mtu, (gid, peer.qpn, peer.psn));
        self.qp.modify_to_rtr(&connection)?;
        self.in_rtr = Some(Box::new(connection));
        Ok(())
    }

    /// Moves a queue pair in RTR to RTS, with the access and the RNR retries of `config`. A failed
    /// queue pair stays as it is.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub(super) fn start_sending(&mut self, config: &Config) -> mitra_verbs::Result<()> {
        let Some(connection) = self.in_rtr.take() else { return Ok(()) };
        let connection = RcConnection { access: config.access, rnr_retry: config.rnr_retry, ..*connection };
        match self.qp.modify_to_rts(&connection) {
            // The state is read after the refusal, because the NIC may move the queue pair to ERR
            // at any time.
            Err(Error::Modify(_)) if self.state_is(QpState::Err) => Ok(()),
            Err(Error::NoSuchObject { .. }) if self.qp.is_ended() => Ok(()),
            other => other,
        }
    }

    /// Changes the rights of the peer. If the queue pair is not in RTS, the move to RTS makes the
    /// change.
    ///
    /// # Errors
    /// Any error of the NIC. A dead NIC is reset, because it may only be hung and still grant the
    /// old rights.
    pub(super) fn set_access(&self, access: Access) -> mitra_verbs::Result<()> {
        let attr = QpAttr { access: Some(access), ..QpAttr::default() };
        match self.qp.provider().modify_qp(self.qp.qpn(), &attr) {
            Err(Error::Modify(_)) if !self.state_is(QpState::Rts) => Ok(()),
            Err(Error::NoSuchObject { .. }) if self.qp.is_ended() => Ok(()),
            Err(Error::DeviceFatal) => self.qp.provider().reset(),
            other => other,
        }
    }

    fn state_is(&self, state: QpState) -> bool {
        self.qp.provider().query_qp(self.qp.qpn()).is_ok_and(|status| status.state == state)
    }

    /// Begins to stop the queue pair, because its member closes. The queue pair executes nothing
    /// more when the fence is done. Returns false if the NIC can be neither stopped nor reset.
    pub(super) fn stop(&self) -> bool {
        match self.qp.modify_to(QpState::Err) {
            // The NIC is dead, or it hangs and may still access memory.
            Err(Error::DeviceFatal) => self.qp.provider().reset().is_ok(),
            _ => true,
        }
    }

    /// Destroys the queue pair, whose markers have not completed. Its completions can still be
    /// polled. Returns false if the NIC neither destroys the queue pair nor can be reset.
    pub(super) fn end(&self) -> bool {
        self.qp.end().is_ok() || self.qp.provider().reset().is_ok()
    }

    /// The event by which the NIC reports that the queue pair refused a request of the peer.
    pub(super) fn take_refusal(&self, domain: &Domain) -> Option<AsyncEvent> {
        let _ = domain.poll_rail_down(self.rail); // reads the events
        domain.take_refusal(self.rail, self.qp.qpn())
    }
}

impl Drop for OwnQp {
    fn drop(&mut self) {
        let _ = self.qp.destroy(); // a dead NIC has no objects
    }
}
