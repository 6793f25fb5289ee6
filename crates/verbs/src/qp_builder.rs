use crate::{CqId, Error, PdId, Provider, QpCap, QpInitAttr, QpType, Qpn, SrqId};

/// Builds a queue pair in RESET. Only the protection domain and a completion queue have no default.
///
/// ```
/// # use mitra_softnic::{Config, SoftNic};
/// # use mitra_verbs::{Provider, QpBuildError, QpBuilder};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let nic = SoftNic::open(Config::loopback())?;
/// let (pd, cq) = (nic.alloc_pd()?, nic.create_cq(64, None)?);
/// let qp = QpBuilder::rc(pd, cq).send_wrs(32).inline(256).build(&*nic)?;
/// assert_eq!(nic.query_qp(qp)?.init.cap.send_wrs, 32);
///
/// let too_deep = QpBuilder::rc(pd, cq).send_wrs(u32::MAX).build(&*nic);
/// assert!(matches!(too_deep, Err(QpBuildError::Limit { option: "send_wrs", .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder makes no queue pair until `build` is called"]
pub struct QpBuilder {
    init: QpInitAttr,
    has_recv_wrs: bool,
}

/// Why [`QpBuilder::build`] refused a queue pair.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QpBuildError {
    /// A size exceeds the limit of the NIC.
    #[error("{option} is {requested}, and the limit of {nic} is {limit}; lower {option}")]
    Limit {
        /// The method of the builder that set the size.
        option: &'static str,
        /// The requested size.
        requested: u32,
        /// The limit.
        limit: u32,
        /// The name of the NIC.
        nic: String,
    },
    /// Both a shared receive queue and the depth of an own receive queue were set.
    #[error(
        "a queue pair with a shared receive queue has no receive queue of its own; leave recv_wrs or srq out"
    )]
    TwoReceiveQueues,
    /// The NIC refused the queue pair.
    #[error(transparent)]
    Nic(#[from] Error),
}

impl QpBuilder {
    /// Begins a queue pair of a transport service whose sends and receives complete in `cq`. The
    /// queues have the sizes of [`QpCap::default`], and only signalled sends create a completion.
    pub fn new(qp_type: QpType, pd: PdId, cq: CqId) -> QpBuilder {
        let (cap, send_cq, recv_cq) = (QpCap::default(), cq, cq);
        let init = QpInitAttr { qp_type, pd, send_cq, recv_cq, srq: None, cap, sq_sig_all: false };
        QpBuilder { init, has_recv_wrs: false }
    }

    /// Begins a reliable connection. See [`QpBuilder::new`].
    pub fn rc(pd: PdId, cq: CqId) -> QpBuilder {
        QpBuilder::new(QpType::Rc, pd, cq)
    }

    /// Begins an unreliable datagram queue pair. See [`QpBuilder::new`].
    pub fn ud(pd: PdId, cq: CqId) -> QpBuilder {
        QpBuilder::new(QpType::Ud, pd, cq)
    }

    fn with(mut self, set: impl FnOnce(&mut QpInitAttr)) -> QpBuilder {
        set(&mut self.init);
        self
    }

    /// Sets another completion queue for receives.
    pub fn recv_cq(self, cq: CqId) -> QpBuilder {
        self.with(|init| init.recv_cq = cq)
    }

    /// Takes receives from a shared receive queue.
    pub fn srq(self, srq: SrqId) -> QpBuilder {
        self.with(|init| init.srq = Some(srq))
    }

    /// Replaces all sizes, including those that were set before.
    pub fn cap(self, cap: QpCap) -> QpBuilder {
        self.with(|init| init.cap = cap)
    }

    /// Sets the maximum number of outstanding sends. Default: 128.
    pub fn send_wrs(self, wrs: u32) -> QpBuilder {
        self.with(|init| init.cap.send_wrs = wrs)
    }

    /// Sets the maximum number of outstanding receives. Default: 128.
    pub fn recv_wrs(mut self, wrs: u32) -> QpBuilder {
        self.has_recv_wrs = true;
        self.with(|init| init.cap.recv_wrs = wrs)
    }

    /// Sets the maximum number of scatter/gather entries in a send. Default: 4.
    pub fn send_sges(self, sges: u32) -> QpBuilder {
        self.with(|init| init.cap.send_sges = sges)
    }

    /// Sets the maximum number of scatter/gather entries in a receive. Default: 4.
    pub fn recv_sges(self, sges: u32) -> QpBuilder {
        self.with(|init| init.cap.recv_sges = sges)
    }

    /// Sets the maximum length of inline data in bytes. Default: 64.
    pub fn inline(self, bytes: u32) -> QpBuilder {
        self.with(|init| init.cap.inline = bytes)
    }

    /// Makes every successful send create a completion.
    pub fn signal_all(self) -> QpBuilder {
        self.with(|init| init.sq_sig_all = true)
    }

    /// Creates the queue pair on a NIC.
    ///
    /// # Errors
    /// [`QpBuildError::Limit`] and [`QpBuildError::TwoReceiveQueues`], before the NIC is asked;
    /// [`QpBuildError::Nic`] with the error of [`Provider::create_qp`].
    pub fn build(self, nic: &dyn Provider) -> Result<Qpn, QpBuildError> {
        if self.init.srq.is_some() && self.has_recv_wrs {
            return Err(QpBuildError::TwoReceiveQueues);
        }
        let (cap, attr) = (self.init.cap, nic.attr());
        let limits = &attr.limits;
        for (option, requested, limit) in [
            ("send_wrs", cap.send_wrs, limits.wrs),
            ("recv_wrs", cap.recv_wrs, limits.wrs),
            ("send_sges", cap.send_sges, limits.sges),
            ("recv_sges", cap.recv_sges, limits.sges),
            ("inline", cap.inline, limits.inline),
        ] {
            if requested > limit {
                return Err(QpBuildError::Limit { option, requested, limit, nic: attr.name.clone() });
            }
        }
        Ok(nic.create_qp(&self.init)?)
    }
}

impl From<QpBuildError> for Error {
    fn from(error: QpBuildError) -> Error {
        match error {
            QpBuildError::Limit { option: attribute, requested, limit, .. } => {
                Error::Limit { attribute, requested: requested.into(), limit: limit.into() }
            }
            QpBuildError::TwoReceiveQueues => {
                Error::Invalid("a queue pair with a shared receive queue has no receive queue of its own")
            }
            QpBuildError::Nic(error) => error,
        }
    }
}
