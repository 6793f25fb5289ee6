//! The connection of a coordinator to one memory node, and the requests that wait for it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mitra_failover::{Config, Domain, FailoverReport, RemoteRegion, WritePolicy};
use mitra_txn::{Op, Outcome, Request};
use mitra_verbs::{Data, Ended, Error, InlineData, Key, SendOp, SendWr};

use super::staging::{Space, Staging};
use super::{Counters, PostError, RequestRef, Tickets};
use crate::queue_pair::{LinkError, QpInfo, QpKind, QueuePair};

/// The connection to one memory node.
#[derive(Debug)]
pub struct Link {
    /// Declared before `staging`, because the queue pair must be closed before the staging memory
    /// is freed.
    qp: QueuePair,
    staging: Staging,
    /// The memory of the node. Its keys are unknown until the link is connected.
    region: RemoteRegion,
    /// The ranges whose WRITEs may be repeated.
    repeatable: Arc<[Range<u64>]>,
    /// The largest number of posted requests.
    depth: usize,
    /// The longest WRITE that is inline, in bytes.
    inline: u64,
    waiting: VecDeque<RequestRef>,
    /// The requests that are posted, in their order, with their staging memory.
    posted: VecDeque<(RequestRef, Space)>,
    wrs: Vec<(SendWr, WritePolicy)>,
    ended: Vec<Ended>,
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
        // Inline data beyond the inline size of `InlineData` would need an allocation for each
        // request.
        let inline = failover.inline.min(domain.limits().inline).min(InlineData::new().inline_size() as u32);
        let depth = failover.send_wrs as usize;
        Ok(Link {
            qp: QueuePair::new(domain, kind, failover)?,
            staging: Staging::new(domain, staging_bytes)?,
            region: RemoteRegion::with_unknown_key(Key(0), domain.nics().len()),
            repeatable: Arc::clone(repeatable),
            depth,
            inline: inline.into(),
            waiting: VecDeque::with_capacity(depth),
            posted: VecDeque::with_capacity(depth),
            wrs: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
        })
    }

    /// Returns the connection data for the node.
    ///
    /// # Errors
    /// An error of the NIC.
    pub fn info(&self) -> Result<QpInfo, Error> {
        self.qp.info()
    }

    /// Connects to the node, which has connected its end and lends `region`. Returns false if the
    /// node's end is of another kind.
    pub fn connect(&mut self, info: &QpInfo, region: &[u8]) -> Result<bool, Error> {
        self.region = RemoteRegion::decode(region)?;
        let is_connected = self.qp.connect(info)?;
        if is_connected {
            self.qp.import(&self.region)?;
        }
        Ok(is_connected)
    }

    pub(super) fn check(&self, request: &Request) -> Result<(), PostError> {
        let (at, bytes) = (request.at, payload_bytes(request));
        if at.checked_add(bytes).is_none_or(|end| end > self.region.len()) {
            return Err(PostError::Bounds { at, bytes, limit: self.region.len() });
        }
        if bytes > self.staging.bytes() {
            return Err(PostError::Length { bytes, limit: self.staging.bytes() });
        }
        Ok(())
    }

    pub(super) fn queue(&mut self, at: RequestRef) {
        self.waiting.push_back(at);
    }

    /// Posts the requests that wait, in their order, as far as the send queue and the staging
    /// memory have space.
    pub(super) fn post_waiting(
        &mut self,
        tickets: &mut Tickets,
        counters: &mut Counters,
    ) -> Result<(), LinkError> {
        if self.posted.is_empty() {
            self.staging.reset();
            if self.qp.is_halted() {
                self.qp.resume();
            }
        } else if self.qp.is_halted() {
            return Ok(()); // the queue pair goes on when all that was posted before the error has ended
        }
        while self.posted.len() < self.depth
            && let Some(&at) = self.waiting.front()
            && let Some(space) = self.prepare(tickets.request(at))
        {
            self.waiting.pop_front();
            self.posted.push_back((at, space));
            counters.requests += 1;
            counters.bytes += payload_bytes(tickets.request(at));
        }
        if self.wrs.is_empty() {
            return Ok(());
        }
        counters.doorbells += 1;
        self.qp.post(&mut self.wrs)
    }

    /// Adds a request to the list to be posted. Returns `None` if the staging memory has no space
    /// now.
    fn prepare(&mut self, request: &Request) -> Option<Space> {
        let (remote, bytes) = (self.region.at(request.at), payload_bytes(request));
        let is_inline = matches!(request.op, Op::Write(_)) && bytes <= self.inline;
        let space = self.staging.take(if is_inline { 0 } else { bytes })?;
        let staged = Data::sge(self.staging.sge(space, bytes as u32));
        let mut policy = WritePolicy::Strict;
        let (op, data) = match &request.op {
            Op::Read(_) => (SendOp::Read(remote), staged),
            &Op::CompareSwap { compare, swap } => (SendOp::CompareSwap { remote, compare, swap }, staged),
            Op::Write(content) => {
                let end = request.at + bytes;
                let is_repeatable = |range: &Range<u64>| range.start <= request.at && end <= range.end;
                if self.repeatable.iter().any(is_repeatable) {
                    policy = WritePolicy::Repeatable;
                }
                let data = if is_inline {
                    Data::inline(content)
                } else {
                    self.staging.write(space, content);
                    staged
                };
                (SendOp::Write(remote), data)
            }
        };
        self.wrs.push((SendWr::new(0, op, data), policy));
        Some(space)
    }

    /// Drives the connection, and ends requests.
    pub(super) fn poll(&mut self, tickets: &mut Tickets) -> Result<(), LinkError> {
        let polled = self.qp.poll(&mut self.ended);
        for index in 0..self.ended.len() {
            let Some((at, space)) = self.posted.pop_front() else { break };
            let request = tickets.request(at);
            let outcome = match self.ended[index] {
                Ended::Success if matches!(request.op, Op::Write(_)) => Outcome::Executed(Vec::new()),
                Ended::Success => Outcome::Executed(self.staging.read(space, payload_bytes(request))),
                Ended::ValueLost => Outcome::ValueLost,
                Ended::NotExecuted => Outcome::NotExecuted,
                Ended::Unknown => Outcome::Unknown,
            };
            self.staging.free(space);
            tickets.end(at, outcome);
            if matches!(self.ended[index], Ended::NotExecuted | Ended::Unknown) {
                self.drop_waiting(at.ticket, tickets);
            }
        }
        self.ended.clear();
        polled
    }

    /// Ends the waiting requests of a ticket after one of its requests was not executed or is in
    /// doubt: an unlock must not be executed without the WRITE before it.
    fn drop_waiting(&mut self, ticket: u32, tickets: &mut Tickets) {
        self.waiting.retain(|&at| {
            let stays = at.ticket != ticket;
            if !stays {
                tickets.end(at, Outcome::NotExecuted);
            }
            stays
        });
    }

    pub(super) fn arm(&self) {
        self.qp.arm();
    }

    pub(super) fn last_failover(&self) -> Option<FailoverReport> {
        self.qp.last_failover()
    }
}

fn payload_bytes(request: &Request) -> u64 {
    match &request.op {
        Op::Read(bytes) => (*bytes).into(),
        Op::Write(bytes) => bytes.len() as u64,
        Op::CompareSwap { .. } => size_of::<u64>() as u64,
    }
}
