//! The attributes of a reliable connection, and the three state changes that make it.

use crate::{Access, Gid, LocalAckTimeout, Mtu, Provider, Psn, QpAttr, QpState, Qpn, Result, RnrTimer};

/// One end's attributes of a reliable connection.
///
/// Both ends exchange GID, queue pair number and first PSN out of band, then each takes its queue pair from RESET
/// through INIT and RTR to RTS (IBTA volume 1, 10.3.1) with [`RcConnection::connect`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcConnection {
    /// The peer's address.
    pub dest_gid: Gid,
    /// The peer's queue pair number.
    pub dest_qpn: Qpn,
    /// The largest payload of a packet. Both ends set the same.
    pub path_mtu: Mtu,
    /// The PSN of the first packet that this end sends.
    pub sq_psn: Psn,
    /// The PSN of the first packet that the peer sends.
    pub rq_psn: Psn,
    /// What the peer may do to this end's memory.
    pub access: Access,
    /// READs and atomics that may be outstanding in each direction.
    pub rd_atomic: u8,
    /// The wait that this end's RNR NAKs ask for.
    pub min_rnr_timer: RnrTimer,
    /// The time without a response after which this end retransmits.
    pub local_ack_timeout: LocalAckTimeout,
    /// Retransmissions before a request fails with [`RetryExceeded`](crate::WcStatus::RetryExceeded), at most 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs before a request fails; 7 is without limit.
    pub rnr_retry: u8,
}

impl RcConnection {
    /// The connection to a queue pair of that GID and number, with these defaults: MTU 1024, PSNs 0, all remote access,
    /// one READ or atomic at a time, RNR timer 10 µs, local ACK timeout 67 ms, 7 retries, RNR retries without limit.
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

    /// The attributes of the change from RESET to INIT.
    pub fn init(&self) -> QpAttr {
        QpAttr { pkey_index: Some(0), port: Some(1), access: Some(self.access), ..QpAttr::to(QpState::Init) }
    }

    /// The attributes of the change from INIT to RTR.
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

    /// The attributes of the change from RTR to RTS.
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

    /// Takes a queue pair from RESET to RTS.
    ///
    /// # Errors
    /// Those of [`Provider::modify_qp`].
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
