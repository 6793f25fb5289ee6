//! One mailbox per client, which the server reads, and the check that each message arrives once,
//! whole and in order.

use std::cell::RefCell;
use std::rc::Rc;

use mitra_driver::Connection;
use mitra_objects::mailbox::{
    MAILBOX_WORDS, MAX_PAYLOAD_WORDS, MailboxReader, MailboxWriter, Payload, Send, Sent,
};
use mitra_objects::{Execution, PathError, ReadWord, Word};
use mitra_verbs::Buffer;

use super::client::{Script, Turn};
use super::shared_object::{SharedObject, Violations};
use super::{Finding, ObjectMemory};
use mitra_sim::Prng;

const CHECKER: &str = "mailbox";

struct Record {
    reader: MailboxReader,
    /// All messages that were sent or are in flight.
    messages: Vec<Payload>,
    received: usize,
}

struct Mailbox {
    base: Word,
    offset: usize,
    record: Rc<RefCell<Record>>,
}

pub(super) struct Mailboxes {
    mailboxes: Vec<Mailbox>,
    violations: Violations,
}

impl Mailboxes {
    pub(super) fn new(memory: &mut ObjectMemory, clients: usize) -> Mailboxes {
        let mailbox = |_| {
            let (base, offset) = memory.allocate(8 * MAILBOX_WORDS);
            let record = Record { reader: MailboxReader::new(0), messages: Vec::new(), received: 0 };
            Mailbox { base, offset, record: Rc::new(RefCell::new(record)) }
        };
        Mailboxes { mailboxes: (0..clients).map(mailbox).collect(), violations: Violations::default() }
    }
}

impl SharedObject for Mailboxes {
    fn script(&self, client: usize, rng: &mut Prng) -> Box<dyn Script> {
        let Mailbox { base, record, .. } = &self.mailboxes[client];
        Box::new(MailboxScript {
            base: *base,
            record: Rc::clone(record),
            violations: self.violations.clone(),
            state: State::Idle(MailboxWriter::new(*base)),
            under_way: false,
            messages: rng.between(3, 20),
            rng: Prng::new(rng.bits()),
        })
    }

    fn serve(&self, memory: &Buffer, rng: &mut Prng) -> bool {
        let mut has_received = false;
        for Mailbox { offset, record, .. } in &self.mailboxes {
            let record = &mut *record.borrow_mut();
            if rng.below(64) == 0 {
                record.reader = MailboxReader::new(memory.load(offset + 8)); // the reader restarts
            }
            match record.reader.take(memory, *offset) {
                Ok(None) => {}
                Ok(Some(payload)) => {
                    has_received = true;
                    let sent = record.messages.get(record.received);
                    self.violations.require(sent == Some(&payload), || {
                        format!("message {} is {payload:x?}, and {sent:x?} was sent", record.received + 1)
                    });
                    record.received += 1;
                }
                Err(error) => self.violations.add(error.to_string()),
            }
        }
        has_received
    }

    fn findings(&self, _memory: &Buffer, all_finished: bool) -> Vec<Finding> {
        for Mailbox { record, .. } in self.mailboxes.iter().filter(|_| all_finished) {
            let Record { messages, received, .. } = &*record.borrow();
            self.violations.require(messages.len() == *received, || {
                format!("{received} messages were received, {} sent", messages.len())
            });
        }
        self.violations.findings(CHECKER)
    }
}

struct MailboxScript {
    base: Word,
    record: Rc<RefCell<Record>>,
    violations: Violations,
    state: State,
    /// Whether the last message of the record is not known to be sent. A crash does not lose the
    /// flag.
    under_way: bool,
    messages: u64,
    rng: Prng,
}

enum State {
    Idle(MailboxWriter),
    Sending(Box<Execution<Send>>),
    Restarting(Execution<ReadWord>),
    Broken,
}

impl MailboxScript {
    fn broken(&self, what: String) -> State {
        self.violations.add(what);
        State::Broken
    }

    /// Sends the last message again if it is not known to be sent, and otherwise the next message.
    fn begin(&mut self, writer: MailboxWriter) {
        let messages = &mut self.record.borrow_mut().messages;
        if !self.under_way {
            let words = self.rng.between(1, MAX_PAYLOAD_WORDS as u64);
            messages.push((0..words).map(|_| self.rng.bits()).collect());
            self.under_way = true;
        }
        let payload = messages.last().expect("a message is under way");
        self.state = match writer.send(payload) {
            Ok(send) => State::Sending(Box::new(Execution::new(send))),
            Err((_, error)) => self.broken(error.to_string()),
        };
    }

    fn delivered(&mut self, writer: MailboxWriter) -> State {
        let messages = self.record.borrow().messages.len() as u64;
        if writer.sent() != messages {
            return self.broken(format!("{} messages were sent of {messages}", writer.sent()));
        }
        self.under_way = false;
        State::Idle(writer)
    }

    /// Continues after a crash, with the content of the flag.
    fn restart(&mut self, flag: u64) -> State {
        let writer = MailboxWriter::resume(self.base, flag);
        let is_unsent = self.under_way && writer.sent() + 1 == self.record.borrow().messages.len() as u64;
        if is_unsent {
            // The last message will never be sent. Another message takes its number.
            self.record.borrow_mut().messages.pop();
        }
        self.delivered(writer)
    }
}

impl Script for MailboxScript {
    fn on_new_path(&mut self, has_crashed: bool) {
        match &mut self.state {
            State::Broken => {}
            state if has_crashed => *state = State::Restarting(Execution::new(ReadWord(self.base))),
            State::Sending(execution) => execution.fenced(),
            State::Restarting(execution) => execution.fenced(),
            State::Idle(_) => {}
        }
    }

    fn poll(&mut self, path: &mut Connection) -> Result<Turn, PathError> {
        let mut turn = Turn::Between;
        let next = match &mut self.state {
            State::Broken => return Ok(Turn::Ended),
            State::Idle(writer) if !self.under_way && writer.sent() == self.messages => {
                return Ok(Turn::Ended);
            }
            State::Idle(writer) => {
                let writer = writer.clone();
                self.begin(writer);
                return Ok(Turn::Begun);
            }
            State::Sending(execution) => match execution.poll(path)? {
                None => return Ok(Turn::Running),
                Some(Ok(Sent::Delivered(writer))) => self.delivered(writer),
                Some(Ok(Sent::Full(writer))) => {
                    turn = Turn::Waiting;
                    State::Idle(writer)
                }
                Some(Err(error)) => self.broken(error.to_string()),
            },
            State::Restarting(execution) => match execution.poll(path)? {
                None => return Ok(Turn::Running),
                Some(flag) => self.restart(flag),
            },
        };
        self.state = next;
        Ok(turn)
    }
}
