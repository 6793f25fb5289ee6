use mitra_verbs::Time;

use crate::config::MAX_RAILS;
use crate::peer_exit::PeerExitDetector;
use crate::vqp::datapath::Datapath;

/// The peer's process has ended if the peer's host refuses packets for the longer of two times. One
/// is the peer timeout divided by this number. The other is the time after which the peer counts as
/// silent. Hosts limit refusals to one per second and destination after the first six (Linux:
/// `icmp_ratelimit`), so the exit may be noticed a second later.
const CONFIRMATIONS_PER_TIMEOUT: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct PeerExitWatch {
    pub(super) detector: PeerExitDetector,
    /// By rail: the number of refusals at the last reading of the NIC. Refusals before the first
    /// reading were not meant for this vQP.
    seen: [Option<u64>; MAX_RAILS],
}

impl PeerExitWatch {
    /// Reads the NICs, once per heartbeat. Returns whether the peer's process has ended.
    pub(super) fn has_exited(&mut self, now: Time, dp: &Datapath) -> bool {
        for rail in 0..dp.rails.len() {
            let count = dp.rails.get(rail).peer_refusals();
            if self.seen[rail].replace(count).is_some_and(|before| before != count) {
                self.detector.on_refusal(now, rail);
            }
        }
        if self.detector.refusing() == 0 {
            return false;
        }
        let alive = (0..dp.rails.len()).filter(|&rail| dp.rails.nic_answers(rail));
        let confirm_after = dp.detector().timeout().max(dp.config().peer_timeout / CONFIRMATIONS_PER_TIMEOUT);
        self.detector.has_exited(alive.fold(0, |set, rail| set | 1 << rail), confirm_after)
    }
}
