//! The connection of a coordinator to one memory node, and the requests that wait for it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mitra_driver::{Connection, ConnectionError, Event, QpInfo, QpKind};
use mitra_failover::{Config, Domain, FailoverReport, RemoteRegion, WritePolicy};
use mitra_txn::{Op, Outcome, Request};
use mitra_verbs::{Ended, Error, Key, SendOp};

use super::{Counters, PostError, RequestRef, Tickets};

/// The connection to one memory node.
#[derive(Debug)]
pub struct Link {
    connection: Connection,
    /// The memory of the node. Its keys are unknown until the link is connected.
    region: RemoteRegion,
    /// The ranges whose WRITEs may be repeated.
    repeatable: Arc<[Range<u64>]>,
    waiting: VecDeque<RequestRef>,
}

impl Link {
    /// Creates an unconnected end, whose WRITEs in `repeatable` may be repeated after a failure.
    /// `staging_bytes` of registered memory take the payload of the requests that are under way.
    ///
    /// # Errors
    /// An error of the NIC.
    pub fn new(
        domain: &Arc<Domain>,
        kind: QpKind,
        failover: &Config,
        staging_bytes: usize,
        repeatable: &Arc<[Range<u64>]>,
    ) -> Result<Link, Error> {
        Ok(Link {
            connection: Connection::new(domain, kind, failover, staging_bytes)?,
            region: RemoteRegion::with_unknown_key(Key(0), domain.nics().len()),
            repeatable: Arc::clone(repeatable),
            waiting: VecDeque::with_capacity(failover.send_wrs as usize),
        })
    }

    /// Returns the connection data for the node.
    ///
    /// # Errors
    /// An error of the NIC.
    pub fn info(&self) -> Result<QpInfo, Error> {
        self.connection.info()
    }

    /// Connects to the node, which has connected its end and lends `region`. Returns false if the
    /// node's end is of another kind.
    pub fn connect(&mut self, info: &QpInfo, region: &[u8]) -> Result<bool, Error> {
        self.region = RemoteRegion::decode(region)?;
        let is_connected = self.connection.connect(info)?;
        if is_connected {
            self.connection.import(&self.region)?;
        }
        Ok(is_connected)
    }

    pub(super) fn check(&self, request: &Request) -> Result<(), PostError> {
        let (at, bytes) = (request.at, payload_bytes(request));
        if at.checked_add(bytes).is_none_or(|end| end > self.region.len()) {
            return Err(PostError::Bounds { at, bytes, limit: self.region.len() });
        }
        let limit = self.connection.staging_bytes() as u64;
        if bytes > limit {
            return Err(PostError::Length { bytes, limit });
        }
        Ok(())
    }

    pub(super) fn queue(&mut self, at: RequestRef) {
        self.waiting.push_back(at);
    }

    /// Posts the requests that wait, in their order, as far as the connection takes them.
    pub(super) fn post_waiting(
        &mut self,
        tickets: &mut Tickets,
        counters: &mut Counters,
    ) -> Result<(), ConnectionError> {
        let before = counters.requests;
        while let Some(&at) = self.waiting.front()
            && self.push(at, tickets.request(at))
        {
            self.waiting.pop_front();
            counters.requests += 1;
            counters.bytes += payload_bytes(tickets.request(at));
        }
        counters.doorbells += u64::from(counters.requests > before);
        self.connection.post()
    }

    /// Pushes a request. Returns false if the connection does not take it now.
    fn push(&mut self, at: RequestRef, request: &Request) -> bool {
        let (id, remote) = (at.id(), self.region.at(request.at));
        match &request.op {
            Op::Read(bytes) => self.connection.fetch(id, SendOp::Read(remote), *bytes as usize),
            &Op::CompareSwap { compare, swap } => {
                self.connection.fetch(id, SendOp::CompareSwap { remote, compare, swap }, size_of::<u64>())
            }
            Op::Write(content) => {
                let end = request.at + content.len() as u64;
                let is_repeatable = |range: &Range<u64>| range.start <= request.at && end <= range.end;
                let policy = match self.repeatable.iter().any(is_repeatable) {
                    true => WritePolicy::Repeatable,
                    false => WritePolicy::Strict,
                };
                self.connection.put(id, SendOp::Write(remote), content, policy)
            }
        }
    }

    /// Drives the connection, and ends requests.
    pub(super) fn poll(&mut self, tickets: &mut Tickets) -> Result<(), ConnectionError> {
        let waiting = &mut self.waiting;
        self.connection.poll(|event| {
            let Event::Ended { id, ended, fetched } = event else { return };
            let at = RequestRef::from_id(id);
            let outcome = match ended {
                Ended::Success => Outcome::Executed(fetched.to_vec()),
                Ended::ValueLost => Outcome::ValueLost,
                Ended::NotExecuted => Outcome::NotExecuted,
                Ended::Unknown => Outcome::Unknown,
            };
            tickets.end(at, outcome);
            if matches!(ended, Ended::NotExecuted | Ended::Unknown) {
                drop_waiting(waiting, at.ticket, tickets);
            }
        })
    }

    pub(super) fn arm(&self) {
        self.connection.arm();
    }

    pub(super) fn last_failover(&self) -> Option<FailoverReport> {
        self.connection.last_failover()
    }
}

/// Ends the waiting requests of a ticket after one of its requests was not executed or is in doubt:
/// an unlock must not be executed without the WRITE before it.
fn drop_waiting(waiting: &mut VecDeque<RequestRef>, ticket: u32, tickets: &mut Tickets) {
    waiting.retain(|&at| {
        let stays = at.ticket != ticket;
        if !stays {
            tickets.end(at, Outcome::NotExecuted);
        }
        stays
    });
}

fn payload_bytes(request: &Request) -> u64 {
    match &request.op {
        Op::Read(bytes) => (*bytes).into(),
        Op::Write(bytes) => bytes.len() as u64,
        Op::CompareSwap { .. } => size_of::<u64>() as u64,
    }
}
