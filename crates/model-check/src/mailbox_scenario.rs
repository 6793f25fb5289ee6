//! The writer and the reader of a mailbox: every message is received once, whole and in order.
//!
//! Client 0 is the writer. Client 1 is the reader on the host of the memory; its accesses to the
//! words are requests on a path that does not fail.

use mitra_objects::mailbox::{
    MAILBOX_WORDS, MAX_MESSAGE, MailboxError, MailboxReader, MailboxWriter, Payload, Send as SendMessage,
    Sent,
};
use mitra_objects::{Operation, Outcome, Progress, Request, Requests, WordOp};
use smallvec::smallvec;

use crate::object_world::{ObjectWorld, PathRules, Scenario, word};
use crate::{Exploration, RunLimits, SeedResult};

/// A rule that a mutant breaks. Each variant describes its mutant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BrokenMailboxRule {
    /// The flag contains no number, and the reader resets it.
    NumberFlags,
    /// The flag is written before the payload.
    WriteFlagLast,
    /// The writer does not wait until the last message is consumed.
    AwaitConsumption,
}

/// The configuration of a world with one mailbox.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MailboxWorldConfig {
    /// The number of messages. Their lengths are 1 and 2 words in turn.
    pub messages: u64,
    /// The number of times that the writer's path may fail.
    pub failures: u8,
    /// The rules of NICs and paths.
    pub rules: PathRules,
    /// The rule that is broken, for a mutant.
    pub broken: Option<BrokenMailboxRule>,
}

/// The two ends of a mailbox.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MailboxScenario {
    config: MailboxWorldConfig,
    /// `None` while the writer sends.
    writer: Option<MailboxWriter>,
    /// `None` while the reader looks.
    reader: Option<MailboxReader>,
    /// Whether the writer found the mailbox full.
    is_full: bool,
    received: u64,
    flag: u64,
    consumed: u64,
    holds: bool,
}

const WRITER: usize = 0;

/// An operation of an end.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MailboxOperation {
    /// The writer sends a message.
    Send(SendMessage),
    /// The reader looks for a message.
    Look(Look),
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MailboxOutput {
    /// The result of a send.
    Sent(Result<Sent, MailboxError>),
    /// The result of a look: the reader, and the message if there was one.
    Looked(MailboxReader, Result<Option<Payload>, MailboxError>),
}

/// One look of the reader: it reads the flag, copies the payload, and consumes the message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Look {
    reader: MailboxReader,
    /// The length that the flag announces.
    length: Option<usize>,
    payload: Option<Payload>,
}

impl Look {
    fn result(&self, result: Result<Option<Payload>, MailboxError>) -> Progress<MailboxOutput> {
        Progress::Done(MailboxOutput::Looked(self.reader.clone(), result))
    }
}

impl Operation for Look {
    type Output = MailboxOutput;

    fn start(&mut self) -> Progress<MailboxOutput> {
        Progress::Post(smallvec![Request::read(word(0))])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<MailboxOutput> {
        let values: Payload = outcomes.iter().filter_map(|outcome| outcome.value()).collect();
        match (self.length, &self.payload) {
            (None, _) => match self.reader.announced(values[0]) {
                Ok(Some(length)) => {
                    self.length = Some(length);
                    Progress::Post((0..length as u64).map(|n| Request::read(word(2 + n))).collect())
                }
                Ok(None) => self.result(Ok(None)),
                Err(error) => self.result(Err(error)),
            },
            (Some(_), None) => {
                self.payload = Some(values);
                Progress::Post(smallvec![Request::write(word(1), self.reader.consume())])
            }
            (Some(_), Some(payload)) => self.result(Ok(Some(payload.clone()))),
        }
    }
}

impl Operation for MailboxOperation {
    type Output = MailboxOutput;

    fn start(&mut self) -> Progress<MailboxOutput> {
        match self {
            MailboxOperation::Send(send) => send.start().map(MailboxOutput::Sent),
            MailboxOperation::Look(look) => look.start(),
        }
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<MailboxOutput> {
        match self {
            MailboxOperation::Send(send) => send.on_outcomes(outcomes).map(MailboxOutput::Sent),
            MailboxOperation::Look(look) => look.on_outcomes(outcomes),
        }
    }
}

impl MailboxWorldConfig {
    /// Returns the world. The memory is the mailbox.
    pub fn world(self) -> ObjectWorld<MailboxScenario> {
        let (failures, rules) = ([self.failures, 0], self.rules);
        let scenario = MailboxScenario {
            writer: Some(MailboxWriter::new(word(0))),
            reader: Some(MailboxReader::new(0)),
            is_full: false,
            received: 0,
            flag: 0,
            consumed: 0,
            holds: true,
            config: self,
        };
        ObjectWorld::new(vec![0; MAILBOX_WORDS], &failures, scenario, rules)
    }
}

/// Returns the payload of message `number`, counted from 0.
fn payload(number: u64) -> Payload {
    if number.is_multiple_of(2) {
        smallvec![10 * number + 1, 10 * number + 2]
    } else {
        smallvec![10 * number + 1]
    }
}

impl MailboxScenario {
    fn is_mutant(&self, rule: BrokenMailboxRule) -> bool {
        self.config.broken == Some(rule)
    }

