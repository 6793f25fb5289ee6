//! A ring of datagrams in memory that two processes map. One process sends, the other receives.
//!
//! A record is a header word and the datagram, and begins at a multiple of [`ALIGNMENT`]. A header
//! word of 0 means that no record begins there yet. Before a record becomes visible, the sender
//! zeroes the header word behind it, so the receiver never reads an old word. The records of a
//! batch become visible together, when the sender writes the header word of the first.
//!
//! The sender decides how much of the memory the records use: it may skip to the start of the ring
//! at any record, so the memory behind its limit needs no pages.
//!
//! Neither end trusts the other. The receiver copies a datagram before anyone reads it, and checks
//! every header. The sender checks the receiver's position. An end that finds an impossible value
//! closes the link ([`Broken`]).

use mitra_wire::ring;

/// Offset of the position up to which the receiver has read, in bytes since the ring was made.
const HEAD: usize = 0;
/// Offset of a word that is not 0 while the receiver sleeps, or is about to.
const SLEEPS: usize = 64;
/// Offset of a word that is not 0 once the receiver has accepted the ring.
const ACCEPTED: usize = 72;
/// Offset of a word that is not 0 while the sender waits for room.
const WAITS: usize = 80;
/// Offset of the records. What the receiver writes often has a cache line of its own.
const RECORDS: usize = 128;
/// Records begin at its multiples.
const ALIGNMENT: u64 = ring::ALIGNMENT as u64;
const WORD: usize = ring::HEADER_LEN;

/// The header word: the length of the datagram in bytes, the traffic class, and flags.
const LENGTH: u64 = 0xffff;
const CLASS_SHIFT: u32 = 16;
/// The header belongs to a record or to a skip. This flag makes every header other than 0.
const PRESENT: u64 = 1 << 63;
/// No record begins here. The next record begins at the start of the ring.
const SKIP: u64 = 1 << 62;
/// The ICRC of the datagram is set. Otherwise, its four bytes are undefined.
const SEALED: u64 = 1 << 61;
const UNUSED: u64 = !(LENGTH | 0xff << CLASS_SHIFT | PRESENT | SKIP | SEALED);

/// Memory that the other end of a ring may change at any time. All offsets are in bytes, and those
/// of words are multiples of 8.
///
/// Every offset must lie inside the memory.
pub(crate) trait RingMemory {
    /// Returns the length of the memory, in bytes.
    fn len(&self) -> usize;

    /// Loads a word. What the other end wrote before it stored this word is visible afterwards.
    fn load(&self, offset: usize) -> u64;

    /// Stores a word. What this end wrote before is visible to an end that loads the word.
    fn store(&self, offset: usize, value: u64);

    /// Copies bytes out of the memory.
    fn read(&self, offset: usize, out: &mut [u8]);

    /// Copies bytes into the memory.
    fn write(&self, offset: usize, bytes: &[u8]);

    /// Orders all accesses before the fence before all accesses behind it, in both ends' view, if
    /// the other end has a fence, too.
    fn fence(&self);
}

/// The bytes of memory for a ring with room for `records` bytes of records, a power of two.
pub(crate) const fn ring_size(records: usize) -> usize {
    RECORDS + records
}

/// Returns the largest limit of a sender whose records, and the header word behind them, lie in the
/// first `len` bytes of the memory.
pub(crate) const fn limit_within(len: usize) -> usize {
    len - RECORDS - ALIGNMENT as usize
}

/// The other end wrote a value that no correct end writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// What a record says about its datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// The length of the datagram, in bytes.
    pub(crate) len: usize,
    pub(crate) traffic_class: u8,
    /// Whether the ICRC of the datagram is set.
    pub(crate) is_sealed: bool,
}

impl Record {
    fn word(self) -> u64 {
        let sealed = if self.is_sealed { SEALED } else { 0 };
        self.len as u64 | u64::from(self.traffic_class) << CLASS_SHIFT | sealed | PRESENT
    }
}

