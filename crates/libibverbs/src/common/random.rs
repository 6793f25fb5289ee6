//! Unpredictable numbers.

use mitra_verbs::Result;

use super::errno::system_error;

/// Returns 64 unpredictable bits.
///
/// # Errors
/// `System` if the system's random source cannot be read.
pub(crate) fn random() -> Result<u64> {
    getrandom::u64().map_err(|e| system_error("reading the system's random source")(&e))
}
