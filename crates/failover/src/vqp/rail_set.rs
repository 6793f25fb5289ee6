use core::time::Duration;
use std::sync::Arc;

use mitra_prng::{SPLIT_MIX_STEP, mix};
use mitra_verbs::{Access, Error, Mtu, Psn, Qpn, Result, RnrTimer, Time};

use crate::ballot::Ballot;
use crate::close_reason::CloseReason;
use crate::config::{Config, DetectorConfig};
use crate::connect_info::RailInfo;
use crate::data_qp::Membership;
use crate::domain::{ControlEndpoint, Domain};
use crate::group_member::Member;
use crate::local_nic::LocalNic;
use crate::rail::{Rail, first_psn};
use crate::secret::{Secret, SecretWord};
use crate::vqp::group_membership::GroupMembership;

#[derive(Debug)]
pub struct RailSet {
    rails: Vec<Rail>,
    config: Config,
    /// Bit i: the port of rail i is down at this end, or its NIC is dead.
    down: u8,
    /// The failure detectors of the connection ([`DetectorConfig::agreed`]). Before the connection,
    /// the configured detectors.
    pub(super) detector: DetectorConfig,
    /// Bit i: a message of the peer has arrived on rail i.
    heard: u8,
    /// Whether an unreliable connection sends messages before the peer was heard.
    pub(super) sends_unheard: bool,
    /// The vQP's number: the number of the first queue pair on the first live NIC, or a number that
    /// another vQP has transferred. The current queue pairs of the rails may have other numbers.
    qpn: Qpn,
    /// Derives the first PSNs of queue pairs.
    secret: SecretWord,
    /// Present if the vQP is a member of the poll group.
    pub(super) group: Option<GroupMembership>,
}

impl RailSet {
    /// Creates one rail on each NIC of the domain. On a dead NIC, the rail has no queue pair. `own`
    /// are the same NICs with completion channels of the vQP. The rails then report control
    /// messages on these channels too. `group` is present for a member of the poll group.
    pub(super) fn new(
        domain: &Domain,
        own: Option<&[LocalNic]>,
        config: Config,
        secret: &Secret,
        group: Option<GroupMembership>,
    ) -> Result<RailSet> {
        let (cookie, seed) = (secret.cookie, secret.seed);
        let mut set = RailSet {
            rails: Vec::new(),
            config,
            detector: config.detector,
            down: 0,
            heard: 0,
            sends_unheard: false,
            qpn: Qpn::new(0),
            secret: seed,
            group,
        };
        for (i, nic) in own.unwrap_or(domain.nics()).iter().enumerate() {
            let secret = derive_secret(seed, i as u64);
            let qkey = (secret.expose() >> 33) as u32;
            let rail = domain.port(i).and_then(|port| {
                let control = match own {
                    Some(_) => ControlEndpoint::own(nic, cookie, qkey),
                    None => domain.join_control_endpoint(i, cookie, qkey, set.member()),
                };
                Rail::new((nic, port), control?, cookie, &config, secret, set.membership(i))
            });
            match rail {
                Ok(rail) => set.rails.push(rail),
                Err(error) => {
                    let _ = set.destroy(domain); // best effort: the caller gets the first error
                    return Err(error);
                }
            }
        }
        let Some(first) = set.rails.iter().find(|rail| rail.data().exists()) else {
            let _ = set.destroy(domain); // dead NICs have no objects
            return Err(Error::DeviceFatal);
        };
        set.qpn = first.qpn();
        Ok(set)
    }

    #[inline]
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn set_max_path_mtu(&mut self, mtu: Mtu) {
        self.config.max_path_mtu = mtu;
    }

    pub(super) fn agree_on_heartbeats(&mut self, peer_interval: Duration, peer_max_missed: u32) {
        self.detector = self.config.detector.agreed(peer_interval, peer_max_missed);
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(super) fn len(&self) -> usize {
        self.rails.len()
    }

    #[inline]
    pub(super) fn get(&self, rail: usize) -> &Rail {
        &self.rails[rail]
    }

    pub(super) fn get_mut(&mut self, rail: usize) -> &mut Rail {
        &mut self.rails[rail]
    }

    pub(super) fn iter(&self) -> core::slice::Iter<'_, Rail> {
        self.rails.iter()
    }

    pub(super) fn is_down(&self, rail: usize) -> bool {
        self.down & (1 << rail) != 0
    }

    pub(super) fn set_down(&mut self, rail: usize, down: bool) {
        self.down = (self.down & !(1 << rail)) | (u8::from(down) << rail);
    }

    pub(super) fn nic_answers(&self, rail: usize) -> bool {
        self.rails[rail].provider().query_port().is_ok()
    }

    /// Connects every rail to the peer and moves its queue pair to RTR. Skips dead NICs, which
    /// maintenance detects. Returns [`Error::DeviceFatal`] only if no NIC is alive.
    pub(super) fn connect(&mut self, peer: &[RailInfo], mtu: Mtu, min_rnr_timer: RnrTimer) -> Result<()> {
        let now = self.rails[0].provider().now();
        self.config.min_rnr_timer = min_rnr_timer;
        let mut connected = Err(Error::DeviceFatal);
        for (rail, info) in self.rails.iter_mut().zip(peer) {
            match rail.connect(info, mtu, &self.config) {
                Ok(()) => connected = Ok(()),
                Err(Error::DeviceFatal) => {}
                Err(error) => return Err(error),
            }
            rail.note_heard(now);
        }
        connected
    }

