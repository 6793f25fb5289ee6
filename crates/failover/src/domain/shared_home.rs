//! The home rail of a domain's vQPs: fences their queue pairs on the NICs when it moves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use mitra_verbs::{AtomicScope, Error, QpAttr, QpState, Qpn, Result};

use super::{Domain, lock};
use crate::home_rail::{Home, HomeRail, VqpId};

/// The home rail of the domains that share their NICs.
#[derive(Debug, Default)]
pub(super) struct SharedHome {
    state: Mutex<State>,
    /// A copy of the state's [`HomeRail::is_shared`], for vQPs that need to know nothing else.
    is_shared: AtomicBool,
    members: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    rail: HomeRail,
    /// The number of connected vQPs that do not fence the rails they leave.
    unfenced: u64,
}

/// The home rail, as one vQP sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HomeView {
    pub(crate) home: Home,
    /// Whether the vQP's queue pair on the rail in question is bound ([`HomeRail`]).
    pub(crate) is_bound: bool,
}

/// The result of [`Domain::move_home`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HomeMove {
    /// The queue pair is bound, and its rail is the home.
    Moved,
    /// The home is a newer one.
    Outdated(Home),
    /// A queue pair of another rail cannot be fenced.
    Unfenced,
}

impl Domain {
    /// Lets several vQPs use the same words of this process's memory by atomics. From now on, all
    /// vQPs of this domain, and of the domains that share its NICs by [`Domain::with_own_pds`], are
    /// on the same rail, their *home*, and leave it together: an atomic is atomic only with respect
    /// to atomics of the same NIC. The end that lends the memory calls this, before a peer knows
    /// its keys. It has no effect if every NIC has [`AtomicScope::Global`].
    ///
    /// A vQP that is connected while the home is not rail 0 moves there. If no rail reaches all
    /// peers, the home moves from one rail to another, and the vQPs execute requests in turn.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a vQP is connected that does not fence a rail it leaves (another
    /// [`Policy`](crate::Policy) than `Exact`); a later one is refused when it connects.
    /// [`Error::DeviceFatal`] if vQPs are on several rails already and a NIC can be neither fenced
    /// nor reset.
    pub fn share_atomics(&self) -> Result<()> {
        let scope = |nic: &super::LocalNic| nic.provider.attr().capabilities.atomic_scope;
        if self.nics.iter().all(|nic| scope(nic) == AtomicScope::Global) {
            return Ok(());
        }
        let mut state = self.lock_home();
        if state.unfenced > 0 {
            return Err(UNFENCED);
        }
        if !state.rail.is_shared() {
            state.rail.share();
            self.home.is_shared.store(true, Ordering::Release);
        }
        let home = state.rail.home();
        if self.fence_all_outside(&mut state.rail, home.rail) { Ok(()) } else { Err(Error::DeviceFatal) }
    }

