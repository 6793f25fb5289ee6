//! The explanation of refused calls on standard error.
//!
//! Each kind of refusal is explained once in a process, as a warning; the same kind again is logged
//! at debug level, which only `mitra run --verbose` shows. A kind is a call and a rule; the values
//! in the message do not count, so the number of kinds is bounded by the code, and [`KINDS`] bounds
//! it again. Refusals that belong to the normal course of a program are logged at debug level only
//! ([`Refusal::is_expected`]).

use std::cell::Cell;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mitra_verbs::{Error, ModifyError};

use super::logging;

/// The maximum number of kinds that are explained in a process.
const KINDS: usize = 512;

/// The hashes of the kinds that were explained; 0 is a free entry. A kind is in the first free
/// entry from its hash on. The table needs no lock, which a forked child could inherit locked. The
/// child inherits the entries too, so it repeats nothing.
static EXPLAINED: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

/// The largest inline capacity of a queue pair that this process was granted, in bytes.
static GRANTED_INLINE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The number of refusals in this thread.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The limited attribute of [`Error::Limit`] for the inline capacity of a queue pair.
const INLINE_CAPACITY: &str = "bytes of inline data";

/// A reason for which a call is refused. Its text states the rule and the way out.
pub(crate) trait Refusal: Display {
    /// Returns the parts of the reason that identify the rule, without values.
    fn rule(&self) -> [&str; 3];

    /// Whether programs that work run into this refusal.
    fn is_expected(&self) -> bool {
        false
    }
}

/// A fixed text is the rule itself.
impl Refusal for &str {
    fn rule(&self) -> [&str; 3] {
        [self, "", ""]
    }
}

impl Refusal for Error {
    fn rule(&self) -> [&str; 3] {
        match self {
            Error::DeviceFatal => ["device fatal", "", ""],
            Error::NoSuchObject { kind, .. } => ["no such object", kind, ""],
            Error::Busy { kind, user, .. } => ["busy", kind, user],
            Error::Limit { attribute, .. } => ["limit", attribute, ""],
            Error::QueueFull { queue, .. } => ["full", queue, ""],
            Error::SrqFull { .. } => ["full", "shared receive queue", ""],
            Error::WrongState { needs, .. } => ["state", needs, ""],
            Error::Modify(ModifyError::NoSuchTransition { .. }) => ["transition", "", ""],
            Error::Modify(ModifyError::Missing { missing, .. }) => ["missing", missing, ""],
            Error::Modify(ModifyError::NotAllowed { .. }) => ["not allowed", "", ""],
            Error::Modify(ModifyError::OutOfRange { rule, .. }) => ["range", rule, ""],
            Error::Invalid(rule) => ["invalid", rule, ""],
            Error::Unsupported(feature) => ["unsupported", feature, ""],
            Error::NotPermitted(action) => ["not permitted", action, ""],
            Error::Inaccessible { right, .. } => ["inaccessible", right, ""],
            Error::TooLarge { .. } => ["too large", "", ""],
            Error::System { operation, .. } => ["system", operation, ""],
            _ => ["other", "", ""],
        }
    }

    /// Programs post until a queue is full, destroy objects in any order at their end (qperf), and
    /// double a queue pair's inline capacity until it is refused (libfabric,
    /// `vrb_find_max_inline`). A capacity of more than twice what was granted before is a mistake,
    /// not a trial.
    fn is_expected(&self) -> bool {
        match self {
            Error::QueueFull { .. } | Error::SrqFull { .. } | Error::Busy { .. } => true,
            Error::Limit { attribute, requested, .. } => {
                *attribute == INLINE_CAPACITY
                    && *requested <= 2 * u64::from(GRANTED_INLINE.load(Ordering::Relaxed))
            }
            _ => false,
        }
    }
}

/// Notes that a queue pair with this inline capacity was created, in bytes.
pub(crate) fn note_granted_inline(bytes: u32) {
    GRANTED_INLINE.fetch_max(bytes, Ordering::Relaxed);
}

/// Explains why a call is refused: as a warning if this kind of refusal is new and not expected,
/// otherwise at debug level.
pub(crate) fn explain(call: &str, refusal: &impl Refusal) {
    // Opening the device installs the subscriber too, but a call can be refused before the device
    // is opened.
    logging::install();
    count();
    if !refusal.is_expected() && is_new(kind(call, refusal.rule())) {
        tracing::warn!("{call} is refused: {refusal}");
    } else {
        tracing::debug!("{call} is refused: {refusal}");
    }
}

/// Logs at debug level why a call is refused, for a call by which programs find out whether the
/// device has a feature.
pub(crate) fn explain_if_verbose(call: &str, refusal: &dyn Display) {
    logging::install();
    count();
    tracing::debug!("{call} is refused: {refusal}");
}

fn count() {
    // The thread may be ending, and its variables may be gone.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

/// Returns the number of refusals in this thread so far. A call that calls others finds out by it
/// whether one of them has explained the refusal.
pub(crate) fn count_of_thread() -> u64 {
    COUNT.try_with(Cell::get).unwrap_or_default()
}

/// Returns the hash of a kind (FNV-1a), which is not 0.
fn kind(call: &str, rule: [&str; 3]) -> u64 {
    // A dead NIC refuses all calls for one reason.
    let call = if rule[0] == "device fatal" { "" } else { call };
    let parts = [call, rule[0], rule[1], rule[2]];
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }) | 1
}

/// Enters a kind in the table. Returns whether it was not there, and there was room.
fn is_new(kind: u64) -> bool {
    let first = kind as usize % KINDS;
    for entry in EXPLAINED[first..].iter().chain(&EXPLAINED[..first]) {
        match entry.compare_exchange(0, kind, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(found) if found == kind => return false,
            Err(_) => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use mitra_verbs::Qpn;

    use super::*;

    #[test]
    fn kind_is_new_once_and_ignores_values() {
        let limit = |requested| Error::Limit { attribute: "a test", requested, limit: 1 };
        assert!(is_new(kind("ibv_a", limit(2).rule())));
        assert!(!is_new(kind("ibv_a", limit(3).rule())), "another value is the same kind");
        assert!(is_new(kind("ibv_b", limit(2).rule())), "another call is another kind");
        assert!(is_new(kind("ibv_a", Error::Invalid("a test").rule())));
        assert_eq!(
            kind("ibv_a", Error::DeviceFatal.rule()),
            kind("ibv_b", Error::DeviceFatal.rule()),
            "a dead NIC is explained once"
        );
    }

    #[test]
    fn back_pressure_and_trials_of_inline_capacity_are_expected() {
        let full = Error::QueueFull { queue: "send queue", qpn: Qpn::new(1), depth: 4 };
        assert!(full.is_expected());
        let inline = |requested| Error::Limit { attribute: INLINE_CAPACITY, requested, limit: 256 };
        assert!(!inline(512).is_expected(), "nothing was granted before");
        note_granted_inline(256);
        assert!(inline(512).is_expected());
        assert!(!inline(1024).is_expected());
        assert!(!Error::Limit { attribute: "send queue", requested: 2, limit: 1 }.is_expected());
    }
}
