//! The rules on which exactly-once execution depends.

use core::fmt::Debug;
use core::hash::Hash;

/// The rules that the correctness of the filter depends on. A checker disables one rule at a time,
/// and verifies that it then finds a violation.
pub trait Rules: Clone + Eq + Hash + Debug {
    /// The filter refuses a request of a node without a row, so an evicted node must arbitrate.
    /// Otherwise, it makes a row for the request.
    const REFUSES_WITHOUT_GRANT: bool = true;
    /// The filter keeps the reply to a request until the sender has the reply, and answers a copy
    /// of the request with the reply.
    const KEEPS_REPLIES: bool = true;
    /// A request is a copy if its sequence number is at most the last sequence number. Otherwise,
    /// only if its number is less.
    const RECOGNIZES_LAST: bool = true;
    /// The filter executes requests in the order of their sequence numbers, without gaps.
    const EXECUTES_IN_ORDER: bool = true;
    /// The filter answers a copy of an `Open` with the grant that it made for the original.
    const RECOGNIZES_OPEN: bool = true;
    /// The filter ignores an `Open` of an attempt before the attempt of the node's row.
    const IGNORES_EARLIER_ATTEMPTS: bool = true;
    /// The filter gives each grant a number of its own.
    const NUMBERS_GRANTS: bool = true;
    /// A grant of an earlier incarnation of the filter is not valid.
    const CHECKS_INCARNATION: bool = true;
    /// The filter evicts a row only when its sender gave it back or was silent for the lease.
    const EVICTS_ONLY_UNUSED: bool = true;
    /// A sender gives its grant back only if it has the replies to all requests under it.
    const RELEASES_ONLY_IDLE: bool = true;
    /// A sender takes only the offer for its present attempt.
    const MATCHES_OFFERS: bool = true;
    /// A sender reports a request as unknown if its grant ended. Otherwise, it sends the request
    /// again under the next grant.
    const REPORTS_UNKNOWN: bool = true;
    /// A sender confirms only replies that it has.
    const CONFIRMS_RECEIVED: bool = true;
    /// A sender arbitrates again when the sequence numbers of its grant are used up. Otherwise, it
    /// begins again with 1.
    const ARBITRATES_AT_WRAP: bool = true;
    /// A sender takes a reply only if an outstanding request has its sequence number.
    const MATCHES_REPLIES: bool = true;
    /// A one-bit sender has one message outstanding. Otherwise, two.
    const ONE_OUTSTANDING: bool = true;
    /// A one-bit filter compares the bit of a request with the bit of the node's last request.
    /// Otherwise, the filter executes every request.
    const COMPARES_BIT: bool = true;
    /// A one-bit filter begins again with a new connection of its node.
    const RESETS_BIT: bool = true;
}

/// All rules, as in production.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AllRules;

impl Rules for AllRules {}
