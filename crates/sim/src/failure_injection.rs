use mitra_transport::fault::Failure;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FailureInjection {
    pub(crate) nic: usize,
    /// The failure, or `None` if the NIC's `faults` have recorded it already.
    pub(crate) failure: Option<Failure>,
    /// Whether the NIC resumes the placements that it held back. A dead NIC holds none.
    pub(crate) release_placements: bool,
}

impl FailureInjection {
    pub(crate) fn new(nic: usize, failure: Failure) -> FailureInjection {
        FailureInjection { nic, failure: Some(failure), release_placements: false }
    }

    pub(crate) fn already_recorded(nic: usize) -> FailureInjection {
        FailureInjection { nic, failure: None, release_placements: false }
    }
}
