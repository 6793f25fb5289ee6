use core::fmt;

use mitra_verbs::{Provider, Result};

/// The secret of one end of a vQP. It is the source of the cookie that authenticates control
/// messages, of the Q_Keys and of the first PSNs.
///
/// By default, [`VirtualQpBuilder::build`](crate::VirtualQpBuilder::build) draws the secret from
/// the NIC, which uses the operating system's random source. The `Debug` text does not contain it.
#[derive(Clone, Debug)]
pub struct Secret {
    /// The cookie that control messages to this end must contain.
    pub(crate) cookie: SecretWord,
    pub(crate) seed: SecretWord,
}

impl Secret {
    /// Draws a secret from the NIC's random source.
    ///
    /// # Errors
    /// The error of [`Provider::random_u64`].
    pub fn random(nic: &dyn Provider) -> Result<Secret> {
        Ok(Secret::fixed([nic.random_u64()?, nic.random_u64()?]))
    }

    /// Returns a secret of the caller's choice, for reproducible runs such as a simulation. An
    /// attacker who can guess the secret can send control messages to the vQP. The secrets of the
    /// two ends must differ in the first word.
    pub fn fixed([cookie, seed]: [u64; 2]) -> Secret {
        Secret { cookie: SecretWord(cookie), seed: SecretWord(seed) }
    }
}

/// 64 secret bits. The `Debug` text does not contain them. A comparison takes the same time
/// wherever the first difference is.
#[derive(Clone, Copy)]
pub(crate) struct SecretWord(u64);

impl SecretWord {
    pub(crate) fn new(value: u64) -> SecretWord {
        SecretWord(value)
    }

    /// The bits, to be sent to the peer or to derive other values.
    pub(crate) fn expose(self) -> u64 {
        self.0
    }
}

impl PartialEq for SecretWord {
    fn eq(&self, other: &SecretWord) -> bool {
        self.0 ^ other.0 == 0
    }
}

impl Eq for SecretWord {}

impl fmt::Debug for SecretWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_text_has_no_digit_of_secret() {
        let debug = format!("{:?}", Secret::fixed([1234, 5678]));
        assert!(debug.contains("Secret") && !debug.contains(|c: char| c.is_ascii_digit()), "{debug}");
    }

    #[test]
    fn words_are_equal_only_if_all_bits_are() {
        let word = SecretWord::new(5);
        assert!((0..64).all(|bit| word != SecretWord::new(5 ^ (1 << bit))));
        assert_eq!(word, SecretWord::new(5));
    }
}
