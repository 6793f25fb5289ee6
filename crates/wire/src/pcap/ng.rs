//! The pcapng format (draft-ietf-opsawg-pcapng). A file consists of sections, and a section of
//! blocks. Blocks describe interfaces or contain packets.

use super::reader::{FileError, MAX_BLOCK, Record, Step, u32_at};

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const OPTION_TS_RESOLUTION: u16 = 9;
const OPTION_TS_OFFSET: u16 = 14;

/// The maximum number of interfaces in a section. It bounds the memory that a corrupt file can make
/// the reader allocate.
const MAX_INTERFACES: usize = 65_536;

#[derive(Clone, Debug, Default)]
pub(super) struct Section {
    big_endian: bool,
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: u16,
    snaplen: u32,
    ticks_per_second: u64,
    offset_seconds: i64,
}

impl Interface {
    /// Returns nanoseconds since the Unix epoch, clamped to the range of `u64`.
    fn ts_ns(&self, ticks: u64) -> u64 {
        let nanos = i128::from(ticks) * 1_000_000_000 / i128::from(self.ticks_per_second);
        let nanos = nanos + i128::from(self.offset_seconds) * 1_000_000_000;
        u64::try_from(nanos).unwrap_or(if nanos < 0 { 0 } else { u64::MAX })
    }
}

impl Section {
    /// The block type of a section header. Its value is the same in both byte orders.
    pub(super) const HEADER: u32 = 0x0a0d_0d0a;

    /// A section header replaces `self` by a section without interfaces.
    pub(super) fn step<'a>(&mut self, buf: &'a [u8]) -> Result<Step<'a>, FileError> {
        const MIN_BLOCK: usize = 12;
        let Some(kind) = u32_at(buf, 0, self.big_endian) else { return Ok(Step::NeedMore(MIN_BLOCK)) };
        if kind == Self::HEADER {
            let Some(magic) = u32_at(buf, 8, false) else { return Ok(Step::NeedMore(MIN_BLOCK)) };
            let big_endian = match (magic, magic.swap_bytes()) {
                (BYTE_ORDER_MAGIC, _) => false,
                (_, BYTE_ORDER_MAGIC) => true,
                _ => return Err(FileError::Corrupt("section header without byte order")),
            };
            *self = Section { big_endian, interfaces: Vec::new() };
        }
        let Some(len) = u32_at(buf, 4, self.big_endian) else { return Ok(Step::NeedMore(MIN_BLOCK)) };
        if len as usize > MAX_BLOCK {
            return Err(FileError::TooLong(len));
        }
        let end = len as usize;
        if end < MIN_BLOCK || !end.is_multiple_of(4) {
            return Err(FileError::Corrupt("impossible block length"));
        }
        let Some(block) = buf.get(..end) else { return Ok(Step::NeedMore(end)) };
        if u32_at(block, end - 4, self.big_endian) != Some(len) {
            return Err(FileError::Corrupt("the two lengths of a block disagree"));
        }
        let body = &block[8..end - 4];
        let record = match kind {
            INTERFACE => return self.add_interface(body).map(|()| Step::Skip(end)),
            ENHANCED_PACKET => {
                let interface = self.word(body, 0)?;
                self.packet(interface, body)?
            }
            OBSOLETE_PACKET => {
                let interface = u32::from(self.half(body, 0)?);
                self.packet(interface, body)?
            }
            SIMPLE_PACKET => {
                let original_len = self.word(body, 0)?;
                let interface = self.interface(0)?;
                let snaplen = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
                let bytes = bytes_at(body, 4, original_len.min(snaplen))?;
                Record { ts_ns: 0, link: interface.link, original_len, bytes }
            }
            _ => return Ok(Step::Skip(end)),
        };
        Ok(Step::Frame(end, record))
    }

    /// Parses an enhanced or an obsolete packet block of the interface with the number `interface`.
    /// The two kinds of block differ only in the first word of `body`, which the caller has parsed.
    fn packet<'a>(&self, interface: u32, body: &'a [u8]) -> Result<Record<'a>, FileError> {
        let interface = self.interface(interface)?;
        let ticks = u64::from(self.word(body, 4)?) << 32 | u64::from(self.word(body, 8)?);
        let bytes = bytes_at(body, 20, self.word(body, 12)?)?;
        let original_len = self.word(body, 16)?;
        Ok(Record { ts_ns: interface.ts_ns(ticks), link: interface.link, original_len, bytes })
    }

    fn add_interface(&mut self, body: &[u8]) -> Result<(), FileError> {
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err(FileError::Corrupt("more than 65536 interfaces"));
        }
        let mut interface = Interface {
            link: self.half(body, 0)?,
            snaplen: self.word(body, 4)?,
            ticks_per_second: 1_000_000,
            offset_seconds: 0,
        };
        let mut at = 8;
        while body.len() >= at + 4 {
            let (code, len) = (self.half(body, at)?, usize::from(self.half(body, at + 2)?));
            let value = body.get(at + 4..at + 4 + len).ok_or(SHORT)?;
            match (code, value) {
                (0, _) => break,
                (OPTION_TS_RESOLUTION, [resolution]) => {
                    let exponent = u32::from(resolution & 0x7f);
                    let base: u64 = if resolution & 0x80 == 0 { 10 } else { 2 };
                    interface.ticks_per_second =
                        base.checked_pow(exponent).ok_or(FileError::Corrupt("timestamp resolution"))?;
                }
                (OPTION_TS_OFFSET, value) => {
                    let value = *value.first_chunk().ok_or(SHORT)?;
                    interface.offset_seconds =
                        if self.big_endian { i64::from_be_bytes(value) } else { i64::from_le_bytes(value) };
                }
                _ => {}
            }
            at += 4 + len.next_multiple_of(4);
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn interface(&self, number: u32) -> Result<Interface, FileError> {
        self.interfaces
            .get(number as usize)
            .copied()
            .ok_or(FileError::Corrupt("a packet of an interface that was not described"))
    }

    fn word(&self, body: &[u8], at: usize) -> Result<u32, FileError> {
        u32_at(body, at, self.big_endian).ok_or(SHORT)
    }

    fn half(&self, body: &[u8], at: usize) -> Result<u16, FileError> {
        let b = *body.get(at..).and_then(<[u8]>::first_chunk).ok_or(SHORT)?;
        Ok(if self.big_endian { u16::from_be_bytes(b) } else { u16::from_le_bytes(b) })
    }
}

const SHORT: FileError = FileError::Corrupt("a block is shorter than its content");

fn bytes_at(body: &[u8], at: usize, len: u32) -> Result<&[u8], FileError> {
    body.get(at..).and_then(|rest| rest.get(..len as usize)).ok_or(SHORT)
}
