//! The check of a program's number against a limit of the device.

use mitra_verbs::{Error, Result};

/// # Errors
/// `Limit` if `requested` exceeds `limit`.
pub(crate) fn check_limit(attribute: &'static str, requested: u32, limit: u32) -> Result<()> {
    if requested > limit {
        return Err(Error::Limit { attribute, requested: requested.into(), limit: limit.into() });
    }
    Ok(())
}
