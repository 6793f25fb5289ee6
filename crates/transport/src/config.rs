use core::time::Duration;

use mitra_verbs::{AtomicScope, Capabilities, Gid, Limits, Mtu};

/// The configuration of a [`Nic`](crate::Nic).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// The device name.
    pub name: String,
    /// The only entry of the GID table, and the source address of all packets.
    pub gid: Gid,
    /// The largest path MTU of the port.
    pub max_mtu: Mtu,
    /// The largest number of objects of each kind, and their largest sizes.
    pub limits: Limits,
    /// The capabilities that the device reports. The NIC executes atomics, returns saved results
    /// and supports memory windows only if `atomic_scope`, `saved_results` and `windows` say so.
    /// The other capabilities change no behaviour.
    pub capabilities: Capabilities,
    /// The seed of queue pair numbers and keys. Draw it from the system's random source on a
    /// network; fix it in a simulation.
    pub seed: [u8; 32],
    /// The pacing of acknowledgements and of sending.
    pub tuning: Tuning,
}

/// The pacing of acknowledgements and of sending.
///
/// The defaults suit software NICs on one host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuning {
    /// An acknowledgement becomes due after this many unacknowledged request packets with an
    /// acknowledge request, and earlier at an idle poll or after `ack_delay`. Default: 16.
    pub ack_every: u32,
    /// The time after which a deferred acknowledgement becomes due. Default: 50 µs.
    pub ack_delay: Duration,
    /// An upper bound on the unacknowledged bytes of a requester, except that one packet may always
    /// be in flight. A packet occupies its payload length plus 256 bytes. Choose a value below the
    /// size of the peer's socket buffer. The NIC reduces a value above 256 MiB to 256 MiB. Default:
    /// 256 KiB.
    ///
    /// The same value bounds two other things: the bytes that outstanding READs have requested, and
    /// the bytes of READ responses that a responder sends before it waits for the next request or
    /// for `ack_delay`.
    pub send_window: u32,
    /// The time for which the number of a destroyed queue pair and a revoked key are not assigned
    /// again. Choose at least the maximum packet lifetime. Default: 2 s.
    pub quarantine: Duration,
}

/// The largest `send_window`, in bytes. Each packet uses at least 256 bytes of the window, and
/// READs have a second window of the same size. Fewer than 2²² PSNs are therefore outstanding, well
/// below the 2²³ at which PSNs become ambiguous.
pub(crate) const MAX_SEND_WINDOW: u32 = 1 << 28;

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            ack_every: 16,
            ack_delay: Duration::from_micros(50),
            send_window: 256 * 1024,
            quarantine: Duration::from_secs(2),
        }
    }
}

impl NicConfig {
    /// Creates the default configuration of a software NIC with the address `gid`.
    pub fn new(name: &str, gid: Gid, seed: [u8; 32]) -> NicConfig {
        NicConfig {
            name: name.to_owned(),
            gid,
            max_mtu: Mtu::M4096,
            limits: Limits {
                pds: 1 << 10,
                mrs: 1 << 14,
                mws: 1 << 14,
                cqs: 1 << 15,
                // libfabric asks for 2¹⁸ entries. A queue allocates memory only as it fills.
                cqe: 1 << 20,
                qps: 1 << 15,
                wrs: 1 << 14,
                sges: 16,
                inline: 256,
                srqs: 1 << 10,
                ahs: 1 << 14,
                // The multicast limits are small, because each group needs a socket in the driver,
                // and the NIC places a packet to a group once per member.
                mcast_groups: 64,
                mcast_qps: 64,
                mcast_attached: 1 << 10,
                rd_atomic: 16,
                message_bytes: 1 << 30,
            },
            capabilities: Capabilities {
                atomic_scope: AtomicScope::Nic,
                psn_query: true,
                saved_results: true,
                ack_after_placement: true,
                write_order: true,
                reset: true,
                windows: true,
                on_demand: true,
            },
            seed,
            tuning: Tuning::default(),
        }
    }
}
