use mitra_control::{ControlledProcess, Request, RequestError, Response};
use mitra_metrics::Snapshot;
use serde::Serialize;

/// The answer of one process.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Observation {
    pub(super) pid: u32,
    #[serde(flatten)]
    pub(super) answer: Answer,
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Snapshot {
        program: String,
        #[serde(flatten)]
        snapshot: Box<Snapshot>,
    },
    Failed {
        error: String,
    },
}

impl Observation {
    pub(super) fn error(&self) -> Option<&str> {
        match &self.answer {
            Answer::Failed { error } => Some(error),
            Answer::Snapshot { .. } => None,
        }
    }

    pub(super) fn snapshot(&self) -> Option<&Snapshot> {
        match &self.answer {
            Answer::Snapshot { snapshot, .. } => Some(snapshot),
            Answer::Failed { .. } => None,
        }
    }
}

/// Asks a process for its state. Returns `None` if it has ended.
pub(super) fn observe(process: &ControlledProcess) -> Option<Observation> {
    let failed = |error| Answer::Failed { error };
    let answer = match process.request(&Request::Snapshot) {
        Ok(Response::Snapshot { program, snapshot, .. }) => Answer::Snapshot { program, snapshot },
        Ok(Response::Refused(_)) => {
            failed("it does not know `mitra watch`; restart it with this version of `mitra`".to_owned())
        }
        Ok(Response::Done | Response::Failed(_) | Response::Status { .. }) => {
            failed("it sent another response".to_owned())
        }
        Err(RequestError::ProcessEnded(_)) => return None,
        Err(error) => failed(error.to_string()),
    };
    Some(Observation { pid: process.pid, answer })
}
