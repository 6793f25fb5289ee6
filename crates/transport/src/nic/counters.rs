//! The event counters of a NIC.

use mitra_verbs::Counter;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Event counts since the NIC was created.
        #[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl Counters {
            pub(crate) fn list(&self) -> Vec<Counter> {
                vec![$(Counter { name: stringify!($name), value: self.$name },)*]
            }
        }
    };
}

counters! {
    /// Packets that the driver has passed to the NIC. The driver has verified their ICRC.
    packets_received,
    /// Packets passed to the driver for sending.
    packets_sent,
    /// Payload bytes of executed packets.
    bytes_received,
    /// Payload bytes passed to the driver for sending.
    bytes_sent,
    drop_link_down,
    /// Packets dropped because no queue pair or multicast group has their destination number.
    drop_no_qp,
    /// Packets of a connected service dropped because their source address was not the peer's.
    drop_foreign_source,
    /// Packets dropped because the queue pair was in a state that does not receive them.
    drop_qp_state,
    /// Packets dropped because their transport service was not the queue pair's.
    drop_wrong_transport,
    drop_pkey,
    drop_qkey,
    /// UD and UC packets dropped because no receive was posted.
    drop_no_receive,
    /// UD and UC packets and messages dropped for another reason: an invalid or incomplete message,
    /// or denied access.
    drop_unreliable,
    /// RC responses dropped because they answer no outstanding request, or are invalid.
    drop_stale_response,
    /// RC requests dropped because their PSN was after the expected one.
    drop_out_of_sequence,
    /// Duplicate RC requests dropped without an answer, such as an atomic whose result is no longer
    /// saved.
    drop_duplicate,
    /// Duplicate RC requests, answered or not.
    duplicate_requests,
    /// Positive acknowledgements sent, without READ and atomic responses.
    acks_sent,
    sequence_naks_sent,
    rnr_naks_sent,
    /// NAKs sent that end the queue pair: invalid request, remote access error, remote operational
    /// error.
    fatal_naks_sent,
    sequence_naks_received,
    rnr_naks_received,
    /// NAKs received that end the queue pair.
    fatal_naks_received,
    /// Implied NAKs: responses that showed that the response to an earlier READ or atomic was lost.
    implied_naks,
    /// Expirations of the retransmission timer.
    timeouts,
    retransmitted_packets,
    messages_executed,
    /// Work requests completed with an error status other than `Flushed`.
    failed_requests,
    /// Completions lost because the completion queue was full.
    cq_overruns,
}
