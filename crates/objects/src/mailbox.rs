//! A mailbox for one message at a time. The flag that announces a message contains the message's
//! number, so a repeated WRITE of the flag announces no message twice.
//!
//! ```text
//! word 0  flag      ⟨length in words: 8 bits | number of the message: 56 bits⟩    written by the writer, behind the payload
//! word 1  consumed  number of the last message that the reader consumed           written by the reader, read by the writer
//! word 2…           payload, 1 to 7 words                                         written by the writer
//! ```
//!
//! A failover may repeat a WRITE. A flag of one bit, which the reader resets, would then announce
//! the old message again. A flag with a number up to *consumed* announces nothing, so the writer
//! repeats each WRITE whose outcome is unknown. The writer begins the next message when the reader
//! has consumed the last message. At this time no copy of an earlier WRITE is under way: each WRITE
//! has completed, or the fence has ended it.
//!
//! # Conditions
//! The reader's device places WRITEs of one queue pair in order (no relaxed ordering), as the
//! completion log requires. The fence is necessary: a WRITE of an old payload that is executed
//! later would overwrite the new payload, and no flag can show the overwrite.
//!
//! # Limits
//! One writer, one reader; messages of 1 to 7 words; 2⁵⁶ − 1 messages, then
//! [`MailboxError::NumbersUsedUp`]. For larger data, the writer first writes other memory, and then
//! sends a message that names this memory.

use mitra_mutants::Mutant;
use mitra_verbs::Buffer;
use smallvec::{SmallVec, smallvec};

use crate::operation::{Operation, Progress, Requests};
use crate::request::{Outcome, Request, Word};

/// The number of words of a mailbox: the flag, *consumed*, and the payload.
pub const MAILBOX_WORDS: usize = 2 + MAX_PAYLOAD_WORDS;
/// The longest payload, in words: with the flag, the highest number of requests that an operation
/// posts at once.
pub const MAX_PAYLOAD_WORDS: usize = crate::MAX_REQUESTS - 1;
/// The highest number of a message.
pub const MAX_MESSAGE: u64 = (1 << NUMBER_BITS) - 1;

const NUMBER_BITS: u32 = 56;
const CONSUMED: u64 = 1;
const PAYLOAD: u64 = 2;

/// The payload of a message, in words.
pub type Payload = SmallVec<[u64; MAX_PAYLOAD_WORDS]>;

/// The error of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MailboxError {
    /// The payload is empty or too long.
    #[error(
        "a message has 1 to {MAX_PAYLOAD_WORDS} words, not {0}; write longer data elsewhere, and send its place"
    )]
    Length(usize),
    /// All numbers are used.
    #[error("{MAX_MESSAGE} messages were sent, as many as the flag can number; use a new mailbox")]
    NumbersUsedUp,
    /// The reader's word names a message that was not sent.
    #[error(
        "the reader has consumed message {consumed}, and {sent} were sent; only one writer may use a mailbox"
    )]
    NotSent {
        /// The content of the reader's word.
        consumed: u64,
        /// The number of messages that were sent.
        sent: u64,
    },
    /// The writer cannot have written this flag.
    #[error("the flag {flag:#x} does not announce message {expected}; only one writer may use a mailbox")]
    Flag {
        /// The flag.
        flag: u64,
        /// The number of the message after the last consumed message.
        expected: u64,
    },
}

/// The writing end of a mailbox, with no message under way. A send takes the writer, and its result
/// returns the writer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MailboxWriter {
    base: Word,
    sent: u64,
}

impl MailboxWriter {
    /// Creates the writer of an unused mailbox, whose [`MAILBOX_WORDS`] words from `base` are 0.
    pub fn new(base: Word) -> MailboxWriter {
        MailboxWriter { base, sent: 0 }
    }

    /// Continues an earlier life of the writer. `flag` was read from the mailbox, after everything
    /// that the earlier life had posted was fenced. [`MailboxWriter::sent`] tells whether the
    /// earlier life's last message was sent.
    pub fn resume(base: Word, flag: u64) -> MailboxWriter {
        MailboxWriter { base, sent: flag & MAX_MESSAGE }
    }

    /// Returns the number of messages sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Sends a message, if the reader has consumed the last message.
    ///
    /// Cost: one READ, then one WRITE per word and one for the flag, two round trips. After a
    /// failure, the operation repeats the WRITEs that may be missing.
    ///
    /// # Errors
    /// [`MailboxError::Length`] and [`MailboxError::NumbersUsedUp`], with the writer. Nothing is
    /// sent then.
    pub fn send(self, payload: &[u64]) -> Result<Send, (MailboxWriter, MailboxError)> {
        if !(1..=MAX_PAYLOAD_WORDS).contains(&payload.len()) {
            return Err((self, MailboxError::Length(payload.len())));
        }
        if self.sent == MAX_MESSAGE {
            return Err((self, MailboxError::NumbersUsedUp));
        }
        Ok(Send { writer: self, payload: payload.into(), written: None })
    }
}