    fn lock_home(&self) -> MutexGuard<'_, State> {
        lock(&self.home.state)
    }

    /// Returns an identity for a vQP.
    pub(crate) fn new_home_member(&self) -> VqpId {
        VqpId(self.home.members.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a vQP whose rails have just been connected and whose peer may not post yet. `qpn` is
    /// its queue pair on rail 0. If the home is another rail, the queue pair is fenced, and the vQP
    /// must move to the home. `fences` says whether the vQP fences the rails that it leaves.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it does not and the vQPs share atomics; [`Error::DeviceFatal`] if
    /// the queue pair cannot be fenced.
    pub(crate) fn join_home(&self, member: VqpId, qpn: Qpn, fences: bool) -> Result<()> {
        let mut state = self.lock_home();
        if !fences {
            if state.rail.is_shared() {
                return Err(UNFENCED);
            }
            state.unfenced += 1;
            return Ok(());
        }
        let first = Home { rail: 0, ..state.rail.home() };
        if state.rail.bind(member, first, qpn) || self.fence_qp(&mut state.rail, member, 0, qpn) {
            return Ok(());
        }
        Err(Error::DeviceFatal)
    }

    /// Removes a vQP that has closed. A queue pair that cannot be fenced stays bound, so the home
    /// stays there.
    pub(crate) fn leave_home(&self, member: VqpId, fences: bool) {
        let mut state = self.lock_home();
        if !fences {
            state.unfenced = state.unfenced.saturating_sub(1);
            return;
        }
        while let Some((rail, qpn)) = state.rail.next_of(member) {
            if !self.fence_qp(&mut state.rail, member, rail, qpn) {
                break;
            }
        }
    }

    /// Binds the queue pair of a vQP on the rail of `to`, so that its peer may post requests to it,
    /// and makes this rail the home, unless the home is newer. If the vQPs share atomics, all queue
    /// pairs that are bound on other rails are fenced first.
    pub(crate) fn move_home(&self, member: VqpId, to: Home, qpn: Qpn) -> HomeMove {
        let mut state = self.lock_home();
        if state.rail.is_newer_than(to) {
            return HomeMove::Outdated(state.rail.home());
        }
        if self.fence_all_outside(&mut state.rail, to.rail) && state.rail.bind(member, to, qpn) {
            HomeMove::Moved
        } else {
            HomeMove::Unfenced
        }
    }

    /// Binds a queue pair with a shared backup on `rail`, so that its peer may post requests to it,
    /// and connects it by calling `connect`. It never moves the home: its backup does.
    ///
    /// # Errors
    /// The error of `connect`; [`Error::Invalid`], without a call of `connect`, if the vQPs share
    /// atomics and their home is another rail.
    pub(crate) fn connect_at_home(
        &self,
        member: VqpId,
        rail: u8,
        qpn: Qpn,
        connect: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut state = self.lock_home();
        let home = state.rail.home();
        let is_away = state.rail.is_shared() && home.rail != rail;
        if is_away || !state.rail.bind(member, Home { rail, ..home }, qpn) {
            return Err(HOME_MOVED);
        }
        connect()
    }

    /// Records that a queue pair, which [`Domain::connect_at_home`] bound, executes nothing more.
    pub(crate) fn unbind_at_home(&self, member: VqpId, rail: u8) {
        self.lock_home().rail.unbind(member, rail);
    }

    /// Connects the queue pair that replaces the bound one of a vQP on `rail`, by calling
    /// `connect`.
    ///
    /// # Errors
    /// The error of `connect`; [`Error::Invalid`], without a call of `connect`, if the home has
    /// moved since the queue pair was bound.
    pub(crate) fn connect_replacement_at_home(
        &self,
        member: VqpId,
        rail: u8,
        qpn: Qpn,
        connect: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut state = self.lock_home();
        if !state.rail.replace(member, rail, qpn) {
            return Err(HOME_MOVED);
        }
        connect()
    }

    /// Returns the home rail and whether the vQP's queue pair on `rail` is bound; `None` if the
    /// vQPs do not share atomics.
    pub(crate) fn view_home(&self, member: VqpId, rail: u8) -> Option<HomeView> {
        if !self.home.is_shared.load(Ordering::Acquire) {
            return None;
        }
        let state = self.lock_home();
        Some(HomeView { home: state.rail.home(), is_bound: state.rail.is_bound(member, rail) })
    }

    /// Fences every queue pair that is bound on another rail than `rail`. Returns whether all are
    /// fenced.
    fn fence_all_outside(&self, home: &mut HomeRail, rail: u8) -> bool {
        while let Some((member, on, qpn)) = home.next_to_fence(rail) {
            if !self.fence_qp(home, member, on, qpn) {
                return false;
            }
        }
        true
    }

    /// Fences one queue pair, or resets its NIC if the NIC does not answer. Returns whether the
    /// queue pair executes nothing more.
    fn fence_qp(&self, home: &mut HomeRail, member: VqpId, rail: u8, qpn: Qpn) -> bool {
        let nic = &self.nics[usize::from(rail)].provider;
        match nic.modify_qp(qpn, &QpAttr::to(QpState::Err)) {
            // A queue pair that was destroyed executes nothing.
            Ok(()) | Err(Error::NoSuchObject { .. }) => home.unbind(member, rail),
            // The NIC is dead, or it hangs and may still execute requests.
            Err(_) if nic.reset().is_ok() => home.unbind_all(rail),
            Err(_) => return false,
        }
        true
    }
}

const HOME_MOVED: Error = Error::Invalid("the home rail has moved");
const UNFENCED: Error = Error::Unsupported(
    "atomics shared by vQPs of which one does not fence the rails that it leaves: give all of them the policy exact",
);
