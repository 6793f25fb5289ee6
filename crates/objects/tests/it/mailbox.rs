//! The mailbox: a message is received once, however often its flag is written.

use crate::memory::{Fate, Memory, word};
use mitra_objects::Outcome::{NotExecuted, Unknown, ValueLost};
use mitra_objects::mailbox::{
    MAILBOX_WORDS, MAX_MESSAGE, MAX_PAYLOAD_WORDS, MailboxError, MailboxReader, MailboxWriter, Sent,
};
use mitra_verbs::Buffer;

/// Lets the reader look at the mailbox, which begins at word 1.
fn take(reader: &mut MailboxReader, memory: &mut Memory) -> Option<Vec<u64>> {
    let buffer = Buffer::new(8 * memory.words.len());
    memory.words.iter().enumerate().for_each(|(n, &word)| buffer.store(8 * n, word));
    let payload = reader.take(&buffer, 8).unwrap();
    memory.words.iter_mut().enumerate().for_each(|(n, word)| *word = buffer.load(8 * n));
    payload.map(|words| words.to_vec())
}

fn delivered(result: Result<Sent, MailboxError>) -> MailboxWriter {
    match result {
        Ok(Sent::Delivered(writer)) => writer,
        other => panic!("not delivered: {other:?}"),
    }
}

#[test]
fn messages_of_all_lengths_arrive_in_order() {
    let (mut memory, mut reader) = (Memory::default(), MailboxReader::new(0));
    let mut writer = MailboxWriter::new(word(1));
    for length in 1..=MAX_PAYLOAD_WORDS {
        let payload: Vec<u64> = (0..length as u64).map(|word| u64::MAX - word).collect();
        writer = delivered(memory.run(writer.send(&payload).unwrap()));
        let Ok(Sent::Full(full)) = memory.run(writer.send(&[1]).unwrap()) else {
            panic!("the message is not consumed");
        };
        writer = full;
        assert_eq!(take(&mut reader, &mut memory), Some(payload));
        assert_eq!(take(&mut reader, &mut memory), None);
        assert_eq!(writer.sent(), length as u64);
    }
    assert_eq!(memory.words[0], 0);
    assert_eq!(memory.words[1 + MAILBOX_WORDS..], [0; 15 - MAILBOX_WORDS]);
}

#[test]
fn flag_that_is_repeated_after_the_reader_consumed_the_message_does_nothing() {
    let (mut memory, mut reader) = (Memory::default(), MailboxReader::new(0));
    let mut send = MailboxWriter::new(word(1)).send(&[5, 6]).unwrap();
    mitra_objects::Operation::start(&mut send);
    let empty = [mitra_objects::Outcome::Executed { value: 0 }];
    let mitra_objects::Progress::Post(writes) = mitra_objects::Operation::on_outcomes(&mut send, &empty)
    else {
        panic!("a message is written");
    };
    writes.iter().for_each(|&request| _ = memory.execute(request));
    assert_eq!(take(&mut reader, &mut memory), Some(vec![5, 6]));
    let mitra_objects::Progress::Post(again) =
        mitra_objects::Operation::on_outcomes(&mut send, &[ValueLost, Unknown, Unknown])
    else {
        panic!("the outcome of the flag is unknown");
    };
    assert_eq!(again[..], writes[1..], "the first WRITE was executed");
    again.iter().for_each(|&request| _ = memory.execute(request));
    assert_eq!(take(&mut reader, &mut memory), None);
}

#[test]
fn writes_without_outcome_are_repeated_until_all_are_executed() {
    for executed in 0..=3 {
        for undecided in 0..=executed {
            let mut outcomes = vec![Some(ValueLost); undecided];
            outcomes.resize(3, Some(if undecided == executed { NotExecuted } else { Unknown }));
            let (mut memory, mut reader) = (Memory::default(), MailboxReader::new(0));
            let fate = Fate::Failed { executed, outcomes };
            delivered(
                memory.run_with(MailboxWriter::new(word(1)).send(&[5, 6]).unwrap(), [Fate::Executed, fate]),
            );
            assert_eq!(take(&mut reader, &mut memory), Some(vec![5, 6]));
            assert_eq!(memory.cost.writes, executed + 3 - undecided);
        }
    }
}

#[test]
fn words_that_no_mailbox_has_are_reported() {
    let sent = |consumed: u64| {
        let mut memory = Memory::default();
        let writer = delivered(memory.run(MailboxWriter::new(word(1)).send(&[1]).unwrap()));
        memory.words[2] = consumed;
        memory.run(writer.send(&[2]).unwrap())
    };
    assert_eq!(sent(2), Err(MailboxError::NotSent { consumed: 2, sent: 1 }));
    assert!(matches!(sent(0), Ok(Sent::Full(_))));
    let reader = MailboxReader::new(4);
    for flag in [0, 1 << 56 | 4, 255 << 56 | 3] {
        assert_eq!(reader.announced(flag), Ok(None));
    }
    assert_eq!(reader.announced(7 << 56 | 5), Ok(Some(7)));
    for flag in [1 << 56 | 6, 5, 8 << 56 | 5, u64::MAX] {
        assert_eq!(reader.announced(flag), Err(MailboxError::Flag { flag, expected: 5 }));
    }
    let last = MailboxReader::new(u64::MAX);
    assert_eq!(last.announced(u64::MAX), Ok(None));
}

#[test]
fn restarted_writer_goes_on_behind_its_last_flag() {
    let (mut memory, mut reader) = (Memory::default(), MailboxReader::new(0));
    delivered(memory.run(MailboxWriter::new(word(1)).send(&[1]).unwrap()));
    let writer = MailboxWriter::resume(word(1), memory.words[1]);
    let Ok(Sent::Full(writer)) = memory.run(writer.send(&[2]).unwrap()) else {
        panic!("message 1 is not consumed");
    };
    assert_eq!(take(&mut reader, &mut memory), Some(vec![1]));
    delivered(memory.run(writer.send(&[2]).unwrap()));
    assert_eq!(take(&mut MailboxReader::new(memory.words[2]), &mut memory), Some(vec![2]));
    let forgetful = memory.run(MailboxWriter::new(word(1)).send(&[3]).unwrap());
    assert_eq!(forgetful, Err(MailboxError::NotSent { consumed: 2, sent: 0 }));
}

#[test]
fn lengths_beyond_the_limits_are_refused() {
    for length in [0, 8, 9] {
        let (writer, error) = MailboxWriter::new(word(1)).send(&vec![0; length]).unwrap_err();
        assert_eq!((error, writer.sent()), (MailboxError::Length(length), 0));
    }
    assert_eq!(MAX_MESSAGE, (1 << 56) - 1);
}
