//! The explanation of refused calls on standard error.
//!
//! A kind of refusal consists of a call and a rule, without the values in the message. The first
//! refusal of a kind in a process is a warning. A repetition is logged at debug level, and so is a
//! refusal in the normal course of a program ([`Refusal::is_expected`]).

use std::cell::Cell;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mitra_verbs::{Error, ModifyError};

use super::logging;

const KINDS: usize = 512;

/// An open-addressing table of the hashes of explained kinds, where 0 is a free entry. The table
/// needs no lock, which a forked child could inherit locked. A child inherits the entries and
/// repeats no explanation.
static EXPLAINED: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

static GRANTED_INLINE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The attribute of [`Error::Limit`] for the inline capacity of a queue pair.
const INLINE_CAPACITY: &str = "bytes of inline data";

/// The reason of a refusal. The text states the rule and the way out.
pub(crate) trait Refusal: Display {
    fn rule(&self) -> [&str; 3];

    /// Whether correct programs meet this refusal.
    fn is_expected(&self) -> bool {
        false
    }
}

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
            Error::Mismatch { .. } => ["mismatch", "", ""],
            Error::NotPermitted(action) => ["not permitted", action, ""],
            Error::Inaccessible { right, .. } => ["inaccessible", right, ""],
            Error::TooLarge { .. } => ["too large", "", ""],
            Error::System { operation, .. } => ["system", operation, ""],
            _ => ["other", "", ""],
        }
    }

    /// Programs post until a queue is full, and destroy objects in any order at their end (qperf).
    /// libfabric's `vrb_find_max_inline` doubles a queue pair's inline capacity until a refusal. A
    /// request for more than twice the granted capacity is a mistake.
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

/// Notes the inline capacity of a new queue pair, in bytes.
pub(crate) fn note_granted_inline(bytes: u32) {
    GRANTED_INLINE.fetch_max(bytes, Ordering::Relaxed);
}

/// Explains a refusal: by a warning if the kind is new and not expected, otherwise at debug level.
pub(crate) fn explain(call: &str, refusal: &impl Refusal) {
    // A call can be refused before the device is opened. The opening of the device also installs
    // the subscriber.
    logging::install();
    count();
    if !refusal.is_expected() && is_new(kind(call, refusal.rule())) {
        tracing::warn!("{call} is refused: {refusal}");
    } else {
        tracing::debug!("{call} is refused: {refusal}");
    }
}

/// Explains a refusal at debug level, for a call by which programs test for a feature.
pub(crate) fn explain_if_verbose(call: &str, refusal: &dyn Display) {
    logging::install();
    count();
    tracing::debug!("{call} is refused: {refusal}");
}

fn count() {
    // In a thread that ends, the variable may already be destroyed.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

/// Returns how many refusals this thread has explained so far. A call of librdmacm compares the
/// numbers before and after: if they differ, a verb inside the call has explained the refusal.
pub(crate) fn count_of_thread() -> u64 {
    COUNT.try_with(Cell::get).unwrap_or_default()
}

/// Returns the hash of a kind (FNV-1a), never 0.
fn kind(call: &str, rule: [&str; 3]) -> u64 {
    // A dead NIC refuses all calls for the same reason, which is explained once. Different settings
    // are explained at the peer's call or at this end's, whichever is first.
    let call = if matches!(rule[0], "device fatal" | "mismatch") { "" } else { call };
    let parts = [call, rule[0], rule[1], rule[2]];
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }) | 1
}

/// Enters a kind in the table. Returns false for a known kind and for a full table.
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
