//! The home rail of a domain's vQPs (`home_rail.rs`), and the fences when the home moves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use mitra_verbs::{AtomicScope, Error, QpAttr, QpState, Qpn, Result};

use super::{Domain, lock};
use crate::home_rail::{Home, HomeRail, VqpId};

#[derive(Debug, Default)]
pub(super) struct SharedHome {
    state: Mutex<State>,
    /// A copy of [`HomeRail::is_shared`], for vQPs that need nothing else of the state.
    is_shared: AtomicBool,
    members: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    rail: HomeRail,
    /// The number of connected vQPs that do not fence the rails they leave.
    unfenced: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HomeView {
    pub(crate) home: Home,
    /// Whether the vQP's queue pair on the requested rail is bound ([`HomeRail`]).
    pub(crate) is_bound: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HomeMove {
    /// The queue pair is bound, and its rail is the home.
    Moved,
    /// The home is newer than the proposed one.
    Outdated(Home),
    /// A queue pair on another rail cannot be fenced.
    Unfenced,
}

impl Domain {
    /// Lets several vQPs use the same words of this process's memory by atomics. An atomic is
    /// atomic only with respect to atomics of the same NIC. From now on, all vQPs of this domain
    /// and of the domains over its NICs ([`Domain::with_own_pds`]) are therefore on one rail, their
    /// *home*, and leave it together. The end that lends the memory makes this call before a peer
    /// knows its keys. The call has no effect if every NIC has [`AtomicScope::Global`].
    ///
    /// A vQP that connects while the home is not rail 0 moves to the home. If no rail reaches all
    /// peers, the home moves from one rail to another, and the vQPs execute requests in turn.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a connected vQP does not fence the rails that it leaves (another
    /// [`Policy`](crate::Policy) than `Exact`). After this call, a vQP with such a policy is
    /// refused when it connects. [`Error::DeviceFatal`] if vQPs are on several rails already and a
    /// NIC can be neither fenced nor reset.
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
            self.shared.home.is_shared.store(true, Ordering::Release);
        }
        let home = state.rail.home();
        if self.fence_all_outside(&mut state.rail, home.rail) { Ok(()) } else { Err(Error::DeviceFatal) }
    }

    fn lock_home(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.home.state)
    }

    pub(crate) fn new_home_member(&self) -> VqpId {
        VqpId(self.shared.home.members.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a vQP whose rails are connected and whose peer may not post yet. `qpn` is its queue
    /// pair on rail 0. If the home is another rail, the queue pair is fenced, and the vQP must move
    /// to the home. `fences` says whether the vQP fences the rails that it leaves.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the vQP does not fence and the vQPs share atomics;
    /// [`Error::DeviceFatal`] if the queue pair cannot be fenced.
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

    /// Removes a closed vQP. A queue pair that cannot be fenced stays bound, so the home stays too.
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

    /// Binds the queue pair `qpn` on the rail of `to`, so that its peer may post requests to it.
    /// Makes this rail the home. Changes nothing if the present home is newer than `to`. If the
    /// vQPs share atomics, fences all queue pairs that are bound on other rails first.
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

    /// Binds the queue pair `qpn` on `rail`, so that its peer may post requests to it, and calls
    /// `connect`, which connects it. For a vQP with a shared backup. Such a vQP never moves the
    /// home, because only its backup does.
    ///
    /// # Errors
    /// The error of `connect`. [`Error::Invalid`] if the vQPs share atomics and their home is
    /// another rail; `connect` is then not called.
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

    /// Unbinds a queue pair that [`Domain::connect_at_home`] bound. It must execute nothing more.
    pub(crate) fn unbind_at_home(&self, member: VqpId, rail: u8) {
        self.lock_home().rail.unbind(member, rail);
    }

    /// Replaces the bound queue pair of a vQP on `rail` by `qpn`, and calls `connect`, which
    /// connects `qpn`.
    ///
    /// # Errors
    /// The error of `connect`. [`Error::Invalid`] if the home has moved since the queue pair was
    /// bound; `connect` is then not called.
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

    /// `None` if the vQPs do not share atomics.
    pub(crate) fn view_home(&self, member: VqpId, rail: u8) -> Option<HomeView> {
        if !self.shared.home.is_shared.load(Ordering::Acquire) {
            return None;
        }
        let state = self.lock_home();
        Some(HomeView { home: state.rail.home(), is_bound: state.rail.is_bound(member, rail) })
    }

    /// Fences the bound queue pairs on other rails than `rail`. Returns whether all are fenced.
    fn fence_all_outside(&self, home: &mut HomeRail, rail: u8) -> bool {
        while let Some((member, on, qpn)) = home.next_to_fence(rail) {
            if !self.fence_qp(home, member, on, qpn) {
                return false;
            }
        }
        true
    }

    /// Moves one queue pair to ERR, or resets a NIC that does not answer. Returns whether the queue
    /// pair executes nothing more, but for a packet that it has begun: its markers complete at its
    /// owner, which may be another vQP.
    fn fence_qp(&self, home: &mut HomeRail, member: VqpId, rail: u8, qpn: Qpn) -> bool {
        // The fence may cause no completion, and the fenced vQP must follow the home.
        self.shared.group.wake(rail.into(), qpn);
        let nic = &self.nics[usize::from(rail)].provider;
        match nic.modify_qp(qpn, &QpAttr::to(QpState::Err)) {
            Ok(()) | Err(Error::NoSuchObject { .. }) => home.unbind(member, rail),
            // The NIC may be hung and still execute requests.
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