/// A sender continues at the start of the ring this often before it outgrows a limit below
/// [`Sender::set_busy_limit`]. To add pages takes longer than to send what fits there, so a burst
/// on a ring that was idle must not pay for a stream.
pub(crate) const WRAPS_UNTIL_BUSY: u32 = 4;

/// Positions count bytes of records since the ring was made, and wrap around with `u64`.
struct Geometry {
    /// The bytes of records, a power of two.
    size: u64,
}

impl Geometry {
    fn new(memory: &impl RingMemory) -> Geometry {
        let size = (memory.len() - RECORDS) as u64;
        debug_assert!(size.is_power_of_two() && size >= 2 * ALIGNMENT);
        Geometry { size }
    }

    /// Returns the offset in memory of a position.
    fn offset(&self, position: u64) -> usize {
        RECORDS + (position & (self.size - 1)) as usize
    }

    /// Returns the bytes from a position to the end of the ring.
    fn until_end(&self, position: u64) -> u64 {
        self.size - (position & (self.size - 1))
    }
}

/// Returns the bytes that a record with a datagram of `len` bytes takes.
fn record_size(len: usize) -> u64 {
    ring::record_len(len) as u64
}

/// The sending end.
pub(crate) struct Sender<M> {
    memory: M,
    geometry: Geometry,
    /// The position of the next record.
    tail: u64,
    /// The receiver's position when the sender last read it.
    head: u64,
    /// The bytes of records, from the start of the ring, that the sender uses.
    limit: u64,
    /// After [`WRAPS_UNTIL_BUSY`], the sender outgrows smaller limits even if the receiver has read
    /// all.
    busy_limit: u64,
    /// How often the sender has continued at the start of the ring since the limit was lowered, or
    /// since [`Sender::forget_wraps`].
    wraps: u32,
    /// Whether the limit stays even if the ring becomes full.
    is_fixed: bool,
    /// The offset and the header word of the first record that is not visible yet.
    first: Option<(usize, u64)>,
}

impl<M: RingMemory> Sender<M> {
    /// Makes the sending end of a ring, whose memory is zero. The sender uses all of it.
    pub(crate) fn new(memory: M) -> Sender<M> {
        let geometry = Geometry::new(&memory);
        let (limit, busy_limit) = (geometry.size, 0);
        Sender {
            limit,
            busy_limit,
            wraps: 0,
            is_fixed: true,
            geometry,
            memory,
            tail: 0,
            head: 0,
            first: None,
        }
    }

    /// Lets the sender outgrow limits below this one whenever it would have to continue at the
    /// start of the ring, once it has done so [`WRAPS_UNTIL_BUSY`] times. An end that soon writes
    /// what the other end has just read waits for the cache of its processor.
    pub(crate) fn set_busy_limit(&mut self, limit: usize) {
        self.busy_limit = limit as u64;
    }

