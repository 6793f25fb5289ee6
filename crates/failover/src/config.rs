use core::time::Duration;

use mitra_verbs::{Access, Limits, LocalAckTimeout, Mtu, QpType, RnrTimer};

pub use policy::{Fencing, ParsePolicyError, Policy, WritePolicy};

mod policy;

/// The maximum number of rails of a vQP. Sets of rails are bit masks of 8 bits.
pub const MAX_RAILS: usize = 8;

/// The transport service of the queue pairs on the rails (IBTA volume 1, 9.7 and 9.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Service {
    /// Reliable connection (RC).
    #[default]
    Reliable,
    /// Unreliable connection (UC), without a completion log. The vQP posts each SEND and WRITE
    /// once, on one rail. The message completes successfully when the NIC has sent it or the rail
    /// has failed, so a completed message may be lost. A failover keeps the order of messages and
    /// never duplicates one.
    Unreliable,
    /// The sending end of an extended reliable connection (XRC INI). Each SEND and each WRITE with
    /// immediate names a shared receive queue of the peer's XRC domain
    /// ([`SendWr::to_srq`](mitra_verbs::SendWr::to_srq)). The end receives nothing.
    XrcSend,
    /// The receiving end of an extended reliable connection (XRC TGT), in an XRC domain
    /// ([`VirtualQpBuilder::xrc_domain`](crate::VirtualQpBuilder::xrc_domain)). The end sends
    /// nothing.
    XrcReceive,
}

impl Service {
    /// XRC runs on RC queue pairs, see `vqp/xrc_messages.rs`.
    pub(crate) const fn qp_type(self) -> QpType {
        match self {
            Service::Reliable | Service::XrcSend | Service::XrcReceive => QpType::Rc,
            Service::Unreliable => QpType::Uc,
        }
    }

    pub(crate) const fn is_reliable(self) -> bool {
        !matches!(self, Service::Unreliable)
    }

    pub(crate) const fn is_xrc(self) -> bool {
        matches!(self, Service::XrcSend | Service::XrcReceive)
    }

    pub(crate) const fn of_peer(self) -> Service {
        match self {
            Service::XrcSend => Service::XrcReceive,
            Service::XrcReceive => Service::XrcSend,
            same => same,
        }
    }
}

/// The parameters of the failure detectors. Both ends use the heartbeats of the slower end. Each
/// end uses its own other parameters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DetectorConfig {
    /// The shortest time between two heartbeats on each rail, and the time between two probes of a
    /// rail that the vQP left. Heartbeats of an idle end of a reliable connection become rarer, up
    /// to 50 times `max_missed_heartbeats` and at most 5 s.
    pub heartbeat_interval: Duration,
    /// The number of heartbeat intervals without a message after which the peer counts as silent,
    /// if this end waits for answers or the connection is unreliable. An end that waits for nothing
    /// waits longer, because heartbeats are rare then. It asks whether the peer answers on the
    /// active rail, and an end that waits for an operation asks after about 1 ms without progress.
    /// The rail has failed if the peer answers on another rail only.
    ///
    /// 0 switches heartbeats and questions off at both ends. An end without heartbeats checks
    /// whether the peer runs in three cases only: a message waits for a receive
    /// ([`Config::rnr_retry`]), an operation waits in mode
    /// [`durable`](CompletionLogConfig::durable), or this end holds a received WRITE with immediate
    /// until the peer confirms a move.
    pub max_missed_heartbeats: u32,
    /// The minimum time to wait for the peer's first message. The peer may not have connected yet.
    pub first_contact_timeout: Duration,
    /// The local ACK timeout of the RC queue pairs: the time until a requester retransmits.
    pub local_ack_timeout: LocalAckTimeout,
    /// The number of retransmissions of the RC queue pairs before a request fails with `RETRY_EXC`,
    /// at most 7.
    pub retry_cnt: u8,
}