    /// Returns whether the reader finds a message.
    fn is_announced(&self) -> bool {
        let Some(reader) = &self.reader else { return false };
        match self.is_mutant(BrokenMailboxRule::NumberFlags) {
            true => self.flag != 0,
            false => reader.announced(self.flag) != Ok(None),
        }
    }
}

impl Scenario for MailboxScenario {
    type Operation = MailboxOperation;
    const PROPERTY: &'static str = "every message is received once, whole and in order";

    fn has_next(&self, client: usize) -> bool {
        match (client, &self.writer) {
            (WRITER, Some(writer)) => {
                writer.sent() < self.config.messages && !(self.is_full && self.consumed < writer.sent())
            }
            (WRITER, None) => false,
            _ => self.holds && self.is_announced(),
        }
    }

    fn begin(&mut self, client: usize, _memory: &[u64]) -> MailboxOperation {
        if client == WRITER {
            let writer = self.writer.take().expect("nothing is under way");
            let payload = payload(writer.sent());
            return MailboxOperation::Send(writer.send(&payload).expect("a short message"));
        }
        let reader = self.reader.take().expect("the reader does not look yet");
        MailboxOperation::Look(Look { reader, length: None, payload: None })
    }

    fn on_change(&mut self, _client: usize, _is_current: bool, _request: Request, memory: &[u64]) {
        (self.flag, self.consumed) = (memory[0], memory[1]);
    }

    fn on_end(&mut self, _client: usize, output: MailboxOutput, _memory: &[u64]) {
        match output {
            MailboxOutput::Sent(Ok(sent)) => {
                self.is_full = matches!(sent, Sent::Full(_));
                let (Sent::Delivered(writer) | Sent::Full(writer)) = sent;
                self.writer = Some(writer);
            }
            MailboxOutput::Sent(Err(_)) => self.holds = false,
            MailboxOutput::Looked(reader, result) => {
                self.reader = Some(reader);
                if let Ok(Some(received)) = &result {
                    self.holds &= *received == payload(self.received) && self.received < self.config.messages;
                    self.received += 1;
                }
                self.holds &= result.is_ok();
            }
        }
        let all_sent = self.writer.as_ref().is_some_and(|writer| writer.sent() == self.config.messages);
        let is_idle = self.reader.is_some() && !self.is_announced();
        self.holds &= !(all_sent && is_idle) || self.received == self.config.messages;
    }

    fn holds(&self) -> bool {
        self.holds
    }

    fn alter_requests(&mut self, client: usize, requests: &mut Requests) {
        let is_write = |request: &Request, at| request.word == word(at) && request.op != WordOp::Read;
        if self.is_mutant(BrokenMailboxRule::WriteFlagLast) && client == WRITER && requests.len() > 1 {
            requests.rotate_right(1);
        }
        if self.is_mutant(BrokenMailboxRule::NumberFlags) {
            if client != WRITER && requests.iter().any(|request| is_write(request, 1)) {
                requests.push(Request::write(word(0), 0));
            }
            for request in requests.iter_mut().filter(|request| is_write(request, 0)) {
                if let WordOp::Write(flag) = &mut request.op
                    && client == WRITER
                {
                    *flag = *flag & !MAX_MESSAGE | 1;
                }
            }
        }
    }

    fn alter_outcomes(&mut self, client: usize, posted: &[Request], outcomes: &mut Vec<Outcome>) {
        let is_read_of = |at| posted == [Request::read(word(at))];
        let Some(Outcome::Executed { value }) = outcomes.first_mut() else { return };
        if self.is_mutant(BrokenMailboxRule::NumberFlags) && client != WRITER && is_read_of(0) && *value != 0
        {
            *value = *value & !MAX_MESSAGE | (self.received + 1);
        }
        if self.is_mutant(BrokenMailboxRule::AwaitConsumption) && client == WRITER && is_read_of(1) {
            // The writer assumes that all sent messages are consumed.
            *value = self.flag & MAX_MESSAGE;
        }
    }
}

/// Returns a world with this number of messages, in which the writer's path may fail.
pub fn world_of(messages: u64, failures: u8) -> MailboxWorldConfig {
    MailboxWorldConfig { messages, failures, rules: PathRules::IBTA, broken: None }
}

pub(crate) fn explore() -> Exploration {
    world_of(4, 3).world().explore()
}

pub(crate) fn run(seed: u64) -> SeedResult {
    world_of(20, 12).world().run(seed, RunLimits { adversary_steps: 400, stable_steps: 2_000 })
}
