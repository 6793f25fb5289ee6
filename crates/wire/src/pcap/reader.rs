//! An incremental reader of classic pcap and pcapng files.

use thiserror::Error;

use super::ng::Section;
use super::{FILE_HEADER_LEN, MAGIC_MICROS, MAGIC_NANOS, RECORD_HEADER_LEN};

/// The maximum accepted length of a frame in a pcap file and of a block in a pcapng file, in bytes.
/// The maximum bounds the bytes that a corrupt length field can make a caller of [`Reader::step`]
/// buffer.
pub(super) const MAX_BLOCK: usize = 16 << 20;

/// Why a capture file cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum FileError {
    /// The file does not begin with the header of a capture file.
    #[error("not a pcap or pcapng file")]
    NotACapture,
    /// The file ends within a record or block.
    #[error("the file ends in the middle of a record")]
    Truncated,
    /// The header of a record or block states more than 16 MiB. The value is the stated length in
    /// bytes.
    #[error("a record claims {0} bytes, more than any frame has")]
    TooLong(u32),
    /// A pcapng block violates the format. The value describes how.
    #[error("corrupt capture file: {0}")]
    Corrupt(&'static str),
}

/// One captured frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The timestamp in nanoseconds since the Unix epoch, or 0 if the file has no timestamp for the
    /// frame.
    pub ts_ns: u64,
    /// The number of the link type, which
    /// [`LinkType::from_number`](crate::frame::LinkType::from_number) translates.
    pub link: u16,
    /// The length of the transmitted frame in bytes. It exceeds the length of `bytes` if the frame
    /// was not captured completely.
    pub original_len: u32,
    /// The captured bytes of the frame.
    pub bytes: &'a [u8],
}

/// The result of [`Reader::step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// The reader consumed nothing. The caller must pass at least this many bytes, beginning with
    /// the same byte. A file with fewer bytes left is truncated, and a file with no bytes left is
    /// complete.
    NeedMore(usize),
    /// The reader consumed this many bytes, which contain no frame.
    Skip(usize),
    /// The reader consumed this many bytes, which contain this frame.
    Frame(usize, Record<'a>),
}

/// A reader of capture files: pcapng, and classic pcap in both byte orders, with timestamps in
/// microseconds or nanoseconds.
///
/// The caller passes the bytes of the file that the reader has not consumed to
/// [`step`](Reader::step), repeatedly. [`records`] does this for a file in memory.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    format: Format,
}

#[derive(Clone, Debug, Default)]
enum Format {
    #[default]
    Unknown,
    Classic {
        big_endian: bool,
        nanos_per_tick: u64,
        link: u16,
    },
    Ng(Section),
}

pub(super) fn u32_at(bytes: &[u8], at: usize, big_endian: bool) -> Option<u32> {
    let b = *bytes.get(at..)?.first_chunk()?;
    Some(if big_endian { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) })
}

impl Reader {
    /// Creates a reader that expects the start of a file.
    pub fn new() -> Self {
        Reader::default()
    }

    /// Whether the reader has consumed the header of a capture file.
    pub fn is_recognised(&self) -> bool {
        !matches!(self.format, Format::Unknown)
    }

    /// Reads the next header, record or block. `buf` begins with the first byte that the reader has
    /// not consumed.
    ///
    /// # Errors
    /// The variants of [`FileError`] except [`FileError::Truncated`]: only the caller knows where
    /// the file ends. After an error, the reader must not be used again.
    pub fn step<'a>(&mut self, buf: &'a [u8]) -> Result<Step<'a>, FileError> {
        match &mut self.format {
            Format::Unknown => self.recognise(buf),
            Format::Classic { big_endian, nanos_per_tick, link } => {
                let field = |at| u32_at(buf, at, *big_endian);
                let (Some(seconds), Some(ticks), Some(len), Some(original_len)) =
                    (field(0), field(4), field(8), field(12))
                else {
                    return Ok(Step::NeedMore(RECORD_HEADER_LEN));
                };
                if len as usize > MAX_BLOCK {
                    return Err(FileError::TooLong(len));
                }
                let end = RECORD_HEADER_LEN + len as usize;
                let Some(bytes) = buf.get(RECORD_HEADER_LEN..end) else { return Ok(Step::NeedMore(end)) };
                let ts_ns = u64::from(seconds) * 1_000_000_000 + u64::from(ticks) * *nanos_per_tick;
                Ok(Step::Frame(end, Record { ts_ns, link: *link, original_len, bytes }))
            }
            Format::Ng(section) => section.step(buf),
        }
    }

    fn recognise<'a>(&mut self, buf: &'a [u8]) -> Result<Step<'a>, FileError> {
        let Some(magic) = u32_at(buf, 0, false) else { return Ok(Step::NeedMore(FILE_HEADER_LEN)) };
        if magic == Section::HEADER {
            let mut section = Section::default();
            let step = section.step(buf)?;
            if !matches!(step, Step::NeedMore(_)) {
                self.format = Format::Ng(section);
            }
            return Ok(step);
        }
        let (big_endian, nanos_per_tick) = match (magic, magic.swap_bytes()) {
            (MAGIC_MICROS, _) => (false, 1000),
            (MAGIC_NANOS, _) => (false, 1),
            (_, MAGIC_MICROS) => (true, 1000),
            (_, MAGIC_NANOS) => (true, 1),
            _ => return Err(FileError::NotACapture),
        };
        // The upper half of the link type field says whether frames end in a frame check sequence.
        // The reader ignores it, because the length in the IP header determines where the datagram
        // ends.
        let Some(link) = u32_at(buf, 20, big_endian) else { return Ok(Step::NeedMore(FILE_HEADER_LEN)) };
        self.format = Format::Classic { big_endian, nanos_per_tick, link: link as u16 };
        Ok(Step::Skip(FILE_HEADER_LEN))
    }
}

/// Returns an iterator over the frames of a capture file in memory. The iterator ends after the
/// first error.
pub fn records(file: &[u8]) -> Records<'_> {
    Records { reader: Reader::new(), rest: file, done: false }
}

/// The iterator that [`records`] returns.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    reader: Reader,
    rest: &'a [u8],
    done: bool,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            match self.reader.step(self.rest) {
                Ok(Step::Skip(n)) => self.rest = self.rest.get(n..)?,
                Ok(Step::Frame(n, record)) => {
                    self.rest = self.rest.get(n..)?;
                    return Some(Ok(record));
                }
                Ok(Step::NeedMore(_)) => {
                    self.done = true;
                    if !self.reader.is_recognised() {
                        return Some(Err(FileError::NotACapture));
                    }
                    return (!self.rest.is_empty()).then_some(Err(FileError::Truncated));
                }
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
