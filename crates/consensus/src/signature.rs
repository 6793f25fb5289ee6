//! Signatures, which limit Byzantine processes in addition to the permissions of the memories'
//! regions.
//!
//! A signature covers the canonical (postcard) encoding of a statement, a protocol instance and a
//! [`Purpose`]. A signature is therefore invalid for any other purpose or instance.

use core::fmt::Debug;
use core::hash::{Hash, Hasher};
use std::collections::BTreeMap;
use std::hash::DefaultHasher;
use std::sync::Arc;

use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::{ProcessId, Value};

/// The purpose of a signature: the protocol, and the meaning of the statement in that protocol.
#[derive(Clone, Copy, Debug)]
pub struct Purpose(pub &'static str);

/// A process's private key, and the public keys of all processes.
pub trait Signer: Clone + Eq + Hash + Debug {
    /// The type of a signature.
    type Signature: Clone + Eq + Ord + Hash + Debug + Serialize;

    /// Signs a statement.
    fn sign(&self, purpose: Purpose, statement: &impl Serialize) -> Self::Signature;

    /// Returns whether `signature` is a valid signature of the statement by process `by`.
    fn verifies(
        &self,
        by: ProcessId,
        purpose: Purpose,
        statement: &impl Serialize,
        signature: &Self::Signature,
    ) -> bool;
}

/// The bytes to sign differ for different instances, purposes and statements, because postcard
/// prefixes strings with their lengths.
fn bytes(instance: u64, purpose: Purpose, statement: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(&("mitra", instance, purpose.0, statement)).expect("every statement can be encoded")
}

/// Ed25519 signatures (RFC 8032), verified strictly, so that no other valid signature can be
/// derived from a valid signature.
#[derive(Clone, Debug)]
pub struct Ed25519 {
    instance: u64,
    key: SigningKey,
    public_keys: Arc<[VerifyingKey]>,
}

/// A signature by [`Ed25519`]: the two halves R and s of RFC 8032.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Ed25519Signature([u8; 32], [u8; 32]);

impl Ed25519 {
    /// Creates a signer with this private key. Process p's public key is `public_keys[p]`.
    ///
    /// `instance` identifies the protocol instance. Instances among processes with the same keys
    /// must have different numbers.
    pub fn new(instance: u64, secret: &[u8; 32], public_keys: Arc<[VerifyingKey]>) -> Ed25519 {
        Ed25519 { instance, key: SigningKey::from_bytes(secret), public_keys }
    }
}

impl PartialEq for Ed25519 {
    fn eq(&self, other: &Ed25519) -> bool {
        (self.instance, &self.key, &self.public_keys) == (other.instance, &other.key, &other.public_keys)
    }
}

impl Eq for Ed25519 {}

impl Hash for Ed25519 {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.instance, self.key.verifying_key(), &self.public_keys).hash(state);
    }
}

impl Signer for Ed25519 {
    type Signature = Ed25519Signature;

    fn sign(&self, purpose: Purpose, statement: &impl Serialize) -> Ed25519Signature {
        let signature = self.key.sign(&bytes(self.instance, purpose, statement));
        Ed25519Signature(*signature.r_bytes(), *signature.s_bytes())
    }

    fn verifies(
        &self,
        by: ProcessId,
        purpose: Purpose,
        statement: &impl Serialize,
        Ed25519Signature(r, s): &Ed25519Signature,
    ) -> bool {
        let signature = ed25519_dalek::Signature::from_components(*r, *s);
        let key = self.public_keys.get(usize::from(by.0));
        key.is_some_and(|key| {
            key.verify_strict(&bytes(self.instance, purpose, statement), &signature).is_ok()
        })
    }
}

/// Symbolic signatures for model checking. A signature consists of the signer's id and a
/// fingerprint of the statement. A modelled process uses only its own signer, and therefore cannot
/// forge a signature.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Symbolic {
    instance: u64,
    me: ProcessId,
}

/// A signature by [`Symbolic`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct SymbolicSignature {
    by: ProcessId,
    of: u64,
}

impl Symbolic {
    /// Returns the signers of `n` processes.
    pub fn all(instance: u64, n: u8) -> Vec<Symbolic> {
        (0..n).map(|p| Symbolic { instance, me: ProcessId(p) }).collect()
    }

    fn fingerprint(&self, purpose: Purpose, statement: &impl Serialize) -> u64 {
        let mut hasher = DefaultHasher::new();
        bytes(self.instance, purpose, statement).hash(&mut hasher);
        hasher.finish()
    }
}

