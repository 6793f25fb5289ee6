use mitra_os_util::random::random_u64;
use mitra_verbs::{Error, Result};

/// # Errors
/// `System` if the system's random source cannot be read.
pub(crate) fn random() -> Result<u64> {
    random_u64().map_err(|e| Error::system("reading the system's random source", &e))
}
