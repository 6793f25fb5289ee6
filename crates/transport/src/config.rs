use core::time::Duration;

use mitra_verbs::{AtomicScope, Capabilities, Gid, Limits, Mtu};

/// What a [`Nic`](crate::Nic) is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// Its name.
    pub name: String,
    /// Its address.
    pub gid: Gid,
    /// The largest path MTU of its port.
    pub max_mtu: Mtu,
    /// A limit on everything.
    pub limits: Limits,
    /// What it reports. `atomic_scope`, `psn_query` and `saved_results` also switch the feature.
    pub capabilities: Capabilities,
    /// Seeds the generator of QP numbers and keys: unpredictable on a network, fixed in a simulation.
    pub seed: [u8; 32],
    /// Pacing.
    pub tuning: Tuning,
}

/// Pacing of acknowledgements and of sending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuning {
    /// A responder owes an acknowledgement after at most so many request packets that asked for one ...
    pub ack_every: u32,
    /// ... or after this long, or at an idle poll.
    pub ack_delay: Duration,
    /// Unacknowledged payload bytes that a requester lets be on the wire: less than a slow receiver's socket buffer holds,
    /// and at most 256 MiB. Also what it asks to READ at once, and what a responder sends of READ responses before it
    /// hears of the requester again or `ack_delay` has passed.
    pub send_window: u32,
    /// How long the number of a destroyed queue pair and a revoked key stay unused: the maximum packet lifetime.
    pub quarantine: Duration,
}

/// The largest `send_window`. A packet costs at least 256 bytes of it, and READs have one of their own: so fewer than
/// 2^22 PSNs are on the wire, far from the 2^23 where PSNs become ambiguous.
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
    /// A software NIC's defaults for an address.
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
                // libfabric asks for 2^18; a queue takes the memory only as it fills.
                cqe: 1 << 20,
                qps: 1 << 12,
                wrs: 1 << 14,
                sges: 16,
                inline: 256,
                srqs: 1 << 10,
                ahs: 1 << 14,
                // A group costs a driver a socket; a packet to one is placed as often as it has members.
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
