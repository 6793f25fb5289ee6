use mitra_verbs::Counter;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the driver counts, beside what the state machine does.
        #[derive(Default)]
        pub(crate) struct Counts {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl Counts {
            pub(crate) fn append_to(&self, list: &mut Vec<Counter>) {
                list.extend([$(Counter { name: stringify!($name), value: self.$name },)*]);
            }
        }
    };
}

counts! {
    /// Datagrams that arrived at the socket.
    rx_datagrams,
    /// Their bytes, with headers and ICRC.
    rx_bytes,
    /// Receives that brought several datagrams in one piece.
    rx_runs,
    /// Datagrams with a wrong ICRC, or one that was right only by an unlikely coincidence; dropped.
    rx_icrc_bad,
    /// Datagrams whose IPv4 identification had to be solved for, which weakens the check to 16 bits.
    rx_icrc_solved,
    /// Datagrams that are not RoCEv2 packets; dropped.
    rx_malformed,
    /// Receives that the kernel refused.
    rx_errors,
    /// Datagrams sent.
    tx_datagrams,
    /// Their bytes, with headers and ICRC.
    tx_bytes,
    /// Sends of several datagrams in one piece.
    tx_runs,
    /// Times that the socket's buffer was full; the datagrams were sent later.
    tx_blocked,
    /// Datagrams that the kernel refused (no route, too long for the path); lost.
    tx_errors,
    /// Datagrams that faults on demand swallowed.
    fault_dropped,
    /// Datagrams that faults on demand damaged.
    fault_corrupted,
    /// Datagrams that faults on demand doubled.
    fault_duplicated,
    /// Datagrams that faults on demand held back.
    fault_delayed,
}
