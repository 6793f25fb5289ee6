//! The settings of `mitra run` that both ends of a connection must have in common.
//!
//! Each end states its terms in its query for connection data, and in its answer. An end that
//! refuses because of other terms may end at once. The peer still has the terms of its query, and
//! names the same cause.

use mitra_failover::{Config, MAX_RAILS, Policy};
use mitra_verbs::{Codec, Error, Malformed, Reader, Result, codec};

/// The terms of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rails) struct Terms {
    rails: u8,
    policy: Policy,
    log: bool,
    prefer: Option<u8>,
}

codec! {
    struct Terms { rails, policy as PolicyCode, log, prefer } if (1..=MAX_RAILS).contains(&usize::from(rails))
}

/// The number of a policy, as in [`mitra_failover::ConnectInfo`].
struct PolicyCode;

impl PolicyCode {
    const ALL: [Policy; 5] =
        [Policy::Exact, Policy::Transparent, Policy::Blanket, Policy::None, Policy::Delay];

    fn put(policy: &Policy, out: &mut impl Extend<u8>) {
        (*policy as u8).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Policy, Malformed> {
        let code = u8::take(reader)?;
        Self::ALL.into_iter().find(|policy| *policy as u8 == code).ok_or(Malformed::Field)
    }
}

impl Terms {
    /// Returns the terms of a queue pair with this configuration.
    pub(in crate::rails) fn new(config: &Config, rails: usize) -> Terms {
        Terms {
            rails: rails.try_into().unwrap_or(u8::MAX),
            policy: config.policy,
            log: config.completion_log.is_some(),
            prefer: config.failback.map(|failback| failback.rail),
        }
    }

    /// Returns the terms of a device with one rail whose peer has these. Only the number of rails
    /// differs, because the other terms apply to several rails.
    pub(super) fn on_one_rail(self) -> Terms {
        Terms { rails: 1, ..self }
    }

    /// Compares the terms of this end with the terms of its peer.
    ///
    /// # Errors
    /// `Mismatch`, which names all options that differ, and the values of both ends.
    pub(in crate::rails) fn check(&self, peer: &Terms) -> Result<()> {
        let differ: Vec<_> =
            self.options().into_iter().zip(peer.options()).filter(|(own, theirs)| own != theirs).collect();
        if differ.is_empty() {
            return Ok(());
        }
        let (local, peer): (Vec<_>, Vec<_>) = differ.into_iter().unzip();
        Err(Error::Mismatch { local: local.join(", "), peer: peer.join(", ") })
    }

    /// The options of `mitra run` that select these terms.
    fn options(&self) -> [String; 4] {
        let plural = if self.rails == 1 { "" } else { "s" };
        [
            format!("{} rail{plural} (--rails)", self.rails),
            format!("--policy {}", self.policy),
            if self.log { "--log" } else { "no --log" }.to_owned(),
            self.prefer.map_or_else(|| "no --prefer".to_owned(), |rail| format!("--prefer {rail}")),
        ]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use mitra_failover::{CompletionLogConfig, Failback};

    use super::*;

    pub(in crate::rails::rendezvous) const fn terms() -> Terms {
        Terms { rails: 2, policy: Policy::Exact, log: false, prefer: Some(1) }
    }

    fn mismatch(local: &Terms, peer: &Terms) -> String {
        local.check(peer).expect_err("the terms differ").to_string()
    }

    #[test]
    fn prefer_mismatch_names_every_option_that_differs_and_both_values() {
        let own = Terms { prefer: None, ..terms() };
        assert_eq!(own.check(&own), Ok(()));
        let other = Terms { prefer: Some(0), ..own };
        let cases = [
            (other, "this end has no --prefer and the other end has --prefer 0; give both ends the same"),
            (
                Terms { policy: Policy::Blanket, ..own },
                "this end has --policy exact and the other end has --policy blanket; give both ends the same",
            ),
            (
                Terms { log: true, ..own },
                "this end has no --log and the other end has --log; give both ends the same",
            ),
            (
                Terms { rails: 1, ..own },
                "this end has 2 rails (--rails) and the other end has 1 rail (--rails); give both ends the same",
            ),
            (
                Terms { log: true, ..other },
                "this end has no --log, no --prefer and the other end has --log, --prefer 0; give both ends the same",
            ),
        ];
        for (peer, text) in cases {
            assert_eq!(mismatch(&own, &peer), text);
        }
    }

    #[test]
    fn terms_are_those_of_the_configuration() {
        let config = Config {
            policy: Policy::Delay,
            completion_log: Some(CompletionLogConfig::default()),
            failback: Some(Failback::to(3)),
            ..Config::default()
        };
        let expected = Terms { rails: 4, policy: Policy::Delay, log: true, prefer: Some(3) };
        assert_eq!(Terms::new(&config, 4), expected);
    }

    #[test]
    fn terms_round_trip_and_other_values_are_rejected() {
        for policy in PolicyCode::ALL {
            let terms = Terms { policy, ..terms() };
            assert_eq!(Terms::from_bytes(&terms.to_bytes()), Ok(terms));
        }
        let valid = terms().to_bytes();
        for (at, value) in [(0, 0), (0, MAX_RAILS as u8 + 1), (1, 5), (2, 2), (3, 2)] {
            let mut bytes = valid.clone();
            bytes[at] = value;
            assert!(Terms::from_bytes(&bytes).is_err(), "byte {at} is {value}");
        }
    }
}
