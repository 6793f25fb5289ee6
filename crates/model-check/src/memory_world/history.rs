//! Checks the results of reads: each register holds the value of its last executed write.

use std::collections::BTreeMap;

/// The number of a write, unique in a run, which is also the written value. 0 is the initial value.
pub(super) type WriteId = u64;
/// The number of a step.
pub(super) type Time = u64;
/// A register: its region and its number.
pub(super) type Register = (u8, u16);

/// A write that has changed a register, or has possibly changed it.
#[derive(Debug)]
struct Entry {
    time: Time,
    write: WriteId,
    /// Whether the memory failed during the write, and no read has shown yet that the write was
    /// executed.
    is_uncertain: bool,
}

/// The writes to one memory since its contents were created.
#[derive(Debug, Default)]
pub(super) struct History {
    /// By register: the writes in order.
    entries: BTreeMap<Register, Vec<Entry>>,
}

impl History {
    /// Records that the NIC has executed a write.
    pub(super) fn execute(&mut self, register: Register, write: WriteId, now: Time) {
        self.record(register, Entry { time: now, write, is_uncertain: false });
    }

    /// Records that the memory failed during a write.
    pub(super) fn fail(&mut self, register: Register, write: WriteId, now: Time) {
        self.record(register, Entry { time: now, write, is_uncertain: true });
    }

    /// Records an attempt of a write. A write-once operation changes the register at most once, so
    /// a new attempt replaces an earlier attempt during which the memory failed.
    fn record(&mut self, register: Register, entry: Entry) {
        let entries = self.entries.entry(register).or_default();
        entries.retain(|other| other.write != entry.write || !other.is_uncertain);
        if entries.iter().all(|other| other.write != entry.write) {
            entries.push(entry);
        }
    }

    pub(super) fn is_executed(&self, register: Register, write: WriteId) -> bool {
        let entries = self.entries.get(&register);
        entries.is_some_and(|all| all.iter().any(|other| other.write == write && !other.is_uncertain))
    }

    /// Returns whether a register held `value` at some time since `invoked`. If so, records that
    /// the write of `value` was executed, and that the uncertain writes between this write and
    /// `invoked` were not executed.
    pub(super) fn explains_read(&mut self, register: Register, value: WriteId, invoked: Time) -> bool {
        let entries = self.entries.entry(register).or_default();
        let next = match entries.iter().position(|entry| entry.write == value) {
            Some(place) => place + 1,
            None if value == 0 => 0,
            None => return false,
        };
        if entries[next..].iter().any(|entry| !entry.is_uncertain && entry.time <= invoked) {
            return false;
        }
        if let Some(read) = entries[..next].last_mut() {
            read.is_uncertain = false;
        }
        let mut place = 0;
        entries.retain(|entry| {
            place += 1;
            place <= next || !entry.is_uncertain || entry.time > invoked
        });
        true
    }
}
