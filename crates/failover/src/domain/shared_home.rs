//! The home rail of a domain's vQPs (`home_rail.rs`), and the fences when the home moves.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use mitra_verbs::{AtomicScope, Error, QpState, Result, Time};

use super::{Domain, lock};
use crate::data_qp::QpHandle;
use crate::home_rail::{Home, HomeRail, VqpId};
use crate::vqp::DRAIN_TIMEOUT;

/// A stopping queue pair is destroyed at this check after [`DRAIN_TIMEOUT`]. The time alone does
/// not show that its vQP makes no progress, because this process may have been suspended.
const MAX_LATE_CHECKS: u32 = 10;
/// The shortest time between two checks of the stopping queue pairs.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct SharedHome {
    state: Mutex<State>,
    /// A copy of [`HomeRail::is_shared`], for vQPs that need nothing else of the state.
    is_shared: AtomicBool,
    members: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    rail: HomeRail<HomeQp>,
    /// When the stopping queue pairs are to be checked next.
    next_check: Time,
    /// The number of connected vQPs that do not fence the rails they leave.
    unfenced: u64,
}

#[derive(Debug)]
struct HomeQp {
    qp: QpHandle,
    /// Whether the queue pair, although bound, executes nothing more.
    is_fenced: bool,
    /// When the queue pair was stopped.
    stopped_at: Time,
    /// The number of checks that found the queue pair stopping after [`DRAIN_TIMEOUT`].
    late_checks: u32,
}

impl HomeQp {
    fn new(qp: &QpHandle, is_fenced: bool) -> HomeQp {
        HomeQp { qp: qp.clone(), is_fenced, stopped_at: Time::ZERO, late_checks: 0 }
    }

