//! The counters of the driver. `mitra_transport::Nic` has counters of its own.

use mitra_verbs::Counter;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Default)]
        pub(crate) struct DriverCounters {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl DriverCounters {
            pub(crate) fn append_to(&self, list: &mut Vec<Counter>) {
                list.extend([$(Counter { name: stringify!($name), value: self.$name },)*]);
            }
        }
    };
}

counters! {
    rx_datagrams,
    /// UDP payload bytes of the received datagrams, including RoCE headers and ICRC.
    rx_bytes,
    /// System calls that received several datagrams (`UDP_GRO`).
    rx_runs,
    /// Datagrams dropped because the ICRC is wrong, or is right only for an implausible IPv4
    /// identification.
    rx_icrc_bad,
    /// Datagrams accepted with an IPv4 identification that was solved from the ICRC. Their check
    /// has 16 bits instead of 32.
    rx_icrc_solved,
    /// Datagrams dropped because they are not RoCEv2 packets.
    rx_malformed,
    /// Receive calls that the kernel rejected.
    rx_errors,
    /// Datagrams received through shared memory, among `rx_datagrams`.
    rx_shared_memory,
    /// ICMP reports that no process of the sending host has the RoCE port open.
    rx_refusals,
    tx_datagrams,
    /// UDP payload bytes of the sent datagrams, including RoCE headers and ICRC.
    tx_bytes,
    /// System calls that sent several datagrams (`UDP_SEGMENT`).
    tx_runs,
    /// Datagrams sent through shared memory, among `tx_datagrams`.
    tx_shared_memory,
    /// Datagrams lost because the receiver has not yet read those before, and its ring is full.
    tx_ring_full,
    /// Send calls that found the socket's send buffer full. The NIC sends the datagrams later.
    tx_blocked,
    /// Datagrams lost because the kernel rejected them (no route, or longer than the path MTU).
    tx_errors,
    fault_dropped,
    fault_corrupted,
    fault_duplicated,
    fault_delayed,
}