impl Default for DetectorConfig {
    fn default() -> DetectorConfig {
        DetectorConfig {
            heartbeat_interval: Duration::from_millis(20),
            max_missed_heartbeats: 5,
            first_contact_timeout: Duration::ZERO,
            local_ack_timeout: LocalAckTimeout::from_duration(Duration::from_millis(67)),
            retry_cnt: 7,
        }
    }
}

/// The longest time between two heartbeats of an idle end, in timeouts of a silent rail.
const IDLE_TIMEOUTS: u32 = 50;
/// The limit of this time, unless the shortest time between two heartbeats is longer.
const MAX_IDLE_INTERVAL: Duration = Duration::from_secs(5);

impl DetectorConfig {
    /// The time without a message after which a rail is silent on which messages are due at each
    /// heartbeat interval.
    pub(crate) fn timeout(&self) -> Duration {
        self.heartbeat_interval.saturating_mul(self.max_missed_heartbeats)
    }

    /// The longest time between two heartbeats of an idle end.
    pub(crate) fn idle_interval(&self) -> Duration {
        let idle = self.timeout().saturating_mul(IDLE_TIMEOUTS);
        idle.min(MAX_IDLE_INTERVAL).max(self.heartbeat_interval)
    }

    /// Returns these parameters with the heartbeats that both ends use: the longer interval, and
    /// the longer time without a message. If either end has no heartbeats, they are off. If each
    /// end used its own heartbeats, the faster end would take its peer for silent and move without
    /// a failure.
    pub(crate) fn agreed(self, peer_interval: Duration, peer_max_missed: u32) -> DetectorConfig {
        let peer_timeout = peer_interval.saturating_mul(peer_max_missed);
        let longest = self.timeout().max(peer_timeout).as_nanos();
        let heartbeat_interval = self.heartbeat_interval.max(peer_interval);
        let max_missed_heartbeats = if self.max_missed_heartbeats == 0 || peer_max_missed == 0 {
            0
        } else {
            let missed = longest.div_ceil(heartbeat_interval.as_nanos().max(1));
            u32::try_from(missed).unwrap_or(u32::MAX).max(1)
        };
        DetectorConfig { heartbeat_interval, max_missed_heartbeats, ..self }
    }
}

/// A completion log at the responder. The log is evidence that survives a failure of the
/// responder's NIC, and costs one small packet for each WRITE and atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CompletionLogConfig {
    /// The number of WRITEs for which this end writes one entry into the peer's log. Every atomic
    /// has its own entry. If the responder's NIC fails and its PSN is lost, at most this many of
    /// the last executed WRITEs are not decided. The two ends may have different intervals.
    ///
    /// 0 counts as 1. Every value counts as 1 with `durable`, or if a NIC of the peer may
    /// acknowledge data before placing it: with such a NIC, only a log entry proves that a
    /// completed WRITE is in memory.
    pub interval: u32,
    /// The minimum number of slots in this end's completion log. It must be at least the peer's
    /// `send_wrs`, or twice that at the receiving end of an XRC connection. `None` stands for the
    /// same minimum, computed from this end's `send_wrs`.
    pub entries: Option<u32>,
    /// Whether an operation completes only when the peer's processor has seen its effect in memory.
    /// The mode concerns rails whose remote NIC may acknowledge data before placing it
    /// ([`ack_after_placement`](mitra_verbs::Capabilities::ack_after_placement)), and has no effect
    /// on other rails. Both ends need the same value, and [`Access::REMOTE_WRITE`].
    ///
    /// If such a NIC loses acknowledged data, a failover replays the operations. Without this mode,
    /// the vQP ends with [`Contradiction::LostAfterAck`](crate::Contradiction::LostAfterAck). In
    /// this mode, an operation waits for a control message of the peer, so the peer must poll.
    pub durable: bool,
}

