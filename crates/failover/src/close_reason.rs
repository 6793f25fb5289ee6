use core::fmt;

use mitra_verbs::Error;

macro_rules! close_reasons {
    ($($(#[$doc:meta])* $reason:ident: $cause:literal, $way_out:literal;)*) => {
        /// The reason why a vQP closed. The `Display` text names the cause and what the application
        /// can do.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum CloseReason {
            $($(#[$doc])* $reason,)*
        }

        impl CloseReason {
            /// All reasons.
            pub const ALL: &[CloseReason] = &[$(CloseReason::$reason),*];

            /// The cause alone.
            pub fn cause(self) -> &'static str {
                match self {
                    $(CloseReason::$reason => $cause,)*
                }
            }

            /// What the application can do.
            pub fn way_out(self) -> &'static str {
                match self {
                    $(CloseReason::$reason => $way_out,)*
                }
            }

            /// The error of calls on a vQP that closed for this reason.
            pub(crate) const fn refusal(self) -> Error {
                Error::Invalid(match self {
                    $(CloseReason::$reason => {
                        concat!("this virtual queue pair is closed: ", $cause, "; ", $way_out)
                    })*
                })
            }
        }
    };
}

close_reasons! {
    /// There is no rail that both ends can use.
    NoRail: "no rail is left that both ends can use",
        "bring a link or a NIC up, then connect a new one";
    /// The peer did not answer on any rail during a failover. Without its evidence, the operations
    /// in flight cannot be decided.
    PeerUnreachable: "the peer answered on no rail within peer_timeout",
        "check that the peer's process and host run, then connect a new one";
    /// The peer is silent, and its host has reported that no process has the peer's port open. This
    /// end has received the report on every rail whose local NIC is alive. Only software NICs do
    /// ([`Provider::port_refusals`](mitra_verbs::Provider::port_refusals)). With other NICs, the
    /// vQP closes as [`CloseReason::PeerUnreachable`].
    PeerExited: "the peer's process has ended or closed its NICs: its host refuses packets on every rail that this end can use",
        "start the peer's process again, then connect a new one";
    /// This end could not fence its old NIC.
    Unfenced: "the NIC of the failed rail could be neither fenced nor reset, and may still execute requests",
        "reset that NIC before its memory is used again, then connect a new one";
    /// The new rail of a failover failed before the peer had confirmed the move, and no other rail
    /// reached the peer.
    FailedDuringRecovery: "the new rail of a failover failed before the peer confirmed the move, and no other rail was left",
        "bring a link or a NIC up, then connect a new one";
    /// The evidence contradicts itself or the completions.
    Contradiction: "the two ends' records of executed operations contradict each other, so data may be lost",
        "compare the data at both ends, and replace the NIC that acknowledged what it did not place";
    /// All epochs are used up.
    EpochsUsedUp: "it has moved between rails 65534 times, as often as its epochs allow",
        "connect a new one, and replace the link that fails so often";
    /// A request was invalid, for example because of a wrong key or a message that is too long.
    /// Such an error ends any RC queue pair.
    RequestError: "a request was invalid, for example its key or its length",
        "correct the request whose completion names the error, then connect a new one";
    /// The application closed the vQP.
    Closed: "this program closed it",
        "connect a new one to exchange more data";
    /// The peer closed the vQP.
    PeerClosed: "the peer closed it",
        "connect a new one if the peer did not mean to end";
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause(), self.way_out())
    }
}

impl core::error::Error for CloseReason {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_cause_and_a_way_out() {
        for (i, &reason) in CloseReason::ALL.iter().enumerate() {
            let text = reason.to_string();
            assert!(!reason.cause().is_empty() && !reason.way_out().is_empty(), "{text}");
            assert!(!text.contains(&format!("{reason:?}")), "{text}");
            assert!(CloseReason::ALL[..i].iter().all(|other| other.cause() != reason.cause()), "{text}");
            assert_eq!(reason.refusal().to_string(), format!("this virtual queue pair is closed: {text}"));
        }
    }

    #[test]
    fn documentation_lists_every_reason_with_its_text() {
        let doc = include_str!("../../../docs/promises.md");
        for reason in CloseReason::ALL {
            let row = format!("| `{reason:?}` | {} | {} |", reason.cause(), reason.way_out());
            assert!(doc.contains(&row), "docs/promises.md has no row: {row}");
        }
    }
}