impl Signer for Symbolic {
    type Signature = SymbolicSignature;

    fn sign(&self, purpose: Purpose, statement: &impl Serialize) -> SymbolicSignature {
        SymbolicSignature { by: self.me, of: self.fingerprint(purpose, statement) }
    }

    fn verifies(
        &self,
        by: ProcessId,
        purpose: Purpose,
        statement: &impl Serialize,
        signature: &SymbolicSignature,
    ) -> bool {
        signature.by == by && signature.of == self.fingerprint(purpose, statement)
    }
}

/// A value with claimed signatures, which must be verified before use.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Signed<V, S> {
    /// The value.
    pub value: V,
    /// The claimed signatures, by process.
    pub by: BTreeMap<ProcessId, S>,
}

impl<V: Value + Serialize, S> Signed<V, S> {
    /// Signs a value as process `me`, and returns the value with this signature. The signed
    /// statement is the pair of `about` and the value.
    pub fn by<K: Signer<Signature = S>>(
        me: ProcessId,
        keys: &K,
        purpose: Purpose,
        about: impl Serialize,
        value: V,
    ) -> Signed<V, S> {
        let signature = keys.sign(purpose, &(about, &value));
        Signed { value, by: BTreeMap::from([(me, signature)]) }
    }

    /// Removes the signatures that are not valid for the statement (`about`, value).
    #[must_use]
    pub fn verified<K: Signer<Signature = S>>(
        mut self,
        keys: &K,
        purpose: Purpose,
        about: impl Serialize,
    ) -> Signed<V, S> {
        let statement = (about, &self.value);
        self.by.retain(|&p, signature| keys.verifies(p, purpose, &statement, signature));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Purpose = Purpose("one");
    const OTHER: Purpose = Purpose("other");
    const P0: ProcessId = ProcessId(0);
    const P1: ProcessId = ProcessId(1);

    fn ed25519_signers(instance: u64) -> [Ed25519; 2] {
        let secrets = [[7; 32], [8; 32]];
        let public_keys: Arc<[_]> =
            secrets.iter().map(|s| SigningKey::from_bytes(s).verifying_key()).collect();
        secrets.map(|secret| Ed25519::new(instance, &secret, Arc::clone(&public_keys)))
    }

    fn symbolic_signers(instance: u64) -> [Symbolic; 2] {
        Symbolic::all(instance, 2).try_into().expect("two")
    }

    /// Each argument has the signers of processes 0 and 1. The arguments belong to different
    /// instances.
    fn assert_signature_binds<K: Signer>([own, peer]: [K; 2], [other, _]: [K; 2]) {
        let signature = own.sign(ONE, &"yes");
        assert!(peer.verifies(P0, ONE, &"yes", &signature));
        assert!(!peer.verifies(P1, ONE, &"yes", &signature), "another signer");
        assert!(!peer.verifies(ProcessId(200), ONE, &"yes", &signature), "unknown signer");
        assert!(!peer.verifies(P0, ONE, &"no", &signature), "another statement");
        assert!(!peer.verifies(P0, OTHER, &"yes", &signature), "another purpose");
        assert!(!other.verifies(P0, ONE, &"yes", &signature), "another instance");
        assert_ne!(signature, peer.sign(ONE, &"yes"));
    }

    #[test]
    fn signature_binds_signer_statement_purpose_and_instance() {
        assert_signature_binds(ed25519_signers(1), ed25519_signers(2));
        assert_signature_binds(symbolic_signers(1), symbolic_signers(2));
    }

    #[test]
    fn verified_removes_forged_signatures() {
        let [own, peer] = ed25519_signers(1);
        let mut signed = Signed::by(P0, &own, ONE, 3, 10);
        let replayed = signed.by[&P0].clone();
        signed.by.insert(P1, replayed.clone());
        signed.by.insert(ProcessId(255), replayed);
        let signers = |about| signed.clone().verified(&peer, ONE, about).by.into_keys().collect::<Vec<_>>();
        assert_eq!(signers(3), [P0]);
        assert_eq!(signers(4), []);
    }

    #[test]
    fn arbitrary_signature_bytes_do_not_panic() {
        let [own, peer] = ed25519_signers(1);
        let Ed25519Signature(r, s) = own.sign(ONE, &"yes");
        for (r, s) in [([0; 32], [0; 32]), ([255; 32], [255; 32]), (r, [255; 32]), ([1; 32], s), (s, r)] {
            assert!(!peer.verifies(P0, ONE, &"yes", &Ed25519Signature(r, s)));
        }
    }
}
