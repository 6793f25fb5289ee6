//! What a NIC counts.

use mitra_verbs::Counter;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the NIC was made.
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
    /// Packets that arrived with a good ICRC.
    packets_received,
    /// Packets given to the driver.
    packets_sent,
    /// Payload bytes of executed packets.
    bytes_received,
    /// Payload bytes given to the driver.
    bytes_sent,
    /// Arrived while the link was down.
    drop_link_down,
    /// For a queue pair that does not exist.
    drop_no_qp,
    /// Not from the peer's address.
    drop_foreign_source,
    /// For a queue pair in a state that receives nothing.
    drop_qp_state,
    /// Of another transport service than the queue pair's.
    drop_wrong_transport,
    /// In another partition.
    drop_pkey,
    /// With a Q_Key that is not the queue pair's.
    drop_qkey,
    /// UD and UC: no receive was posted.
    drop_no_receive,
    /// UD and UC: broken rules, missing packets, denied access.
    drop_unreliable,
    /// Responses to nothing that is outstanding.
    drop_stale_response,
    /// RC requests that were not the next expected, and not duplicates.
    drop_out_of_sequence,
    /// Duplicate requests that could not be answered (an atomic whose result is no longer saved).
    drop_duplicate,
    /// Duplicate requests.
    duplicate_requests,
    /// Acknowledgements sent.
    acks_sent,
    /// PSN sequence errors sent.
    sequence_naks_sent,
    /// Receiver-not-ready NAKs sent.
    rnr_naks_sent,
    /// Other NAKs sent.
    fatal_naks_sent,
    /// PSN sequence errors received.
    sequence_naks_received,
    /// Receiver-not-ready NAKs received.
    rnr_naks_received,
    /// Other NAKs received.
    fatal_naks_received,
    /// Responses that showed an earlier READ's or atomic's to be lost.
    implied_naks,
    /// Retransmission time-outs.
    timeouts,
    /// Request packets sent again.
    retransmitted_packets,
    /// Messages executed as responder.
    messages_executed,
    /// Work requests completed in error, without the flushed ones.
    failed_requests,
    /// Completions lost because their queue was full.
    cq_overruns,
}
