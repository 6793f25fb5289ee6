//! The two signers with which Fast & Robust is measured: one that signs nothing, and Ed25519.

use std::sync::Arc;

use ed25519_dalek::SigningKey;
use mitra_consensus::ProcessId;
use mitra_consensus::signature::{Ed25519, Purpose, Signer};
use serde::Serialize;

use super::{LEADER, PROCESSES};

/// A signer that signs nothing, so that the benchmark measures the protocol without signatures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Unsigned;

impl Signer for Unsigned {
    type Signature = ();

    fn sign(&self, _: Purpose, _: &impl Serialize) {}

    fn verifies(&self, _: ProcessId, _: Purpose, _: &impl Serialize, (): &()) -> bool {
        true
    }
}

/// Returns the leader's signer. The secret keys are constants, because no other process takes part.
pub(super) fn ed25519() -> Ed25519 {
    let secret = |p| [p + 1; 32];
    let public_keys: Arc<[_]> =
        (0..PROCESSES).map(|p| SigningKey::from_bytes(&secret(p)).verifying_key()).collect();
    Ed25519::new(0, &secret(LEADER.0), public_keys)
}
