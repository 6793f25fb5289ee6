//! The frames of a handshake: the length of the body (4 bytes, little endian), then the body.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest accepted frame body, in bytes.
const MAX_FRAME_BYTES: u32 = 1 << 20;

/// Writes a value as one frame.
///
/// # Errors
/// Any error of the stream.
pub fn write_frame(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    to.write_all(&frame)
}

/// Reads a frame, of at most 1 MiB.
///
/// # Errors
/// Any error of the stream; [`io::ErrorKind::UnexpectedEof`] if the peer ends the stream early;
/// [`io::ErrorKind::InvalidData`] if the frame is too long or is not a value of this type.
pub fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MAX_FRAME_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the frame exceeds 1 MiB, the longest that a handshake allows",
        ));
    }
    // `read_to_end` allocates as bytes arrive: a peer that announces a long frame and sends nothing
    // costs no memory.
    let mut body = Vec::new();
    if from.take(len.into()).read_to_end(&mut body)? < len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}