    pub(super) fn start_sending(&mut self, rnr_retry: u8) -> Result<()> {
        self.config.rnr_retry = rnr_retry;
        self.rails.iter_mut().try_for_each(|rail| rail.start_sending(&self.config))
    }

    /// Changes the rights of the peer on the current and all later queue pairs.
    pub(super) fn set_access(&mut self, access: Access) -> Result<()> {
        self.config.access = access;
        self.rails.iter().map(|rail| rail.set_access(access)).fold(Ok(()), Result::and)
    }

    /// Sends a control message on every rail whose device is up, first on the rail `first`. `wakes`
    /// says whether the message wakes a peer that waits for events.
    pub(super) fn broadcast(&self, first: usize, bytes: &[u8], wakes: bool) {
        let others = (0..self.rails.len()).filter(|&rail| rail != first);
        for rail in core::iter::once(first).chain(others).filter(|&rail| !self.is_down(rail)) {
            self.rails[rail].send_control(bytes, wakes);
        }
    }

    /// Records that a message of the peer has arrived on a rail. Returns whether that message is
    /// the first on the rail.
    pub(super) fn note_message(&mut self, rail: usize, now: Time) -> bool {
        self.rails[rail].note_heard(now);
        let before = self.heard;
        self.heard |= 1 << rail;
        self.heard != before
    }

    /// Returns whether a message of the peer has ever arrived on a rail. If so, the path has
    /// worked, and the peer has connected its queue pairs.
    pub(super) fn was_heard(&self, rail: usize) -> bool {
        self.heard & (1 << rail) != 0
    }

    pub(super) fn is_peer_heard(&self) -> bool {
        self.heard != 0
    }

    /// Excludes the last `time` from the measurement of the peer's silence on every rail.
    pub(super) fn note_unobserved(&mut self, now: Time, time: Duration) {
        for rail in &mut self.rails {
            let excluded = rail.last_heard() + time;
            rail.note_heard(excluded.min(now));
        }
    }

    /// Replaces the fenced queue pair of a rail, which the vQP left by the ballot `left_by`. See
    /// [`Rail::replace_qp`].
    pub(super) fn replace_qp(&mut self, rail: usize, left_by: Ballot) -> Result<()> {
        let first_psn = self.replacement_psn(rail, left_by);
        let keep_number = self.rails[rail].qpn() == self.qpn;
        let group = self.group.as_ref().and_then(|group| group.on_rail(rail));
        self.rails[rail].replace_qp(&self.config, left_by, first_psn, keep_number, group)
    }

    fn membership(&self, rail: usize) -> Membership<'_> {
        self.group.as_ref().and_then(|group| group.on_rail(rail))
    }

    /// `None` if the vQP is no member of the poll group.
    pub(super) fn member(&self) -> Option<&Arc<Member>> {
        self.group.as_ref().map(|group| &group.member)
    }

    /// Returns whether the peer was heard on every rail.
    pub(super) fn is_heard_on_all_rails(&self) -> bool {
        (0..self.rails.len()).all(|rail| self.was_heard(rail))
    }

    /// The first PSN of the replacement queue pair on `rail` after the ballot `left_by`.
    pub(super) fn replacement_psn(&self, rail: usize, left_by: Ballot) -> Psn {
        first_psn(derive_secret(self.secret, u64::from(left_by.epoch) << 8 | rail as u64))
    }

    pub(super) fn connect_replacement(&mut self, rail: usize, qpn: Qpn, psn: Psn) -> Result<()> {
        self.rails[rail].connect_replacement(qpn, psn, &self.config)
    }

    /// Moves every rail of a vQP that closes for `reason` to ERR. On the rails in `used`, the peer
    /// may have posted requests. The caller must fence them, because a packet that has begun may
    /// still access memory. On the other rails nothing has begun. If the NIC of such a rail can be
    /// neither stopped nor reset, returns [`CloseReason::Unfenced`] instead of `reason`.
    pub(super) fn stop_all(&self, used: [usize; 2], reason: CloseReason) -> CloseReason {
        let mut fenced = true;
        for (i, rail) in self.rails.iter().enumerate() {
            if rail.modify_to_error() == Err(Error::DeviceFatal) {
                // The NIC is dead, or it hangs and may still access memory.
                fenced &= rail.provider().reset().is_ok() || !used.contains(&i);
            }
        }
        if fenced { reason } else { CloseReason::Unfenced }
    }

    pub(super) fn transfer_qpn(&mut self, to: &mut RailSet) -> Result<()> {
        for (from, to) in self.rails.iter_mut().zip(&mut to.rails) {
            if from.holds_number(self.qpn) {
                from.transfer_qpn(to)?;
            }
        }
        to.qpn = self.qpn;
        Ok(())
    }

    /// Destroys the objects of every rail on its NIC. Returns the first error.
    pub(super) fn destroy(&self, domain: &Domain) -> Result<()> {
        let mut first = Ok(());
        for (i, rail) in self.rails.iter().enumerate() {
            let qpn = rail.qpn();
            first = first.and(rail.destroy());
            // Discards the events of the removed queue pair.
            let _ = (domain.take_qp_error(i, qpn), domain.take_established(i, qpn));
        }
        first
    }
}

/// Derives the `i`-th secret: the `i`-th number, from 0, that SplitMix64 draws.
pub(super) fn derive_secret(secret: SecretWord, i: u64) -> SecretWord {
    SecretWord::new(mix(secret.expose().wrapping_add((i + 1).wrapping_mul(SPLIT_MIX_STEP))))
}
