//! Numbers that nobody can guess.

use std::fs::File;
use std::io::{self, Read};

/// What a connection's secrets come from.
pub(crate) fn secret() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let (a, b) = bytes.split_at(8);
    Ok([a, b].map(|half| u64::from_ne_bytes(half.try_into().expect("half of sixteen bytes"))))
}