impl Default for CompletionLogConfig {
    fn default() -> CompletionLogConfig {
        CompletionLogConfig { interval: 1, entries: None, durable: false }
    }
}

/// The rail to which the vQP moves back even though the active rail works.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Failback {
    /// The preferred rail, which must be the same at both ends.
    pub rail: u8,
    /// The time for which both ends must have been able to use the rail before the vQP moves back.
    pub delay: Duration,
}

impl Failback {
    /// Returns a failback to `rail` after 1 s.
    pub const fn to(rail: u8) -> Failback {
        Failback { rail, delay: Duration::from_secs(1) }
    }
}

/// The configuration of a virtual queue pair. Both ends need the same `service`, `policy`,
/// `rd_atomic`, `max_path_mtu` and preferred rail. Both keep a completion log or neither does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// The transport service of the queue pairs on the rails.
    pub service: Service,
    /// The treatment of operations in flight on a failed rail.
    pub policy: Policy,
    /// The treatment of WRITEs without evidence;
    /// [`VirtualQp::post_send_with`](crate::VirtualQp::post_send_with) overrides it for one
    /// request.
    pub write_policy: WritePolicy,
    /// The completion log.
    pub completion_log: Option<CompletionLogConfig>,
    /// Whether to fence the old rail.
    pub fencing: Fencing,
    /// The parameters of the failure detectors.
    pub detector: DetectorConfig,
    /// The maximum number of outstanding requests in the send queue.
    pub send_wrs: u32,
    /// The maximum number of outstanding requests in the receive queue.
    pub recv_wrs: u32,
    /// The maximum number of gather entries in a send.
    pub send_sges: u32,
    /// The maximum number of scatter entries in a receive.
    pub recv_sges: u32,
    /// The maximum length of inline data in a send, in bytes.
    pub inline: u32,
    /// The maximum number of READs and atomics in flight. An operation is in flight until its
    /// completion is host-visible. The responder saves the results of as many atomics.
    pub rd_atomic: u8,
    /// The time after which a control message without an answer is sent again.
    pub control_retry_interval: Duration,
    /// The time that a failover waits for the peer's answers, or for a usable rail, before the vQP
    /// closes. Without heartbeats, it is also how long the peer may stay silent while this end
    /// waits for the peer's program.
    pub peer_timeout: Duration,
    /// The rail to which the vQP moves back, under [`Policy::Exact`]. With `None`, the vQP moves
    /// only if the active rail fails.
    pub failback: Option<Failback>,
    /// The number of RNR retries of the RC queue pairs. 7 means no limit: a message waits for a
    /// receive for as long as the peer's vQP is driven. If the peer neither has a receive nor
    /// answers for [`Config::peer_timeout`], the vQP closes as
    /// [`PeerUnreachable`](crate::CloseReason::PeerUnreachable), even without heartbeats: a NIC
    /// that hangs may answer with RNR NAKs for ever.
    pub rnr_retry: u8,
    /// The largest path MTU of the connection, which has the smallest MTU of all ports if that is
    /// less. Without effect on a vQP with a shared backup.
    /// [`VirtualQp::set_max_path_mtu`](crate::VirtualQp::set_max_path_mtu) changes it.
    pub max_path_mtu: Mtu,
    /// The minimum time that the peer waits after an RNR NAK before it retries.
    pub min_rnr_timer: RnrTimer,
    /// The operations that the peer may request through this end's queue pairs, on every rail. An
    /// operation also needs the right of the memory region.
    /// [`VirtualQp::set_access`](crate::VirtualQp::set_access) changes the rights.
    ///
    /// The entries of the completion log are WRITEs of the peer. Without [`Access::REMOTE_WRITE`],
    /// the peer keeps no log of its operations at this end.
    pub access: Access,
}

impl Config {
    /// Returns the configuration with as much inline data as the [limits of a
    /// domain](crate::Domain::limits) allow, and not more than before. For callers that use inline
    /// data only where there is some.
    pub fn with_available_inline(self, limits: &Limits) -> Config {
        Config { inline: self.inline.min(limits.inline), ..self }
    }

