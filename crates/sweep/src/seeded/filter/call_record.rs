//! The record of all calls and executions of a world, and its checks.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mitra_filter::Outcome;

use crate::seeded::Finding;

/// A client, and the number of a call among the calls of the client.
pub(super) type CallId = (u8, u32);

#[derive(Debug, Default)]
pub(super) struct CallRecord {
    /// The executed calls, in order. The flag says whether the call is exactly-once.
    executions: Vec<(CallId, bool)>,
    pub(super) calls: u64,
    pub(super) unknown: u64,
    /// Whether a call may end as unknown: the filter lost its state, or a connection ended.
    pub(super) state_was_lost: bool,
    /// The number of connections of clients that have ended by themselves.
    pub(super) closed: Rc<Cell<u32>>,
    findings: Vec<Finding>,
}

/// Returns the identity of a call and `padding` more bytes.
pub(super) fn body(call: CallId, padding: usize) -> Vec<u8> {
    let mut body = vec![call.0];
    body.extend(call.1.to_le_bytes());
    body.resize(5 + padding, call.1 as u8);
    body
}

fn identity(body: &[u8]) -> Option<CallId> {
    let (&client, rest) = body.split_first()?;
    let (number, padding) = rest.split_first_chunk()?;
    let number = u32::from_le_bytes(*number);
    padding.iter().all(|&byte| byte == number as u8).then_some((client, number))
}

impl CallRecord {
    /// Executes a call. Returns the number of the execution, as the reply.
    pub(super) fn execute(&mut self, body: &[u8], exactly_once: bool) -> [u8; 8] {
        match identity(body) {
            Some(call) => self.executions.push((call, exactly_once)),
            None => {
                self.findings.push(Finding::violation("wrong", format!("a request with the body {body:?}")))
            }
        }
        (self.executions.len() as u64 - 1).to_le_bytes()
    }

    pub(super) fn end(&mut self, call: CallId, outcome: &Outcome<Vec<u8>>) {
        let Outcome::Answered(reply) = outcome else {
            self.unknown += 1;
            if !self.state_was_lost {
                let detail = format!("call {call:?} ended as unknown, and no state was lost");
                self.findings.push(Finding::violation("unknown", detail));
            }
            return;
        };
        let index = reply.as_slice().try_into().map(u64::from_le_bytes).ok();
        let execution = index.and_then(|index| self.executions.get(index as usize));
        if execution.is_none_or(|&(executed, _)| executed != call) {
            let detail = format!("call {call:?} has the reply {reply:?}, which is of {execution:?}");
            self.findings.push(Finding::violation("wrong", detail));
        }
    }

    pub(super) fn findings(mut self) -> Vec<Finding> {
        let mut counts: BTreeMap<CallId, u32> = BTreeMap::new();
        let mut last: BTreeMap<u8, u32> = BTreeMap::new();
        for &(call, _) in self.executions.iter().filter(|&&(_, exactly_once)| exactly_once) {
            *counts.entry(call).or_default() += 1;
            let before = last.insert(call.0, call.1);
            if before.is_some_and(|before| before > call.1) {
                let detail = format!("call {call:?} was executed after number {before:?}");
                self.findings.push(Finding::violation("order", detail));
            }
        }
        for (call, count) in counts.into_iter().filter(|&(_, count)| count > 1) {
            let detail = format!("call {call:?} was executed {count} times");
            self.findings.push(Finding::violation("doubled", detail));
        }
        self.findings
    }
}
