use mitra_verbs::{Error, PostError, QpBuildError};

/// The result of a case that does not panic.
pub type CaseResult<T = ()> = Result<T, Stop>;

/// Why a case ended before its end. A case also fails by a panic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The NIC does not offer what the case is about.
    Refused(String),
    /// A verb failed.
    Failed(String),
}

impl Stop {
    /// Returns the stop of a case about something that the NIC does not offer.
    pub(crate) fn refused(what: &str) -> Stop {
        Stop::Refused(what.to_owned())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        match error {
            Error::Unsupported(what) => Stop::refused(what),
            error => Stop::Failed(error.to_string()),
        }
    }
}

impl From<PostError> for Stop {
    fn from(error: PostError) -> Stop {
        match error.error {
            Error::Unsupported(what) => Stop::refused(what),
            _ => Stop::Failed(error.to_string()),
        }
    }
}

impl From<QpBuildError> for Stop {
    fn from(error: QpBuildError) -> Stop {
        match error {
            QpBuildError::Nic(error) => error.into(),
            error => Stop::Failed(error.to_string()),
        }
    }
}
