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
    /// The largest number of each kind of object, and the largest size of each.
    pub limits: Limits,
    /// The capabilities that the device reports. `atomic_scope`, `saved_results` and `windows` also enable the feature.
    pub capabilities: Capabilities,
    /// The seed of queue pair numbers and keys. Draw it from the system's random source on a network; fix it in a
    /// simulation.
    pub seed: [u8; 32],
    /// The pacing of acknowledgements and of sending.
    pub tuning: Tuning,
}

/// The pacing of acknowledgements and of sending.
///
/// The defaults suit software NICs on one host: 16 packets, 50 µs, 256 KiB and 2 s.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuning {
    /// The responder acknowledges at the latest after this many request packets that ask for an acknowledgement. It
    /// acknowledges earlier at an idle poll and after `ack_delay`.
    pub ack_every: u32,
    /// The longest time that the responder defers an acknowledgement.
    pub ack_delay: Duration,
    /// The largest number of unacknowledged bytes of a requester, at most 256 MiB. Each packet counts its payload and 256
    /// bytes. Choose less than the socket buffer of a slow receiver. The same value bounds two other things: the bytes of outstanding READ requests, and
    /// the bytes of READ responses that a responder sends until the next request arrives or `ack_delay` has passed.
    pub send_window: u32,
    /// The time for which the number of a destroyed queue pair and a revoked key are not reused. Choose at least the
    /// maximum packet lifetime.
    pub quarantine: Duration,
}

/// The largest `send_window`, in bytes. Each packet uses at least 256 bytes of the window, and READs have a second window
/// of the same size. Fewer than 2²² PSNs are therefore outstanding, well below the 2²³ at which PSNs become ambiguous.
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
                cqs: 1 << 12,
                // libfabric asks for 2¹⁸ entries. A queue allocates memory only as it fills.
                cqe: 1 << 20,
                qps: 1 << 12,
                wrs: 1 << 14,
                sges: 16,
                inline: 256,
                srqs: 1 << 10,
                ahs: 1 << 14,
                // A group needs a socket in the driver, and a packet to a group is placed once per member.
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
            },
            seed,
            tuning: Tuning::default(),
        }
    }
}
