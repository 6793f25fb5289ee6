//! The attributes of a reliable connection, and the three state changes that establish the
//! connection.

use crate::{Access, Gid, LocalAckTimeout, Mtu, Provider, Psn, QpAttr, QpState, Qpn, Result, RnrTimer};

/// The attributes of one end of a reliable connection.
///
/// The two ends exchange their GIDs, queue pair numbers and first PSNs out of band. Each end then
/// calls [`RcConnection::connect`], which changes the state of its queue pair from RESET to INIT,
/// RTR and RTS (IBTA volume 1, 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcConnection {
    /// The peer's address.
    pub dest_gid: Gid,
    /// The peer's queue pair number.
    pub dest_qpn: Qpn,
    /// The maximum payload of a packet. It must be the same at both ends.
    pub path_mtu: Mtu,
    /// The PSN of the first packet that this end sends.
    pub sq_psn: Psn,
    /// The PSN of the first packet that the peer sends.
    pub rq_psn: Psn,
    /// The operations that the peer may request through this end's queue pair.
    pub access: Access,
    /// The maximum number of outstanding READs and atomics in each direction.
    pub rd_atomic: u8,
    /// The time that the peer waits before it retries, after an RNR NAK from this end.
    pub min_rnr_timer: RnrTimer,
    /// The time without a response after which this end retransmits.
    pub local_ack_timeout: LocalAckTimeout,
    /// The number of retransmissions before a request fails with
    /// [`RetryExceeded`](crate::WcStatus::RetryExceeded). The maximum is 7.
    pub retry_cnt: u8,
    /// The number of retries after RNR NAKs before a request fails. The maximum is 7, which means
    /// no limit.
    pub rnr_retry: u8,
}

impl RcConnection {
    /// Returns the attributes of a connection to the queue pair with this GID and number. The other
    /// attributes have these defaults: MTU 1024, both PSNs 0, all remote access, one outstanding
    /// READ or atomic in each direction, RNR timer 10 µs, local ACK timeout 67 ms, 7
    /// retransmissions, and no limit on RNR retries.
    pub fn to(dest_gid: Gid, dest_qpn: Qpn) -> RcConnection {
        RcConnection {
            dest_gid,
            dest_qpn,
            path_mtu: Mtu::M1024,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            access: Access::LOCAL_WRITE | Access::REMOTE,
            rd_atomic: 1,
            min_rnr_timer: RnrTimer::from_code(1),
            local_ack_timeout: LocalAckTimeout::from_code(14),
            retry_cnt: 7,
            rnr_retry: 7,
        }
    }

    /// Returns the attributes for the change from RESET to INIT.
    pub fn init(&self) -> QpAttr {
        QpAttr { pkey_index: Some(0), port: Some(1), access: Some(self.access), ..QpAttr::to(QpState::Init) }
    }

    /// Returns the attributes for the change from INIT to RTR.
    pub fn rtr(&self) -> QpAttr {
        QpAttr {
            dest_gid: Some(self.dest_gid),
            dest_qpn: Some(self.dest_qpn),
            path_mtu: Some(self.path_mtu),
            rq_psn: Some(self.rq_psn),
            max_dest_rd_atomic: Some(self.rd_atomic),
            min_rnr_timer: Some(self.min_rnr_timer.code()),
            ..QpAttr::to(QpState::Rtr)
        }
    }

    /// Returns the attributes for the change from RTR to RTS.
    pub fn rts(&self) -> QpAttr {
        QpAttr {
            sq_psn: Some(self.sq_psn),
            timeout: Some(self.local_ack_timeout.code()),
            retry_cnt: Some(self.retry_cnt),
            rnr_retry: Some(self.rnr_retry),
            max_rd_atomic: Some(self.rd_atomic),
            ..QpAttr::to(QpState::Rts)
        }
    }

    /// Changes the state of a queue pair from RESET to INIT, RTR and RTS.
    ///
    /// # Errors
    /// The error of [`Provider::modify_qp`]. The queue pair then remains in the state of the last
    /// change that succeeded.
    pub fn connect(&self, nic: &dyn Provider, qp: Qpn) -> Result<()> {
        [self.init(), self.rtr(), self.rts()].iter().try_for_each(|attr| nic.modify_qp(qp, attr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{QpType, check_modify};

    #[test]
    fn attributes_are_those_that_each_change_requires() {
        let connection = RcConnection::to(Gid([0; 16]), Qpn::new(17));
        let mut state = QpState::Reset;
        for attr in [connection.init(), connection.rtr(), connection.rts()] {
            state = check_modify(QpType::Rc, state, &attr).unwrap();
        }
        assert_eq!(state, QpState::Rts);
    }
}