    /// Begins to count again how often the sender continues at the start of the ring. The caller
    /// has a clock, and knows that the ring is idle.
    pub(crate) fn forget_wraps(&mut self) {
        self.wraps = 0;
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the bytes of records that the sender uses, from the start of the ring.
    pub(crate) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Lets records use the first `limit` bytes, a multiple of [`ALIGNMENT`], or the whole ring.
    pub(crate) fn grow(&mut self, limit: usize) {
        debug_assert!(limit as u64 >= self.limit && (limit as u64).is_multiple_of(ALIGNMENT));
        self.limit = (limit as u64).min(self.geometry.size);
    }

    /// Returns whether the limit stays as it is even if the ring becomes full.
    pub(crate) fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Keeps the limit as it is, because the sender cannot grow.
    pub(crate) fn fix_limit(&mut self) {
        self.is_fixed = true;
    }

    /// Lets later records use the first `limit` bytes only, if the receiver has read all, and asks
    /// for more when they are too few ([`Self::outgrows`]). Returns the offset of the header word
    /// that the receiver reads next. Of the memory behind the limit, both ends access only this
    /// word, the next one, and the header word behind the limit.
    ///
    /// # Errors
    /// [`Broken`] if the receiver's position is impossible.
    pub(crate) fn shrink(&mut self, limit: usize) -> Result<Option<usize>, Broken> {
        self.read_head()?;
        if self.first.is_some() || self.head != self.tail {
            return Ok(None);
        }
        (self.limit, self.is_fixed, self.wraps) = (limit as u64, false, 0);
        Ok(Some(self.geometry.offset(self.tail)))
    }

    /// Returns whether the sender needs a greater limit for a datagram of `len` bytes. It would
    /// have to continue at the start of the ring, and the receiver has more than half of the bytes
    /// in front of the limit to read, or the limit is below [`Self::set_busy_limit`] and the ring
    /// is busy. Behind the start, a greater limit would be of no use.
    pub(crate) fn outgrows(&self, len: usize) -> bool {
        let size = record_size(len);
        let is_behind = self.tail.wrapping_sub(self.head) > self.limit / 2;
        let is_busy = self.wraps >= WRAPS_UNTIL_BUSY;
        let is_small = size > self.limit || is_busy && self.limit < self.busy_limit;
        !self.is_fixed && self.is_beyond_limit(size) && (is_behind || is_small)
    }

    /// Returns whether the next record does not fit in front of the limit.
    fn is_beyond_limit(&self, size: u64) -> bool {
        self.geometry.size - self.geometry.until_end(self.tail) + size > self.limit
    }

    /// Reads the receiver's position.
    fn read_head(&mut self) -> Result<(), Broken> {
        let head = self.memory.load(HEAD);
        let (used, passed) = (self.tail.wrapping_sub(head), head.wrapping_sub(self.head));
        if used > self.geometry.size || passed > self.geometry.size || !head.is_multiple_of(ALIGNMENT) {
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    /// Adds a record to the batch. Returns false if the ring has no room for it, or outgrows its
    /// limit.
    ///
    /// # Errors
    /// [`Broken`] if the receiver's position is impossible.
    pub(crate) fn push(&mut self, record: Record, datagram: &[u8]) -> Result<bool, Broken> {
        debug_assert!(record.len == datagram.len() && record.len as u64 <= LENGTH);
        let size = record_size(datagram.len());
        if size > self.limit {
            return Ok(false);
        }
        let mut skipped = 0;
        if self.is_beyond_limit(size) {
            if !self.is_fixed {
                self.read_head()?;
                if self.outgrows(datagram.len()) {
                    return Ok(false);
                }
            }
            skipped = self.geometry.until_end(self.tail);
        }
        // The header word behind the record is zeroed, so it must not hold a record either.
        let needed = skipped + size + ALIGNMENT;
        if self.tail.wrapping_sub(self.head) + needed > self.geometry.size {
            self.read_head()?;
            if self.tail.wrapping_sub(self.head) + needed > self.geometry.size {
                return Ok(false);
            }
        }
        if skipped > 0 {
            self.memory.store(self.geometry.offset(self.tail.wrapping_add(skipped)), 0);
            self.add(self.tail, PRESENT | SKIP);
            self.tail = self.tail.wrapping_add(skipped);
            self.wraps = self.wraps.saturating_add(1);
        }
        let offset = self.geometry.offset(self.tail);
        self.memory.write(offset + WORD, datagram);
        let end = self.tail.wrapping_add(size);
        self.memory.store(self.geometry.offset(end), 0);
        self.add(self.tail, record.word());
        self.tail = end;
        Ok(true)
    }

    /// Writes a header word, or keeps it until the batch becomes visible if it is the first.
    fn add(&mut self, position: u64, word: u64) {
        let offset = self.geometry.offset(position);
        match self.first {
            None => self.first = Some((offset, word)),
            Some(_) => self.memory.store(offset, word),
        }
    }

    /// Returns whether the receiver has accepted the ring.
    pub(crate) fn is_accepted(&self) -> bool {
        self.memory.load(ACCEPTED) != 0
    }

    /// Asks the receiver to wake this end when it has read a record. This end tries again to push
    /// afterwards, because the receiver may have read one before.
    pub(crate) fn begin_wait(&self) {
        if self.memory.load(WAITS) == 0 {
            self.memory.store(WAITS, 1);
        }
        self.memory.fence();
    }

    /// Makes the batch visible. Returns whether the receiver sleeps, and must be woken.
    pub(crate) fn publish(&mut self) -> bool {
        let Some((offset, word)) = self.first.take() else { return false };
        self.memory.store(offset, word);
        // Either this end sees that the receiver sleeps, or the receiver sees the record before it
        // sleeps.
        self.memory.fence();
        self.memory.load(SLEEPS) != 0 && {
            self.memory.store(SLEEPS, 0);
            true
        }
    }
}

/// The receiving end.
pub(crate) struct Receiver<M> {
    memory: M,
    geometry: Geometry,
    /// The position of the next record.
    head: u64,
    /// The longest datagram, in bytes.
    max_len: usize,
}

impl<M: RingMemory> Receiver<M> {
    /// Makes the receiving end of a ring in which no record was read yet. Longer datagrams than
    /// `max_len` bytes are refused.
    pub(crate) fn new(memory: M, max_len: usize) -> Receiver<M> {
        Receiver { geometry: Geometry::new(&memory), memory, head: 0, max_len }
    }

    /// Tells the sender that this end reads the ring.
    pub(crate) fn accept(&self) {
        self.memory.store(ACCEPTED, 1);
    }

    /// Returns whether no record waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.load(self.geometry.offset(self.head)) == 0
    }

    /// Removes the next record, and copies its datagram to the start of `out`. Returns `None` if no
    /// record waits.
    ///
    /// # Errors
    /// [`Broken`] if the header is impossible.
    pub(crate) fn pop(&mut self, out: &mut [u8]) -> Result<Option<Record>, Broken> {
        let mut word = self.memory.load(self.geometry.offset(self.head));
        if word & SKIP != 0 {
            // A skip at the start of the ring would lead to itself.
            if word != PRESENT | SKIP || self.head & (self.geometry.size - 1) == 0 {
                return Err(Broken);
            }
            self.head = self.head.wrapping_add(self.geometry.until_end(self.head));
            self.memory.store(HEAD, self.head);
            word = self.memory.load(self.geometry.offset(self.head));
        }
        if word == 0 {
            return Ok(None);
        }
        let len = (word & LENGTH) as usize;
        let size = record_size(len);
        let is_valid = word & PRESENT != 0
            && word & (UNUSED | SKIP) == 0
            && len <= self.max_len
            && size <= self.geometry.until_end(self.head);
        let Some(out) = out.get_mut(..len).filter(|_| is_valid) else { return Err(Broken) };
        self.memory.read(self.geometry.offset(self.head) + WORD, out);
        self.head = self.head.wrapping_add(size);
        self.memory.store(HEAD, self.head);
        Ok(Some(Record { len, traffic_class: (word >> CLASS_SHIFT) as u8, is_sealed: word & SEALED != 0 }))
    }

    /// Returns whether the sender waits for room, and must be woken. A receiver that has read
    /// records may miss a request of this moment, and sees it at the next call, or when it has
    /// announced that it sleeps.
    pub(crate) fn take_wait(&self) -> bool {
        self.memory.load(WAITS) != 0 && {
            self.memory.store(WAITS, 0);
            true
        }
    }

    /// Announces that this end sleeps. Returns false if a record waits: this end must not sleep
    /// then. The sender wakes a receiver that sleeps, once.
    pub(crate) fn begin_sleep(&self) -> bool {
        self.memory.store(SLEEPS, 1);
        self.memory.fence();
        self.is_empty()
    }

    /// Announces that this end is awake.
    pub(crate) fn end_sleep(&self) {
        self.memory.store(SLEEPS, 0);
    }
}