    /// Checks a stopping queue pair. Returns whether it must be destroyed.
    fn is_overdue(&mut self, now: Time) -> bool {
        self.late_checks += u32::from(now > self.stopped_at + DRAIN_TIMEOUT);
        self.late_checks >= MAX_LATE_CHECKS
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HomeView {
    pub(crate) home: Home,
    /// Whether the vQP's queue pair on the requested rail is bound ([`HomeRail`]).
    pub(crate) is_bound: bool,
    /// Whether a move of the home has stopped this queue pair, which the vQP has not fenced yet.
    pub(crate) is_stopping: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HomeMove {
    /// The queue pair is bound, and its rail is the home.
    Moved,
    /// Other vQPs have not fenced their stopped queue pairs yet. The caller asks again.
    Pending,
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
        // The vQPs on the home rail do not wait, so the others are ended at once.
        let home = state.rail.home();
        while let Some((member, on)) = state.rail.next_to_stop(home.rail) {
            if !self.end(&mut state, member, on) {
                return Err(Error::DeviceFatal);
            }
        }
        Ok(())
    }

    fn lock_home(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.home.state)
    }

    pub(crate) fn new_home_member(&self) -> VqpId {
        VqpId(self.shared.home.members.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a vQP whose rails are connected and whose peer may not post yet. `qp` is its queue pair
    /// on rail 0. If the home is another rail, the queue pair is moved to ERR before it executes
    /// anything, and the vQP must move to the home. `fences` says whether the vQP fences the rails
    /// that it leaves.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the vQP does not fence and the vQPs share atomics;
    /// [`Error::DeviceFatal`] if the queue pair cannot be fenced.
    pub(crate) fn join_home(&self, member: VqpId, qp: &QpHandle, fences: bool) -> Result<()> {
        let mut state = self.lock_home();
        if !fences {
            if state.rail.is_shared() {
                return Err(UNFENCED);
            }
            state.unfenced += 1;
            return Ok(());
        }
        let to = Home { rail: 0, ..state.rail.home() };
        let is_bound = !state.rail.is_newer_than(to) && state.rail.bind(member, to, HomeQp::new(qp, false));
        if is_bound || self.stop_unbound(&mut state, 0, qp) { Ok(()) } else { Err(Error::DeviceFatal) }
    }

    /// Removes a closed vQP, which has fenced the queue pairs that its peer may have used. A queue
    /// pair that cannot be stopped stays bound, so the home stays too. `is_unfenced` says that a
    /// fence has failed.
    pub(crate) fn leave_home(&self, member: VqpId, fences: bool, is_unfenced: bool) {
        let mut state = self.lock_home();
        if !fences {
            state.unfenced = state.unfenced.saturating_sub(1);
            return;
        }
        while let Some(rail) = state.rail.next_of(member) {
            let Some(qp) = state.rail.qp_mut(member, rail).map(|home_qp| home_qp.qp.clone()) else { return };
            if !self.stop_unbound(&mut state, rail, &qp) {
                return;
            }
            match is_unfenced {
                true => state.rail.stop(member, rail),
                false => state.rail.unbind(member, rail),
            }
        }
        if !is_unfenced {
            state.rail.unbind_stopped(member);
        }
    }

    /// Binds the queue pair `qp` on the rail of `to`, so that its peer may post requests to it.
    /// Makes this rail the home, unless the present home is newer than `to`. If the
    /// vQPs share atomics, first stops all queue pairs that are bound on other rails, and waits
    /// until they are fenced. `is_fenced` says that the vQP has fenced `qp` and will replace it.
    /// `unused` is the rail on which the vQP was bound last, if its peer has not posted there.
    pub(crate) fn move_home(
        &self,
        member: VqpId,
        to: Home,
        (qp, is_fenced): (&QpHandle, bool),
        unused: Option<u8>,
        now: Time,
    ) -> HomeMove {
        let mut state = self.lock_home();
        if let Some(rail) = unused.filter(|_| state.rail.is_shared())
            && let Some(unused) = state.rail.qp_mut(member, rail).map(|home_qp| home_qp.qp.clone())
            && self.stop_unbound(&mut state, rail, &unused)
        {
            state.rail.unbind(member, rail);
        }
        if state.rail.is_newer_than(to) {
            return HomeMove::Outdated(state.rail.home());
        }
        if !self.stop_all_outside(&mut state, to.rail, now) {
            return HomeMove::Unfenced;
        }
        if state.rail.bind(member, to, HomeQp::new(qp, is_fenced)) {
            return HomeMove::Moved;
        }
        state.rail.announce(to);
        HomeMove::Pending
    }

    /// The vQP has fenced its queue pair on `rail`, which executes nothing more.
    pub(crate) fn on_home_qp_fenced(&self, member: VqpId, rail: u8) {
        let mut state = self.lock_home();
        match state.rail.is_bound(member, rail) {
            true => state.rail.qp_mut(member, rail).into_iter().for_each(|home_qp| home_qp.is_fenced = true),
            false => state.rail.unbind(member, rail),
        }
    }

    /// Binds the queue pair `qp` on `rail`, so that its peer may post requests to it, and calls
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
        qp: &QpHandle,
        connect: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut state = self.lock_home();
        let home = state.rail.home();
        let is_away = state.rail.is_shared() && home.rail != rail;
        if is_away || !state.rail.bind(member, Home { rail, ..home }, HomeQp::new(qp, false)) {
            return Err(HOME_MOVED);
        }
        connect()
    }

    /// Unbinds a queue pair that [`Domain::connect_at_home`] bound. It must execute nothing more.
    pub(crate) fn unbind_at_home(&self, member: VqpId, rail: u8) {
        self.lock_home().rail.unbind(member, rail);
    }

    /// Replaces the bound queue pair of a vQP on `rail` by `qp`, and calls `connect`, which
    /// connects `qp`.
    ///
    /// # Errors
    /// The error of `connect`. [`Error::Invalid`] if the home has moved since the queue pair was
    /// bound; `connect` is then not called.
    pub(crate) fn connect_replacement_at_home(
        &self,
        member: VqpId,
        rail: u8,
        qp: &QpHandle,
        connect: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut state = self.lock_home();
        if !state.rail.replace(member, rail, HomeQp::new(qp, false)) {
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
        let (is_bound, is_stopping) =
            (state.rail.is_bound(member, rail), state.rail.is_stopping(member, rail));
        Some(HomeView { home: state.rail.home(), is_bound, is_stopping })
    }

    /// Stops the bound queue pairs on other rails than `rail`, and ends those that have been
    /// stopping for long. Returns false if a NIC can neither stop nor end one, and cannot be reset.
    fn stop_all_outside(&self, state: &mut State, rail: u8, now: Time) -> bool {
        while let Some((member, on)) = state.rail.next_to_stop(rail) {
            if !self.stop(state, member, on, now) {
                return false;
            }
        }
        if now < state.next_check {
            return true;
        }
        state.next_check = now + CHECK_INTERVAL;
        let stopping: Vec<_> = state.rail.stopping_outside(rail).collect();
        stopping.into_iter().all(|(member, on)| {
            let is_overdue = state.rail.qp_mut(member, on).is_some_and(|home_qp| home_qp.is_overdue(now));
            !is_overdue || self.end(state, member, on)
        })
    }

    /// Moves one bound queue pair to ERR, or resets a NIC that does not answer. Its vQP then fences
    /// it. Until then, it may execute a packet that it has begun.
    fn stop(&self, state: &mut State, member: VqpId, rail: u8, now: Time) -> bool {
        let Some(home_qp) = state.rail.qp_mut(member, rail) else { return false };
        // The change may cause no completion, and the vQP must fence and follow the home.
        self.shared.group.wake(rail.into(), home_qp.qp.qpn());
        if home_qp.is_fenced || home_qp.qp.is_ended() {
            state.rail.unbind(member, rail);
            return true;
        }
        (home_qp.stopped_at, home_qp.late_checks) = (now, 0);
        match home_qp.qp.modify_to(QpState::Err) {
            Ok(()) => state.rail.stop(member, rail),
            Err(Error::NoSuchObject { .. }) => state.rail.unbind(member, rail),
            Err(_) => return self.reset(state, rail),
        }
        true
    }

    /// Destroys a queue pair, or resets its NIC. Returns whether it executes nothing more.
    fn end(&self, state: &mut State, member: VqpId, rail: u8) -> bool {
        let Some(home_qp) = state.rail.qp_mut(member, rail) else { return true };
        self.shared.group.wake(rail.into(), home_qp.qp.qpn());
        match home_qp.qp.end() {
            Ok(()) | Err(Error::NoSuchObject { .. }) => state.rail.unbind(member, rail),
            Err(_) => return self.reset(state, rail),
        }
        true
    }

    /// Moves a queue pair to ERR that has executed nothing, or that its vQP has fenced.
    fn stop_unbound(&self, state: &mut State, rail: u8, qp: &QpHandle) -> bool {
        match qp.modify_to(QpState::Err) {
            Ok(()) | Err(Error::NoSuchObject { .. }) => true,
            Err(_) => self.reset(state, rail),
        }
    }

    /// Resets a NIC, which may be hung and still execute requests.
    fn reset(&self, state: &mut State, rail: u8) -> bool {
        let is_reset = self.nics[usize::from(rail)].provider.reset().is_ok();
        if is_reset {
            state.rail.unbind_all(rail);
        }
        is_reset
    }
}

const HOME_MOVED: Error = Error::Invalid("the home rail has moved");
const UNFENCED: Error = Error::Unsupported(
    "atomics shared by vQPs of which one does not fence the rails that it leaves: give all of them the policy exact",
);