    /// Returns whether operations complete when the peer's processor has seen them, see
    /// [`CompletionLogConfig::durable`].
    pub fn is_durable(&self) -> bool {
        self.completion_log.is_some_and(|log| log.durable)
    }

    /// Returns whether the vQP fences a rail before it leaves the rail.
    pub(crate) fn requires_fence(&self) -> bool {
        self.fencing == Fencing::On && self.policy.is_exact()
    }

    pub(crate) fn decides_by_evidence(&self) -> bool {
        self.policy.decides_by_evidence() && self.service.is_reliable()
    }

    /// The maximum number of requests in the ledger. A request of an XRC connection may need a
    /// header message before it, which the ledger holds too.
    pub(crate) fn ledger_depth(&self) -> u32 {
        if self.service == Service::XrcSend { self.send_wrs.saturating_mul(2) } else { self.send_wrs }
    }

    /// The number of entries that a request takes in the send queue of a rail.
    pub(crate) fn wrs_per_op(&self) -> u32 {
        if self.completion_log.is_some() { 2 } else { 1 }
    }

    /// The maximum number of the ledger's requests that are posted on a rail whose NIC has send
    /// queues of `wrs` entries. The other requests wait in the ledger.
    pub(crate) fn posted_depth(&self, wrs: u32) -> u32 {
        self.ledger_depth().min(wrs / self.wrs_per_op())
    }

    /// The number of slots of the completion log at this end. The default fits a peer with the same
    /// `send_wrs`.
    pub(crate) fn log_entries(&self) -> Option<u32> {
        let of_peer = Config { service: self.service.of_peer(), ..*self };
        self.completion_log.map(|log| log.entries.unwrap_or(of_peer.ledger_depth()))
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            service: Service::Reliable,
            policy: Policy::Exact,
            write_policy: WritePolicy::Strict,
            completion_log: None,
            fencing: Fencing::On,
            detector: DetectorConfig::default(),
            send_wrs: 128,
            recv_wrs: 128,
            send_sges: 16,
            recv_sges: 16,
            inline: 256,
            rd_atomic: 16,
            control_retry_interval: Duration::from_millis(2),
            peer_timeout: Duration::from_secs(5),
            failback: None,
            rnr_retry: 7,
            max_path_mtu: Mtu::M4096,
            min_rnr_timer: RnrTimer::from_duration(Duration::from_micros(10)),
            access: Access::LOCAL_WRITE | Access::REMOTE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_agree_on_the_slower_heartbeats() {
        let detector = |ms, max_missed_heartbeats| DetectorConfig {
            heartbeat_interval: Duration::from_millis(ms),
            max_missed_heartbeats,
            ..DetectorConfig::default()
        };
        let cases = [
            ([(20, 5), (20, 5)], (20, 5)),
            ([(20, 5), (200, 5)], (200, 5)),
            ([(20, 5), (10, 200)], (20, 100)),
            ([(20, 5), (30, 2)], (30, 4)),
            ([(20, 5), (20, 0)], (20, 0)),
            ([(20, 0), (200, 5)], (200, 0)),
        ];
        for ([one, other], agreed) in cases {
            for (own, peer) in [(one, other), (other, one)] {
                let (own, peer) = (detector(own.0, own.1), detector(peer.0, peer.1));
                let found = own.agreed(peer.heartbeat_interval, peer.max_missed_heartbeats);
                assert_eq!(found, detector(agreed.0, agreed.1), "{own:?} {peer:?}");
            }
        }
    }

    #[test]
    fn default_durations_have_the_codes_14_and_1() {
        let config = Config::default();
        assert_eq!((config.detector.local_ack_timeout.code(), config.min_rnr_timer.code()), (14, 1));
    }
}