/// The result of sending.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Sent {
    /// The message is in the mailbox. The reader receives it exactly once.
    Delivered(MailboxWriter),
    /// The reader has not consumed the last message. Nothing was sent; send again later.
    Full(MailboxWriter),
}

/// A message under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Send {
    writer: MailboxWriter,
    payload: Payload,
    /// The number of WRITEs that were certainly executed. `None` while the reader's word is being
    /// read.
    written: Option<usize>,
}

impl Send {
    fn missing(&self, written: usize) -> Requests {
        let Send { writer, payload, .. } = self;
        let number = writer.sent + 1;
        let flag = Request::write(writer.base, (payload.len() as u64) << NUMBER_BITS | number);
        let word =
            |(place, &value): (usize, &u64)| Request::write(writer.base.nth(PAYLOAD + place as u64), value);
        let mut writes: Requests = payload.iter().enumerate().map(word).collect();
        writes.insert(if Mutant::FlagWrittenFirst.is_on() { 0 } else { writes.len() }, flag);
        writes.drain(..written);
        writes
    }

    fn write(&mut self, written: usize) -> Progress<Result<Sent, MailboxError>> {
        self.written = Some(written);
        if written == self.payload.len() + 1 {
            let writer = MailboxWriter { sent: self.writer.sent + 1, ..self.writer.clone() };
            return Progress::Done(Ok(Sent::Delivered(writer)));
        }
        Progress::Post(self.missing(written))
    }
}

impl Operation for Send {
    type Output = Result<Sent, MailboxError>;

    fn start(&mut self) -> Progress<Self::Output> {
        Progress::Post(smallvec![Request::read(self.writer.base.nth(CONSUMED))])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output> {
        if let Some(written) = self.written {
            return self.write(written + outcomes.iter().take_while(|outcome| outcome.is_executed()).count());
        }
        let sent = self.writer.sent;
        match outcomes.first().and_then(|outcome| outcome.value()) {
            None => self.start(),
            Some(consumed) if consumed < sent && !Mutant::UnreadMessageOverwritten.is_on() => {
                Progress::Done(Ok(Sent::Full(self.writer.clone())))
            }
            Some(consumed) if consumed > sent => {
                Progress::Done(Err(MailboxError::NotSent { consumed, sent }))
            }
            Some(_) => self.write(0),
        }
    }
}

/// The reading end of a mailbox: it finds new messages in the memory that it lends to the writer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MailboxReader {
    consumed: u64,
}

impl MailboxReader {
    /// Creates the reader of a mailbox. `consumed` is the content of the reader's word: 0 in an
    /// unused mailbox.
    pub fn new(consumed: u64) -> MailboxReader {
        MailboxReader { consumed }
    }

    /// Takes the message from the mailbox at `offset` bytes of a buffer, if there is a new message,
    /// and frees the mailbox for the next message.
    ///
    /// # Errors
    /// [`MailboxError::Flag`].
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8, or the mailbox does not lie within the buffer.
    pub fn take(&mut self, memory: &Buffer, offset: usize) -> Result<Option<Payload>, MailboxError> {
        let word = |index: u64| offset + 8 * index as usize;
        let Some(length) = self.announced(memory.load(offset))? else { return Ok(None) };
        let payload = (0..length as u64).map(|place| memory.load(word(PAYLOAD + place))).collect();
        memory.store(word(CONSUMED), self.consume());
        Ok(Some(payload))
    }

    /// Returns the length of the message that a flag announces, in words, or `None` if the flag
    /// announces nothing new.
    ///
    /// # Errors
    /// [`MailboxError::Flag`].
    pub fn announced(&self, flag: u64) -> Result<Option<usize>, MailboxError> {
        let (length, number) = ((flag >> NUMBER_BITS) as usize, flag & MAX_MESSAGE);
        if number <= self.consumed {
            return Ok(None);
        }
        let expected = self.consumed + 1;
        if number != expected || !(1..=MAX_PAYLOAD_WORDS).contains(&length) {
            return Err(MailboxError::Flag { flag, expected });
        }
        Ok(Some(length))
    }

    /// Consumes the announced message. Returns the content of the reader's word, which the reader
    /// stores *after* it has copied the payload.
    pub fn consume(&mut self) -> u64 {
        self.consumed += 1;
        self.consumed
    }
}
