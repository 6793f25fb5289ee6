//! What an end knows of each rail.

use super::RailNegotiation;

bitflags::bitflags! {
    /// Why a rail cannot be used.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub(super) struct RailState: u8 {
        /// The port is down or the NIC is dead at this end.
        const DOWN = 1;
        /// The rail is down because its NIC is dead.
        const DEAD = 1 << 1;
        /// The current queue pair has failed at this end.
        const QP_FAILED = 1 << 2;
        /// The vQP left the rail, and this end has not connected its new queue pair there.
        const LOCAL_QP_MISSING = 1 << 3;
        /// The vQP left the rail, and the peer's new queue pair is not known to be connected.
        const PEER_QP_MISSING = 1 << 4;
        /// The peer cannot use the rail, by its last heartbeat. Later heartbeats may have been
        /// lost.
        const PEER_UNUSABLE = 1 << 5;
        /// The peer refused the rail in the current move, or in the last one if that ended in
        /// [`Action::Stay`](super::Action::Stay).
        const REFUSED = 1 << 6;

        /// The device or the queue pair has failed at this end.
        const FAILED = Self::DOWN.bits() | Self::QP_FAILED.bits();
    }
}

impl RailNegotiation {
    pub(super) fn rail(&self, rail: impl Into<usize>) -> RailState {
        self.rails[rail.into()]
    }

    pub(super) fn rail_mut(&mut self, rail: impl Into<usize>) -> &mut RailState {
        &mut self.rails[rail.into()]
    }

    /// Returns whether the device or the queue pair of the active rail has failed at this end.
    pub(super) fn has_active_failed(&self) -> bool {
        self.rail(self.active).intersects(RailState::FAILED)
    }

    pub(super) fn has_active_qp_failed(&self) -> bool {
        self.rail(self.active).contains(RailState::QP_FAILED)
    }

    pub(super) fn are_all_nics_dead(&self) -> bool {
        self.rails[..usize::from(self.rail_count)].iter().all(|rail| rail.contains(RailState::DEAD))
    }

    /// The set of rails with `state`: bit i is rail i.
    pub(super) fn rails_with(&self, state: RailState) -> u8 {
        let with = (0..).zip(&self.rails).filter(|(_, rail)| rail.contains(state));
        with.fold(0, |set, (i, _)| set | 1 << i)
    }

    /// Sets `state` of the rails in `set`, and clears it of the others.
    pub(super) fn set_rails_with(&mut self, state: RailState, set: u8) {
        (0..).zip(&mut self.rails).for_each(|(i, rail)| rail.set(state, set & 1 << i != 0));
    }
}
